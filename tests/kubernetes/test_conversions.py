"""Both versions of events and autoscalers are those a real server makes of a stored object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.embedded.machinery.decoding.autoscalers import BEHAVIOR, CPU, METRICS, TARGET
from tools.tables.generation import connect, start
from tools.tables.server import Server

from tools import realkube as real
from zonewise.embedded.machinery.decoding.conversions import STORAGE_CONVERSIONS

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

EVENTS = ("/api/v1/namespaces/default/events", "/apis/events.k8s.io/v1/namespaces/default/events")
SCALERS = tuple(
    f"/apis/autoscaling/{version}/namespaces/default/horizontalpodautoscalers"
    for version in ("v2", "v1")
)
CASES: list[tuple[tuple[str, str, str], tuple[str, ...], dict[str, Any]]] = [
    (
        ("events.k8s.io", "v1", "events"),
        EVENTS,
        {
            "involvedObject": {"kind": "Pod", "name": "a", "namespace": "default"},
            "message": "m",
            "source": {"component": "c"},
            "count": 2,
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "type": "Normal",
        },
    ),
    *(
        (
            ("autoscaling", "v1", "horizontalpodautoscalers"),
            SCALERS,
            {"spec": {"maxReplicas": 2, "scaleTargetRef": TARGET, **spec}},
        )
        for spec in ({}, {"metrics": [*METRICS, CPU]}, {"metrics": METRICS, "behavior": BEHAVIOR})
    ),
]


@pytest.fixture(scope="module")
def server(real_binaries: real.Binaries) -> Iterator[Server]:
    """A connection to an API server of our own."""
    with start(real_binaries) as plane, connect(plane) as connection:
        yield connection


def comparable(value: dict[str, Any]) -> dict[str, Any]:
    """An object without what differs between two requests, its JSON annotations parsed."""
    comparable_fields = {name: item for name, item in value.items() if name != "apiVersion"}
    comparable_fields["metadata"] = {
        k: v for k, v in value["metadata"].items() if k != "managedFields"
    }
    annotations = comparable_fields["metadata"].get("annotations", {})
    if annotations:
        comparable_fields["metadata"]["annotations"] = {
            k: json.loads(v) for k, v in annotations.items()
        }
    return comparable_fields


@pytest.mark.parametrize(("served", "paths", "content"), CASES)
def test_the_other_form_is_a_real_server_s(
    server: Server, served: tuple[str, str, str], paths: tuple[str, str], content: dict[str, Any]
) -> None:
    """A stored object, converted by us, is the real server's other version; and back again."""
    stored_path, other_path = paths
    server.send("POST", stored_path, {"metadata": {"name": "converted"}, **content})
    try:
        stored = server.get(f"{stored_path}/converted")
        other = server.get(f"{other_path}/converted")
    finally:
        server.send("DELETE", f"{stored_path}/converted")
    ours = json.loads(json.dumps(stored))
    STORAGE_CONVERSIONS[served].from_storage(ours)
    assert comparable(ours) == comparable(other)
    STORAGE_CONVERSIONS[served].to_storage(ours)
    assert comparable(ours) == comparable(stored)
