"""The proxy's loop, on a cluster in memory, in virtual time, with a kernel in memory."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.embedded.virtual_cluster import until
from tests.proxy.proxier_trial import SLICE, trial
from tests.proxy.remembering_kernel import NODE, SERVICE

from zonewise.api.errors import ConfigError
from zonewise.api.objects.core import Node
from zonewise.proxy import proxier
from zonewise.proxy.netlink.notices import Touched
from zonewise.proxy.proxier import RESYNC
from zonewise.proxy.tables import writer
from zonewise.proxy.tables.layout import decode

pytestmark = pytest.mark.looptime


@pytest.mark.slow
async def test_the_first_write_is_the_whole_state() -> None:
    """Nothing is written before every list is complete; then everything at once."""
    async with trial(run=False) as proxy:
        address = await proxy.service("a", "n1", "n2")
        await proxy.service("b", "n1")
        task = asyncio.create_task(proxy.proxier.run())
        await proxy.reaches(address, 0, 1)
        task.cancel()
        assert [(sync.first, sync.services) for sync in proxy.observer.syncs] == [(True, 2 + 1)]
        assert len(proxy.kernel.writes) == 1


async def test_a_node_that_the_cluster_does_not_know_is_one_sentence() -> None:
    """A proxy of a node that does not exist writes nothing and says which name to give."""
    async with trial(run=False) as proxy:
        await proxy.client.delete(NODE, "n1", None)
        await until(lambda: not proxy.cache.stats or len(proxy.proxier.nodes) == 0)
        with pytest.raises(ConfigError, match="no Node 'n1'"):
            await proxy.proxier.run()
        assert proxy.kernel.writes == []


async def test_changes_that_concern_no_service_leave_nothing_pending() -> None:
    """After a slice of no Service, or a node's label, no change is pending."""
    async with trial() as proxy:
        address = await proxy.service("a", "n1", keys="rack,*")
        await proxy.reaches(address, 0)
        await proxy.client.delete(SERVICE, "a", "default")
        await until(lambda: proxy.kernel.chosen(address) == set())
        await until(lambda: proxy.proxier.waiting_since is None)
        await proxy.client.create(
            SLICE({"metadata": {"name": "nobody", "namespace": "default"}, "addressType": "IPv4"})
        )
        await proxy.node("n7", rack="r1")
        await until(lambda: len(proxy.proxier.slices) == 2)
        await asyncio.sleep(1.0)
        assert proxy.proxier.waiting_since is None


async def test_a_change_touches_one_service() -> None:
    """When a slice changes, only its Service is computed again, and only changes are written."""
    async with trial() as proxy:
        address = await proxy.service("a", "n1", "n2", "n3")
        await proxy.service("b", "n1")
        await proxy.reaches(address, 0, 1, 2)
        await until(lambda: proxy.proxier.waiting_since is None)
        proxy.observer.keys.clear()
        proxy.kernel.writes.clear()
        await proxy.endpoints("a", "n1", "n2", "n3", "n4")
        await proxy.reaches(address, 0, 1, 2, 3)
        assert set(proxy.observer.keys) == {("default", "a")}
        assert [(len(changes.remove), len(changes.put)) for changes in proxy.kernel.writes] == [
            (1, 2)
        ]


async def test_writes_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Writing and comparing rules logs nothing, however often."""
    async with trial() as proxy:
        address = await proxy.service("a", "n1", "n2", hints="ab")
        await proxy.service("b")
        await proxy.reaches(address, 0)
        await until(lambda: proxy.proxier.waiting_since is None)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            for turn in range(20):
                await proxy.endpoints("a", *("n1", "n2", "n3")[: 1 + turn % 3])
                await proxy.reaches(address, *range(1 + turn % 3))
            await asyncio.sleep(RESYNC + 1)
        assert len(proxy.observer.syncs) > 20
        assert [record.getMessage() for record in caplog.records if "proxy" in record.name] == []


async def test_a_refused_write_is_tried_again_after_reading_the_kernel() -> None:
    """After a failure the kernel is read and the whole difference is written."""
    async with trial() as proxy:
        address = await proxy.service("a", "n1")
        await proxy.reaches(address, 0)
        await until(lambda: proxy.proxier.waiting_since is None)
        reads = len(proxy.kernel.reads)
        proxy.kernel.refusals = 3
        await proxy.endpoints("a", "n1", "n2")
        await proxy.reaches(address, 0, 1)
        assert proxy.observer.failures == 3
        assert len(proxy.kernel.reads) == reads + 3
        assert proxy.observer.syncs[-1].full


async def test_every_hour_the_kernel_is_compared() -> None:
    """Once an hour all tables are compared; if nothing differs nothing is written."""
    async with trial() as proxy:
        address = await proxy.service("a", "n1")
        await proxy.reaches(address, 0)
        await until(lambda: proxy.proxier.waiting_since is None)
        reads = len(proxy.kernel.reads)
        await asyncio.sleep(RESYNC + 1)
        await until(lambda: len(proxy.kernel.reads) == reads + 1)
        assert not proxy.kernel.writes[-1]


@pytest.mark.parametrize("touched", [Touched.ELEMENTS, Touched.RULES])
async def test_changes_by_other_programs_are_undone(touched: Touched) -> None:
    """A notice of a commit by another program leads to a comparison at once."""
    async with trial() as proxy:
        address = await proxy.service("a", "n1")
        await proxy.reaches(address, 0)
        await until(lambda: proxy.proxier.waiting_since is None)
        reads = len(proxy.kernel.reads)
        proxy.kernel.elements.popitem()
        proxy.kernel.heard.what = touched
        proxy.kernel.heard.other.send(b"!")
        await until(lambda: len(proxy.kernel.reads) > reads)
        await proxy.reaches(address, 0)
        assert proxy.kernel.reads[-1] is (touched is Touched.RULES)


async def test_all_services_are_routed_again_when_the_zone_changes() -> None:
    """A new zone of this node changes which endpoints its Services use."""
    async with trial() as proxy:
        address = await proxy.service("a", "n1", "n2", hints="ab")
        await proxy.reaches(address, 0)
        zone = {"metadata": {"labels": {"topology.kubernetes.io/zone": "b"}}}
        await proxy.client.patch(Node, "n1", None, zone)
        await proxy.reaches(address, 1)


async def test_other_labels_of_this_node_wake_only_services_with_keys() -> None:
    """A label of this node other than its zone concerns only Services with topology keys."""
    async with trial() as proxy:
        for name, rack in (("n2", "r1"), ("n3", "r2")):
            await proxy.node(name, rack=rack)
        plain = await proxy.service("plain", "n2", "n3")
        keyed = await proxy.service("keyed", "n2", "n3", keys="rack")
        await proxy.reaches(plain, 0, 1)
        await until(lambda: proxy.proxier.waiting_since is None)
        for rack, chosen in (("r1", 0), ("r2", 1)):
            proxy.observer.keys.clear()
            await proxy.client.patch(Node, "n1", None, {"metadata": {"labels": {"rack": rack}}})
            await proxy.reaches(keyed, chosen)
            assert set(proxy.observer.keys) == {("default", "keyed")}


async def test_labels_of_other_nodes_wake_only_services_with_keys() -> None:
    """Nodes are watched once a Service with keys needs them; their labels concern only such."""
    async with trial() as proxy:
        for name, rack in (("n2", "r1"), ("n3", "r2")):
            await proxy.node(name, rack=rack)
        first = {"metadata": {"labels": {"rack": "r1"}}}
        await proxy.client.patch(Node, "n1", None, first)
        plain = await proxy.service("plain", "n2", "n3")
        await proxy.reaches(plain, 0, 1)
        watched = {stats.resource for stats in proxy.cache.stats}
        keyed = await proxy.service("keyed", "n2", "n3", keys="rack")
        await proxy.reaches(keyed, 0)
        assert "nodes" in watched
        assert len(proxy.cache.stats) > len(watched)
        await until(lambda: proxy.proxier.waiting_since is None)
        proxy.observer.keys.clear()
        await proxy.client.patch(Node, "n3", None, first)
        await proxy.reaches(keyed, 0, 1)
        assert set(proxy.observer.keys) == {("default", "keyed")}


async def test_a_label_makes_no_service_headless() -> None:
    """A Service with an address is served even if labelled headless; slices so labelled are not."""
    headless = {"metadata": {"labels": {"service.kubernetes.io/headless": ""}}}
    async with trial() as proxy:
        address = await proxy.service("a", "n1", "n2")
        await proxy.client.patch(SERVICE, "a", "default", headless)
        await proxy.endpoints("a", "n1")
        await proxy.reaches(address, 0)
        await proxy.client.patch(SLICE, "a-x", "default", headless)
        await proxy.reaches(address)


async def test_a_deleted_service_leaves_nothing() -> None:
    """When a Service is deleted, its elements are removed."""
    async with trial() as proxy:
        await until(lambda: bool(proxy.observer.syncs))
        empty = dict(proxy.kernel.elements)
        address = await proxy.service("a", "n1")
        await proxy.reaches(address, 0)
        await proxy.client.delete(SERVICE, "a", "default")
        await until(lambda: proxy.kernel.elements == empty)


async def test_observers_get_the_routes_a_service_really_has() -> None:
    """An address of another Service is no route, for observers too, until it is free."""
    async with trial() as proxy:
        address = await proxy.service("owner", "n1", "n2")
        await proxy.reaches(address, 0, 1)
        await proxy.service("a-thief", "n1", externalIPs=[address, "203.0.113.7"])
        await proxy.service("b-late", "n1", externalIPs=["203.0.113.7"])
        await until(lambda: proxy.observer.paths("b-late") == ["ClusterIP"])
        assert proxy.observer.paths("a-thief") == ["ClusterIP", "ExternalIP"]
        assert proxy.observer.paths("owner") == ["ClusterIP"]
        await proxy.reaches(address, 0, 1)
        paths = {
            key[1]: [row["path"] for row in routes.rows()] for key, routes in proxy.proxier.routes()
        }
        assert paths["a-thief"] == ["ClusterIP", "ExternalIP"]
        assert paths["b-late"] == ["ClusterIP"]
        await proxy.client.delete(SERVICE, "owner", "default")
        await proxy.reaches(address, 0)
        assert proxy.observer.paths("a-thief") == ["ClusterIP", "ExternalIP", "ExternalIP"]
        await proxy.client.delete(SERVICE, "a-thief", "default")
        await until(lambda: proxy.observer.paths("b-late") == ["ClusterIP", "ExternalIP"])
        await proxy.reaches(address)


async def test_an_external_ip_takes_no_load_balancer_address() -> None:
    """A load balancer's address wins over an external IP that is older and first by name."""
    async with trial() as proxy:
        await proxy.service("a-thief", "n1", externalIPs=["203.0.113.7"])
        await until(lambda: proxy.observer.paths("a-thief") == ["ClusterIP", "ExternalIP"])
        await proxy.service(
            "victim", "n1", "n2", type="LoadBalancer", allocateLoadBalancerNodePorts=False
        )
        ingress = {"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}}
        await proxy.client.patch(SERVICE, "victim", "default", ingress, subresource="status")
        await until(lambda: proxy.observer.paths("victim") == ["ClusterIP", "LoadBalancer"])
        assert proxy.observer.paths("a-thief") == ["ClusterIP"]
        await proxy.reaches("203.0.113.7", 0, 1)


async def test_an_address_of_a_node_is_no_external_ip() -> None:
    """Nodes are watched once a Service has external IPs, and their changes change routes."""
    status = {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.002"}]}}
    async with trial() as proxy:
        await proxy.node("n2")
        await proxy.client.patch(NODE, "n2", None, status, subresource="status")
        plain = await proxy.service("plain", "n1")
        await proxy.reaches(plain, 0)
        watches = len(proxy.cache.stats)
        await proxy.service("a", "n1", externalIPs=["10.0.0.2", "10.0.0.3"])
        await until(lambda: proxy.observer.paths("a") == ["ClusterIP", "ExternalIP"])
        assert len(proxy.cache.stats) == watches + 1
        await proxy.reaches("10.0.0.2")
        await proxy.reaches("10.0.0.3", 0)
        proxy.observer.keys.clear()
        await proxy.client.delete(NODE, "n2", None)
        await proxy.reaches("10.0.0.2", 0)
        assert set(proxy.observer.keys) == {("default", "a")}
        await proxy.node("n3")
        status["status"]["addresses"][0]["address"] = "10.0.0.3"
        await proxy.client.patch(NODE, "n3", None, status, subresource="status")
        await proxy.reaches("10.0.0.3")
        await proxy.reaches("10.0.0.2", 0)
        routes = proxy.observer.routes["default", "a"]
        assert routes is not None
        assert [note.code for note in routes.notes] == ["NodeAddress"]


async def test_a_service_that_the_kernel_refuses_stops_no_other() -> None:
    """The rules of a Service that the kernel refuses stay as they were, and others are written; it
    is retried after growing pauses.
    """
    async with trial() as proxy:
        proxy.kernel.forbidden = "10.244.0.3 "
        first = await proxy.service("good", "n1")
        bad = await proxy.service("bad", "n1", "n1")
        await proxy.reaches(first, 0)
        await proxy.reaches(bad, 0, 1)
        await proxy.endpoints("bad", "n1", "n1", "n1", "n1")
        await until(lambda: proxy.kernel.refused >= 1)
        await proxy.endpoints("good", "n1", "n2")
        await proxy.reaches(first, 0, 1)
        await proxy.reaches(bad, 0, 1)
        await until(lambda: proxy.proxier.waiting_since is None)
        before = proxy.kernel.refused
        await asyncio.sleep(1200)
        assert before + 3 <= proxy.kernel.refused <= before + 15
        assert proxy.observer.failures == 0
        assert proxy.observer.refusals == [("default", "bad")]
        proxy.kernel.forbidden = ""
        await asyncio.sleep(301)
        await proxy.reaches(bad, 0, 1, 2, 3)


async def test_the_first_write_leaves_out_a_refused_service() -> None:
    """If the kernel refuses one Service at the start, the others are written."""
    async with trial(run=False) as proxy:
        proxy.kernel.forbidden = "10.244.0.3 "
        good = [await proxy.service(f"good-{n}", "n1", "n2") for n in range(9)]
        await proxy.service("bad", "n1", "n1", "n1", "n1")
        task = asyncio.create_task(proxy.proxier.run())
        for address in good:
            await proxy.reaches(address, 0, 1)
        assert proxy.observer.refusals == [("default", "bad")]
        assert proxy.observer.failures == 0
        task.cancel()


async def test_networks_that_are_refused_stop_no_service() -> None:
    """While a network is refused, Services are still written, and it is tried again."""
    async with trial() as proxy:
        address = await proxy.service("a", "n1")
        await proxy.reaches(address, 0)
        proxy.kernel.forbidden = "10.0.0.77"
        status = {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.77"}]}}
        await proxy.client.patch(NODE, "n1", None, status, subresource="status")
        await until(lambda: proxy.kernel.refused > 0)
        await proxy.endpoints("a", "n1", "n2")
        await proxy.reaches(address, 0, 1)
        proxy.kernel.forbidden = ""
        await until(lambda: "10.0.0.77" in str(proxy.kernel.networks))


async def test_pauses_after_failures_grow() -> None:
    """A kernel that refuses every write for a long time is tried less and less often."""
    async with trial() as proxy:
        address = await proxy.service("a", "n1")
        await proxy.reaches(address, 0)
        await asyncio.sleep(600)
        proxy.kernel.refusals = 1_000_000
        await proxy.endpoints("a", "n1", "n2")
        await asyncio.sleep(600)
        assert proxy.observer.failures < 120
        proxy.kernel.refusals = 0
        await proxy.reaches(address, 0, 1)


async def test_large_services_take_turns_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small Service waits for one large one at most, however many large ones changed."""
    monkeypatch.setattr(proxier, "LARGE", 2)
    async with trial() as proxy:
        small = await proxy.service("small", "n1")
        for name in ("big-0", "big-1", "big-2"):
            await proxy.service(name, "n1", "n2", "n3")
        await proxy.reaches(small, 0)
        await until(lambda: proxy.proxier.waiting_since is None)
        proxy.observer.batches.clear()
        for name in ("big-0", "big-1", "big-2"):
            proxy.proxier.mark([("default", name)])
        proxy.proxier.mark([("default", "small")])
        await until(lambda: proxy.proxier.waiting_since is None)
        assert [[key[1] for key in batch] for batch in proxy.observer.batches] == [
            ["big-0"],
            ["small"],
            ["big-1"],
            ["big-2"],
        ]


async def test_a_large_service_grows_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """New slots are written in several transactions, before any element leads to them."""
    monkeypatch.setattr(writer, "PIECE", 3)
    async with trial() as proxy:
        address = await proxy.service("a", "n1")
        await proxy.reaches(address, 0)
        await until(lambda: proxy.proxier.waiting_since is None)
        proxy.kernel.writes.clear()
        await proxy.endpoints("a", *(["n2"] * 10))
        await proxy.reaches(address, *range(10))
        await until(lambda: proxy.proxier.waiting_since is None)
        assert [len(changes.put) for changes in proxy.kernel.writes] == [3, 3, 4]
        leads = [
            any(decode(*each)[1].name == "services" for each in changes.put)
            for changes in proxy.kernel.writes
        ]
        assert leads == [False, False, True]
