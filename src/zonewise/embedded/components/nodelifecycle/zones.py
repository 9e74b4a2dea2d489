"""How much of each zone is lost, and how fast its pods may therefore be evicted.

When many nodes are lost at once, the fault is more likely in the network than on the nodes, and
moving all their pods would break what still works. So a zone that is mostly lost evicts slowly, or
not at all if it is small; and when every zone is lost, nothing is evicted. A single zone that is
lost as a whole is evicted at the normal rate: that is what several zones are for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from zonewise.api.objects.core import Node
from zonewise.embedded.components.nodelifecycle.health import verdict
from zonewise.embedded.components.nodelifecycle.settings import NodeLifecycleSettings
from zonewise.topology import REGION_LABEL, ZONE_LABEL

ZoneState = Literal["normal", "partly lost", "lost"]
Zone = tuple[str, str]

FEW = 2
"""So many lost nodes do not make a zone unhealthy, whatever its size."""


def zone_of(node: Node) -> Zone:
    """The region and zone a node is in; empty where it does not say."""
    labels = node.metadata.labels
    return (labels.get(REGION_LABEL, ""), labels.get(ZONE_LABEL, ""))


class Survey(NamedTuple):
    """Nodes per second that may lose their pods, by zone; and whether every zone is lost."""

    rates: Mapping[Zone, float]
    all_lost: bool


def survey(nodes: Iterable[Node], settings: NodeLifecycleSettings) -> Survey:
    """How the zones are, and what follows."""
    ready: dict[Zone, int] = defaultdict(int)
    lost: dict[Zone, int] = defaultdict(int)
    for node in nodes:
        counts = ready if verdict(node) == "True" else lost
        counts[zone_of(node)] += 1
    zones = ready.keys() | lost.keys()
    states = {zone: state(ready[zone], lost[zone], settings) for zone in zones}
    if all(one == "lost" for one in states.values()):
        return Survey(dict.fromkeys(zones, 0.0), all_lost=True)
    slow = {
        zone: settings.reduced_rate if ready[zone] + lost[zone] > settings.large_zone else 0.0
        for zone, one in states.items()
        if one == "partly lost"
    }
    return Survey({zone: slow.get(zone, settings.rate) for zone in zones}, all_lost=False)


def state(ready: int, lost: int, settings: NodeLifecycleSettings) -> ZoneState:
    """How a zone with so many ready and lost nodes is."""
    if lost and not ready:
        return "lost"
    if lost > FEW and lost / (ready + lost) >= settings.unhealthy_zone:
        return "partly lost"
    return "normal"
