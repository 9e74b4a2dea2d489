"""Zonewise makes a Kubernetes cluster aware of where things are."""
