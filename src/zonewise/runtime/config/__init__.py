"""Which cluster to talk to, and as whom: kubeconfig, credentials, TLS."""
