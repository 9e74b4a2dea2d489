"""The components of Kubernetes itself; each works against any API server."""
