"""Typed Structs of the kinds we read and write, by API group, and what their status means."""
