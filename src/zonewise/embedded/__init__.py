"""A Kubernetes cluster in one process, composed: the API server, its components, and their seed."""
