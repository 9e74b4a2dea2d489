"""A real Ceph for tests and benchmarks: its Python bindings, and a small cluster on loopback."""
