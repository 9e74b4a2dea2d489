"""Which node for which pod: the scheduler as a function. Pure."""

from zonewise.scheduling.cluster import Cluster
from zonewise.scheduling.decision import Change, Decision, Preemption, Refusal

__all__ = ["Change", "Cluster", "Decision", "Preemption", "Refusal"]
