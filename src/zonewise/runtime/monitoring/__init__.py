"""Health checks and metrics, and the port that serves them."""
