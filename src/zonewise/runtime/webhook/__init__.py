"""Admission webhooks: the HTTPS server, reviews, and certificates that renew themselves."""
