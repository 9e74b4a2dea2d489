"""The sources' own fields are kept if their gate is on, and dropped if it is off."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.apiserver.strategy.case_runner import MERGE, PLAIN, Send
from tests.embedded.apiserver.strategy.case_tables import NAMESPACE, embedded, open_namespace

from zonewise.api.gates import FeatureGates
from zonewise.embedded.apiserver.server import ApiServer, ServerSettings

SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
BUDGETS = "/apis/policy/{}/namespaces/" + NAMESPACE + "/poddisruptionbudgets"
TOPOLOGY = FeatureGates(
    {"TopologyAwareHints": False, "ServiceTrafficPolicy": False, "ServiceTopology": True}
)
TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}


async def _server(folder: Path, gates: FeatureGates) -> ApiServer:
    server = ApiServer(
        folder,
        settings=ServerSettings(gates=gates),
        clock=lambda: 1.8e9,
        rng=random.Random(7),
        inline=True,
    )
    await server.boot()
    await open_namespace(embedded(server))
    return server


async def _service(send: Send, **fields: Any) -> tuple[int, Any]:
    spec = {"ports": [{"port": 80}], **fields}
    code, created = await send("POST", SERVICES, {"metadata": {"name": "s"}, "spec": spec}, PLAIN)
    if code != 201:
        causes = {(cause["reason"], cause["field"]) for cause in created["details"]["causes"]}
        return code, causes
    code, read = await send("GET", f"{SERVICES}/s", None, {})
    assert read["spec"] == created["spec"]
    return code, read["spec"]


async def test_gates_on(tmp_path: Path) -> None:
    """A field whose gate is on is stored as it was sent, and can be patched."""
    server = await _server(tmp_path, TOPOLOGY)
    send = embedded(server)
    keys = ["kubernetes.io/hostname", "*"]
    _, spec = await _service(send, topologyKeys=keys, trafficPolicy="PreferZone")
    assert spec["topologyKeys"] == keys
    assert "trafficPolicy" not in spec
    _, patched = await send("PATCH", f"{SERVICES}/s", {"spec": {"topologyKeys": ["*"]}}, MERGE)
    assert patched["spec"]["topologyKeys"] == ["*"]
    await server.close()


async def test_gates_off(tmp_path: Path) -> None:
    """A field whose gate is off is not stored, by a create or a patch."""
    server = await _server(tmp_path, FeatureGates())
    send = embedded(server)
    _, spec = await _service(send, topologyKeys=["*"], trafficPolicy="PreferZone")
    assert spec["trafficPolicy"] == "PreferZone"
    assert "topologyKeys" not in spec
    _, patched = await send("PATCH", f"{SERVICES}/s", {"spec": {"topologyKeys": ["*"]}}, MERGE)
    assert "topologyKeys" not in patched["spec"]
    await server.close()


async def test_faults(tmp_path: Path) -> None:
    """The error for a wrong value names its field."""
    server = await _server(tmp_path, TOPOLOGY)
    code, causes = await _service(embedded(server), topologyKeys=["*", "a b", "a b"])
    assert code == 422
    assert causes == {
        ("FieldValueInvalid", "spec.topologyKeys[0]"),
        ("FieldValueInvalid", "spec.topologyKeys[1]"),
        ("FieldValueInvalid", "spec.topologyKeys[2]"),
        ("FieldValueDuplicate", "spec.topologyKeys[2]"),
    }
    await server.close()


KEYS = "zonewise.io/topology-keys"


async def test_keys_in_an_annotation(tmp_path: Path) -> None:
    """The annotation needs no gate and is validated by the rules of the field."""
    server = await _server(tmp_path, FeatureGates())
    send = embedded(server)

    async def put(text: str, **spec: Any) -> tuple[int, list[str]]:
        meta = {"name": "k", "annotations": {KEYS: text}}
        body = {"metadata": meta, "spec": {"ports": [{"port": 80}], **spec}}
        code, answer = await send("POST", SERVICES, body, PLAIN)
        return code, [cause["field"] for cause in answer.get("details", {}).get("causes", ())]

    field = f"metadata.annotations[{KEYS}]"
    assert await put("*,zone") == (422, [field])
    assert await put("zone", type="NodePort", externalTrafficPolicy="Local") == (422, [field])
    assert await put("zone", trafficPolicy="PreferZone") == (422, [field])
    assert await put("zone, *", type="NodePort") == (201, [])
    local = {"spec": {"externalTrafficPolicy": "Local"}}
    code, answer = await send("PATCH", f"{SERVICES}/k", local, MERGE)
    assert (code, answer["details"]["causes"][0]["field"]) == (422, field)
    none = {"metadata": {"annotations": {KEYS: None}}, **local}
    assert (await send("PATCH", f"{SERVICES}/k", none, MERGE))[0] == 200
    await server.close()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_budget_per_domain(version: str, tmp_path: Path) -> None:
    """A budget with nodeSelectorTerm is the same in both versions, and stores its counts."""
    server = await _server(tmp_path, FeatureGates())
    send = embedded(server)
    body = {
        "metadata": {"name": "b"},
        "spec": {
            "minAvailable": 1,
            "selector": {"matchLabels": {"a": "b"}},
            "nodeSelectorTerm": TERM,
        },
    }
    path = BUDGETS.format(version)
    code, created = await send("POST", path, body, PLAIN)
    assert code == 201
    assert created["apiVersion"] == f"policy/{version}"
    assert created["status"]["disruptionsAllowed"] == 0
    domains = [
        {"domain": "a", "expectedPods": 3, "desiredHealthy": 2, "currentHealthy": 0},
        {"domain": "b", "expectedPods": 0, "desiredHealthy": 0, "currentHealthy": 0}
        | {"disruptionsAllowed": 0},
    ]
    counted = created | {"status": created["status"] | {"fingerprint": "f", "domains": domains}}
    code, _ = await send("PUT", f"{path}/b/status", counted, PLAIN)
    assert code == 200
    for served in ("v1", "v1beta1"):
        _, read = await send("GET", f"{BUDGETS.format(served)}/b", None, {})
        assert read["apiVersion"] == f"policy/{served}"
        assert read["spec"]["nodeSelectorTerm"] == TERM
        assert read["status"]["fingerprint"] == "f"
        assert read["status"]["domains"] == domains
    await server.close()


async def test_eviction_from_a_budget_per_domain(tmp_path: Path) -> None:
    """Without a controller for such a budget an eviction is refused, and the answer says why."""
    server = await _server(tmp_path, FeatureGates())
    send = embedded(server)
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    await send("POST", account, {"metadata": {"name": "default"}}, PLAIN)
    pod = {
        "metadata": {"name": "p", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"},
    }
    code, created = await send("POST", PODS, pod, PLAIN)
    assert code == 201, json.dumps(created)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await send("PATCH", f"{PODS}/p/status", {"status": ready}, MERGE)
    budget = {
        "metadata": {"name": "b"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "nodeSelectorTerm": TERM},
    }
    await send("POST", BUDGETS.format("v1"), budget, PLAIN)
    code, answer = await send("POST", f"{PODS}/p/eviction", {"metadata": {"name": "p"}}, PLAIN)
    assert code == 429
    assert "per domain are not counted here" in json.dumps(answer)
    await server.close()
