"""Which replica leads, and what stops a former leader from writing."""
