"""Kubernetes' own conformance specs against the embedded cluster."""
