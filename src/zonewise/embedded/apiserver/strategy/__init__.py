"""What each kind demands beyond its schema: names, defaults, validation, changes, warnings."""
