"""The node of a pod, or why there is none, in the words of Kubernetes' own scheduler.

Per node only the first condition that fails is reported, in the order in which they are checked;
only resources may give several reasons at once. The message counts reasons over nodes, sorted as
text.

A refusal is ``resolvable`` if taking pods off that node could change the answer: only there
preemption is considered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Final

from zonewise.api.meta import Key
from zonewise.api.reason import Reason

NO_NODES: Final = "no nodes available to schedule pods"
AFTERWARDS: Final = "no new claims to deallocate, preemption: "
"""What follows the reasons. There are no devices here, but this is part of every message."""


class ClusterEvent(Flag):
    """What happens in a cluster, as far as it may turn a refusal."""

    NODE = auto()
    """A node was added, or has other labels, taints or resources."""
    POD_CAME = auto()
    POD_WENT = auto()
    VOLUME = auto()


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """Why one node cannot take a pod."""

    reasons: tuple[str, ...]
    resolvable: bool = False
    helped_by: ClusterEvent = ClusterEvent.NODE


def _no(
    reason: str, *, resolvable: bool = False, helped_by: ClusterEvent | None = None
) -> NodeRefusal:
    if helped_by is None:
        helped_by = ClusterEvent.NODE | ClusterEvent.POD_WENT if resolvable else ClusterEvent.NODE
    return NodeRefusal((reason,), resolvable, helped_by)


CORDONED = _no("node(s) were unschedulable")
TAINTED = _no("node(s) had untolerated taint(s)")
NOT_SELECTED = _no("node(s) didn't match Pod's node affinity/selector")
NOT_NAMED = _no("node(s) didn't satisfy plugin(s) [NodeAffinity]")
PORTS_TAKEN = _no("node(s) didn't have free ports for the requested pod ports", resolvable=True)
UNEVEN = _no(
    "node(s) didn't match pod topology spread constraints",
    resolvable=True,
    helped_by=ClusterEvent.NODE | ClusterEvent.POD_CAME | ClusterEvent.POD_WENT,
)
NO_DOMAIN = _no("node(s) didn't match pod topology spread constraints (missing required label)")
NOT_NEAR = _no(
    "node(s) didn't match pod affinity rules", helped_by=ClusterEvent.NODE | ClusterEvent.POD_CAME
)
TOO_NEAR = _no("node(s) didn't match pod anti-affinity rules", resolvable=True)
UNWELCOME = _no("node(s) didn't satisfy existing pods anti-affinity rules", resolvable=True)
VOLUME_ELSEWHERE = _no(
    "node(s) didn't match PersistentVolume's node affinity",
    helped_by=ClusterEvent.NODE | ClusterEvent.VOLUME,
)
VOLUME_NONE = _no(
    "node(s) didn't find available persistent volumes to bind",
    helped_by=ClusterEvent.NODE | ClusterEvent.VOLUME,
)
VOLUME_TOO_BIG = _no(
    "node(s) did not have enough free storage",
    helped_by=ClusterEvent.NODE | ClusterEvent.VOLUME,
)
TOO_MANY_VOLUMES = _no(
    "node(s) exceed max volume count",
    resolvable=True,
    helped_by=ClusterEvent.NODE | ClusterEvent.POD_WENT | ClusterEvent.VOLUME,
)
VOLUME_ZONE = _no(
    "node(s) had no available volume zone", helped_by=ClusterEvent.NODE | ClusterEvent.VOLUME
)
CLAIM_IN_USE = _no(
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode"
    " already in-use by another pod",
    resolvable=True,
)
NO_VICTIMS = _no("No preemption victims found for incoming pod")
TERMS_CONFLICT = "pod affinity terms conflict"
NOT_HELPFUL = "Preemption is not helpful for scheduling"


@dataclass(frozen=True, slots=True)
class Preemption:
    """Pods that are taken off a node, most important first, so that another fits."""

    node: str
    victims: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class SchedulingDecision:
    """The node, or the reason of every node; then maybe a node where pods make room.

    ``message`` is empty if a node was found.
    """

    node: str = ""
    claims: Mapping[Key, str] = field(default_factory=dict)
    """Claims that waited for the node, and the volumes they get; "" is one that must be made."""
    message: str = ""
    refusals: Mapping[str, NodeRefusal] = field(default_factory=dict)
    preemption: Preemption | None = None
    waits: bool = False
    """Whether the nomination that the pod may have stays."""

    @property
    def helped_by(self) -> ClusterEvent:
        """What must happen before a retry can help."""
        helped = ClusterEvent.NODE
        for refusal in self.refusals.values():
            helped |= refusal.helped_by
        return helped

    def reasons(self) -> tuple[Reason, ...]:
        """Why, node by node, in the order of their names."""
        return tuple(
            Reason(code="Unschedulable", object=f"Node/{name}", message="; ".join(refusal.reasons))
            for name, refusal in sorted(self.refusals.items())
        )


def together(refusals: Sequence[NodeRefusal]) -> NodeRefusal:
    """Several refusals of one node as one."""
    if len(refusals) == 1:
        return refusals[0]
    helped = refusals[0].helped_by
    for refusal in refusals:
        helped |= refusal.helped_by
    return NodeRefusal(
        tuple(reason for refusal in refusals for reason in refusal.reasons),
        all(refusal.resolvable for refusal in refusals),
        helped,
    )


def nowhere(nodes: Iterable[str], said: str) -> SchedulingDecision:
    """A pod for which no node is checked, because of something about itself."""
    refusal = NodeRefusal((said,), helped_by=ClusterEvent.NODE | ClusterEvent.VOLUME)
    refusals = dict.fromkeys(nodes, refusal)
    # What follows the reason is what Kubernetes' scheduler says when it did not check any node.
    message = f"0/{len(refusals)} nodes are available: {said}. not found"
    return SchedulingDecision(message=message, refusals=refusals)


def none_available(nodes: int, refusals: Iterable[NodeRefusal]) -> str:
    """How many nodes refuse for which reason."""
    counts = Counter(reason for refusal in refusals for reason in refusal.reasons)
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{nodes} nodes are available:" + (f" {listed}." if listed else "")


def not_helpful(nodes: int, tried: Mapping[str, NodeRefusal]) -> str:
    """What became of a preemption that found no node."""
    rest = [NodeRefusal((NOT_HELPFUL,))] * (nodes - len(tried))
    return none_available(nodes, (*tried.values(), *rest))
