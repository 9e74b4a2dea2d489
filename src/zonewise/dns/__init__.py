"""Names: a DNS server for the cluster's domain, near answers for headless Services."""
