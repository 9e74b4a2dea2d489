"""Volumes, claims, classes and drivers."""
