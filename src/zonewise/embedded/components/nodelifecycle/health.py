"""The health of nodes and zones: pure functions to conditions, taints and rates of eviction.

A node that is silent for too long gets conditions with status Unknown from this controller.
Conditions are repeated as taints, because those are what scheduler and taint eviction read. Other
taints are kept as they are, in their order.

When many nodes are lost at once, the fault is more likely in the network than on the nodes, and
moving all their pods would break what still works. So a zone that is mostly lost evicts slowly, or
not at all if it is small; and when every zone is lost, nothing is evicted. A single zone that is
lost as a whole is evicted at the normal rate: that is what several zones are for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from zonewise.api.meta import find_condition
from zonewise.api.objects.core import Node, Taint
from zonewise.topology.nodes import REGION_LABEL, ZONE_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLifecycleSettings:
    """Times are in seconds, rates in nodes per second and zone; kube-controller-manager's defaults.

    ``grace`` is how long a node may be silent, ``startup_grace`` how long a new one may be before
    its first report. ``orphan_after`` is how long pods outlive their deleted Node, which the real
    controller checks less often and later.
    """

    grace: float = 50.0
    startup_grace: float = 60.0
    period: float = 5.0
    rate: float = 0.1
    reduced_rate: float = 0.01
    unhealthy_zone: float = 0.55
    large_zone: int = 50
    orphan_after: float = 20.0
    finished_pods: int = 12_500
    workers: int = 16


Obj = dict[str, Any]
ZoneState = Literal["normal", "partly lost", "lost"]
Zone = tuple[str, str]
"""A region and a zone."""

PREFIX = "node.kubernetes.io/"
NOT_READY = PREFIX + "not-ready"
UNREACHABLE = PREFIX + "unreachable"
UNSCHEDULABLE = PREFIX + "unschedulable"
PRESSURES = {
    "MemoryPressure": PREFIX + "memory-pressure",
    "DiskPressure": PREFIX + "disk-pressure",
    "NetworkUnavailable": PREFIX + "network-unavailable",
    "PIDPressure": PREFIX + "pid-pressure",
}
NO_SCHEDULE = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE, *PRESSURES.values()})
EVICTION_TAINTS = frozenset({NOT_READY, UNREACHABLE})
REPORTED_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
TOLERATED_LOST_NODES = 2
"""So many lost nodes do not make a zone unhealthy, whatever its size."""


def ready_status(node: Node) -> str | None:
    """``True``, ``False`` or ``Unknown``; None if the node never reported."""
    ready = find_condition(node.status.conditions, "Ready")
    if ready is None:
        return None
    return ready.status if ready.status in ("True", "False") else "Unknown"


def unknown_conditions(node: Node, now: str) -> list[Obj]:
    """The conditions to change to Unknown on a node that was silent for too long."""
    changes: list[Obj] = []
    for kind in REPORTED_CONDITIONS:
        current = find_condition(node.status.conditions, kind)
        if current is None:
            changes.append(
                {
                    "type": kind,
                    "status": "Unknown",
                    "reason": "NodeStatusNeverUpdated",
                    "message": "Kubelet never posted node status.",
                    "lastHeartbeatTime": node.metadata.creation_timestamp,
                    "lastTransitionTime": now,
                }
            )
        elif current.status != "Unknown":
            changes.append(
                {
                    "type": kind,
                    "status": "Unknown",
                    "reason": "NodeStatusUnknown",
                    "message": "Kubelet stopped posting node status.",
                    "lastTransitionTime": now,
                }
            )
    return changes


def eviction_taints(node: Node) -> frozenset[str]:
    """The keys of a node's taints that evict the pods of a lost node."""
    return frozenset(
        taint.key
        for taint in node.spec.taints
        if taint.effect == "NoExecute" and taint.key in EVICTION_TAINTS
    )


def desired_taints(node: Node, *, evict: bool, now: str) -> tuple[Taint, ...]:
    """The taints a node should have. ``evict`` says whether a lost node's pods are evicted."""
    lost = {"False": NOT_READY, "Unknown": UNREACHABLE}.get(ready_status(node) or "", "")
    desired = {(lost, "NoSchedule")} if lost else set()
    if lost and evict:
        desired.add((lost, "NoExecute"))
    if node.spec.unschedulable:
        desired.add((UNSCHEDULABLE, "NoSchedule"))
    for kind, key in PRESSURES.items():
        pressure = find_condition(node.status.conditions, kind)
        if pressure is not None and pressure.status == "True":
            desired.add((key, "NoSchedule"))
    remaining = tuple(
        taint
        for taint in node.spec.taints
        if (taint.key, taint.effect) in desired
        or not (
            (taint.effect == "NoSchedule" and taint.key in NO_SCHEDULE)
            or (taint.effect == "NoExecute" and taint.key in EVICTION_TAINTS)
        )
    )
    current = {(taint.key, taint.effect) for taint in remaining}
    missing = sorted(desired - current, key=lambda pair: (pair[1] == "NoExecute", pair[0]))
    added = (Taint(key=key, effect=effect, time_added=now) for key, effect in missing)
    return (*remaining, *added)


class ZoneEvictions(NamedTuple):
    """Nodes per second whose pods may be evicted, by zone; and whether every zone is lost."""

    rates: Mapping[Zone, float]
    all_lost: bool


def zone_of(node: Node) -> Zone:
    """The region and zone of a node; empty where it has no label."""
    labels = node.metadata.labels
    return (labels.get(REGION_LABEL, ""), labels.get(ZONE_LABEL, ""))


def decide_evictions(nodes: Iterable[Node], settings: NodeLifecycleSettings) -> ZoneEvictions:
    """How fast the pods of lost nodes may be evicted in each zone."""
    ready: dict[Zone, int] = defaultdict(int)
    lost: dict[Zone, int] = defaultdict(int)
    for node in nodes:
        counts = ready if ready_status(node) == "True" else lost
        counts[zone_of(node)] += 1
    zones = ready.keys() | lost.keys()
    states = {zone: state_of_zone(ready[zone], lost[zone], settings) for zone in zones}
    if all(state == "lost" for state in states.values()):
        return ZoneEvictions(dict.fromkeys(zones, 0.0), all_lost=True)
    reduced_rates = {
        zone: settings.reduced_rate if ready[zone] + lost[zone] > settings.large_zone else 0.0
        for zone, state in states.items()
        if state == "partly lost"
    }
    rates = {zone: reduced_rates.get(zone, settings.rate) for zone in zones}
    return ZoneEvictions(rates, all_lost=False)


def state_of_zone(ready: int, lost: int, settings: NodeLifecycleSettings) -> ZoneState:
    """The state of a zone with so many ready and lost nodes."""
    if lost and not ready:
        return "lost"
    if lost > TOLERATED_LOST_NODES and lost / (ready + lost) >= settings.unhealthy_zone:
        return "partly lost"
    return "normal"
