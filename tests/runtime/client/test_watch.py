"""One stream of events, and a watch over many streams, in virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looptime import new_event_loop
from tests.runtime.memory_server import Answered, MemoryServer, Streaming, refusal

from zonewise.api.errors import ApiError, ConnectionFailed, Gone, ProtocolError
from zonewise.api.objects.core import Node
from zonewise.api.resource import Resource
from zonewise.api.unstructured import Unstructured, unstructured
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.scope import Scope
from zonewise.runtime.client.watch import (
    Watch,
    WatchEvent,
    WatchOptions,
    WatchStats,
    WatchStream,
    open_stream,
)

pytestmark = pytest.mark.looptime

NODES = "/api/v1/nodes"


def event(kind: str, name: str, version: int, **more: Any) -> bytes:
    item = {"metadata": {"name": name, "resourceVersion": str(version)}, **more}
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
    b'"message":"too old resource version: 1 (9)","reason":"Expired","code":410}}\n'
)


class Blocks:
    """A body that comes in given blocks and then ends."""

    status = 200

    def __init__(self, *blocks: bytes) -> None:
        self.headers: dict[str, str] = {}
        self._blocks = blocks

    async def read(self) -> bytes:
        raise AssertionError

    async def chunks(self) -> AsyncIterator[bytes]:
        for block in self._blocks:
            yield block

    async def close(self) -> None:
        pass


def stream_of(*blocks: bytes, options: WatchOptions | None = None) -> WatchStream[Node]:
    return WatchStream(Blocks(*blocks), Node, seconds=300, options=options or WatchOptions())


async def collect(stream: WatchStream[Node]) -> list[tuple[str, str]]:
    events = []
    try:
        while (batch := await stream.batch()) is not None:
            events += [(event.type, event.object.metadata.name) for event in batch]
    finally:
        await stream.close()
    return events


def brief(events: Iterable[WatchEvent[Node]]) -> list[str]:
    return [f"{event.type} {event.object.metadata.name}" for event in events]


async def next_of(watch: Watch[Node]) -> list[str]:
    return brief(await watch.batch())


async def to_the_end(watch: Watch[Node]) -> None:
    while True:
        await next_of(watch)


async def test_events_left_in_a_batch_come_with_the_next() -> None:
    """Events that were not taken are decoded with the next batch."""
    stream = stream_of(event("ADDED", "a", 1) + event("ADDED", "b", 2), event("ADDED", "c", 3))
    batch = await stream.batch()
    assert batch is not None
    assert next(batch).object.metadata.name == "a"
    assert stream.version == ""
    assert brief(await stream.batch() or ()) == ["ADDED b"]
    assert brief(await stream.batch() or ()) == ["ADDED c"]
    assert await stream.batch() is None
    await stream.close()


async def test_all_complete_lines_of_a_block_come_together() -> None:
    """A block with three lines gives three typed events in order."""
    block = event("ADDED", "a", 1) + event("MODIFIED", "a", 2) + event("DELETED", "a", 3)
    stream = stream_of(block)
    batch = list(await stream.batch() or ())
    assert brief(batch) == ["ADDED a", "MODIFIED a", "DELETED a"]
    assert isinstance(batch[0].object, Node)
    assert stream.version == "3"
    assert await stream.batch() is None
    await stream.close()


def test_lines_may_be_cut_anywhere() -> None:
    """However the bytes are split into blocks, the events are the same."""
    text = b"".join(event("MODIFIED", f"node-{n}", n, spec={"podCIDR": "ü" * n}) for n in range(6))
    expected = [("MODIFIED", f"node-{n}") for n in range(6)]

    @settings(max_examples=100, deadline=None)
    @given(cuts=st.lists(st.integers(0, len(text)), max_size=12))
    def check(cuts: list[int]) -> None:
        places = [0, *sorted(cuts), len(text)]
        blocks = [text[a:b] for a, b in pairwise(places)]
        loop = new_event_loop()

        async def run() -> list[tuple[str, str]]:
            return await collect(stream_of(*blocks))

        try:
            assert loop.run_until_complete(run()) == expected
        finally:
            loop.close()

    check()


async def test_blank_lines_and_a_torn_last_line_are_ignored() -> None:
    """Empty lines are skipped, and half an event at the end is dropped."""
    blocks = (b"\n\n" + event("ADDED", "a", 1) + b"\n", event("ADDED", "b", 2)[:-10])
    assert await collect(stream_of(*blocks)) == [("ADDED", "a")]


async def test_too_old_in_the_stream_is_raised_after_the_events_before_it() -> None:
    """An ERROR event becomes the error it is, and no event before it is lost."""
    stream = stream_of(event("ADDED", "a", 1) + EXPIRED + event("ADDED", "b", 2))
    batch = await stream.batch()
    assert batch is not None
    assert brief(batch) == ["ADDED a"]
    with pytest.raises(Gone, match="too old resource version"):
        await stream.batch()
    await stream.close()


async def test_an_error_split_over_blocks_stops_what_follows() -> None:
    """Nothing after an ERROR is decoded, however the bytes came."""
    stream = stream_of(EXPIRED[:30], EXPIRED[30:] + event("ADDED", "b", 2))
    assert brief(await stream.batch() or ()) == []
    with pytest.raises(Gone):
        await stream.batch()
    await stream.close()


async def test_an_error_without_a_code_is_an_error_of_the_server() -> None:
    """An ERROR event without a code is raised as a ServerError."""
    stream = stream_of(b'{"type":"ERROR","object":{"message":"etcd is away"}}\n')
    assert brief(await stream.batch() or ()) == []
    with pytest.raises(ApiError, match="etcd is away"):
        await stream.batch()
    await stream.close()


async def test_nulls_where_the_type_has_none_are_taken_as_absent() -> None:
    """An object with unexpected nulls is decoded the slow way, with the others of its batch."""
    odd = event("ADDED", "odd", 2, spec={"unschedulable": None})
    assert await collect(stream_of(event("ADDED", "a", 1) + odd + event("ADDED", "b", 3))) == [
        ("ADDED", "a"),
        ("ADDED", "odd"),
        ("ADDED", "b"),
    ]


async def test_garbage_is_not_an_event() -> None:
    """A line that is not JSON, or not an event, ends the stream with an error."""
    for line in (b"<html>login</html>\n", b'{"metadata":{}}\n', b'["ADDED"]\n'):
        stream = stream_of(event("ADDED", "a", 1) + line)
        assert brief(await stream.batch() or ()) == ["ADDED a"]
        with pytest.raises(ProtocolError, match="not an event"):
            await stream.batch()
        await stream.close()


async def test_a_line_without_end_is_refused() -> None:
    """Memory is bounded even if a newline never comes."""
    options = WatchOptions(line_limit=1 << 20)
    stream = stream_of(*[b"x" * 100_000] * 20, options=options)
    with pytest.raises(ProtocolError, match="a line of more than 1 MiB"):
        await stream.batch()
    await stream.close()


async def test_unstructured_events_keep_everything() -> None:
    """A kind without a Struct is watched all the same."""
    widget = unstructured(Resource("example.com", "v1", "Widget", "widgets"))
    stream: WatchStream[Unstructured] = WatchStream(
        Blocks(event("ADDED", "a", 1, spec={"size": 3})), widget, seconds=300
    )
    batch = list(await stream.batch() or ())
    assert batch[0].object.get("spec", "size") == 3
    assert batch[0].object.metadata.resource_version == "1"
    await stream.close()


async def test_silence_ends_a_stream() -> None:
    """A half-open socket is noticed when not even a bookmark comes."""
    loop = asyncio.get_running_loop()
    body = Streaming(300)
    body.push_bytes(event("ADDED", "a", 1))
    body.silent = True
    stream: WatchStream[Node] = WatchStream(
        body, Node, seconds=300, options=WatchOptions(silence=90)
    )
    assert brief(await stream.batch() or ()) == ["ADDED a"]
    with pytest.raises(ConnectionFailed, match="silent for 90 s"):
        await stream.batch()
    assert loop.time() == 90
    await stream.close()


async def test_a_trickle_that_never_completes_a_line_is_silence() -> None:
    """Bytes alone do not keep a stream alive; complete lines do."""
    loop = asyncio.get_running_loop()
    body = Streaming(3000)
    stream: WatchStream[Node] = WatchStream(
        body, Node, seconds=3000, options=WatchOptions(silence=90)
    )

    async def trickle() -> None:
        while True:
            body.push_bytes(b" ")
            await asyncio.sleep(10)

    task = asyncio.create_task(trickle())
    with pytest.raises(ConnectionFailed):
        await stream.batch()
    assert 90 <= loop.time() <= 110
    task.cancel()
    await stream.close()


async def test_a_busy_reader_does_not_time_its_own_stream_out() -> None:
    """Time that the reader spends elsewhere is not the server's silence."""
    body = Streaming(3000)
    stream: WatchStream[Node] = WatchStream(
        body, Node, seconds=3000, options=WatchOptions(silence=90)
    )
    body.push_bytes(event("ADDED", "a", 1))
    assert brief(await stream.batch() or ()) == ["ADDED a"]
    await asyncio.sleep(500)
    body.push_bytes(event("ADDED", "b", 2))
    batch = await stream.batch()
    assert batch is not None
    assert brief(batch) == ["ADDED b"]
    await stream.close()


async def test_cancelling_a_reader_is_a_cancellation() -> None:
    """A reader that is cancelled gets CancelledError, not an error about silence."""
    stream: WatchStream[Node] = WatchStream(Streaming(3000), Node, seconds=3000)
    task = asyncio.create_task(stream.batch())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stream.close()


async def test_a_request_for_a_watch_says_what_it_wants() -> None:
    """Bookmarks, version, timeout and selectors are in the query."""
    server = MemoryServer()
    client = Client(server)
    scope = Scope(Node, label_selector="zone=a", field_selector="metadata.name=x")
    stream = await open_stream(client, scope, resource_version="7", seconds=301.6)
    assert server.seen[0].request.query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "302",
        "resourceVersion": "7",
        "labelSelector": "zone=a",
        "fieldSelector": "metadata.name=x",
    }
    assert server.seen[0].request.stream
    await stream.close()


def make_watch(
    server: MemoryServer, *, options: WatchOptions | None = None, stats: WatchStats | None = None
) -> Watch[Node]:
    return Watch(
        Client(server),
        Scope(Node),
        resource_version=str(server.version),
        options=options or WatchOptions(),
        stats=stats,
        rng=random.Random(1),
    )


async def test_a_watch_resumes_where_it_was_cut() -> None:
    """After a cut the next stream starts at the last version seen, and nothing is missed."""
    server = MemoryServer()
    watch = make_watch(server)
    started = asyncio.create_task(next_of(watch))
    await asyncio.sleep(0.5)
    server.put(NODES, "a")
    assert await started == ["ADDED a"]
    server.cut()
    server.put(NODES, "b")
    assert await next_of(watch) == ["ADDED b"]
    server.cut()
    waiting = asyncio.create_task(next_of(watch))
    await asyncio.sleep(10)
    server.put(NODES, "c")
    assert await waiting == ["ADDED c"]
    versions = [seen.request.query["resourceVersion"] for seen in server.watches()]
    assert versions == ["100", "101", "102"]
    await watch.close()
    assert watch.resource_version == "103"


async def test_a_bookmark_moves_the_version_to_resume_from() -> None:
    """A quiet watch does not fall behind: it resumes from the last bookmark."""
    server = MemoryServer()
    watch = make_watch(server)
    server.version = 500
    assert await next_of(watch) == ["BOOKMARK "]
    server.cut()
    server.version = 501
    await next_of(watch)
    assert server.watches()[1].request.query["resourceVersion"] == "500"
    await watch.close()


async def test_streams_that_reach_their_time_are_followed_at_once() -> None:
    """The end we requested is not a failure: no pause, no warning."""
    server = MemoryServer()
    stats = WatchStats("nodes")
    watch = make_watch(server, options=WatchOptions(lifetime=(300, 300)), stats=stats)
    while len(server.watches()) < 3:
        await next_of(watch)
    moments = [seen.at for seen in server.watches()]
    assert moments == [0, 300, 600]
    assert (stats.failures, stats.restarts) == (0, 2)
    await watch.close()


async def test_lifetimes_are_jittered() -> None:
    """Each stream requests another lifetime, so that many watches do not end together."""
    server = MemoryServer()
    watch = make_watch(server, options=WatchOptions(lifetime=(300, 600)))
    while len(server.watches()) < 6:
        await next_of(watch)
    lifetimes = {int(seen.request.query["timeoutSeconds"]) for seen in server.watches()}
    assert len(lifetimes) > 3
    assert all(300 <= seconds <= 600 for seconds in lifetimes)
    await watch.close()


async def test_a_stream_that_ends_at_once_is_a_failure() -> None:
    """A server that ends every watch at once is not asked in a hot loop."""
    server = MemoryServer()
    server.always = lambda _: Answered(200)
    watch = make_watch(server)
    task = asyncio.create_task(to_the_end(watch))
    await asyncio.sleep(300)
    task.cancel()
    assert 10 < len(server.seen) <= 60
    await watch.close()


@pytest.mark.parametrize("code", [401, 403, 404, 429, 500, 503])
async def test_refusals_are_paced(code: int) -> None:
    """A server that refuses watches is asked less than once a second."""
    server = MemoryServer()
    server.always = lambda _: refusal(code, "Because")
    watch = make_watch(server)
    task = asyncio.create_task(to_the_end(watch))
    await asyncio.sleep(30)
    assert 3 <= len(server.seen) <= 30
    await asyncio.sleep(600)
    task.cancel()
    assert len(server.seen) < 90
    assert not task.done()
    await watch.close()


async def test_retry_after_is_honoured() -> None:
    """The pause is at least the Retry-After of the server."""
    server = MemoryServer()
    server.faults = [
        lambda _: refusal(429, "TooManyRequests", headers={"Retry-After": "17"}),
        lambda _: refusal(503, "Unavailable", headers={"Retry-After": "40"}),
    ]
    watch = make_watch(server)
    await watch.batch()
    first, second, third = (seen.at for seen in server.watches())
    assert second - first >= 17
    assert third - second >= 40
    await watch.close()


async def test_too_old_over_http_and_in_the_stream_are_the_same() -> None:
    """A version that is too old is Gone, over HTTP and in the stream, because only a new list
    helps.
    """
    server = MemoryServer()
    server.faults = [lambda _: refusal(410, "Expired", "too old")]
    stats = WatchStats("nodes")
    watch = make_watch(server, stats=stats)
    with pytest.raises(Gone):
        await watch.batch()
    server.version += 5
    server.compact()
    with pytest.raises(Gone, match="too old resource version"):
        await to_the_end(watch)
    assert stats.too_old == 2
    await watch.close()


async def test_a_version_the_server_does_not_know_yet_needs_a_list() -> None:
    """A version that the server does not know yet, as after a restored backup, is Gone: resuming
    would never succeed.
    """
    server = MemoryServer()
    body = {
        "kind": "Status",
        "code": 504,
        "reason": "Timeout",
        "message": "Too large resource version: 900, current: 100",
        "details": {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large"}]},
    }
    server.faults = [lambda _: Answered(504, json.dumps(body).encode())]
    watch = make_watch(server)
    with pytest.raises(Gone, match="Too large resource version"):
        await watch.batch()
    await watch.close()


async def test_other_errors_in_the_stream_need_a_list_too() -> None:
    """Another ERROR event would come again at the same version."""
    server = MemoryServer()
    watch = make_watch(server)
    waiting = asyncio.create_task(to_the_end(watch))
    await asyncio.sleep(1)
    server.live()[0].push_bytes(b'{"type":"ERROR","object":{"code":500,"message":"decode"}}\n')
    with pytest.raises(Gone, match="decode"):
        await waiting
    await watch.close()


async def test_fifty_watches_do_not_come_back_together() -> None:
    """When a server goes away, its watches return spread over seconds."""
    server = MemoryServer()
    watches = [
        Watch(Client(server), Scope(Node), resource_version="100", rng=random.Random(seed))
        for seed in range(50)
    ]
    tasks = [asyncio.create_task(watch.batch()) for watch in watches]
    await asyncio.sleep(10)
    before = len(server.seen)
    assert before == 50
    server.cut()
    await asyncio.sleep(10)
    moments = sorted(seen.at for seen in server.seen[before:])
    assert len(moments) == 50
    assert max(sum(0 <= other - start < 0.1 for other in moments) for start in moments) <= 10
    for task, watch in zip(tasks, watches, strict=True):
        task.cancel()
        await watch.close()


async def test_the_client_hands_out_events_one_by_one() -> None:
    """``client.watch`` is an endless iterator over changes, without bookmarks."""
    server = MemoryServer()
    client = Client(server)
    seen = []
    asyncio.get_running_loop().call_later(70, server.put, NODES, "a")
    asyncio.get_running_loop().call_later(80, server.cut)
    asyncio.get_running_loop().call_later(90, server.put, NODES, "b")
    async for event in client.watch(Node, resource_version="100"):
        seen.append((event.type, event.object.metadata.name))
        if len(seen) == 2:
            break
    assert seen == [("ADDED", "a"), ("ADDED", "b")]


async def test_a_forbidden_watch_heals_when_it_is_allowed() -> None:
    """A forbidden watch is retried until it is allowed, and reports why it waits."""
    server = MemoryServer()
    stats = WatchStats("nodes")
    server.faults = [lambda _: refusal(403, "Forbidden", "no watch for you")] * 3
    watch = make_watch(server, stats=stats)
    waiting = asyncio.create_task(next_of(watch))
    await asyncio.sleep(0.01)
    assert stats.last_error == "no watch for you"
    server.put(NODES, "a")
    assert await waiting == ["ADDED a"]
    assert (stats.failures, stats.last_error) == (3, "")
    await watch.close()


async def test_age_is_counted_from_the_last_byte() -> None:
    """The age of a watch grows while nothing comes, and any byte resets it."""
    server = MemoryServer()
    stats = WatchStats("nodes")
    watch = make_watch(server, stats=stats)
    loop = asyncio.get_running_loop()
    waiting = asyncio.create_task(watch.batch())
    await asyncio.sleep(40)
    assert stats.age(loop.time()) == 40
    await waiting
    assert loop.time() == 60
    assert stats.age(loop.time()) == 0
    assert stats.connected
    await watch.close()
    assert not stats.connected
