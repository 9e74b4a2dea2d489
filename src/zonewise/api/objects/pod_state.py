"""Predicates on the status of a pod.

A pod has *finished* when its containers ended for good; it never runs again. It is *active* while
it neither has finished nor is terminating. *Ready* is decided by the Ready condition alone: a pod
without one is not ready.
"""

from __future__ import annotations

from zonewise.api.meta import find_condition, is_condition_true
from zonewise.api.objects.pod import Pod, PodCondition
from zonewise.api.values.numbers import parse_integer

FINISHED_PHASES = frozenset({"Succeeded", "Failed"})
"""Phases that are final."""

DISRUPTION_TARGET = "DisruptionTarget"
"""The type of the condition that says that a pod is about to be deleted, and why."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""The annotation that says which pods of a ReplicaSet are deleted first."""


def parse_deletion_cost(text: str) -> int | None:
    """The 32-bit number in an annotation; a plus sign or leading zeros are invalid."""
    if text.startswith(("+", "0")) and text != "0":
        return None
    return parse_integer(text, 32)


def is_pod_finished(pod: Pod) -> bool:
    """Whether a pod's containers have ended for good."""
    return pod.status.phase in FINISHED_PHASES


def is_pod_active(pod: Pod) -> bool:
    """Whether a pod neither has finished nor is being deleted."""
    return pod.metadata.deletion_timestamp is None and pod.status.phase not in FINISHED_PHASES


def ready_condition(pod: Pod) -> PodCondition | None:
    """The Ready condition, if there is one."""
    return find_condition(pod.status.conditions, "Ready")


def ready_since(pod: Pod) -> str | None:
    """Since when a pod is Ready, "" if unknown; None while it is not."""
    condition = ready_condition(pod)
    if condition is None or condition.status != "True":
        return None
    return condition.last_transition_time or ""


def is_pod_ready(pod: Pod) -> bool:
    """Whether a pod's Ready condition is true."""
    return is_condition_true(pod.status.conditions, "Ready")
