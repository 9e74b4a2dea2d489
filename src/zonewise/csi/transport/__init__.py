"""How calls reach the services: over a unix socket by gRPC, or in the same process."""
