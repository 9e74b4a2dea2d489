"""The proxy's loop, on a cluster in memory, in virtual time, with a kernel that only remembers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster
from tests.proxy.remembering_kernel import NODE, SERVICE, Remembering

from zonewise.api.errors import ConfigError
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.unstructured import unstructured
from zonewise.proxy import proxier
from zonewise.proxy.netlink import Touched
from zonewise.proxy.observer import Observer, Sync
from zonewise.proxy.proxier import RESYNC, Proxier
from zonewise.proxy.settings import ProxySettings
from zonewise.proxy.tables import writer
from zonewise.proxy.tables.layout import decode
from zonewise.runtime.cache.cache import Cache
from zonewise.traffic.routes.table import ServiceRoutes

pytestmark = pytest.mark.looptime

SLICE = unstructured(EndpointSlice.resource)


class Looking(Observer):
    """Counts which Services were made anew, and keeps what it was told of each."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.told: dict[Key, ServiceRoutes | None] = {}
        self.syncs: list[Sync] = []
        self.failures = 0
        self.refusals: list[Key] = []
        self.batches: list[list[Key]] = []
        self._batch: list[Key] = []

    def routed(self, key: Key, routes: ServiceRoutes | None) -> None:
        self.keys.append(key)
        self._batch.append(key)
        self.told[key] = routes

    def paths(self, name: str) -> list[str]:
        """The ways into a Service, as it was told last."""
        routes = self.told.get(("default", name))
        return [] if routes is None else [row["path"] for row in routes.rows()]

    def synced(self, sync: Sync) -> None:
        self.syncs.append(sync)
        self.batches.append(self._batch)
        self._batch = []

    def refused(self, key: Key, error: Exception) -> None:
        self.refusals.append(key)

    def failed(self, error: Exception) -> None:
        self.failures += 1


class Trial:
    """A proxy of node n1 at work."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.client = cluster.client
        self.kernel = Remembering()
        self.looking = Looking()
        self.cache = Cache(cluster.server.connect("proxy"))
        self.proxier = Proxier(self.cache, self.kernel, ProxySettings(node_name="n1"))
        self.proxier.observers = (self.looking,)

    async def node(self, name: str, **labels: str) -> None:
        named = {"topology.kubernetes.io/zone": labels.pop("zone", "a")} | labels
        await self.client.create(NODE({"metadata": {"name": name, "labels": named}}))

    async def service(
        self, name: str, *nodes: str, keys: str = "", hints: str = "", **spec: Any
    ) -> str:
        notes = {"zonewise.io/topology-keys": keys} if keys else {}
        metadata = {"name": name, "namespace": "default", "annotations": notes}
        ports = [{"name": "p", "port": 80, "targetPort": 8080}]
        body = {"metadata": metadata, "spec": {"ports": ports, **spec}}
        made = await self.client.create(SERVICE(body))
        await self.endpoints(name, *nodes, hints=hints)
        return str(made.raw["spec"]["clusterIP"])

    async def endpoints(self, service: str, *nodes: str, hints: str = "") -> None:
        body = {
            "metadata": {"labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
            "endpoints": [
                {
                    "addresses": [f"10.244.0.{number}"],
                    "nodeName": node,
                    "conditions": {"ready": True},
                    **({"hints": {"forZones": [{"name": hints[number]}]}} if hints else {}),
                }
                for number, node in enumerate(nodes)
            ],
        }
        await self.client.apply(SLICE, f"{service}-x", "default", body, force=True)

    async def reaches(self, address: str, *last: int) -> None:
        wanted = {f"10.244.0.{number}" for number in last}
        await until(lambda: self.kernel.chosen(address) == wanted)


@asynccontextmanager
async def trial(*, run: bool = True) -> AsyncIterator[Trial]:
    async with virtual_cluster({}) as cluster:
        made = Trial(cluster)
        await made.node("n1")
        tasks = [asyncio.create_task(made.cache.run())]
        if run:
            tasks.append(asyncio.create_task(made.proxier.run()))
        try:
            yield made
            for task in tasks:
                assert not task.done(), task
        finally:
            for task in reversed(tasks):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            made.kernel.heard.close()


@pytest.mark.slow
async def test_the_first_write_is_the_whole_state() -> None:
    """Nothing is written before every list is complete; then everything, at once."""
    async with trial(run=False) as made:
        address = await made.service("a", "n1", "n2")
        await made.service("b", "n1")
        task = asyncio.create_task(made.proxier.run())
        await made.reaches(address, 0, 1)
        task.cancel()
        assert [(sync.first, sync.services) for sync in made.looking.syncs] == [(True, 2 + 1)]
        assert len(made.kernel.writes) == 1


async def test_a_node_that_the_cluster_does_not_know_is_one_sentence() -> None:
    """A proxy of a node that does not exist writes nothing and says which name to give."""
    async with trial(run=False) as made:
        await made.client.delete(NODE, "n1", None)
        await until(lambda: not made.cache.stats or len(made.proxier.nodes) == 0)
        with pytest.raises(ConfigError, match="no Node 'n1'"):
            await made.proxier.run()
        assert made.kernel.writes == []


async def test_what_concerns_no_service_leaves_nothing_waiting() -> None:
    """A slice of no Service, or a node's label, leaves no change waiting: it stays healthy."""
    async with trial() as made:
        address = await made.service("a", "n1", keys="rack,*")
        await made.reaches(address, 0)
        await made.client.delete(SERVICE, "a", "default")
        await until(lambda: made.kernel.chosen(address) == set())
        await until(lambda: made.proxier.waiting_since is None)
        await made.client.create(
            SLICE({"metadata": {"name": "nobody", "namespace": "default"}, "addressType": "IPv4"})
        )
        await made.node("n7", rack="r1")
        await until(lambda: len(made.proxier.slices) == 2)
        await asyncio.sleep(1.0)
        assert made.proxier.waiting_since is None


async def test_a_change_touches_one_service() -> None:
    """When a slice changes only its Service is made anew, and only the changes written."""
    async with trial() as made:
        address = await made.service("a", "n1", "n2", "n3")
        await made.service("b", "n1")
        await made.reaches(address, 0, 1, 2)
        await until(lambda: made.proxier.waiting_since is None)
        made.looking.keys.clear()
        made.kernel.writes.clear()
        await made.endpoints("a", "n1", "n2", "n3", "n4")
        await made.reaches(address, 0, 1, 2, 3)
        assert set(made.looking.keys) == {("default", "a")}
        assert [(len(one.remove), len(one.put)) for one in made.kernel.writes] == [(1, 2)]


async def test_a_write_is_not_worth_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """However often rules are written and compared, the log stays as it was."""
    async with trial() as made:
        address = await made.service("a", "n1", "n2", hints="ab")
        await made.service("b")
        await made.reaches(address, 0)
        await until(lambda: made.proxier.waiting_since is None)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            for turn in range(20):
                await made.endpoints("a", *("n1", "n2", "n3")[: 1 + turn % 3])
                await made.reaches(address, *range(1 + turn % 3))
            await asyncio.sleep(RESYNC + 1)
        assert len(made.looking.syncs) > 20
        assert [one.getMessage() for one in caplog.records if "proxy" in one.name] == []


async def test_a_refused_write_is_tried_again_from_what_is_there() -> None:
    """After failures the kernel is read and the whole changes written; nothing is lost."""
    async with trial() as made:
        address = await made.service("a", "n1")
        await made.reaches(address, 0)
        await until(lambda: made.proxier.waiting_since is None)
        reads = len(made.kernel.reads)
        made.kernel.refusals = 3
        await made.endpoints("a", "n1", "n2")
        await made.reaches(address, 0, 1)
        assert made.looking.failures == 3
        assert len(made.kernel.reads) == reads + 3
        assert made.looking.syncs[-1].full


async def test_every_hour_the_kernel_is_looked_at() -> None:
    """Once an hour everything is compared, and nothing written if nothing differs."""
    async with trial() as made:
        address = await made.service("a", "n1")
        await made.reaches(address, 0)
        await until(lambda: made.proxier.waiting_since is None)
        reads = len(made.kernel.reads)
        await asyncio.sleep(RESYNC + 1)
        await until(lambda: len(made.kernel.reads) == reads + 1)
        assert not made.kernel.writes[-1]


@pytest.mark.parametrize("touched", [Touched.ELEMENTS, Touched.RULES])
async def test_what_others_change_is_put_right(touched: Touched) -> None:
    """A commit notice of somebody else leads to a comparison at once."""
    async with trial() as made:
        address = await made.service("a", "n1")
        await made.reaches(address, 0)
        await until(lambda: made.proxier.waiting_since is None)
        reads = len(made.kernel.reads)
        made.kernel.held.popitem()
        made.kernel.heard.what = touched
        made.kernel.heard.other.send(b"!")
        await until(lambda: len(made.kernel.reads) > reads)
        await made.reaches(address, 0)
        assert made.kernel.reads[-1] is (touched is Touched.RULES)


async def test_a_node_that_moves_is_routed_anew() -> None:
    """When the zone of this node changes every Service is looked at again."""
    async with trial() as made:
        address = await made.service("a", "n1", "n2", hints="ab")
        await made.reaches(address, 0)
        zone = {"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}}
        await made.client.patch(Node, "n1", None, zone)
        await made.reaches(address, 1)


async def test_other_labels_of_this_node_wake_only_services_with_keys() -> None:
    """A label of this node that is not its zone moves Services with keys, and no other."""
    async with trial() as made:
        for name, rack in (("n2", "r1"), ("n3", "r2")):
            await made.node(name, rack=rack)
        plain = await made.service("plain", "n2", "n3")
        keyed = await made.service("keyed", "n2", "n3", keys="rack")
        await made.reaches(plain, 0, 1)
        await until(lambda: made.proxier.waiting_since is None)
        for rack, chosen in (("r1", 0), ("r2", 1)):
            made.looking.keys.clear()
            await made.client.patch(Node, "n1", None, {"metadata": {"labels": {"rack": rack}}})
            await made.reaches(keyed, chosen)
            assert set(made.looking.keys) == {("default", "keyed")}


async def test_labels_of_other_nodes_wake_only_services_with_keys() -> None:
    """Nodes are watched once a Service has keys, and their labels move such Services only."""
    async with trial() as made:
        for name, rack in (("n2", "r1"), ("n3", "r2")):
            await made.node(name, rack=rack)
        first = {"metadata": {"labels": {"rack": "r1"}}}
        await made.client.patch(Node, "n1", None, first)
        plain = await made.service("plain", "n2", "n3")
        await made.reaches(plain, 0, 1)
        watched = {one.resource for one in made.cache.stats}
        keyed = await made.service("keyed", "n2", "n3", keys="rack")
        await made.reaches(keyed, 0)
        assert "nodes" in watched
        assert len(made.cache.stats) > len(watched)
        await until(lambda: made.proxier.waiting_since is None)
        made.looking.keys.clear()
        await made.client.patch(Node, "n3", None, first)
        await made.reaches(keyed, 0, 1)
        assert set(made.looking.keys) == {("default", "keyed")}


async def test_a_label_makes_no_service_headless() -> None:
    """A Service that has an address is served, labelled as headless or not; such slices are not."""
    headless = {"metadata": {"labels": {"service.kubernetes.io/headless": ""}}}
    async with trial() as made:
        address = await made.service("a", "n1", "n2")
        await made.client.patch(SERVICE, "a", "default", headless)
        await made.endpoints("a", "n1")
        await made.reaches(address, 0)
        await made.client.patch(SLICE, "a-x", "default", headless)
        await made.reaches(address)


async def test_a_deleted_service_leaves_nothing() -> None:
    """When Services are gone so are their elements."""
    async with trial() as made:
        await until(lambda: bool(made.looking.syncs))
        empty = dict(made.kernel.held)
        address = await made.service("a", "n1")
        await made.reaches(address, 0)
        await made.client.delete(SERVICE, "a", "default")
        await until(lambda: made.kernel.held == empty)


async def test_a_service_is_told_with_the_ways_it_has() -> None:
    """Who names another's address has no route there, nor has any observer, until it is free."""
    async with trial() as made:
        address = await made.service("owner", "n1", "n2")
        await made.reaches(address, 0, 1)
        await made.service("a-thief", "n1", externalIPs=[address, "203.0.113.7"])
        await made.service("b-late", "n1", externalIPs=["203.0.113.7"])
        await until(lambda: made.looking.paths("b-late") == ["ClusterIP"])
        assert made.looking.paths("a-thief") == ["ClusterIP", "ExternalIP"]
        assert made.looking.paths("owner") == ["ClusterIP"]
        await made.reaches(address, 0, 1)
        shown = {key[1]: [row["path"] for row in one.rows()] for key, one in made.proxier.routes()}
        assert shown["a-thief"] == ["ClusterIP", "ExternalIP"]
        assert shown["b-late"] == ["ClusterIP"]
        await made.client.delete(SERVICE, "owner", "default")
        await made.reaches(address, 0)
        assert made.looking.paths("a-thief") == ["ClusterIP", "ExternalIP", "ExternalIP"]
        await made.client.delete(SERVICE, "a-thief", "default")
        await until(lambda: made.looking.paths("b-late") == ["ClusterIP", "ExternalIP"])
        await made.reaches(address)


async def test_an_external_ip_takes_no_load_balancer_address() -> None:
    """Who names a load balancer's address, first by name and first to come, loses it to that."""
    async with trial() as made:
        await made.service("a-thief", "n1", externalIPs=["203.0.113.7"])
        await until(lambda: made.looking.paths("a-thief") == ["ClusterIP", "ExternalIP"])
        await made.service(
            "victim", "n1", "n2", type="LoadBalancer", allocateLoadBalancerNodePorts=False
        )
        ingress = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}}
        await made.client.patch(SERVICE, "victim", "default", ingress, subresource="status")
        await until(lambda: made.looking.paths("victim") == ["ClusterIP", "LoadBalancer"])
        assert made.looking.paths("a-thief") == ["ClusterIP"]
        await made.reaches("203.0.113.7", 0, 1)


async def test_an_address_is_no_external_ip_once_a_node_has_it() -> None:
    """Nodes are followed once a Service has external IPs; who comes or goes changes the routes."""
    status = {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.002"}]}}
    async with trial() as made:
        await made.node("n2")
        await made.client.patch(NODE, "n2", None, status, subresource="status")
        plain = await made.service("plain", "n1")
        await made.reaches(plain, 0)
        watches = len(made.cache.stats)
        await made.service("a", "n1", externalIPs=["10.0.0.2", "10.0.0.3"])
        await until(lambda: made.looking.paths("a") == ["ClusterIP", "ExternalIP"])
        assert len(made.cache.stats) == watches + 1
        await made.reaches("10.0.0.2")
        await made.reaches("10.0.0.3", 0)
        made.looking.keys.clear()
        await made.client.delete(NODE, "n2", None)
        await made.reaches("10.0.0.2", 0)
        assert set(made.looking.keys) == {("default", "a")}
        await made.node("n3")
        status["status"]["addresses"][0]["address"] = "10.0.0.3"
        await made.client.patch(NODE, "n3", None, status, subresource="status")
        await made.reaches("10.0.0.3")
        await made.reaches("10.0.0.2", 0)
        told = made.looking.told["default", "a"]
        assert told is not None
        assert [note.code for note in told.notes] == ["NodeAddress"]


async def test_a_service_that_the_kernel_refuses_stops_no_other() -> None:
    """Its rules stay what they were, all others go in; it is tried again after growing pauses."""
    async with trial() as made:
        made.kernel.hated = "10.244.0.3 "
        first = await made.service("good", "n1")
        bad = await made.service("bad", "n1", "n1")
        await made.reaches(first, 0)
        await made.reaches(bad, 0, 1)
        await made.endpoints("bad", "n1", "n1", "n1", "n1")
        await until(lambda: made.kernel.refused >= 1)
        await made.endpoints("good", "n1", "n2")
        await made.reaches(first, 0, 1)
        await made.reaches(bad, 0, 1)
        await until(lambda: made.proxier.waiting_since is None)
        before = made.kernel.refused
        await asyncio.sleep(1200)
        assert before + 3 <= made.kernel.refused <= before + 15
        assert made.looking.failures == 0
        assert made.looking.refusals == [("default", "bad")]
        made.kernel.hated = ""
        await asyncio.sleep(301)
        await made.reaches(bad, 0, 1, 2, 3)


async def test_a_first_write_leaves_out_what_is_refused() -> None:
    """One Service of many that the kernel refuses, at the very start: the others are written."""
    async with trial(run=False) as made:
        made.kernel.hated = "10.244.0.3 "
        good = [await made.service(f"good-{n}", "n1", "n2") for n in range(9)]
        await made.service("bad", "n1", "n1", "n1", "n1")
        task = asyncio.create_task(made.proxier.run())
        for address in good:
            await made.reaches(address, 0, 1)
        assert made.looking.refusals == [("default", "bad")]
        assert made.looking.failures == 0
        task.cancel()


async def test_networks_that_are_refused_stop_no_service() -> None:
    """Whatever is wrong with a network, Services go on, and it is tried again."""
    async with trial() as made:
        address = await made.service("a", "n1")
        await made.reaches(address, 0)
        made.kernel.hated = "10.0.0.77"
        status = {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.77"}]}}
        await made.client.patch(NODE, "n1", None, status, subresource="status")
        await until(lambda: made.kernel.refused > 0)
        await made.endpoints("a", "n1", "n2")
        await made.reaches(address, 0, 1)
        made.kernel.hated = ""
        await until(lambda: "10.0.0.77" in str(made.kernel.networks))


async def test_pauses_after_failures_grow() -> None:
    """A kernel that refuses everything for a long time is asked ever less often."""
    async with trial() as made:
        address = await made.service("a", "n1")
        await made.reaches(address, 0)
        await asyncio.sleep(600)
        made.kernel.refusals = 1_000_000
        await made.endpoints("a", "n1", "n2")
        await asyncio.sleep(600)
        assert made.looking.failures < 120
        made.kernel.refusals = 0
        await made.reaches(address, 0, 1)


async def test_large_services_take_turns_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many large Services changed, one that is not waits for one of them at most."""
    monkeypatch.setattr(proxier, "LARGE", 2)
    async with trial() as made:
        small = await made.service("small", "n1")
        for name in ("big-0", "big-1", "big-2"):
            await made.service(name, "n1", "n2", "n3")
        await made.reaches(small, 0)
        await until(lambda: made.proxier.waiting_since is None)
        made.looking.batches.clear()
        for name in ("big-0", "big-1", "big-2"):
            made.proxier.mark([("default", name)])
        made.proxier.mark([("default", "small")])
        await until(lambda: made.proxier.waiting_since is None)
        assert [[key[1] for key in batch] for batch in made.looking.batches] == [
            ["big-0"],
            ["small"],
            ["big-1"],
            ["big-2"],
        ]


async def test_a_large_service_grows_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """New slots go in before anything leads there, a piece in each transaction."""
    monkeypatch.setattr(writer, "PIECE", 3)
    async with trial() as made:
        address = await made.service("a", "n1")
        await made.reaches(address, 0)
        await until(lambda: made.proxier.waiting_since is None)
        made.kernel.writes.clear()
        await made.endpoints("a", *(["n2"] * 10))
        await made.reaches(address, *range(10))
        await until(lambda: made.proxier.waiting_since is None)
        assert [len(one.put) for one in made.kernel.writes] == [3, 3, 4]
        leads = [
            any(decode(*each)[1].name == "services" for each in one.put)
            for one in made.kernel.writes
        ]
        assert leads == [False, False, True]
