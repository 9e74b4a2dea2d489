"""Volumes as CephFS subvolumes: folders that many nodes use at a time."""
