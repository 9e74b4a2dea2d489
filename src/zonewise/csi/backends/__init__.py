"""Where volumes really are. ``contract`` says what a backend must do; each has a room."""
