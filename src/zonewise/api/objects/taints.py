"""Which taints of nodes the tolerations of pods tolerate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zonewise.api.objects.core import Taint
from zonewise.api.objects.pod import Toleration

REPELLING_EFFECTS = ("NoSchedule", "NoExecute")


def tolerates_taint(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration tolerates this taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Whether any toleration tolerates this taint."""
    return any(tolerates_taint(toleration, taint) for toleration in tolerations)


def has_untolerated_taint(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> bool:
    """Whether a taint repels a pod with these tolerations."""
    return any(
        taint.effect in REPELLING_EFFECTS and not is_tolerated(taint, tolerations)
        for taint in taints
    )
