"""Zones and the nodes in them, as plain Node objects.

Their size is in ``status``, where a kubelet would report it. The first node of each zone has the
first of the sizes, the second the second, and so on, starting over: zones are alike, the nodes of a
zone are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.api.errors import ConfigError, ParseError
from zonewise.api.values.quantity import milli
from zonewise.topology.nodes import HOSTNAME_LABEL, REGION_LABEL, ZONE_LABEL

Obj = dict[str, Any]

MAX_NODES = 10_000
MEMORY_PER_CPU = 4 << 20
"""KiB."""
PODS = "110"
NODES_PER_RACK = 2
RACK_LABEL = "topology.zonewise.io/rack"
REGION = "local"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The zones, how many nodes each has, and the nodes' CPUs."""

    zones: Sequence[str] = ("a", "b", "c")
    nodes_per_zone: int = 3
    cpus: Sequence[str] = ("8", "4", "2")

    def __post_init__(self) -> None:
        for zone in self.zones:
            if not _NAME.fullmatch(zone):
                raise ConfigError(
                    f'"{zone}" is not a zone name; use lower case letters, digits and dashes'
                )
        if len(set(self.zones)) != len(self.zones):
            raise ConfigError("a zone is named twice; name each once, for example a,b,c")
        if not self.zones or not self.cpus:
            raise ConfigError("there must be a zone and a CPU; write them like a,b,c and 8,4,2")
        if not 0 < self.nodes_per_zone * len(self.zones) <= MAX_NODES:
            raise ConfigError(
                f"there must be 1 to {MAX_NODES} nodes; change the number of zones or of nodes"
                " per zone"
            )
        for cpu in self.cpus:
            _parse_millicores(cpu)

    def nodes(self) -> Iterator[Obj]:
        """The nodes, zone by zone."""
        for zone in self.zones:
            for number in range(self.nodes_per_zone):
                cpu = self.cpus[number % len(self.cpus)]
                rack = f"{zone}-r{number // NODES_PER_RACK + 1}"
                yield node_manifest(f"{zone}-{number + 1}", zone, cpu, rack=rack)

    def __str__(self) -> str:
        """Equal for equal layouts, to record with which one a cluster was created."""
        return f"{','.join(self.zones)} x{self.nodes_per_zone} cpu {','.join(self.cpus)}"


def node_manifest(name: str, zone: str, cpu: str, *, rack: str = "") -> Obj:
    """The manifest of a node."""
    memory = f"{_parse_millicores(cpu) * MEMORY_PER_CPU // 1000}Ki"
    size = {"cpu": cpu, "memory": memory, "pods": PODS}
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


def _parse_millicores(text: str) -> int:
    try:
        millicores = milli(text)
    except ParseError:
        millicores = 0
    if millicores <= 0:
        raise ConfigError(f'"{text}" is not a number of CPUs; write it like 8, 0.5 or 500m')
    return millicores
