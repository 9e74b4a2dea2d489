"""What scheduling adds to the meaning of taints: cordoned nodes, taints that only discourage."""

from __future__ import annotations

from collections.abc import Iterable

from zonewise.api.objects.core import Taint
from zonewise.api.objects.pod import Toleration
from zonewise.api.objects.taints import tolerated

UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What a cordoned node is taken to carry."""


def disliked(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> int:
    """How many taints would rather have the pod elsewhere."""
    mild = [one for one in tolerations if one.effect in ("", "PreferNoSchedule")]
    return sum(
        taint.effect == "PreferNoSchedule" and not tolerated(taint, mild) for taint in taints
    )
