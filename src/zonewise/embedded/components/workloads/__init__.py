"""Workload controllers: which pods exist, how many, and how they are updated."""
