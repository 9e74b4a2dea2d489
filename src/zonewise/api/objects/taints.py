"""Taints of nodes and tolerations of pods: which pod a taint keeps off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zonewise.api.objects.core import Taint
from zonewise.api.objects.pod import Toleration

KEEPS_OFF = ("NoSchedule", "NoExecute")


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration is about this taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Whether any toleration is about this taint."""
    return any(tolerates(toleration, taint) for toleration in tolerations)


def kept_off(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> bool:
    """Whether a taint keeps a pod with these tolerations off the node."""
    return any(taint.effect in KEEPS_OFF and not tolerated(taint, tolerations) for taint in taints)
