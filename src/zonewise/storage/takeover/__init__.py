"""Takeover: nodes of live domains stand in for a failed one, and give it back. Pure."""
