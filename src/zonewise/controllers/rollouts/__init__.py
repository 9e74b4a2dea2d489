"""Rollouts by failure domain on a cluster."""
