"""How long a pod stays on a node with taints that drive pods away: a pure function."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from zonewise.api.objects.core import Node, Taint
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.taints import tolerates
from zonewise.api.values import times


def driving(node: Node) -> tuple[Taint, ...]:
    """The taints of a node that drive pods away."""
    return tuple(one for one in node.spec.taints if one.effect == "NoExecute")


def until(pod: Pod, taints: Iterable[Taint], *, now: float, noticed: float) -> float:
    """When the pod has to be deleted, in seconds since the epoch; infinite if it may stay.

    A taint that it does not tolerate applies now. Of several limited tolerations of a taint the
    shortest counts. Time runs since the taint was added or the pod was bound, whichever was later;
    a taint without a time, or with one in the future (a clock was set back), counts since it was
    noticed.
    """
    came = _bound(pod)
    end = inf
    for taint in taints:
        matching = [one for one in pod.spec.tolerations if tolerates(one, taint)]
        if not matching:
            return now
        limits = [one.toleration_seconds for one in matching if one.toleration_seconds is not None]
        if limits:
            added = times.parse(taint.time_added).timestamp() if taint.time_added else noticed
            begun = max(added, came)
            end = min(end, (begun if begun <= now else noticed) + max(0, min(limits)))
    return end


def _bound(pod: Pod) -> float:
    texts = [
        one.last_transition_time
        for one in pod.status.conditions
        if one.type == "PodScheduled" and one.last_transition_time
    ]
    text = texts[0] if texts else pod.metadata.creation_timestamp
    return times.parse(text).timestamp() if text else 0.0
