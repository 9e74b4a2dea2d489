"""Which pods are evicted in the place of those that a budget holds."""
