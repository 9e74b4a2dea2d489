"""StatefulSets."""
