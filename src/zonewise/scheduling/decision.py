"""The node of a pod, or why there is none, in the words of Kubernetes' own scheduler.

For each node only the first condition that fails is reported, in the order in which they are
checked; only resources may give several reasons. The message counts reasons over nodes, sorted as
text. These texts equal Kubernetes' own.

A refusal is ``resolvable`` if removing pods from that node could change the answer: only such nodes
are candidates for preemption.
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
PREEMPTION_PREFIX: Final = "no new claims to deallocate, preemption: "
"""Follows the reasons in every message of Kubernetes, also without devices."""


class ClusterEvent(Flag):
    """Changes of a cluster that may resolve a refusal."""

    NODE = auto()
    """A node was added, or has other labels, taints or resources."""
    POD_ADDED = auto()
    POD_DELETED = auto()
    VOLUME = auto()


@dataclass(frozen=True, slots=True)
class NodeRefusal:
    """Why one node cannot take a pod."""

    reasons: tuple[str, ...]
    resolvable: bool = False
    helped_by: ClusterEvent = ClusterEvent.NODE


def _refusal(
    reason: str, *, resolvable: bool = False, helped_by: ClusterEvent | None = None
) -> NodeRefusal:
    if helped_by is None:
        helped_by = (
            ClusterEvent.NODE | ClusterEvent.POD_DELETED if resolvable else ClusterEvent.NODE
        )
    return NodeRefusal((reason,), resolvable, helped_by)


CORDONED = _refusal("node(s) were unschedulable")
TAINTED = _refusal("node(s) had untolerated taint(s)")
NODE_AFFINITY_UNMET = _refusal("node(s) didn't match Pod's node affinity/selector")
NOT_NAMED = _refusal("node(s) didn't satisfy plugin(s) [NodeAffinity]")
PORTS_TAKEN = _refusal(
    "node(s) didn't have free ports for the requested pod ports", resolvable=True
)
SPREAD_VIOLATED = _refusal(
    "node(s) didn't match pod topology spread constraints",
    resolvable=True,
    helped_by=ClusterEvent.NODE | ClusterEvent.POD_ADDED | ClusterEvent.POD_DELETED,
)
SPREAD_LABEL_MISSING = _refusal(
    "node(s) didn't match pod topology spread constraints (missing required label)"
)
AFFINITY_UNMET = _refusal(
    "node(s) didn't match pod affinity rules", helped_by=ClusterEvent.NODE | ClusterEvent.POD_ADDED
)
ANTI_AFFINITY_VIOLATED = _refusal("node(s) didn't match pod anti-affinity rules", resolvable=True)
EXISTING_ANTI_AFFINITY_VIOLATED = _refusal(
    "node(s) didn't satisfy existing pods anti-affinity rules", resolvable=True
)
VOLUME_AFFINITY_UNMET = _refusal(
    "node(s) didn't match PersistentVolume's node affinity",
    helped_by=ClusterEvent.NODE | ClusterEvent.VOLUME,
)
NO_VOLUME_TO_BIND = _refusal(
    "node(s) didn't find available persistent volumes to bind",
    helped_by=ClusterEvent.NODE | ClusterEvent.VOLUME,
)
NOT_ENOUGH_STORAGE = _refusal(
    "node(s) did not have enough free storage", helped_by=ClusterEvent.NODE | ClusterEvent.VOLUME
)
TOO_MANY_VOLUMES = _refusal(
    "node(s) exceed max volume count",
    resolvable=True,
    helped_by=ClusterEvent.NODE | ClusterEvent.POD_DELETED | ClusterEvent.VOLUME,
)
VOLUME_ZONE_UNMET = _refusal(
    "node(s) had no available volume zone", helped_by=ClusterEvent.NODE | ClusterEvent.VOLUME
)
CLAIM_IN_USE = _refusal(
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode"
    " already in-use by another pod",
    resolvable=True,
)
NO_VICTIMS = _refusal("No preemption victims found for incoming pod")
TERMS_CONFLICT = "pod affinity terms conflict"
NOT_HELPFUL = "Preemption is not helpful for scheduling"


@dataclass(frozen=True, slots=True)
class Preemption:
    """Pods to be removed from a node, the most important first, so that another fits."""

    node: str
    victims: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class SchedulingDecision:
    """The node, or the refusals of all nodes and perhaps a preemption.

    ``message`` is empty if there is a node.
    """

    node: str = ""
    claims: Mapping[Key, str] = field(default_factory=dict)
    """Claims that waited for the node, and their volumes; "" is one to be provisioned."""
    message: str = ""
    refusals: Mapping[str, NodeRefusal] = field(default_factory=dict)
    preemption: Preemption | None = None
    keeps_nomination: bool = False
    """Whether an earlier nomination of the pod stays."""

    @property
    def helped_by(self) -> ClusterEvent:
        """The events after which a retry may succeed."""
        events = ClusterEvent.NODE
        for refusal in self.refusals.values():
            events |= refusal.helped_by
        return events

    def reasons(self) -> tuple[Reason, ...]:
        """A reason for each node, sorted by name."""
        return tuple(
            Reason(code="Unschedulable", object=f"Node/{name}", message="; ".join(refusal.reasons))
            for name, refusal in sorted(self.refusals.items())
        )


def merge_refusals(refusals: Sequence[NodeRefusal]) -> NodeRefusal:
    """Merge several refusals of one node."""
    if len(refusals) == 1:
        return refusals[0]
    events = refusals[0].helped_by
    for refusal in refusals:
        events |= refusal.helped_by
    return NodeRefusal(
        tuple(reason for refusal in refusals for reason in refusal.reasons),
        all(refusal.resolvable for refusal in refusals),
        events,
    )


def refuse_all(nodes: Iterable[str], reason: str) -> SchedulingDecision:
    """The decision for a pod that cannot be scheduled whatever the node."""
    refusal = NodeRefusal((reason,), helped_by=ClusterEvent.NODE | ClusterEvent.VOLUME)
    refusals = dict.fromkeys(nodes, refusal)
    # The end of the message is that of Kubernetes' scheduler where it did not check any node.
    message = f"0/{len(refusals)} nodes are available: {reason}. not found"
    return SchedulingDecision(message=message, refusals=refusals)


def format_none_available(nodes: int, refusals: Iterable[NodeRefusal]) -> str:
    """The message with the number of nodes for each reason."""
    counts = Counter(reason for refusal in refusals for reason in refusal.reasons)
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{nodes} nodes are available:" + (f" {reasons}." if reasons else "")


def format_not_helpful(nodes: int, tried: Mapping[str, NodeRefusal]) -> str:
    """The message of a preemption without a candidate."""
    others = [NodeRefusal((NOT_HELPFUL,))] * (nodes - len(tried))
    return format_none_available(nodes, (*tried.values(), *others))
