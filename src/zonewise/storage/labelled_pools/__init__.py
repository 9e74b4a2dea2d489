"""Pools that say themselves which domain they are in, and how they are made."""
