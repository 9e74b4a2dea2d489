"""Gives pods their nodes: the shell around the decisions of scheduling."""
