"""Which pods are deleted when a domain is taken over. Pure.

A dead node cannot report that its pods have ended, so a StatefulSet waits forever. A takeover
declares the domain dead: pods that hold its volumes on nodes that are not Ready are deleted at
once, without waiting for their kubelet, and start again where the volumes can be used. Pods on
nodes that are Ready are left alone, and so is everything when a domain is given back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zonewise.api.reason import Reason
from zonewise.storage.domains import Segments
from zonewise.storage.takeover.standing_in import TakeoverMap, covers, domain_name


@dataclass(frozen=True, slots=True)
class VolumePod:
    """A pod with volumes of the driver, and the node it is on."""

    name: str
    """``namespace/name``."""
    node: str
    at: Segments
    """The node's domain."""
    ready: bool
    """Whether the node is."""
    homes: tuple[Segments, ...]
    """The domains of its volumes."""


def makes_way(pod: VolumePod, takeover: TakeoverMap, living: Iterable[Segments]) -> Reason | None:
    """Why a pod is deleted; None if it stays. ``living`` are the domains of Ready nodes."""
    if pod.ready:
        return None
    for source in sorted(takeover.targets):
        if not covers(source, pod.at):
            continue
        if not any(home and covers(source, home) for home in pod.homes):
            continue
        if not any(takeover.stands_in(node, source) for node in living):
            continue
        return Reason(
            code="TakenOver",
            message=f"pod {pod.name} is deleted from node {pod.node}, which is not Ready:"
            f" {domain_name(pod.at)} is taken over by {', '.join(takeover.targets[source])}",
            object=f"Pod/{pod.name}",
        )
    return None
