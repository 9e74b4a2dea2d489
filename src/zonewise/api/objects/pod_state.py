"""What a pod's status says, in one place.

A pod has *finished* when its containers ended for good; it never runs again. It is *active* while
it neither has finished nor is terminating. *Ready* is what the condition says and nothing else: a
pod without one is not.
"""

from __future__ import annotations

from zonewise.api.objects.pod import Pod, PodCondition
from zonewise.api.values.numbers import integer

FINISHED = frozenset({"Succeeded", "Failed"})
"""Phases that are not left again."""

DISRUPTION_TARGET = "DisruptionTarget"
"""The type of the condition that says that a pod is about to be deleted, and why."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""The annotation that says which pods of a ReplicaSet are deleted first."""


def parse_deletion_cost(text: str) -> int | None:
    """The number of 32 bits that an annotation holds: no plus sign, and no zeros in front."""
    if text.startswith(("+", "0")) and text != "0":
        return None
    return integer(text, 32)


def finished(pod: Pod) -> bool:
    """Whether a pod's containers have ended for good."""
    return pod.status.phase in FINISHED


def active(pod: Pod) -> bool:
    """Whether a pod counts: it neither has finished nor is about to go."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in FINISHED


def readiness(pod: Pod) -> PodCondition | None:
    """The Ready condition, if there is one."""
    for condition in pod.status.conditions:
        if condition.type == "Ready":
            return condition
    return None


def ready_since(pod: Pod) -> str | None:
    """Since when a pod is Ready, "" if unknown; None while it is not."""
    condition = readiness(pod)
    if condition is None or condition.status != "True":
        return None
    return condition.last_transition_time or ""


def ready(pod: Pod) -> bool:
    """Whether a pod's Ready condition is true."""
    condition = readiness(pod)
    return condition is not None and condition.status == "True"
