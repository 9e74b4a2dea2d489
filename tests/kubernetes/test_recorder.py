"""Our events are accepted by a real API server and shown by kubectl."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tools import realkube as real
from zonewise.api.meta import ObjectMeta, ObjectReference
from zonewise.api.objects.core import Node, Service
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.runtime.controller.recorder import Recorder, RecorderLimits

pytestmark = pytest.mark.real

LONG = "ünïcode " * 500


async def test_the_server_accepts_every_kind_of_event(realapi: real.ControlPlane) -> None:
    """New events, series, long texts, cluster-wide objects and odd names pass validation."""
    service = Service(metadata=ObjectMeta(name="web", namespace="default", uid="u1"))
    node = Node(metadata=ObjectMeta(name="n1", uid="u2"))
    odd = ObjectReference(kind="ClusterRole", name="system:Odd:Name", uid="u3")
    async with Client(HttpsTransport(load_config(realapi.kubeconfig))) as client:
        recorder = Recorder(
            client,
            controller="zonewise.io/test",
            instance="x" * 200,
            limits=RecorderLimits(refresh=0.2),
        )
        task = asyncio.create_task(recorder.run())
        for _ in range(3):
            recorder.event(service, reason="Seen", action="Look", note="again and again")
        recorder.event(
            service, reason="R" * 300, action="A" * 300, note=LONG, type="Warning", related=node
        )
        recorder.event(node, reason="Gone", action="Drop", note="")
        recorder.event(odd, reason="Odd", action="Name", note="of a role")
        async with asyncio.timeout(180):
            await until_series(realapi)
        recorder.event(service, reason="Seen", action="Look", note="again and again")
        await recorder.close(within=10)
        await task
    assert recorder.dropped == dict.fromkeys(recorder.dropped, 0)
    events = read_events(realapi)
    assert len(events) == 4
    series = next(item for item in events if item.get("series"))
    assert series["series"]["count"] == 4 and series["note"] == "again and again"
    long = next(item for item in events if item["type"] == "Warning")
    assert len(long["note"].encode()) <= 1024 and long["related"]["name"] == "n1"
    table = realapi.kubectl("events", "-n", "default").stdout
    assert "Service/web" in table and "(x4 over" in table


async def until_series(plane: real.ControlPlane) -> None:
    """Wait until the repetitions have been written."""
    while True:
        if any(item.get("series") for item in read_events(plane)):
            return
        await asyncio.sleep(0.1)


def read_events(plane: real.ControlPlane) -> list[dict[str, Any]]:
    """Our events of events.k8s.io."""
    listing = plane.kubectl("get", "events.v1.events.k8s.io", "-n", "default", "-o", "json").stdout
    return [
        item
        for item in json.loads(listing)["items"]
        if item["reportingController"] == "zonewise.io/test"
    ]
