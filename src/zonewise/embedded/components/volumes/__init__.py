"""The controllers of claims and volumes: binding, simulated volumes, attachment, protection."""
