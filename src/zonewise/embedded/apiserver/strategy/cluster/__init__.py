"""Namespaces, Nodes, roles, quotas, webhooks and everything else a cluster is made of."""
