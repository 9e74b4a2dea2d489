"""Structural schemas of custom resources: compiled, checked, and their CEL rules."""
