"""Kubernetes' own parts, each working on any API server."""
