"""Reasons in words: a snapshot becomes a report. Pure."""
