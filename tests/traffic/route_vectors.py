"""The table of clusters that any proxy can be tested with: ``tests/vectors/routes.jsonl``.

A line is a cluster: ``objects`` as the API has them, and under ``expect``, for every node, the
routes its proxy must have. ``needs`` names what not every proxy has: ``topologyKeys``; and
``garbage``, objects that an API server refuses. ``why`` and ``key`` of a route are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from zonewise.api import FeatureGates, LeanEndpointSlice, Node, Service, convert
from zonewise.traffic.routes.choice import ClientLocation
from zonewise.traffic.routes.service import RouteSettings, compute_node_routes
from zonewise.traffic.routes.table import NodeRoutes

FILE = Path(__file__).parents[1] / "vectors" / "routes.jsonl"
Row = dict[str, Any]


class Expected(msgspec.Struct, rename="camel"):
    """The routes of the proxy of a node."""

    routes: list[Row]
    health_checks: list[Row]


class Vector(msgspec.Struct):
    """A cluster and the expected routes."""

    name: str
    says: str
    needs: list[str]
    objects: list[Row]
    expect: dict[str, Expected]
    notes: list[str]

    def of(self, kind: str) -> list[Row]:
        """The objects of a kind."""
        return [item for item in self.objects if item["kind"] == kind]

    @property
    def gates(self) -> FeatureGates:
        """The gates that the fields of its Services need."""
        keyed = any("topologyKeys" in item["spec"] for item in self.of("Service"))
        return FeatureGates({"ServiceTopology": keyed, "TopologyAwareHints": not keyed})

    def routes(self, node: str, *, backwards: bool = False) -> NodeRoutes:
        """The routes of our proxy on a node."""
        step = -1 if backwards else 1
        nodes = {item["metadata"]["name"]: convert(Node, item) for item in self.of("Node")}
        return compute_node_routes(
            [convert(Service, item) for item in self.of("Service")][::step],
            [convert(LeanEndpointSlice, item) for item in self.of("EndpointSlice")][::step],
            ClientLocation.of(nodes[node]),
            {name: node.metadata.labels for name, node in nodes.items()},
            RouteSettings(gates=self.gates),
        )


def vectors() -> list[Vector]:
    """All vectors."""
    return [msgspec.json.decode(line, type=Vector) for line in FILE.read_bytes().splitlines()]


def judged(rows: Iterable[Row], *fields: str) -> list[Row]:
    """Rows in a fixed order, with the fields that are compared."""
    trimmed = [{field: row[field] for field in fields} | {"endpoints": _ends(row)} for row in rows]
    return sorted(trimmed, key=lambda row: msgspec.json.encode(row, order="sorted"))


def _ends(row: Row) -> list[tuple[str, int]]:
    return sorted((endpoint["address"], endpoint["port"]) for endpoint in row["endpoints"])
