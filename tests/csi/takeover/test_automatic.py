"""Automatic takeover on a cluster: it edits the ConfigMap, apart from manual changes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from tests.csi.takeover.written_takeover import written
from tests.embedded.virtual_cluster import EPOCH, VirtualCluster, virtual_cluster

from zonewise.api import Node, convert
from zonewise.api.errors import ConnectionFailed
from zonewise.api.values.times import format_time, from_epoch
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.takeover.automatic import AutomaticLoop
from zonewise.csi.takeover.controller import ConfigMap, TakeoverSettings
from zonewise.csi.takeover.source import FollowedConfiguration
from zonewise.csi.takeover.status import CONFIG_KEY, CONFIG_MAP, StatusReasons
from zonewise.csi.transport.calls import run_inline
from zonewise.runtime.program.context import ControllerContext
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import DomainLabels, parse_domain_labels

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


def ready_node(zone: str, *, ready: bool) -> Node:
    """A node of a zone that has been Ready, or not, since the beginning."""
    condition = {
        "type": "Ready",
        "status": "True" if ready else "Unknown",
        "lastTransitionTime": format_time(from_epoch(EPOCH)),
    }
    body = {
        "metadata": {"name": zone, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {"conditions": [condition]},
    }
    return convert(Node, body)


LABELS = parse_domain_labels("topology.kubernetes.io/zone", "csi.zonewise.io")
AUTOMATIC = {"version": 2, "automatic-takeover": {"by": ["all"], "pause": "1m"}}


class Zones:
    """Storage with a health that the test sets."""

    def __init__(self) -> None:
        self.failed: frozenset[str] | None = frozenset()
        self.broken = False

    def read_domain_health(self, labels: DomainLabels) -> tuple[frozenset[str], frozenset[str]]:
        """All zones, and those that failed."""
        if self.broken:
            raise ConnectionFailed("the API server is away")
        if self.failed is None:
            raise CsiError(Code.UNAVAILABLE, "nobody answers")
        return frozenset("abc"), self.failed


async def test_a_zone_that_stays_down_is_taken_over_and_given_back() -> None:
    """A zone that stays down is taken over after the pause, and given back; manual entries stay,
    and an unanswered query is no failure.
    """
    zones, source = Zones(), FollowedConfiguration()
    parts = {
        "automatic": lambda context: AutomaticLoop(
            context,
            TakeoverSettings(source=source, labels=LABELS, namespace="default"),
            storage=zones,
            worker=run_inline,
        )
    }
    async with virtual_cluster(parts) as cluster:
        text = json.dumps({**AUTOMATIC, "topology-takeover": {"c": ["b"]}})
        body = {
            "metadata": {"name": CONFIG_MAP, "namespace": "default"},
            "data": {CONFIG_KEY: text},
        }
        await cluster.client.create(ConfigMap(body))
        source.use(parse_configuration(text, LABELS))
        zones.failed = frozenset("a")
        await asyncio.sleep(50)
        zones.failed = None
        await asyncio.sleep(50)
        zones.failed = frozenset("a")
        await asyncio.sleep(50)
        assert await written(cluster) == ({"c": ["b"]}, "")
        await asyncio.sleep(30)
        assert await written(cluster) == ({"c": ["b"], "a": ["all"]}, "a")
        zones.failed = frozenset()
        await asyncio.sleep(50)
        assert await written(cluster) == ({"c": ["b"], "a": ["all"]}, "a")
        await asyncio.sleep(30)
        assert await written(cluster) == ({"c": ["b"]}, "")


async def test_it_is_off_by_default() -> None:
    """Without the key of automatic takeover nothing is written, whatever fails."""
    zones, source = Zones(), FollowedConfiguration()
    zones.failed = frozenset("a")
    parts = {
        "automatic": lambda context: AutomaticLoop(
            context,
            TakeoverSettings(source=source, labels=LABELS, namespace="default"),
            storage=zones,
            worker=run_inline,
        )
    }
    async with virtual_cluster(parts) as cluster:
        text = '{"version": 2}'
        body = {
            "metadata": {"name": CONFIG_MAP, "namespace": "default"},
            "data": {CONFIG_KEY: text},
        }
        await cluster.client.create(ConfigMap(body))
        source.use(parse_configuration(text, LABELS))
        await asyncio.sleep(3600)
        assert await written(cluster) == ({}, "")


async def test_manual_changes_win() -> None:
    """A domain that is given back by hand has a whole pause again; one that is taken over by hand
    stays taken over.
    """
    zones, source = Zones(), FollowedConfiguration()
    zones.failed = frozenset("a")
    parts = {
        "automatic": lambda context: AutomaticLoop(
            context,
            TakeoverSettings(source=source, labels=LABELS, namespace="default"),
            storage=zones,
            worker=run_inline,
        )
    }

    async def edit(cluster: VirtualCluster, **takeover: list[str]) -> None:
        text = json.dumps({**AUTOMATIC, "topology-takeover": takeover})
        await cluster.client.patch(ConfigMap, CONFIG_MAP, "default", {"data": {CONFIG_KEY: text}})

    async with virtual_cluster(parts) as cluster:
        text = json.dumps(AUTOMATIC)
        body = {
            "metadata": {"name": CONFIG_MAP, "namespace": "default"},
            "data": {CONFIG_KEY: text},
        }
        await cluster.client.create(ConfigMap(body))
        source.use(parse_configuration(text, LABELS))
        await asyncio.sleep(90)
        assert await written(cluster) == ({"a": ["all"]}, "a")
        await edit(cluster)
        await asyncio.sleep(50)
        assert await written(cluster) == ({}, "")
        await asyncio.sleep(40)
        assert await written(cluster) == ({"a": ["all"]}, "a")
        await edit(cluster)
        await asyncio.sleep(20)
        await edit(cluster, a=["b"])
        zones.failed = frozenset()
        await asyncio.sleep(3600)
        assert await written(cluster) == ({"a": ["b"]}, "")


async def test_an_unreachable_api_server_restarts_the_pause() -> None:
    """Time does not count while the API server is unreachable, and the pause starts again when it
    is back.
    """
    zones, source = Zones(), FollowedConfiguration()
    zones.failed, zones.broken = frozenset("a"), True
    parts = {
        "automatic": lambda context: AutomaticLoop(
            context,
            TakeoverSettings(source=source, labels=LABELS, namespace="default"),
            storage=zones,
            worker=run_inline,
        )
    }
    async with virtual_cluster(parts) as cluster:
        text = json.dumps(AUTOMATIC)
        body = {
            "metadata": {"name": CONFIG_MAP, "namespace": "default"},
            "data": {CONFIG_KEY: text},
        }
        await cluster.client.create(ConfigMap(body))
        source.use(parse_configuration(text, LABELS))
        await asyncio.sleep(300)
        zones.broken = False
        await asyncio.sleep(50)
        assert await written(cluster) == ({}, "")
        await asyncio.sleep(40)
        assert await written(cluster) == ({"a": ["all"]}, "a")


async def test_a_zone_given_back_by_hand_has_its_delay_after_a_restart() -> None:
    """Since when a zone was given back by hand is written, so that a new leader neither takes it
    at once nor begins again; the nodes' own times would be long over.
    """
    source = FollowedConfiguration()

    def make(context: ControllerContext) -> AutomaticLoop:
        settings = TakeoverSettings(source=source, labels=LABELS, namespace="default")
        return AutomaticLoop(context, settings, storage=None, worker=run_inline)

    async with virtual_cluster({"automatic": make}) as cluster:
        for zone in "abc":
            await cluster.client.create(ready_node(zone, ready=zone != "a"))
        automatic = {"by": ["all"], "pause": "5m", "sources": ["nodes"]}
        text = json.dumps({"version": 2, "automatic-takeover": automatic})
        body = {
            "metadata": {"name": CONFIG_MAP, "namespace": "default"},
            "data": {CONFIG_KEY: text},
        }
        await cluster.client.create(ConfigMap(body))
        source.use(parse_configuration(text, LABELS))
        await asyncio.sleep(320)
        assert await written(cluster) == ({"a": ["all"]}, "a")
        await cluster.client.patch(ConfigMap, CONFIG_MAP, "default", {"data": {CONFIG_KEY: text}})
        await asyncio.sleep(150)
        assert await written(cluster) == ({}, "")
        restarted = make(cluster.program.context("restarted"))
        await restarted.check_once()
        assert await written(cluster) == ({}, "")
        await asyncio.sleep(130)
        assert await written(cluster) == ({}, "")
        await asyncio.sleep(40)
        assert await written(cluster) == ({"a": ["all"]}, "a")


@pytest.mark.parametrize("jump", [False, True], ids=["ahead", "jumps"])
async def test_a_wrong_clock_does_not_end_a_pause(jump: bool) -> None:
    """A clock that is an hour ahead, or jumps, takes no zone over, and gives none back, that was
    not seen so for a minute.
    """
    source = FollowedConfiguration()
    off = 0.0 if jump else 3600.0

    def make(context: ControllerContext) -> AutomaticLoop:
        settings = TakeoverSettings(source=source, labels=LABELS, namespace="default")
        wrong = replace(context, clock=lambda: context.clock() + off)
        return AutomaticLoop(wrong, settings, storage=None, worker=run_inline)

    async with virtual_cluster({"automatic": make}) as cluster:

        async def let_zone_be(*, ready: bool) -> None:
            now = format_time(from_epoch(EPOCH + asyncio.get_running_loop().time()))
            condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": now}
            node = await cluster.client.get(Node, "a")
            await cluster.client.patch_status(node, {"conditions": [condition]})

        for zone in "abc":
            await cluster.client.create(ready_node(zone, ready=True))
        automatic = {"by": ["all"], "pause": "5m", "sources": ["nodes"]}
        text = json.dumps({"version": 2, "automatic-takeover": automatic})
        body = {
            "metadata": {"name": CONFIG_MAP, "namespace": "default"},
            "data": {CONFIG_KEY: text},
        }
        await cluster.client.create(ConfigMap(body))
        source.use(parse_configuration(text, LABELS))
        await asyncio.sleep(600)
        await let_zone_be(ready=False)
        await asyncio.sleep(20)
        off = 3600.0
        await asyncio.sleep(30)
        assert await written(cluster) == ({}, "")
        await asyncio.sleep(40)
        assert await written(cluster) == ({"a": ["all"]}, "a")
        await let_zone_be(ready=True)
        await asyncio.sleep(50)
        assert await written(cluster) == ({"a": ["all"]}, "a")
        await asyncio.sleep(40)
        assert await written(cluster) == ({}, "")


async def test_a_new_leader_adds_at_most_a_minute_to_a_pause() -> None:
    """A leader that finds a zone which has long failed takes it over after a minute."""
    source = FollowedConfiguration()

    def make(context: ControllerContext) -> AutomaticLoop:
        settings = TakeoverSettings(source=source, labels=LABELS, namespace="default")
        return AutomaticLoop(context, settings, storage=None, worker=run_inline)

    async with virtual_cluster({}) as cluster:
        for zone in "abc":
            await cluster.client.create(ready_node(zone, ready=zone != "a"))
        automatic = {"by": ["all"], "pause": "5m", "sources": ["nodes"]}
        text = json.dumps({"version": 2, "automatic-takeover": automatic})
        body = {
            "metadata": {"name": CONFIG_MAP, "namespace": "default"},
            "data": {CONFIG_KEY: text},
        }
        await cluster.client.create(ConfigMap(body))
        source.use(parse_configuration(text, LABELS))
        await asyncio.sleep(600)
        leader = make(cluster.program.context("new"))
        work = asyncio.create_task(leader.run())
        await asyncio.sleep(50)
        assert await written(cluster) == ({}, "")
        await asyncio.sleep(20)
        assert await written(cluster) == ({"a": ["all"]}, "a")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def test_a_silent_ceph_does_not_stop_the_nodes() -> None:
    """While Ceph does not answer, nodes alone can have a zone taken over, not given back."""
    zones, source = Zones(), FollowedConfiguration()
    zones.failed = None
    holds = StatusReasons()

    def make(context: ControllerContext) -> AutomaticLoop:
        settings = TakeoverSettings(source=source, labels=LABELS, namespace="default", holds=holds)
        return AutomaticLoop(context, settings, storage=zones, worker=run_inline)

    async with virtual_cluster({"automatic": make}) as cluster:
        for zone in "abc":
            await cluster.client.create(ready_node(zone, ready=zone != "a"))
        automatic = {"by": ["all"], "pause": "2m", "sources": ["ceph", "nodes"]}
        text = json.dumps({"version": 2, "automatic-takeover": automatic})
        body = {
            "metadata": {"name": CONFIG_MAP, "namespace": "default"},
            "data": {CONFIG_KEY: text},
        }
        await cluster.client.create(ConfigMap(body))
        source.use(parse_configuration(text, LABELS))
        await asyncio.sleep(140)
        assert await written(cluster) == ({"a": ["all"]}, "a")
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        await cluster.client.patch_status(await cluster.client.get(Node, "a"), status)
        await asyncio.sleep(600)
        assert await written(cluster) == ({"a": ["all"]}, "a")
        assert [hold.code for hold in holds.current] == ["SourceSilent", "SourceSilent"]
        zones.failed = frozenset()
        await asyncio.sleep(100)
        assert await written(cluster) == ({"a": ["all"]}, "a")
        await asyncio.sleep(60)
        assert await written(cluster) == ({}, "")
