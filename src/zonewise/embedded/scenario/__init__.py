"""Scenarios: actions on a cluster and assertions about it, played in real or virtual time."""
