"""A node that is out of service is fenced, and let in again, whatever fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import pytest
from tests.embedded.virtual_cluster import Parts, VirtualCluster, until, virtual_cluster

from zonewise.api import Node, convert
from zonewise.api.reason import Reason
from zonewise.csi.backends.contract import HeldVolume
from zonewise.csi.errors import Code, CsiError
from zonewise.csi.takeover.controller import ConfigMap, TakeoverController, TakeoverSettings
from zonewise.csi.takeover.fence_records import (
    FENCES_KEY,
    FENCES_MAP,
    FenceRecord,
    WrittenFences,
    format_fences,
    parse_fences,
)
from zonewise.csi.takeover.out_of_service import OutOfServiceController
from zonewise.csi.takeover.source import FollowedConfiguration
from zonewise.csi.takeover.status import STATUS_KEY, STATUS_MAP, TakeoverStatus
from zonewise.csi.transport.calls import CallWorker, run_inline
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import parse_domain_labels
from zonewise.storage.takeover.dead_nodes import Fence, FenceStep, VolumeHolder, decide_fencing
from zonewise.storage.takeover.stand_ins import TakeoverMap
from zonewise.topology.nodes import is_out_of_service

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

T = TypeVar("T")
LABELS = parse_domain_labels("topology.kubernetes.io/zone", "csi.zonewise.io")
TAINT = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}


class Images:
    """Storage with one image, whose record says how far it is fenced; ``broken`` refuses all."""

    def __init__(self) -> None:
        self.holder = "n1"
        self.connected = {"10.0.0.1:0/1"}
        self.blocklist: set[str] = set()
        self.fence: Fence | None = None
        self.broken = False
        self.tries: list[float] = []

    def find_held(self, node: str) -> tuple[list[HeldVolume], list[str]]:
        """The image, if the node has it and is not fenced from it."""
        confirmed = self.fence is Fence.CONFIRMED
        if node != self.holder or (confirmed and not self.connected - self.blocklist):
            return [], []
        return [HeldVolume("ceph", "u", tuple(sorted(self.connected - self.blocklist)))], []

    def fence_held(self, node: str, volume: HeldVolume) -> None:
        """Fence it; that it has begun is written first."""
        self.tries.append(asyncio.get_running_loop().time())
        if node != self.holder:
            return
        self.fence = Fence.BEGUN
        if self.broken:
            raise CsiError(Code.UNAVAILABLE, "no monitor answers")
        self.blocklist |= {*volume.clients}
        self.fence = Fence.CONFIRMED

    def unfence_held(self, node: str, volume: HeldVolume, *, rebooted: bool) -> bool:
        """Let clients in again where nobody is harmed; the record goes last."""
        if self.holder != node and not rebooted:
            return False
        if self.holder == node:
            self.fence = Fence.BEGUN
        if not self.broken:
            self.blocklist -= {*volume.clients}
            self.end_unfencing()
        if self.holder == node:
            self.fence = None
        if self.broken:
            raise CsiError(Code.PERMISSION_DENIED, "access denied")
        return True

    def end_unfencing(self) -> None:
        """The clients are in, and the record is not removed yet."""

    def decide_for(self, node: str) -> FenceStep:
        """What another node does before it stages the image."""
        holder = VolumeHolder(
            self.holder, {"zone": "a"}, bool(self.connected - self.blocklist), self.fence
        )
        this_node = VolumeHolder(node, {"zone": "a"})
        return decide_fencing("v", holder, this_node, {"zone": "a"}, TakeoverMap()).step


@asynccontextmanager
async def watched(images: Images) -> AsyncIterator[VirtualCluster]:
    """A cluster with a node whose driver follows its taints."""
    source = FollowedConfiguration()
    source.use(StorageConfiguration())
    settings = TakeoverSettings(source=source, labels=LABELS, namespace="default")
    parts: Parts = {
        "takeover": lambda context: TakeoverController(context, settings),
        "out-of-service": lambda context: OutOfServiceController(
            context, settings, storage=images, worker=run_inline
        ),
    }
    async with virtual_cluster(parts) as cluster:
        info = {"bootID": "first"}
        await cluster.client.create(
            convert(Node, {"metadata": {"name": "n1"}, "status": {"nodeInfo": info}})
        )
        yield cluster


async def taint(cluster: VirtualCluster, *taints: dict[str, str]) -> None:
    """Declare the node out of service, or in service again."""
    await cluster.client.patch(Node, "n1", None, {"spec": {"taints": [*taints]}})


async def boot(cluster: VirtualCluster, boot_id: str) -> None:
    """Boot the node."""
    node = await cluster.client.get(Node, "n1")
    await cluster.client.patch_status(node, {"nodeInfo": {"bootID": boot_id}})


async def records(cluster: VirtualCluster) -> dict[str, FenceRecord]:
    """What is written."""
    return dict(parse_fences(await stored(cluster)).records)


async def stored(cluster: VirtualCluster) -> str:
    """The text that the records are in."""
    config_map = await cluster.client.get(ConfigMap, FENCES_MAP, "default")
    return str(config_map.get("data", FENCES_KEY, default=""))


async def store(cluster: VirtualCluster, text: str) -> None:
    """Replace that text."""
    await cluster.client.patch(ConfigMap, FENCES_MAP, "default", {"data": {FENCES_KEY: text}})


async def read_fences(cluster: VirtualCluster) -> tuple[Reason, ...]:
    """What the status says of nodes."""
    config_map = await cluster.client.get(ConfigMap, STATUS_MAP, "default")
    return TakeoverStatus.parse(str(config_map.get("data", STATUS_KEY, default=""))).out_of_service


async def reported(cluster: VirtualCluster) -> list[str]:
    """The codes in the status."""
    return [reason.code for reason in await read_fences(cluster)]


async def events(cluster: VirtualCluster) -> set[str]:
    """The reasons of all events."""
    answer = await cluster.client.raw("GET", "/apis/events.k8s.io/v1/events")
    return {item["reason"] for item in msgspec.json.decode(answer.body)["items"]}


async def test_a_node_is_fenced_at_once_and_let_in_again() -> None:
    """The taint fences its clients within a second, and their removal lets them in again."""
    images = Images()
    async with watched(images) as cluster:
        await asyncio.sleep(60)
        assert (images.blocklist, images.tries) == (set(), [])
        await taint(cluster, TAINT)
        await asyncio.sleep(1)
        assert images.blocklist == {"10.0.0.1:0/1"}
        await asyncio.sleep(5)
        image = HeldVolume("ceph", "u", ("10.0.0.1:0/1",))
        assert await records(cluster) == {"n1": FenceRecord("first", (image,), confirmed=True)}
        (fence,) = await read_fences(cluster)
        assert fence.code == "NodeFenced"
        assert fence.message.endswith(": it is fenced from 1 volume, 1 client")
        await taint(cluster)
        await asyncio.sleep(5)
        assert images.blocklist == set()
        assert (await records(cluster), await reported(cluster)) == ({}, [])
        assert {"NodeFenced", "NodeUnfenced"} <= await events(cluster)


async def test_a_node_without_a_volume_is_not_called_fenced() -> None:
    """Where there is nothing to fence, the status says so, until there is."""
    images = Images()
    images.holder = ""
    async with watched(images) as cluster:
        await taint(cluster, TAINT)
        await asyncio.sleep(5)
        assert await reported(cluster) == ["NothingToFence"]
        images.holder = "n1"
        images.connected = set()
        await asyncio.sleep(35)
        (fence,) = await read_fences(cluster)
        assert (fence.code, fence.message) == (
            "NodeFenced",
            "node n1 is out of service: it is fenced from 1 volume",
        )
        await taint(cluster)
        await asyncio.sleep(5)
        assert await reported(cluster) == []


async def test_a_client_that_comes_later_is_fenced_too() -> None:
    """While the taint is there, it is looked again."""
    images = Images()
    async with watched(images) as cluster:
        await taint(cluster, TAINT)
        await asyncio.sleep(5)
        images.connected = {"10.0.0.1:0/2"}
        await asyncio.sleep(35)
        assert images.blocklist == {"10.0.0.1:0/1", "10.0.0.1:0/2"}
        await taint(cluster)
        await asyncio.sleep(5)
        assert images.blocklist == set()


async def test_a_fence_that_fails_is_tried_again_and_reported() -> None:
    """It is tried again after at most a minute, what is in its way is reported once, and it is not
    confirmed before it succeeds.
    """
    images = Images()
    images.broken = True
    async with watched(images) as cluster:
        await taint(cluster, TAINT)
        await asyncio.sleep(600)
        pauses = [later - earlier for earlier, later in pairwise(images.tries)]
        assert pauses[0] < 3 and max(pauses) < 61 and len(pauses) < 20
        assert await reported(cluster) == ["FenceFails"]
        assert not (await records(cluster))["n1"].confirmed
        assert "NodeFenced" not in await events(cluster)
        images.broken = False
        await asyncio.sleep(65)
        assert await reported(cluster) == ["NodeFenced"]
        assert (await records(cluster))["n1"].confirmed
        images.broken = True
        await taint(cluster)
        await asyncio.sleep(5)
        assert await reported(cluster) == ["UnfenceFails"]
        images.broken = False
        await asyncio.sleep(65)
        assert (await reported(cluster), images.blocklist) == ([], set())


async def test_a_fence_of_a_deleted_node_is_finished() -> None:
    """A node that is deleted while it is half fenced is fenced all the same, with the clients that
    were seen: until then the status says so, and afterwards another node gets its volume.
    """
    images = Images()
    images.broken = True
    async with watched(images) as cluster:
        await taint(cluster, TAINT)
        await asyncio.sleep(30)
        await cluster.client.delete(Node, "n1")
        images.connected = set()
        await asyncio.sleep(300)
        assert await reported(cluster) == ["FenceFails"]
        assert images.decide_for("n2") is FenceStep.REFUSE
        images.broken = False
        await asyncio.sleep(65)
        assert (await records(cluster), await reported(cluster)) == ({}, [])
        assert images.decide_for("n2") is FenceStep.NOTHING
        assert images.blocklist == {"10.0.0.1:0/1"}
        assert "NodeFenced" in await events(cluster)


async def test_of_a_deleted_node_that_is_fenced_only_the_record_goes() -> None:
    """A node that is deleted when it is fenced stays fenced, and nothing is left to do."""
    images = Images()
    async with watched(images) as cluster:
        await taint(cluster, TAINT)
        await asyncio.sleep(5)
        tries = len(images.tries)
        await cluster.client.delete(Node, "n1")
        await asyncio.sleep(300)
        assert (await records(cluster), await reported(cluster)) == ({}, [])
        assert (images.blocklist, len(images.tries)) == ({"10.0.0.1:0/1"}, tries)


async def test_a_client_that_may_harm_another_node_stays_fenced_until_a_boot() -> None:
    """A client whose volume another node has is let in only when its machine was booted."""
    images = Images()
    async with watched(images) as cluster:
        await taint(cluster, TAINT)
        await asyncio.sleep(5)
        images.holder = "n2"
        await taint(cluster)
        await asyncio.sleep(300)
        assert images.blocklist == {"10.0.0.1:0/1"}
        assert await reported(cluster) == ["ClientsStayFenced"]
        await boot(cluster, "second")
        await asyncio.sleep(65)
        assert (await records(cluster), images.blocklist) == ({}, set())


class SilentImages(Images):
    """Storage whose monitors let clients in and do not say so, while ``silent``."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = True

    def end_unfencing(self) -> None:
        """Nobody knows whether they are in."""
        if self.silent:
            raise CsiError(Code.UNAVAILABLE, "no monitor answers")


async def test_a_fence_that_is_half_lifted_is_made_again() -> None:
    """A node whose taint comes back while its clients are being let in is fenced again, also from
    what Ceph does not see because the node is cut off; no other node gets the volume before.
    """
    images = SilentImages()
    async with watched(images) as cluster:
        await taint(cluster, TAINT)
        await asyncio.sleep(5)
        images.connected = set()
        await taint(cluster)
        await asyncio.sleep(1)
        assert images.blocklist == set()
        assert not (await records(cluster))["n1"].confirmed
        assert images.decide_for("n2") is FenceStep.REFUSE
        await taint(cluster, TAINT)
        await asyncio.sleep(5)
        assert images.blocklist == {"10.0.0.1:0/1"}
        assert images.decide_for("n2") is FenceStep.NOTHING
        assert await reported(cluster) == ["NodeFenced"]
        images.silent = False
        await taint(cluster)
        await asyncio.sleep(5)
        assert (await records(cluster), images.blocklist) == ({}, set())


async def test_a_record_alone_tells_that_a_fence_is_half_lifted() -> None:
    """Storage that does not write down how far a volume is fenced is fenced again, too."""
    images = SilentImages()
    async with watched(images) as cluster:
        await taint(cluster, TAINT)
        await asyncio.sleep(5)
        images.connected = set()
        await taint(cluster)
        await asyncio.sleep(1)
        images.fence = Fence.CONFIRMED
        await taint(cluster, TAINT)
        await asyncio.sleep(5)
        assert images.blocklist == {"10.0.0.1:0/1"}


async def test_the_record_of_a_killed_process_is_followed() -> None:
    """A taint that went while nobody looked lets the recorded clients in; so does one of a node
    that was only half fenced.
    """
    images = Images()
    images.blocklist = {"10.0.0.1:0/1"}
    image = HeldVolume("ceph", "u", ("10.0.0.1:0/1",))
    for confirmed in (True, False):
        fenced = FenceRecord("first", (image,), confirmed)
        body: Any = {
            "metadata": {"name": FENCES_MAP, "namespace": "default"},
            "data": {FENCES_KEY: format_fences(WrittenFences({"n1": fenced}))},
        }
        source = FollowedConfiguration()
        settings = TakeoverSettings(source=source, labels=LABELS, namespace="default")
        async with virtual_cluster({}) as cluster:
            await cluster.client.create(ConfigMap(body))
            await cluster.client.create(convert(Node, {"metadata": {"name": "n1"}}))
            program = cluster.program
            controller = OutOfServiceController(
                program.context("again"), settings, storage=images, worker=run_inline
            )
            work = asyncio.create_task(controller.run())
            await asyncio.sleep(5)
            assert (await records(cluster), images.blocklist) == ({}, set())
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        images.blocklist = {"10.0.0.1:0/1"}


async def test_clients_are_written_down_before_they_are_fenced() -> None:
    """As long as the record cannot be written nothing is fenced, so nothing is fenced for ever."""
    images = Images()
    async with watched(images) as cluster:
        await taint(cluster, TAINT)
        images.broken = True
        await until(lambda: len(images.tries) > 1)
        (volume,) = (await records(cluster))["n1"].volumes
        assert (volume.clients, images.blocklist) == (("10.0.0.1:0/1",), set())


class ManyImages(Images):
    """Storage where each node has so many images, until it is fenced from all of them."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.fenced: set[tuple[str, str]] = set()

    def find_held(self, node: str) -> tuple[list[HeldVolume], list[str]]:
        """All images of the node, or none."""
        uuids = [f"{node:>08}-0000-4000-8000-{number:012d}" for number in range(self.number)]
        if (node, uuids[-1]) in self.fenced:
            return [], []
        return [HeldVolume("ceph", uuid, (f"10.244.100.100:0/{node}{uuid}",)) for uuid in uuids], []

    def fence_held(self, node: str, volume: HeldVolume) -> None:
        """Fence one image."""
        self.fenced.add((node, volume.uuid))

    def unfence_held(self, node: str, volume: HeldVolume, *, rebooted: bool) -> bool:
        """Let its client in again."""
        self.fenced.discard((node, volume.uuid))
        return True


async def add_nodes(cluster: VirtualCluster, *names: str) -> None:
    """Nodes with the taint."""
    for name in names:
        body = {"metadata": {"name": name}, "spec": {"taints": [TAINT]}}
        await cluster.client.create(convert(Node, body))


async def untaint(cluster: VirtualCluster, *names: str) -> None:
    """All of them are in service again."""
    for name in names:
        await cluster.client.patch(Node, name, None, {"spec": {"taints": []}})


async def test_nodes_are_fenced_though_their_records_do_not_fit() -> None:
    """A node whose record the API server refuses is fenced all the same, the status says what was
    refused, and when there is room the record is written; all clients are let in at the end.
    """
    images = ManyImages(3000)
    async with watched(images) as cluster:
        names = ("n2", "n3", "n4", "n5")
        await add_nodes(cluster, *names)
        await asyncio.sleep(120)
        assert {node for node, _ in images.fenced} == {*names}
        reasons = {reason.object: reason for reason in await read_fences(cluster)}
        refused = {name for name in names if reasons[f"Node/{name}"].code == "FenceFails"}
        written = await records(cluster)
        assert refused and written
        assert {*written} == {*names} - refused
        for name in refused:
            assert "its record cannot be written: " in reasons[f"Node/{name}"].message
        await untaint(cluster, *written)
        await asyncio.sleep(120)
        assert {*await records(cluster)} == refused
        assert {*await reported(cluster)} == {"NodeFenced"}
        await untaint(cluster, *refused)
        await asyncio.sleep(120)
        assert (await records(cluster), images.fenced) == ({}, set())
        assert await reported(cluster) == []


async def test_a_node_is_let_in_though_its_record_was_never_written() -> None:
    """A refused record is followed by the process that has it, and so is a node's deletion."""
    images = ManyImages(20_000)
    async with watched(images) as cluster:
        await add_nodes(cluster, "n2", "n3")
        await asyncio.sleep(60)
        assert len(images.fenced) == 40_000
        await untaint(cluster, "n2")
        await cluster.client.delete(Node, "n3")
        await asyncio.sleep(120)
        assert {node for node, _ in images.fenced} == {"n3"}
        assert await reported(cluster) == []


async def test_a_record_that_cannot_be_read_hides_no_other() -> None:
    """A record that is none is reported and stays as it is, also when its own node is fenced; the
    others are followed.
    """
    images = ManyImages(2)
    async with watched(images) as cluster:
        await add_nodes(cluster, "n2", "n3")
        await asyncio.sleep(5)
        text = await stored(cluster)
        await store(cluster, text[:-1] + ',"n9":{"boot":"x"}}')
        await add_nodes(cluster, "n4", "n9")
        await asyncio.sleep(65)
        assert {*await records(cluster)} == {"n2", "n3", "n4"}
        assert parse_fences(await stored(cluster)).unreadable == {"n9": {"boot": "x"}}
        assert {node for node, _ in images.fenced} == {"n2", "n3", "n4", "n9"}
        codes = await reported(cluster)
        assert sorted({*codes}) == ["FenceFails", "FencesUnreadable", "NodeFenced"]
        await untaint(cluster, "n2", "n3", "n4", "n9")
        await asyncio.sleep(65)
        assert images.fenced == set()
        assert parse_fences(await stored(cluster)).unreadable == {"n9": {"boot": "x"}}
        assert await reported(cluster) == ["FencesUnreadable"]


async def test_a_text_without_records_is_not_overwritten() -> None:
    """Nodes are fenced while the text is no JSON object, and written when it is one again."""
    images = ManyImages(2)
    async with watched(images) as cluster:
        await add_nodes(cluster, "n2")
        await asyncio.sleep(5)
        text = await stored(cluster)
        await store(cluster, text[:-1])
        await add_nodes(cluster, "n3")
        await asyncio.sleep(65)
        assert await stored(cluster) == text[:-1]
        assert {node for node, _ in images.fenced} == {"n2", "n3"}
        assert "FencesUnreadable" in await reported(cluster)
        await store(cluster, text)
        await asyncio.sleep(95)
        assert {*await records(cluster)} == {"n2", "n3"}
        assert {*await reported(cluster)} == {"NodeFenced"}
        await untaint(cluster, "n2", "n3")
        await asyncio.sleep(65)
        assert images.fenced == set()


async def test_records_are_read_one_by_one() -> None:
    """What is written is read again; what is no record is kept, and what has none is a problem."""
    image = HeldVolume("ceph", "u", ("10.0.0.1:0/1",))
    fences = WrittenFences(
        {"n1": FenceRecord("first", (image, HeldVolume("", "v")), confirmed=True)},
        {"n2": 1, "n3": {"boot": ""}, "n4": {"boot": "", "confirmed": 1, "volumes": {}}},
    )
    assert parse_fences(format_fences(fences)) == fences
    wrong = '{"n":{"boot":"","confirmed":true,"volumes":{"ceph":{"u":"10.0.0.1"}}}}'
    assert parse_fences(wrong).records == {}
    assert parse_fences("") == parse_fences("{}") == WrittenFences()
    for text in ("{", "[]", "1", "[" * 100_000):
        assert parse_fences(text).problem


async def test_a_leader_that_ends_waits_for_its_storage() -> None:
    """A fence that is under way when a leader loses its lease ends before the next one begins, so
    that it is lifted like any other.
    """
    images = Images()
    source = FollowedConfiguration()
    settings = TakeoverSettings(source=source, labels=LABELS, namespace="default")

    async def answer_late(work: Callable[[], T], _lane: str = "") -> T:
        async def run_thread() -> T:
            await asyncio.sleep(40)
            return work()

        return await asyncio.shield(asyncio.create_task(run_thread()))

    async with virtual_cluster({}) as cluster:
        await cluster.client.create(convert(Node, {"metadata": {"name": "n1"}}))

        def lead(name: str, worker: CallWorker) -> asyncio.Task[None]:
            context = cluster.program.context(name)
            controller = OutOfServiceController(context, settings, storage=images, worker=worker)
            return asyncio.create_task(controller.run())

        first = lead("first", answer_late)
        await taint(cluster, TAINT)
        await asyncio.sleep(50)
        assert (len(await records(cluster)), images.blocklist) == (1, set())
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert images.blocklist == {"10.0.0.1:0/1"}
        second = lead("second", run_inline)
        await taint(cluster)
        await asyncio.sleep(300)
        assert (await records(cluster), images.blocklist, images.fence) == ({}, set(), None)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)


class Killed(BaseException):
    """The process ends here."""


class DyingImages(Images):
    """Storage during whose n-th call the process ends: before it has done anything, or after."""

    def __init__(self, call: int, *, done: bool) -> None:
        super().__init__()
        self.left = call
        self.done = done

    def _end(self, *, done: bool) -> None:
        if done == self.done:
            self.left -= 1
            if self.left == 0:
                raise Killed

    def fence_held(self, node: str, volume: HeldVolume) -> None:
        """Fence it, unless the process ends before; it may end after."""
        self._end(done=False)
        super().fence_held(node, volume)
        self._end(done=True)

    def unfence_held(self, node: str, volume: HeldVolume, *, rebooted: bool) -> bool:
        """Let clients in again, unless the process ends before; it may end after."""
        self._end(done=False)
        removed = super().unfence_held(node, volume, rebooted=rebooted)
        self._end(done=True)
        return removed


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("call", [1, 2])
async def test_a_process_that_is_killed_between_two_steps_is_followed(
    call: int, done: bool
) -> None:
    """Whichever step the process dies at, the next one ends with nothing fenced for ever."""
    images = DyingImages(call, done=done)
    source = FollowedConfiguration()
    settings = TakeoverSettings(source=source, labels=LABELS, namespace="default")
    async with virtual_cluster({}) as cluster:
        await cluster.client.create(convert(Node, {"metadata": {"name": "n1"}}))
        program = cluster.program
        nodes = program.cache.store(Node)
        controllers = [
            OutOfServiceController(
                program.context(f"process-{number}"), settings, storage=images, worker=run_inline
            )
            for number in range(2)
        ]
        await program.cache.synced()

        def is_seen(out: bool) -> bool:
            return is_out_of_service(nodes.values()[0]) == out

        for out in (True, False):
            await taint(cluster, *([TAINT] if out else []))
            await until(partial(is_seen, out))
            try:
                await controllers[0]._sync("n1")
            except Killed:
                del controllers[0]
                await controllers[0]._sync("n1")
            assert images.blocklist == ({"10.0.0.1:0/1"} if out else set())
        assert await records(cluster) == {}
        assert images.left <= 0
