"""A program and its controllers: what they share, and how they start and end."""
