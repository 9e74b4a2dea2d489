"""Keys that need work, the loop that works on them, events, and components that run together."""
