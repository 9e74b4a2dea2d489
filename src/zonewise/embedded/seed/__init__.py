"""What a new cluster starts with: nodes, the demo, manifests, or the dump of another cluster."""
