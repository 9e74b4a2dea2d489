"""Decisions repeated from a snapshot, as reports: text for people, JSON for programs. Pure."""
