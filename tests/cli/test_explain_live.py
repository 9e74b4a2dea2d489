"""``zonewise explain`` on a running cluster."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path

import msgspec
import pytest
from tests.cli.run_program import apart
from tests.explain.dumps import endpoint, node, part, service

from zonewise.api import EndpointSlice, Node, PodDisruptionBudget, Service, convert
from zonewise.embedded.apiserver.server import ApiServer

pytestmark = pytest.mark.system


async def test_a_live_cluster(tmp_path: Path) -> None:
    """The objects of a cluster are explained as a dump of them would be; a namespace that does not
    exist is an error, and an empty one is not.
    """
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(3))
    await server.start(0)
    client = server.connect("test")
    for item in (convert(Node, body) for body in (node("n1", "a"), node("n2", "b"))):
        await client.create(item)
        status = {"status": msgspec.to_builtins(item.status)}
        await client.patch(Node, item.metadata.name, None, status, subresource="status")
    rows = [endpoint("10.0.0.1", on="n1"), endpoint("10.0.0.2", on="n2")]
    await client.create(convert(Service, service()))
    await client.create(convert(EndpointSlice, part(rows)))
    budget = {"metadata": {"name": "web", "namespace": "default"}, "spec": {"maxUnavailable": 1}}
    await client.create(convert(PodDisruptionBudget, budget))
    try:
        kubeconfig = server.identity.kubeconfig
        call = ("explain", "service", "web", "-o", "json", "--kubeconfig", kubeconfig)
        result = await asyncio.to_thread(apart, tmp_path, *call)
        missed = [
            await asyncio.to_thread(apart, tmp_path, "explain", what, *call[2:], "-n", "elsewhere")
            for what in ("service", "budget")
        ]
        nowhere = [
            await asyncio.to_thread(apart, tmp_path, "explain", what, *call[5:], "-n", name)
            for what in ("services", "budgets", "pods")
            for name in ("shpo", "kube-system")
        ]
    finally:
        await server.close()
    assert [result.code for result in missed] == [1, 1]
    assert missed[0].sentence().endswith("; there is one in namespace default: add -n default")
    assert missed[1].sentence().endswith("; there is one in namespace default: add -n default")
    for missing, empty in zip(nowhere[::2], nowhere[1::2], strict=True):
        assert (missing.code, empty.code) == (1, 0)
        assert missing.sentence().startswith("error: there is no namespace shpo; give one")
    assert (result.code, result.err) == (0, "")
    report = json.loads(result.out)
    assert report["hinted"] is True
    assert [row["forZones"] for row in report["endpoints"]] == [["a"], ["b"]]


async def test_a_client_that_may_not_be_seen(tmp_path: Path) -> None:
    """Without permission to read pods the error says so, not that the pod does not exist."""
    server = ApiServer(tmp_path / "cluster", clock=time.time, rng=random.Random(3))
    await server.start(0)
    call = ("explain", "name", "web.default.svc", "--client", "default/web-0")
    known = ("--kubeconfig", server.identity.kubeconfig)
    try:
        missing = await asyncio.to_thread(apart, tmp_path, *call, *known)
        hidden = await asyncio.to_thread(apart, tmp_path, *call, *known, "--as", "nobody")
    finally:
        await server.close()
    assert (missing.code, hidden.code) == (1, 1)
    assert "there is no pod web-0 in namespace default" in missing.sentence()
    assert 'User "nobody" cannot list resource "pods"' in hidden.err
