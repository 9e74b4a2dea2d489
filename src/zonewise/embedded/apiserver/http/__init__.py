"""How requests are received: over HTTPS, or from inside the process."""
