"""The embedded server refuses Services that may not be written."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.embedded.apiserver.strategy.case_runner import MERGE, PLAIN
from tests.embedded.apiserver.strategy.case_tables import NAMESPACE, embedded, open_namespace

from zonewise.api.gates import FeatureGates
from zonewise.embedded.apiserver.request.call import Call
from zonewise.embedded.apiserver.server import OWNER, ApiServer, ServerSettings

SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
MODE = "service.kubernetes.io/topology-mode"


async def test_annotations_of_services(tmp_path: Path) -> None:
    """An unknown mode is refused with its path; one of another domain is stored."""
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


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("annotated", [True, False])
async def test_a_mode_without_its_gate_is_stored_with_a_warning(
    tmp_path: Path, gate: bool, annotated: bool
) -> None:
    """Requesting hints that are switched off causes a warning."""
    gates = FeatureGates({"TopologyAwareHints": gate})
    server = ApiServer(
        tmp_path,
        settings=ServerSettings(gates=gates),
        clock=lambda: 1.8e9,
        rng=random.Random(7),
        inline=True,
    )
    await server.boot()
    await open_namespace(embedded(server))
    mode = "service.kubernetes.io/topology-mode"
    metadata = {"name": "s", "annotations": {mode: "Auto"} if annotated else {}}
    spec = {"ports": [{"port": 80}], "trafficPolicy": "PreferZone"}
    body = json.dumps({"metadata": metadata, "spec": spec}).encode()
    answer = await server.handle(
        Call(method="POST", path=SERVICES, user=OWNER, headers=PLAIN, body=body)
    )
    assert json.loads(answer.body)["spec"]["trafficPolicy"] == "PreferZone"
    setting = f"annotation {mode}: Auto" if annotated else "spec.trafficPolicy: PreferZone"
    warning = f"{setting} has no effect while the feature gate TopologyAwareHints is off"
    assert list(answer.warnings) == ([] if gate else [warning])
    await server.close()
