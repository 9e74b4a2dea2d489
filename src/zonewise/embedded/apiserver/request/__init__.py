"""A request to the API: its path, its formats, and the errors it may be answered with."""
