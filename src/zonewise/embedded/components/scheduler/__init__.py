"""The scheduler: the shell around the decisions of ``zonewise.scheduling``."""
