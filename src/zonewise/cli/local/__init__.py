"""Commands around an embedded cluster: running it, failures, scenarios, its page."""
