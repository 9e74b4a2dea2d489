"""Webhooks as their caller sees them: over HTTPS, with a deadline and a bound."""
