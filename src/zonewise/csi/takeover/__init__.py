"""Takeover on a cluster: labels on nodes, pods that are deleted, and a status."""
