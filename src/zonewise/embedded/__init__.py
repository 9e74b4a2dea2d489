"""A Kubernetes cluster in one process: API server, state on SQLite, controllers."""
