"""How requests come in: over HTTPS, or from inside the process."""
