"""Volumes as RBD images: one node uses an image at a time, and others are fenced."""
