"""Zones and nodes as manifests."""

from __future__ import annotations

import pytest

from zonewise.api.errors import ConfigError
from zonewise.embedded.seed.nodes import NodeLayout


def test_zones_are_alike_and_nodes_are_not() -> None:
    """Every zone has the same sizes in turn; nodes have names, zones, racks and sizes."""
    nodes = list(NodeLayout(("a", "b"), 4, ("8", "500m")).nodes())
    assert [node["metadata"]["name"] for node in nodes] == [
        *("a-1", "a-2", "a-3", "a-4"),
        *("b-1", "b-2", "b-3", "b-4"),
    ]
    assert [node["status"]["capacity"]["cpu"] for node in nodes] == ["8", "500m"] * 4
    assert nodes[1]["status"]["allocatable"]["memory"] == "2097152Ki"
    labels = nodes[5]["metadata"]["labels"]
    assert labels["topology.kubernetes.io/zone"] == "b"
    assert labels["kubernetes.io/hostname"] == "b-2"
    racks = [node["metadata"]["labels"]["topology.zonewise.io/rack"] for node in nodes]
    assert racks == ["a-r1", "a-r1", "a-r2", "a-r2", "b-r1", "b-r1", "b-r2", "b-r2"]


@pytest.mark.parametrize(
    ("zones", "nodes", "cpus", "says"),
    [
        (("",), 1, ("1",), "is not a zone name"),
        (("a", "a"), 1, ("1",), "named twice"),
        ((), 1, ("1",), "there must be a zone"),
        (("a",), 1, (), "there must be a zone and a CPU"),
        (("a",), 0, ("1",), "1 to 10000 nodes"),
        (("a", "b"), 6000, ("1",), "1 to 10000 nodes"),
        (("a",), 1, ("0",), "is not a number of CPUs"),
        (("a",), 1, ("-1",), "is not a number of CPUs"),
        (("a",), 1, ("many",), "is not a number of CPUs"),
    ],
)
def test_an_invalid_layout_is_refused(
    zones: tuple[str, ...], nodes: int, cpus: tuple[str, ...], says: str
) -> None:
    """An invalid layout is refused with one sentence."""
    with pytest.raises(ConfigError, match=says):
        NodeLayout(zones, nodes, cpus)
