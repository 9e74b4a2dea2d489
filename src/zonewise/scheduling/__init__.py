"""Which node for which pod: the scheduler as a function. Pure."""

from zonewise.scheduling.cluster import Cluster
from zonewise.scheduling.decision import Decision, Preemption, Refusal
from zonewise.scheduling.taints import disliked, kept_off, tolerated, tolerates

__all__ = [
    "Cluster",
    "Decision",
    "Preemption",
    "Refusal",
    "disliked",
    "kept_off",
    "tolerated",
    "tolerates",
]
