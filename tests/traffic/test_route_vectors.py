"""Every cluster of the route table: the routes of each of its nodes, and the reasons."""

from __future__ import annotations

import pytest
from tests.traffic.route_vectors import Vector, judged, vectors

FIELDS = ("port", "family", "protocol", "path", "address", "number", "from", "action", "why", "key")
SOURCE = "sourceAddress"


@pytest.mark.parametrize("vector", [pytest.param(vector, id=vector.name) for vector in vectors()])
def test_every_node_has_its_routes(vector: Vector) -> None:
    """The routes, health checks and notes of every node are those of the table, in any order."""
    for node, expected in vector.expect.items():
        computed = vector.routes(node)
        assert computed == vector.routes(node, backwards=True)
        document = computed.to_dict()
        assert judged(document["routes"], *FIELDS) == judged(expected.routes, *FIELDS), node
        expected_sources = judged(
            (row for row in expected.routes if SOURCE in row), *FIELDS, SOURCE
        )
        if expected_sources:
            ours = (row for row in document["routes"] if SOURCE in row)
            assert judged(ours, *FIELDS, SOURCE) == expected_sources, node
        checks = [
            {k: v for k, v in row.items() if k != "namespace"} for row in document["healthChecks"]
        ]
        assert checks == expected.health_checks, node
        assert [note["code"] for note in document["notes"]] == vector.notes, node


def test_names_are_unique() -> None:
    """A vector is found by its name."""
    names = [vector.name for vector in vectors()]
    assert len(set(names)) == len(names)
