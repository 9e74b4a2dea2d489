"""What Zonewise does against an API server: watch, decide, write the difference."""
