"""What a node's conditions mean: pure functions from a Node to conditions, taints and a verdict.

A node that is silent for too long gets conditions with status Unknown from this controller. What
the conditions say about placement is repeated as taints, because those are what scheduler and
eviction read. Other taints are kept as they are, in their order.
"""

from __future__ import annotations

from typing import Any

import msgspec

from zonewise.api.objects.core import Node, NodeCondition, Taint

Obj = dict[str, Any]
Verdict = str
"""``True``, ``False`` or ``Unknown``."""

PREFIX = "node.kubernetes.io/"
NOT_READY = PREFIX + "not-ready"
UNREACHABLE = PREFIX + "unreachable"
UNSCHEDULABLE = PREFIX + "unschedulable"
OUT_OF_SERVICE = PREFIX + "out-of-service"
PRESSURES = {
    "MemoryPressure": PREFIX + "memory-pressure",
    "DiskPressure": PREFIX + "disk-pressure",
    "NetworkUnavailable": PREFIX + "network-unavailable",
    "PIDPressure": PREFIX + "pid-pressure",
}
NO_SCHEDULE = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE, *PRESSURES.values()})
EVICTING = frozenset({NOT_READY, UNREACHABLE})
REPORTED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


def condition(node: Node, kind: str) -> NodeCondition | None:
    """One condition of a node."""
    return next((one for one in node.status.conditions if one.type == kind), None)


def verdict(node: Node) -> Verdict | None:
    """Whether a node is ready; None if it never reported."""
    found = condition(node, "Ready")
    if found is None:
        return None
    return found.status if found.status in ("True", "False") else "Unknown"


def silenced(node: Node, now: str) -> list[Obj]:
    """The conditions of a node that was silent for too long, as far as they change."""
    found: list[Obj] = []
    for kind in REPORTED:
        known = condition(node, kind)
        if known is None:
            found.append(
                {
                    "type": kind,
                    "status": "Unknown",
                    "reason": "NodeStatusNeverUpdated",
                    "message": "Kubelet never posted node status.",
                    "lastHeartbeatTime": node.metadata.creation_timestamp,
                    "lastTransitionTime": now,
                }
            )
        elif known.status != "Unknown":
            found.append(
                {
                    "type": kind,
                    "status": "Unknown",
                    "reason": "NodeStatusUnknown",
                    "message": "Kubelet stopped posting node status.",
                    "lastTransitionTime": now,
                }
            )
    return found


def evicting(node: Node) -> frozenset[str]:
    """Which of the taints that drive pods away from a lost node it has."""
    return frozenset(
        one.key for one in node.spec.taints if one.effect == "NoExecute" and one.key in EVICTING
    )


def tainted(node: Node, *, evict: bool, now: str) -> tuple[Taint, ...]:
    """The taints a node should have. ``evict`` says whether a lost node's pods are evicted."""
    lost = {"False": NOT_READY, "Unknown": UNREACHABLE}.get(verdict(node) or "", "")
    want = {(lost, "NoSchedule")} if lost else set()
    if lost and evict:
        want.add((lost, "NoExecute"))
    if node.spec.unschedulable:
        want.add((UNSCHEDULABLE, "NoSchedule"))
    for kind, key in PRESSURES.items():
        found = condition(node, kind)
        if found is not None and found.status == "True":
            want.add((key, "NoSchedule"))
    kept = tuple(
        one
        for one in node.spec.taints
        if (one.key, one.effect) in want
        or not (
            (one.effect == "NoSchedule" and one.key in NO_SCHEDULE)
            or (one.effect == "NoExecute" and one.key in EVICTING)
        )
    )
    have = {(one.key, one.effect) for one in kept}
    new = sorted(want - have, key=lambda one: (one[1] == "NoExecute", one[0]))
    return kept + tuple(Taint(key=key, effect=effect, time_added=now) for key, effect in new)


def plain(taints: tuple[Taint, ...]) -> Any:
    """Taints as they are written."""
    return msgspec.to_builtins(taints)
