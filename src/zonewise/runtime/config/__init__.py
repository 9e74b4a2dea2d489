"""Which cluster to connect to, and as which user: kubeconfig, credentials, TLS."""
