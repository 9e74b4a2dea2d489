"""ReplicaSets and ReplicationControllers."""
