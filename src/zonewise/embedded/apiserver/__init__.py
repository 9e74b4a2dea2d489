"""A Kubernetes API server in a process, with its state in memory and on SQLite."""
