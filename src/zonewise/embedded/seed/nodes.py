"""Zones and the nodes in them, as plain Node objects.

Whatever brings nodes to life finds their size in ``status``, where a kubelet would report it. The
first node of each zone has the first of the sizes, the second the second, and so on from the start
again: zones are alike, nodes in a zone are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.api.errors import ConfigError, ParseError
from zonewise.api.values.quantity import milli
from zonewise.topology import HOSTNAME_LABEL, REGION_LABEL, ZONE_LABEL

Obj = dict[str, Any]

NODES_LIMIT = 10_000
MEMORY_PER_CPU = 4 << 20
"""KiB."""
PODS = "110"
NODES_PER_RACK = 2
RACK_LABEL = "topology.zonewise.io/rack"
REGION = "local"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """Which zones there are, how many nodes each has, and their CPUs."""

    zones: Sequence[str] = ("a", "b", "c")
    nodes_per_zone: int = 3
    cpus: Sequence[str] = ("8", "4", "2")

    def __post_init__(self) -> None:
        for zone in self.zones:
            if not _NAME.fullmatch(zone):
                raise ConfigError(
                    f'"{zone}" cannot be a zone; use lower case letters, digits and dashes'
                )
        if len(set(self.zones)) != len(self.zones):
            raise ConfigError("a zone is named twice; name each once, for example a,b,c")
        if not self.zones or not self.cpus:
            raise ConfigError("there must be a zone and a CPU; write them like a,b,c and 8,4,2")
        if not 0 < self.nodes_per_zone * len(self.zones) <= NODES_LIMIT:
            raise ConfigError(
                f"there must be 1 to {NODES_LIMIT} nodes; change the number of zones or of nodes"
                " per zone"
            )
        for cpu in self.cpus:
            _cpu(cpu)

    def nodes(self) -> Iterator[Obj]:
        """The nodes, zone by zone."""
        for zone in self.zones:
            for number in range(self.nodes_per_zone):
                cpu = self.cpus[number % len(self.cpus)]
                rack = f"{zone}-r{number // NODES_PER_RACK + 1}"
                yield node_manifest(f"{zone}-{number + 1}", zone, cpu, rack=rack)

    def __str__(self) -> str:
        """The same for the same layout, to remember which one a cluster was made with."""
        return f"{','.join(self.zones)} x{self.nodes_per_zone} cpu {','.join(self.cpus)}"


def node_manifest(name: str, zone: str, cpu: str, *, rack: str = "") -> Obj:
    """A node of that size in that zone."""
    size = {"cpu": cpu, "memory": f"{_cpu(cpu) * MEMORY_PER_CPU // 1000}Ki", "pods": PODS}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/arch": "amd64",
                HOSTNAME_LABEL: name,
                "kubernetes.io/os": "linux",
                REGION_LABEL: REGION,
                ZONE_LABEL: zone,
                **({RACK_LABEL: rack} if rack else {}),
            },
        },
        "status": {"capacity": size, "allocatable": dict(size)},
    }


def _cpu(text: str) -> int:
    try:
        found = milli(text)
    except ParseError:
        found = 0
    if found <= 0:
        raise ConfigError(f'"{text}" is not a number of CPUs; write it like 8, 0.5 or 500m')
    return found
