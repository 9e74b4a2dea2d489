"""Workload controllers: whose pods there are, how many, and how they change."""
