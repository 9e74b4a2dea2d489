"""Development programs. They are not part of the distribution."""
