"""Which pods may be disrupted now, as budgets allow it. Pure."""
