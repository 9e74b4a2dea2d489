"""Which node a pod gets: the scheduler as a function. Pure."""
