"""Which node for which pod: the scheduler as a function. Pure."""

from zonewise.scheduling.cluster import SchedulerCluster
from zonewise.scheduling.decision import ClusterEvent, NodeRefusal, Preemption, SchedulingDecision

__all__ = ["ClusterEvent", "NodeRefusal", "Preemption", "SchedulerCluster", "SchedulingDecision"]
