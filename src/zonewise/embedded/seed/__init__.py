"""What a new cluster is filled with: nodes, the demo, manifests, or the dump of another cluster."""
