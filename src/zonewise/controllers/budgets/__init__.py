"""Budgets on a cluster: their status and baseline, kept by the leader."""
