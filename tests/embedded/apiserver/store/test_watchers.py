"""Watches: order, selections, shared bytes, resuming, bounds, endings."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.embedded.apiserver.objects import KIND, frames, put

from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.limits import StoreLimits
from zonewise.embedded.apiserver.store.state import State, VersionTooLarge
from zonewise.embedded.apiserver.store.watchers import (
    CLOSED_BY_WATCHER,
    LAG_CHECK_EVENTS,
    SCAN_LIMIT,
    SERVER_STOPPING,
    TOO_SLOW,
    Watcher,
)


def memory(limits: StoreLimits | None = None) -> State:
    """A state without a disk, in the loop's time."""
    return State(clock=asyncio.get_running_loop().time, limits=limits)


def labelled(**labels: str) -> Callable[[Entry], bool]:
    """Selects by labels."""
    return lambda entry: all(entry.labels.get(key) == value for key, value in labels.items())


def drain(watcher: Watcher) -> list[tuple[str, str, int]]:
    """Everything that a watcher can read now."""
    chunks = []
    while (chunk := watcher.poll()) or (chunk is not None and watcher.is_behind):
        chunks.append(chunk)
    return frames(*chunks)


async def test_events_come_in_order_and_whole() -> None:
    """A watcher gets each write after its start, once, as one line with the stored bytes."""
    state = memory()
    await put(state, "before")
    watcher = state.watch(KIND)
    added = await put(state, "a")
    assert await watcher.next() == b'{"type":"ADDED","object":' + added.raw + b"}\n"
    await put(state, "a", "MODIFIED", value="1")
    await put(state, "unseen", kind="/secrets")
    await put(state, "a", "DELETED", value="1")
    assert frames(await watcher.next()) == [
        ("MODIFIED", "default/a", 4),
        ("DELETED", "default/a", 6),
    ]
    assert watcher.poll() == b""


async def test_a_watch_resumes_without_gap_or_repeat() -> None:
    """From any version in the history a watch continues with exactly the events after it."""
    state = memory()
    expected = []
    for n in range(10):
        expected.append(("ADDED", f"default/n{n}", (await put(state, f"n{n}")).rv))
        await put(state, f"n{n}", kind="/secrets")
    for since in range(1, state.visible_rv + 1):
        assert drain(state.watch(KIND, since=since)) == [e for e in expected if e[2] > since]
    with pytest.raises(VersionTooLarge):
        state.watch(KIND, since=state.visible_rv + 1)


async def test_initial_events_are_the_state_and_then_what_follows() -> None:
    """Existing objects come first as ADDED, then the mark of their end, then later events."""
    state = memory()
    for n in range(3):
        await put(state, f"n{n}")
    await put(state, "n1", "MODIFIED")

    def mark(rv: int) -> bytes:
        meta = {"name": "mark", "resourceVersion": str(rv)}
        return msgspec.json.encode({"type": "BOOKMARK", "object": {"metadata": meta}}) + b"\n"

    watcher = state.watch(KIND, initial=True, initial_end=mark)
    assert watcher.progress == 0
    await put(state, "n0", "DELETED")
    assert drain(watcher) == [
        ("ADDED", "default/n0", 2),
        ("ADDED", "default/n1", 5),
        ("ADDED", "default/n2", 4),
        ("BOOKMARK", "mark", 5),
        ("DELETED", "default/n0", 6),
    ]
    assert watcher.progress == 6


async def test_initial_events_come_in_chunks() -> None:
    """A long list is sent in several chunks."""
    state = memory(StoreLimits(chunk_bytes=1000))
    for n in range(50):
        await put(state, f"n{n:02}")
    watcher = state.watch(KIND, initial=True)
    sizes = []
    events = []
    while chunk := watcher.poll():
        sizes.append(len(chunk))
        events += frames(chunk)
    assert [key for _, key, _ in events] == [f"default/n{n:02}" for n in range(50)]
    assert max(sizes) < 1300
    assert drain(state.watch(KIND, "other", initial=True)) == []
    assert drain(state.watch(KIND, "default", "n07", initial=True)) == [("ADDED", "default/n07", 9)]


async def test_a_selected_object_that_stops_matching_is_deleted_with_its_old_content() -> None:
    """Leaving a selection is a deletion: old content, new version; coming back is an addition."""
    state = memory()
    watcher = state.watch(KIND, matches=labelled(app="web"))
    await put(state, "a", labels={"app": "db"}, value="0")
    await put(state, "a", "MODIFIED", labels={"app": "web"}, value="1")
    await put(state, "a", "MODIFIED", labels={"app": "web"}, value="2")
    await put(state, "a", "MODIFIED", labels={"app": "db"}, value="3")
    await put(state, "a", "MODIFIED", labels={"app": "web"}, value="4")
    await put(state, "a", "DELETED", labels={"app": "web"}, value="4")
    await put(state, "b", labels={"app": "db"})
    await put(state, "b", "DELETED", labels={"app": "db"})
    chunk = watcher.poll() or b""
    assert frames(chunk) == [
        ("ADDED", "default/a", 3),
        ("MODIFIED", "default/a", 4),
        ("DELETED", "default/a", 5),
        ("ADDED", "default/a", 6),
        ("DELETED", "default/a", 7),
    ]
    left = msgspec.json.decode(chunk.splitlines()[2])["object"]
    assert left["metadata"]["labels"] == {"app": "web"}
    assert left["data"] == {"v": "2"}


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["a", "a-b"]),
            st.sampled_from("xy"),
            st.sampled_from(["web", "db", ""]),
            st.integers(0, 3),
        ),
        max_size=30,
    ),
    data=st.data(),
)
def test_a_watch_always_adds_up_to_the_list(
    steps: list[tuple[str, str, str, int]], data: st.DataObject
) -> None:
    """A watch's events applied to the list at its start give the list of now."""

    async def run() -> None:
        state = memory(StoreLimits(chunk_bytes=300))
        views: list[tuple[Watcher, str, Callable[[Entry], bool] | None, dict[str, int]]] = []

        def check() -> None:
            for watcher, namespace, matches, model in views:
                for type, key, rv in drain(watcher):
                    assert (type == "ADDED") == (key not in model)
                    if type == "DELETED":
                        del model[key]
                    else:
                        model[key] = rv
                now = state.list(KIND, namespace, matches=matches).entries
                assert model == {entry.key: entry.rv for entry in now}

        for namespace, name, label, what in steps:
            there = state.get(KIND, namespace, name) is not None
            if what or there:
                kind: WatchEventType = "ADDED"
                if there:
                    kind = "MODIFIED" if what else "DELETED"
                labels = {"app": label} if label else None
                await put(state, name, kind, namespace=namespace, labels=labels)
            if data.draw(st.booleans()):
                scope = data.draw(st.sampled_from(["", "a", "a-b"]))
                matches = data.draw(st.sampled_from([None, labelled(app="web")]))
                listed = state.list(KIND, scope, matches=matches)
                model = {entry.key: entry.rv for entry in listed.entries}
                watcher = state.watch(KIND, scope, since=listed.rv, matches=matches)
                views.append((watcher, scope, matches, model))
            if data.draw(st.booleans()):
                check()
        check()

    asyncio.run(run())


async def test_watchers_of_one_object_or_namespace_hear_nothing_else() -> None:
    """A watch of an object or namespace wakes for events there and for no others."""
    state = memory()
    woken: list[str] = []
    watchers = {
        "one": state.watch(KIND, "a", "x"),
        "namespace": state.watch(KIND, "a"),
        "all": state.watch(KIND),
        "cluster": state.watch("/nodes", "", "x"),
    }
    for name, watcher in watchers.items():
        assert watcher.arm(partial(woken.append, name))
    await put(state, "x", namespace="a-b")
    assert woken == ["all"]
    await put(state, "xy", namespace="a")
    assert woken == ["all", "namespace"]
    await put(state, "x", namespace="a")
    assert woken == ["all", "namespace", "one"]
    await put(state, "xy", namespace="", kind="/nodes")
    assert len(woken) == 3
    await put(state, "x", namespace="", kind="/nodes")
    assert woken[3:] == ["cluster"]
    assert drain(watchers["one"]) == [("ADDED", "a/x", 4)]
    assert drain(watchers["namespace"]) == [("ADDED", "a/xy", 3), ("ADDED", "a/x", 4)]
    assert len(drain(watchers["all"])) == 3
    assert drain(watchers["cluster"]) == [("ADDED", "x", 6)]


async def test_a_selection_is_tried_before_its_watcher_is_woken() -> None:
    """Events that a selection excludes cost its watcher nothing, not even a turn of the loop."""
    state = memory()
    woken: list[int] = []
    watcher = state.watch(KIND, matches=labelled(app="web"))
    assert watcher.arm(lambda: woken.append(state.visible_rv))
    await put(state, "a", labels={"app": "db"})
    assert woken == []
    assert watcher.progress == 2
    await put(state, "b", labels={"app": "web"})
    assert woken == [3]
    assert watcher.is_behind
    assert drain(watcher) == [("ADDED", "default/b", 3)]


async def test_an_event_is_encoded_once_per_representation() -> None:
    """Watchers of one representation get the same bytes, others their own."""
    state = memory()

    class Names:
        """A representation of names only."""

        def __init__(self) -> None:
            self.calls = 0

        def frame(self, type: WatchEventType, entry: Entry) -> bytes:
            self.calls += 1
            return f"{type} {entry.name}\n".encode()

    names = Names()
    plain = [state.watch(KIND) for _ in range(100)]
    brief = [state.watch(KIND, representation=names) for _ in range(50)]
    brief += [state.watch(KIND, representation=names, matches=lambda _: True) for _ in range(50)]
    await put(state, "a")
    await put(state, "b")
    assert len({id(watcher.poll()) for watcher in plain}) == 1
    assert {watcher.poll() for watcher in brief} == {b"ADDED a\nADDED b\n"}
    assert names.calls == 2


async def test_cached_encodings_are_bounded() -> None:
    """Frames are cached up to a number of bytes; dropped ones are encoded again."""
    state = memory(StoreLimits(encoding_bytes=1000))
    watcher = state.watch(KIND)
    for n in range(20):
        await put(state, f"n{n}")
    whole = watcher.poll()
    events = state.watch(KIND)._watchers.buffer.events
    encoded = sum(len(frame) for event in events for frame in (event.encoded or {}).values())
    assert 0 < encoded <= 1000
    other = state.watch(KIND, since=1, matches=lambda _: True)
    assert other.poll() == whole


async def test_bursts_are_coalesced() -> None:
    """Many events between two reads come as one chunk of bounded size."""
    state = memory(StoreLimits(chunk_bytes=2000))
    watcher = state.watch(KIND)
    for n in range(40):
        await put(state, f"n{n}")
    chunks = []
    while chunk := watcher.poll():
        chunks.append(chunk)
        assert watcher.progress == frames(chunk)[-1][2]
    assert len(chunks) < 8
    assert all(len(chunk) < 2300 for chunk in chunks)
    assert [rv for _, _, rv in frames(*chunks)] == list(range(2, 42))


async def test_a_watcher_that_falls_behind_is_closed() -> None:
    """A watcher that does not read is closed when too many events wait, others are not."""
    state = memory(StoreLimits(lag_events=500))
    slow = state.watch(KIND)
    closings = []
    slow.on_close = lambda: closings.append("closed")
    quick = state.watch(KIND)
    idle = state.watch(KIND, "elsewhere")
    assert idle.arm(lambda: None)
    seen = 0
    for n in range(500 + LAG_CHECK_EVENTS + 1):
        await put(state, f"n{n}")
        seen += len(frames(quick.poll()))
    assert (slow.closed, slow.poll(), closings) == (TOO_SLOW, None, ["closed"])
    assert (quick.closed, idle.closed, seen) == (None, None, 500 + LAG_CHECK_EVENTS + 1)
    assert [count for _, _, count in state.kinds()] == [2]


async def test_a_watcher_that_falls_behind_in_bytes_is_closed() -> None:
    """Few large events close a watcher that does not read, too."""
    state = memory(StoreLimits(lag_bytes=100_000))
    slow = state.watch(KIND)
    for n in range(LAG_CHECK_EVENTS):
        await put(state, f"n{n}", value="x" * 1000)
    assert slow.closed == TOO_SLOW


async def test_a_slow_watcher_costs_no_memory_of_its_own() -> None:
    """What waits for watchers is stored once for all and bounded by the history."""
    state = memory(StoreLimits(history_events=100, lag_events=10**9, lag_bytes=10**12))
    slow = [state.watch(KIND) for _ in range(50)]
    for n in range(1000):
        await put(state, "a", "MODIFIED" if n else "ADDED", value="x" * 1000)
    assert len(slow[0]._watchers.buffer.events) == 100
    assert sum(sys.getsizeof(watcher) for watcher in slow) < 50 * 1024
    assert slow[0].poll() is None
    assert slow[0].closed == TOO_SLOW


@pytest.mark.looptime
async def test_waiting_ends_with_an_event_a_timeout_or_the_end() -> None:
    """A reader waits until there is an event, the timeout is over, or the watch ends."""
    loop = asyncio.get_running_loop()
    state = memory()
    watcher = state.watch(KIND)
    assert await watcher.next(10) == b""
    assert loop.time() == pytest.approx(10)
    loop.call_later(5, lambda: asyncio.ensure_future(put(state, "a")))
    assert frames(await watcher.next(60)) == [("ADDED", "default/a", 2)]
    assert loop.time() == pytest.approx(15)
    assert await watcher.next(10) == b""
    assert loop.time() == pytest.approx(25)
    assert await watcher.next(0) == b""
    loop.call_later(3, watcher.close)
    assert await watcher.next(100) is None
    assert loop.time() == pytest.approx(28)
    assert (watcher.closed, await watcher.next()) == (CLOSED_BY_WATCHER, None)


@pytest.mark.looptime
async def test_a_timer_that_fires_a_rounding_error_early_has_fired() -> None:
    """A loop calls timers that are due within its clock's resolution; that ends a wait."""
    assert await memory().watch(KIND).next(1e-10) == b""


@pytest.mark.looptime
async def test_a_later_deadline_outlives_an_earlier_timer() -> None:
    """A wait that starts while the timer of an earlier one still runs has its full length."""
    loop = asyncio.get_running_loop()
    state = memory()
    watcher = state.watch(KIND)
    loop.call_later(1, lambda: asyncio.ensure_future(put(state, "a")))
    assert await watcher.next(10)
    assert await watcher.next(20) == b""
    assert loop.time() == pytest.approx(21)
    loop.call_later(1, lambda: asyncio.ensure_future(put(state, "b")))
    assert await watcher.next(50)
    assert await watcher.next(3) == b""
    assert loop.time() == pytest.approx(25)


async def test_a_reader_that_gives_up_loses_nothing() -> None:
    """Cancelling a wait does not change the watch: the next one gets what came meanwhile."""
    state = memory()
    watcher = state.watch(KIND)
    waiting = asyncio.create_task(watcher.next())
    await asyncio.sleep(0)
    await put(state, "a")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await put(state, "b")
    assert frames(await watcher.next()) == [("ADDED", "default/a", 2), ("ADDED", "default/b", 3)]


async def test_long_stretches_of_nothing_are_walked_in_steps() -> None:
    """A selection that excludes thousands of events lets other tasks run in between."""
    state = memory(StoreLimits(history_events=10 * SCAN_LIMIT, lag_events=10 * SCAN_LIMIT))
    for n in range(3 * SCAN_LIMIT):
        await put(state, "a", "MODIFIED" if n else "ADDED")
    await put(state, "b", labels={"app": "web"})
    watcher = state.watch(KIND, since=1, matches=labelled(app="web"))
    assert watcher.poll() == b""
    assert watcher.is_behind
    assert watcher.progress == 1 + SCAN_LIMIT
    assert frames(await watcher.next(0)) == [("ADDED", "default/b", state.visible_rv)]


async def test_a_selection_that_fails_affects_no_other_watcher() -> None:
    """An error in one watcher's selection is raised to that watcher's reader only."""
    state = memory()

    def broken(entry: Entry) -> bool:
        raise RuntimeError("no")

    bad = state.watch(KIND, matches=broken)
    good = state.watch(KIND)
    assert bad.arm(lambda: None)
    assert good.arm(lambda: None)
    await put(state, "a")
    assert drain(good) == [("ADDED", "default/a", 2)]
    with pytest.raises(RuntimeError):
        bad.poll()


async def test_a_callback_that_fails_affects_no_other_watcher() -> None:
    """A watcher whose callback raises is closed; the write and the others continue."""
    state = memory()
    bad, good = state.watch(KIND), state.watch(KIND)

    def broken() -> None:
        raise RuntimeError("no")

    assert bad.arm(broken)
    waiting = asyncio.create_task(good.next())
    await asyncio.sleep(0)
    await put(state, "a")
    assert await waiting
    assert bad.closed is not None


async def test_ending_a_kind_and_stopping_end_watches() -> None:
    """When a kind is removed or the server stops, watches end with the reason."""
    state = memory()
    pods, nodes = state.watch("/pods"), state.watch("/nodes")
    waiting = asyncio.create_task(nodes.next())
    await asyncio.sleep(0)
    state.end_watches("/pods", "the kind is gone")
    assert (pods.closed, pods.poll()) == ("the kind is gone", None)
    assert nodes.closed is None
    await state.close()
    assert await waiting is None
    assert nodes.closed == SERVER_STOPPING


async def test_arming_says_whether_there_is_something_already() -> None:
    """A callback is stored only if there is nothing to read, and is called once."""
    state = memory()
    calls: list[int] = []
    watcher = state.watch(KIND)
    await put(state, "a")
    assert not watcher.arm(lambda: calls.append(1))
    assert watcher.poll()
    assert watcher.arm(lambda: calls.append(2))
    assert watcher.poll() == b""
    watcher.disarm()
    await put(state, "b")
    assert calls == []
    assert watcher.poll()
    assert watcher.arm(lambda: calls.append(3))
    await put(state, "c")
    await put(state, "d")
    assert calls == [3]
    assert len(drain(watcher)) == 2
    watcher.close()
    assert not watcher.arm(lambda: calls.append(4))


async def test_a_sink_takes_frames_while_the_reader_waits() -> None:
    """Frames that a sink takes are not returned again; declined ones come next, in order, once."""
    state = memory()
    watcher = state.watch(KIND, "default")
    taken: list[bytes] = []
    room = True

    def sink(chunk: bytes) -> bool:
        if room:
            taken.append(chunk)
        return room

    watcher.sink = sink
    reader = asyncio.create_task(watcher.next())
    await asyncio.sleep(0)
    for name in ("a", "b"):
        await put(state, name)
        await asyncio.sleep(0)
    await put(state, "elsewhere", namespace="other")
    assert frames(*taken) == [("ADDED", "default/a", 2), ("ADDED", "default/b", 3)]
    assert not reader.done()
    room = False
    await put(state, "c")
    await asyncio.sleep(0)
    await put(state, "d")
    assert frames(await reader) == [("ADDED", "default/c", 5)]
    assert frames(await watcher.next()) == [("ADDED", "default/d", 6)]
    assert len(taken) == 2


async def test_frames_a_sink_declined_survive_a_reader_that_gives_up() -> None:
    """A reader that is cancelled as its frames come gets them at its next read."""
    state = memory()
    watcher = state.watch(KIND)
    watcher.sink = lambda _: False
    reader = asyncio.create_task(watcher.next())
    await asyncio.sleep(0)
    await put(state, "a")
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    await put(state, "b")
    assert frames(await watcher.next(), await watcher.next()) == [
        ("ADDED", "default/a", 2),
        ("ADDED", "default/b", 3),
    ]
