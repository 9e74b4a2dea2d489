"""Which node for which pod: the scheduler as a function. Pure."""
