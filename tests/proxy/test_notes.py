"""An event about a Service is created once, however many proxies see the reason."""

from __future__ import annotations

import asyncio

import pytest
from tests.embedded.virtual_cluster import virtual_cluster

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Service
from zonewise.api.objects.events import Event
from zonewise.api.reason import Reason
from zonewise.proxy.notes import Notes
from zonewise.runtime.controller.recorder import Recorder
from zonewise.traffic.routes.table import ServiceRoutes

pytestmark = pytest.mark.looptime

KEY = ("default", "s")
SERVICE = Service(metadata=ObjectMeta(name="s", namespace="default", uid="u"))
KEYS = Reason(code="InvalidTopologyKeys", message="the topology keys are ignored")
SLICE = Reason(code="IgnoredSlice", message="slice s-1 is ignored: no address")


def routes(*notes: Reason) -> ServiceRoutes:
    return ServiceRoutes(namespace="default", service="s", notes=notes)


async def test_the_same_note_of_two_nodes_is_one_event() -> None:
    """Two proxies, one restarted, and a controller make one event for each reason."""
    async with virtual_cluster({}) as cluster:
        proxies = [
            Notes(cluster.server.connect("proxy"), node, service=lambda _: SERVICE)
            for node in ("n1", "n2", "n1")
        ]
        recorder = Recorder(cluster.client, controller="zonewise.io/hints", instance="here")
        tasks = [asyncio.create_task(notes.run()) for notes in proxies]
        tasks.append(asyncio.create_task(recorder.run()))
        for notes in proxies:
            notes.routed(KEY, routes(KEYS))
            notes.routed(KEY, routes(KEYS))
        recorder.event(SERVICE, reason=KEYS.code, action="Route", note=str(KEYS), once=True)
        proxies[0].routed(KEY, routes(KEYS, SLICE))
        proxies[0].routed(KEY, None)
        proxies[0].no_health_check(KEY, 31999, "Address already in use")
        proxies[1].no_health_check(KEY, 31999, "Address already in use")
        expected = {
            ("InvalidTopologyKeys", "the topology keys are ignored"): 1,
            ("IgnoredSlice", "slice s-1 is ignored: no address"): 1,
        }
        events: list[Event] = []

        async def read() -> None:
            events[:] = await cluster.client.list(Event, "default")

        for _ in range(100):
            await asyncio.sleep(0.1)
            await read()
            if len(events) == 4:
                break
        await asyncio.sleep(5)
        await read()
        counted = [(event.reason, event.note) for event in events]
        for pair, count in expected.items():
            assert counted.count(pair) == count
        failed = sorted(event.note for event in events if event.reason.startswith("FailedToStart"))
        assert [note.split()[1] for note in failed] == ["n1", "n2"]
        assert len(events) == 4
        assert all(event.regarding.uid == "u" for event in events)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
