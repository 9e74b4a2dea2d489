"""Admission: hints on slices, validation of Services, and which pods may be disrupted."""
