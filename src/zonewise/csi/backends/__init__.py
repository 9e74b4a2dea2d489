"""Where volumes are stored. ``contract`` says what a backend must do; each has its own package."""
