"""The embedded server refuses what a Service may not be written with."""

from __future__ import annotations

import random
from pathlib import Path

from tests.apiserver.strategy.case_runner import MERGE, PLAIN
from tests.apiserver.strategy.case_tables import NAMESPACE, embedded, open_namespace

from zonewise.apiserver.server import ApiServer

SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
MODE = "service.kubernetes.io/topology-mode"


async def test_annotations_of_services(tmp_path: Path) -> None:
    """A mode nobody knows is refused with its place; one of another domain is stored."""
    server = ApiServer(tmp_path, clock=lambda: 1.8e9, rng=random.Random(7), inline=True)
    await server.boot()
    send = embedded(server)
    await open_namespace(send)
    spec = {"ports": [{"port": 80}]}
    body = {"metadata": {"name": "s", "annotations": {MODE: "AUTO"}}, "spec": spec}
    code, refused = await send("POST", SERVICES, body, PLAIN)
    assert code == 422
    assert refused["details"]["causes"] == [
        {
            "reason": "FieldValueNotSupported",
            "message": 'Unsupported value: "AUTO": supported values: "Auto", "Disabled",'
            ' "zonewise.io/shared", "zonewise.io/weighted"',
            "field": f"metadata.annotations[{MODE}]",
        }
    ]
    body["metadata"] = {"name": "s", "annotations": {MODE: "example.com/mine"}}
    code, _ = await send("POST", SERVICES, body, PLAIN)
    assert code == 201
    change = {"metadata": {"annotations": {"zonewise.io/overload": "30%/20%"}}}
    code, refused = await send("PATCH", f"{SERVICES}/s", change, MERGE)
    assert (code, refused["reason"]) == (422, "Invalid")
    await server.close()
