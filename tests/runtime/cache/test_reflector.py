"""The reflector: its store equals the server, whatever happens on the way. In virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.runtime.memory_server import Answered, MemoryServer, refusal

from zonewise.api.errors import BadRequest, ConnectionFailed, MethodNotAllowed
from zonewise.api.objects.core import Node
from zonewise.api.resource import Resource
from zonewise.api.unstructured import Unstructured, unstructured
from zonewise.runtime.cache.reflector import Reflector
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.watch import WatchOptions

pytestmark = pytest.mark.looptime

NODES = "/api/v1/nodes"


class Follower:
    """A running reflector, and every change its store reported."""

    def __init__(self, server: MemoryServer, *, seed: int = 1, options: WatchOptions) -> None:
        self.client = Client(server)
        self.store: Store[Node] = Store()
        self.changes: list[tuple[str, str | None, str | None]] = []
        self.store.on_change(self.note)
        self.reflector = Reflector(
            self.client, Node, self.store, options=options, rng=random.Random(seed)
        )
        self.task = asyncio.create_task(self.reflector.run())

    def note(self, old: Node | None, new: Node | None) -> None:
        subject = new or old
        assert subject is not None
        self.changes.append(
            (
                subject.metadata.name,
                old.metadata.resource_version if old else None,
                new.metadata.resource_version if new else None,
            )
        )

    def names(self) -> list[str]:
        return sorted(item.metadata.name for item in self.store)


@asynccontextmanager
async def following(
    server: MemoryServer, *, seed: int = 1, options: WatchOptions | None = None
) -> AsyncIterator[Follower]:
    follower = Follower(server, seed=seed, options=options or WatchOptions())
    try:
        yield follower
    finally:
        follower.task.cancel()
        await asyncio.wait([follower.task])


def filled(count: int = 3, *, watch_list: bool = True) -> MemoryServer:
    server = MemoryServer(watch_list=watch_list)
    for number in range(count):
        server.put(NODES, f"node-{number}")
    return server


def same(server: MemoryServer, store: Store[Node]) -> bool:
    cached = {key: item.metadata.resource_version for key, item in store.items()}
    stored = {
        key: item["metadata"]["resourceVersion"] for key, item in server.objects[NODES].items()
    }
    return cached == stored


@pytest.mark.parametrize("watch_list", [True, False])
async def test_the_store_is_filled_and_follows(watch_list: bool) -> None:
    """A store gets every existing object, then every change, with one stream or with pages."""
    server = filled(3, watch_list=watch_list)
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        assert follower.names() == ["node-0", "node-1", "node-2"]
        assert follower.store.synced
        await asyncio.sleep(1)
        assert follower.reflector.stats.connected
        server.put(NODES, "node-1", spec={"unschedulable": True})
        server.drop(NODES, "node-0")
        server.put(NODES, "node-9")
        await asyncio.sleep(1)
        assert same(server, follower.store)
        changed = follower.store.get(("", "node-1"))
        assert changed is not None
        assert changed.spec.unschedulable
        assert len(server.watches()) == (1 if watch_list else 2)
        assert len(server.lists()) == (0 if watch_list else 1)
    assert [stream.closed for _, stream in server.streams] == [True] * len(server.streams)


async def test_a_server_without_watch_list_is_asked_once() -> None:
    """The client remembers the refusal for the kind, also for other reflectors."""
    server = filled(watch_list=False)
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        assert Node.resource in follower.client.refused_watch_list
        other = Reflector(follower.client, Node, Store())
        task = asyncio.create_task(other.run())
        await other.synced.wait()
        task.cancel()
    watch_lists = [seen for seen in server.seen if "sendInitialEvents" in seen.request.query]
    assert len(watch_lists) == 1


async def test_watch_list_can_be_switched_off() -> None:
    """With the option off no initial events are asked for."""
    server = filled()
    async with following(server, options=WatchOptions(watch_list=False)) as follower:
        await follower.reflector.synced.wait()
    assert not any("sendInitialEvents" in seen.request.query for seen in server.seen)


async def test_a_server_that_never_marks_the_end_gets_a_list() -> None:
    """If no initial events come after the request for them, the kind is listed."""
    server = filled()
    server.faults = [lambda _: Answered(200, b'{"type":"ADDED","object":{"metadata":{}}}\n')]
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        assert same(server, follower.store)
    assert len(server.lists()) == 1


async def test_a_first_stream_that_breaks_off_is_not_a_list() -> None:
    """The store is synced after a complete list, and objects missing from it are removed."""
    server = filled()
    server.faults = [
        lambda _: Answered(200, b'{"type":"ADDED","object":{"metadata":{"name":"ghost"}}}\n')
    ]
    async with following(server) as follower:
        await asyncio.sleep(0)
        assert not follower.store.synced
        await follower.reflector.synced.wait()
        assert follower.names() == ["node-0", "node-1", "node-2"]
        assert follower.changes[-1] == ("ghost", "", None)


async def test_changes_during_the_initial_events_count() -> None:
    """An object that changes or is deleted during the first stream ends in its last state."""
    server = filled(2)

    def racing(_: object) -> Answered:
        return Answered(
            200,
            b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"5"}}}\n'
            b'{"type":"ADDED","object":{"metadata":{"name":"b","resourceVersion":"6"}}}\n'
            b'{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"103"}}}\n'
            b'{"type":"DELETED","object":{"metadata":{"name":"b","resourceVersion":"104"}}}\n'
            b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"104","annotations":'
            b'{"k8s.io/initial-events-end":"true"}}}}\n'
            b'{"type":"ADDED","object":{"metadata":{"name":"c","resourceVersion":"105"}}}\n',
        )

    server.faults = [racing]
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        await asyncio.sleep(0)
        assert follower.changes == [
            ("a", None, "5"),
            ("b", None, "6"),
            ("a", "5", "103"),
            ("b", "6", None),
            ("c", None, "105"),
        ]


async def test_an_expired_page_starts_the_list_again() -> None:
    """Objects of the abandoned pages that are not in the new list are removed."""
    server = filled(1200, watch_list=False)

    def compact(_: object) -> None:
        server.drop(NODES, "node-0")
        server.compact()

    server.faults = [lambda _: None, lambda _: None, compact]
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        assert same(server, follower.store)
        assert len(follower.store) == 1199
        assert len(server.lists()) == 3


@pytest.mark.parametrize("watch_list", [True, False])
async def test_a_compact_store_is_filled_and_followed(watch_list: bool) -> None:
    """Packed objects are compared, indexed and reported as any others."""
    server = filled(3, watch_list=watch_list)
    store: Store[Node] = Store({"cidr": lambda node: [node.spec.pod_cidr]}, compact=True)
    changes: list[list[str]] = []

    def note(old: Node | None, new: Node | None) -> None:
        changes.append([node.spec.pod_cidr if node else "-" for node in (old, new)])

    store.on_change(note)
    reflector = Reflector(Client(server), Node, store)
    task = asyncio.create_task(reflector.run())
    await reflector.synced.wait()
    server.put(NODES, "node-1", spec={"podCIDR": "x"})
    await asyncio.sleep(1)
    assert same(server, store)
    assert [node.metadata.name for node in store.by("cidr", "x")] == ["node-1"]
    server.drop(NODES, "node-1")
    await asyncio.sleep(1)
    assert store.by("cidr", "x") == ()
    assert changes[3:] == [["", "x"], ["x", "-"]]
    task.cancel()


async def test_a_cut_is_resumed_without_a_list() -> None:
    """A lost connection costs one new stream and no second list; nothing is applied twice."""
    server = filled()
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        for turn in range(5):
            server.put(NODES, "node-0", spec={"podCIDR": str(turn)})
            server.cut()
            server.put(NODES, "node-1", spec={"podCIDR": str(turn)})
            await asyncio.sleep(60)
        assert same(server, follower.store)
        assert follower.reflector.stats.relists == 1
        assert follower.reflector.stats.restarts == 5
        assert len(follower.changes) == 3 + 10
        assert len(set(follower.changes)) == len(follower.changes)


@pytest.mark.parametrize("watch_list", [True, False])
async def test_too_old_becomes_exact_differences(watch_list: bool) -> None:
    """After a long break everything is read again and only what differs is reported."""
    server = filled(3, watch_list=watch_list)
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        follower.changes.clear()
        server.always = lambda _: ConnectionFailed("down")
        server.cut()
        await asyncio.sleep(1)
        server.put(NODES, "node-0", spec={"unschedulable": True})
        server.drop(NODES, "node-1")
        server.put(NODES, "node-9")
        server.compact()
        server.always = None
        await asyncio.sleep(200)
        assert same(server, follower.store)
        assert sorted(follower.changes, key=str) == [
            ("node-0", "101", "104"),
            ("node-1", "102", None),
            ("node-9", None, "106"),
        ]
        assert (follower.reflector.stats.too_old, follower.reflector.stats.relists) == (1, 2)


async def test_a_restored_server_is_believed() -> None:
    """When the server's versions go back, the store follows it."""
    server = filled()
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        server.version = 50
        server.objects[NODES].clear()
        server.history.clear()
        server.put(NODES, "old")
        server.faults = [lambda _: refusal(410, "Expired")]
        server.cut()
        await asyncio.sleep(100)
        assert same(server, follower.store)
        server.put(NODES, "newer")
        await asyncio.sleep(1)
        assert follower.names() == ["newer", "old"]


FAILURES: dict[str, Callable[[object], Answered | Exception]] = {
    "cut": lambda _: ConnectionFailed("cut"),
    "ended": lambda _: Answered(200),
    "unauthorized": lambda _: refusal(401, "Unauthorized"),
    "forbidden": lambda _: refusal(403, "Forbidden"),
    "missing": lambda _: refusal(404, "NotFound"),
    "gone": lambda _: refusal(410, "Expired"),
    "busy": lambda _: refusal(429, "TooManyRequests"),
    "broken": lambda _: refusal(500, "InternalError"),
    "too old": lambda _: Answered(
        200, b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n'
    ),
    "nonsense": lambda _: Answered(200, b"<html>\n"),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("started", [False, True])
async def test_failures_are_paced_and_healed(failure: str, started: bool) -> None:
    """However a server fails, it is asked at most once a second; afterwards the store is equal."""
    server = filled()
    if not started:
        server.always = FAILURES[failure]
    async with following(server) as follower:
        if started:
            await follower.reflector.synced.wait()
            server.always = FAILURES[failure]
            server.cut()
        begin = len(server.seen)
        await asyncio.sleep(30)
        assert 2 <= len(server.seen) - begin <= 30
        await asyncio.sleep(90)
        assert len(server.seen) - begin <= 60
        server.put(NODES, "after")
        server.always = None
        await asyncio.sleep(60)
        assert same(server, follower.store)


async def test_lists_that_succeed_and_watches_that_do_not_are_paced() -> None:
    """Lists that succeed do not reset the pace of watches that fail."""
    server = filled(watch_list=False)
    server.always = lambda request: refusal(410, "Expired") if "watch" in request.query else None
    async with following(server, options=WatchOptions(watch_list=False)) as follower:
        await follower.reflector.synced.wait()
        await asyncio.sleep(300)
        moments = [seen.at for seen in server.seen]
        for start in moments:
            assert sum(start <= other < start + 30 for other in moments) <= 30
        assert same(server, follower.store)


async def test_streams_that_live_for_a_second_stay_within_budget() -> None:
    """A connection that is cut every second is followed promptly and never too often."""
    server = filled()
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        for turn in range(300):
            server.put(NODES, "node-0", spec={"podCIDR": str(turn)})
            await asyncio.sleep(1)
            server.cut()
        moments = [seen.at for seen in server.seen]
        for start in moments:
            assert sum(start <= other < start + 30 for other in moments) <= 30
        await asyncio.sleep(60)
        assert same(server, follower.store)


async def test_silence_is_noticed() -> None:
    """A half-open connection is replaced after the allowed silence."""
    server = filled()
    async with following(server, options=WatchOptions(silence=100)) as follower:
        await follower.reflector.synced.wait()
        server.live()[0].silent = True
        server.put(NODES, "unheard")
        await asyncio.sleep(110)
        assert "unheard" in follower.names()
        assert follower.reflector.stats.failures == 1


async def test_a_mistake_is_raised_at_the_start_only() -> None:
    """An invalid selector ends the reflector at the start; later such an answer is retried."""
    server = MemoryServer()
    server.always = lambda _: refusal(400, "BadRequest", "unable to parse selector")
    async with following(server) as follower:
        with pytest.raises(BadRequest, match="unable to parse"):
            await follower.task
    server.always = lambda _: refusal(405, "MethodNotAllowed")
    async with following(server) as follower:
        with pytest.raises(MethodNotAllowed):
            await follower.task
    server = filled()
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        server.always = lambda _: refusal(400, "BadRequest")
        server.cut()
        await asyncio.sleep(100)
        assert not follower.task.done()
        server.always = None
        server.put(NODES, "after")
        await asyncio.sleep(100)
        assert same(server, follower.store)


async def test_an_exception_of_a_listener_is_not_swallowed() -> None:
    """A bug in a listener ends the reflector with its exception."""
    server = filled()
    async with following(server) as follower:
        await follower.reflector.synced.wait()

        def broken(old: Node | None, new: Node | None) -> None:
            if new is not None and new.metadata.name == "boom":
                raise RuntimeError("bug")

        follower.store.on_change(broken)
        server.put(NODES, "boom")
        with pytest.raises(RuntimeError, match="bug"):
            await follower.task


async def test_unknown_kinds_are_reflected_too() -> None:
    """Custom resources need no Struct."""
    widgets = unstructured(Resource("example.com", "v1", "Widget", "widgets"))
    server = MemoryServer()
    server.put("/apis/example.com/v1/widgets", "w", "ns", spec={"size": 1})
    store: Store[Unstructured] = Store({"size": lambda item: [item.get("spec", "size")]})
    reflector = Reflector(Client(server), widgets, store)
    task = asyncio.create_task(reflector.run())
    await reflector.synced.wait()
    assert [item.key for item in store.by("size", 1)] == [("ns", "w")]
    server.put("/apis/example.com/v1/widgets", "w", "ns", spec={"size": 2})
    await asyncio.sleep(1)
    assert [item.key for item in store.by("size", 2)] == [("ns", "w")]
    task.cancel()


async def test_unknown_events_are_skipped() -> None:
    """An event of an unknown type changes nothing and does not end the watch."""
    server = filled()
    async with following(server) as follower:
        await follower.reflector.synced.wait()
        server.live()[0].push({"type": "RENAMED", "object": {"metadata": {"name": "x"}}})
        server.put(NODES, "after")
        await asyncio.sleep(1)
        assert same(server, follower.store)


async def test_a_storm_of_faults_leaves_the_store_equal_and_in_order() -> None:
    """After random cuts, refusals, silence and repeats the store is equal; no change came twice."""
    for seed in range(12):
        rng = random.Random(seed)
        server = filled(5, watch_list=bool(seed % 2))
        async with following(server, seed=seed, options=WatchOptions(silence=70)) as follower:
            await follower.reflector.synced.wait()
            for turn in range(120):
                name = f"node-{rng.randrange(8)}"
                match rng.randrange(10):
                    case 0 if ("", name) in server.objects[NODES]:
                        server.drop(NODES, name)
                    case 1:
                        server.cut()
                    case 2:
                        server.compact()
                        server.cut()
                    case 3:
                        fault = FAILURES[rng.choice(list(FAILURES))]
                        server.faults += [fault] * rng.randrange(3)
                        server.cut()
                    case 4:
                        for stream in server.live():
                            stream.silent = True
                    case 5:
                        for stream in server.live():
                            for _, _, kind, item in server.history[-5:]:
                                stream.push({"type": kind, "object": item})
                    case _:
                        server.put(NODES, name, spec={"podCIDR": str(turn)})
                await asyncio.sleep(rng.choice([0, 0, 1, 10]))
            server.faults.clear()
            await asyncio.sleep(300)
            assert same(server, follower.store)
            versions: dict[str, str | None] = {}
            newest: dict[str, int] = {}
            for name, old, new in follower.changes:
                assert versions.get(name) == old
                versions[name] = new
                if new is not None:
                    assert int(new) > newest.get(name, 0)
                    newest[name] = int(new)


@pytest.mark.parametrize("watch_list", [True, False])
async def test_many_objects_at_once_do_not_block_the_event_loop(watch_list: bool) -> None:
    """No turn of the event loop takes in more than a bounded number of objects or changes."""
    server = filled(20, watch_list=watch_list)
    at_once: list[int] = []
    async with following(server, options=WatchOptions(turn=0.0)) as follower:

        async def others() -> None:
            seen = 0
            while seen < 40:
                at_once.append(len(follower.changes) - seen)
                seen = len(follower.changes)
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        await follower.reflector.synced.wait()
        for number in range(20):
            server.put(NODES, f"node-{number}", spec={"unschedulable": True})
        await beside
        assert same(server, follower.store)
    assert max(at_once) == 1
