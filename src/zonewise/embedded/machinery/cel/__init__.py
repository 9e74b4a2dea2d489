"""The Common Expression Language (CEL), as a Kubernetes API server implements it."""
