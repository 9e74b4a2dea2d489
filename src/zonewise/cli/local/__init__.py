"""Commands around an embedded cluster: hosting it, failures, scenarios, its page."""
