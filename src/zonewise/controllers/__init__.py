"""Controllers that bring a cluster to what the decisions say: shells around pure functions."""
