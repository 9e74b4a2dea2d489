"""Side by side with peers: every number is a ratio against somebody else in the same run."""
