"""The state: order, visibility, optimistic concurrency, old states, group commit, failures."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.embedded.apiserver.objects import KIND, configmap, contents, keys, put
from tests.embedded.apiserver.store.gated_log import Ticks, gated

from zonewise.embedded.apiserver.store.committer import Overloaded
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.history import Expired, StoreEvent
from zonewise.embedded.apiserver.store.limits import StoreLimits
from zonewise.embedded.apiserver.store.log import WriteFailed, weight_of
from zonewise.embedded.apiserver.store.state import State, VersionTooLarge, WriteConflict


def memory(clock: Ticks | None = None, limits: StoreLimits | None = None) -> State:
    """A state without a disk."""
    return State(clock=clock or Ticks(), limits=limits)


async def test_versions_follow_the_order_of_calls() -> None:
    """Every write gets the next version, whatever its kind, and the object carries it."""
    state = memory()
    assert state.visible_rv == 1
    first = await put(state, "a")
    other = await put(state, "b", kind="/secrets")
    second = await put(state, "a", "MODIFIED", value="2")
    assert [first.rv, other.rv, second.rv] == [2, 3, 4]
    assert msgspec.json.decode(second.raw)["metadata"]["resourceVersion"] == "4"
    assert state.get(KIND, "default", "a") is second
    assert state.visible_rv == 4
    gone = await put(state, "a", "DELETED", value="2")
    assert gone.rv == 5
    assert state.get(KIND, "default", "a") is None
    assert state.get("/nothing", "", "a") is None
    assert sorted(state.kinds()) == [("/configmaps", 0, 0), ("/secrets", 1, 0)]


async def test_a_write_that_was_overtaken_is_refused() -> None:
    """Of two writers that read the same version, the second is refused and nothing is written."""
    state = memory()
    read = await put(state, "a")
    newer = await state.write(
        KIND, "default", "a", "MODIFIED", configmap("a", value="1"), expected=read
    )
    with pytest.raises(WriteConflict) as refusal:
        state.write(KIND, "default", "a", "MODIFIED", configmap("a", value="2"), expected=read)
    assert refusal.value.latest is newer
    with pytest.raises(WriteConflict):
        state.write(KIND, "default", "a", "ADDED", configmap("a"))
    with pytest.raises(WriteConflict):
        state.write(KIND, "default", "b", "DELETED", configmap("b"))
    with pytest.raises(WriteConflict):
        state.write(KIND, "default", "a", "MODIFIED", configmap("a"), expected=None)
    assert state.visible_rv == newer.rv


async def test_the_weight_is_that_of_the_objects(tmp_path: Path) -> None:
    """Without a history it is the weight of what is stored, also after a restart."""
    limits = StoreLimits(history_events=0)
    state = State.open(tmp_path, clock=Ticks(), limits=limits, inline=True)
    for name in ("a", "b", "c"):
        await put(state, name, value="1" * 10)
    await put(state, "a", "MODIFIED", value="2" * 100)
    await put(state, "b", "DELETED")
    await put(state, "d", kind="/secrets")
    stored = [*contents(state).values(), *contents(state, "/secrets").values()]
    assert len(stored) == 3
    assert state.weight == sum(map(weight_of, stored))
    await state.close()
    again = State.open(tmp_path, clock=Ticks(), limits=limits, inline=True)
    assert again.weight == state.weight
    await put(again, "a", "DELETED")
    await put(again, "c", "DELETED")
    await put(again, "d", "DELETED", kind="/secrets")
    assert again.weight == 0
    await again.close()


async def test_a_build_that_fails_uses_no_version() -> None:
    """An object that cannot be encoded, or is not the announced one, changes nothing."""
    state = memory()

    def broken(rv: int) -> bytes:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        state.write(KIND, "default", "a", "ADDED", broken)
    with pytest.raises(ValueError, match="was built as"):
        state.write(KIND, "default", "a", "ADDED", configmap("b"))
    assert state.latest(KIND, "default", "a") is None
    assert (await put(state, "a")).rv == 2


async def test_nothing_is_seen_before_its_commit(tmp_path: Path) -> None:
    """While the disk works, readers and watchers see the old state and writers the new one."""
    state, log = gated(tmp_path)
    watcher = state.watch(KIND)
    future = state.write(KIND, "default", "a", "ADDED", configmap("a"))
    await log.enter()
    assert state.get(KIND, "default", "a") is None
    assert state.list(KIND).entries == []
    assert watcher.poll() == b""
    assert state.visible_rv == watcher.progress == 1
    latest = state.latest(KIND, "default", "a")
    assert latest is not None
    assert not future.done()
    with pytest.raises(WriteConflict):
        state.write(KIND, "default", "a", "ADDED", configmap("a"))
    log.allowed.release()
    assert await future is latest
    assert state.get(KIND, "default", "a") is latest
    assert watcher.poll()
    log.allowed.release()
    await state.close()


async def test_one_sync_serves_all_writers_there_are(tmp_path: Path) -> None:
    """Writes that arrive while a batch is synced share the next one, in order."""
    state, log = gated(tmp_path)
    first = state.write(KIND, "default", "first", "ADDED", configmap("first"))
    await log.enter()
    rest = [state.write(KIND, "default", f"n{n}", "ADDED", configmap(f"n{n}")) for n in range(60)]
    log.allowed.release()
    await first
    assert not any(future.done() for future in rest)
    log.allowed.release()
    written = await asyncio.gather(*rest)
    assert log.commits == [[2], list(range(3, 63))]
    assert [entry.rv for entry in written] == list(range(3, 63))
    await state.close()


async def test_create_delete_and_create_again_in_one_batch(tmp_path: Path) -> None:
    """The latest version is right through several creations of one object in one commit."""
    state, log = gated(tmp_path)
    blocker = state.write(KIND, "default", "x", "ADDED", configmap("x"))
    await log.enter()
    futures = []
    for life in range(3):
        assert state.latest(KIND, "default", "a") is None
        futures.append(state.write(KIND, "default", "a", "ADDED", configmap("a", value=str(life))))
        assert state.latest(KIND, "default", "a") is not None
        if life < 2:
            futures.append(state.write(KIND, "default", "a", "DELETED", configmap("a")))
    for _ in range(2):
        log.allowed.release()
    await blocker
    done = await asyncio.gather(*futures)
    assert state.get(KIND, "default", "a") is state.latest(KIND, "default", "a") is done[-1]
    assert [entry.rv for entry in done] == [3, 4, 5, 6, 7]
    await state.close()


async def test_a_write_happens_even_if_its_client_leaves(tmp_path: Path) -> None:
    """A client that disconnects while its write is being stored does not undo it."""
    state, log = gated(tmp_path)
    future = state.write(KIND, "default", "a", "ADDED", configmap("a"))
    await log.enter()
    future.cancel()
    log.allowed.release()
    await state.wait_for_version(2, timeout=30)
    assert state.get(KIND, "default", "a") is not None
    await state.close()


async def test_a_refused_commit_undoes_every_write_that_waits(tmp_path: Path) -> None:
    """When the disk refuses, all waiting writers get the error and the state is as before."""
    clock = Ticks()
    state, log = gated(tmp_path, clock=clock)
    log.allowed.release()
    stored = await put(state, "kept", value="old")
    log.entered.acquire()
    log.trouble = WriteFailed("the disk is full; free some space", permanent=False)
    futures = [state.write(KIND, "default", "kept", "MODIFIED", configmap("kept", value="new"))]
    await log.enter()
    futures.append(state.write(KIND, "default", "next", "ADDED", configmap("next")))
    log.allowed.release()
    for outcome in await asyncio.gather(*futures, return_exceptions=True):
        assert isinstance(outcome, WriteFailed)
        assert "disk is full" in str(outcome)
    assert str(state.failure) == "the disk is full; free some space"
    assert state.latest(KIND, "default", "kept") is state.get(KIND, "default", "kept") is stored
    assert state.latest(KIND, "default", "next") is None
    with pytest.raises(WriteFailed, match="disk is full"):
        state.write(KIND, "default", "next", "ADDED", configmap("next"))
    assert state.list(KIND).entries == [stored]
    clock.now += 2
    log.trouble = None
    log.allowed.release()
    assert (await put(state, "next")).rv == stored.rv + 1
    assert not state.failure
    await state.close()


async def test_a_lasting_failure_ends_writing_for_good(tmp_path: Path) -> None:
    """After an error that leaves the file's state unknown only reads work."""
    clock = Ticks()
    state, log = gated(tmp_path, clock=clock)
    log.trouble = WriteFailed("disk I/O error; check the disk, then start again", permanent=True)
    log.allowed.release()
    with pytest.raises(WriteFailed, match="I/O"):
        await put(state, "a")
    clock.now += 3600
    with pytest.raises(WriteFailed, match="I/O"):
        state.write(KIND, "default", "a", "ADDED", configmap("a"))
    assert state.list(KIND).entries == []
    await state.close()


async def test_too_many_waiting_writes_are_refused(tmp_path: Path) -> None:
    """The number of writes that wait for the disk is bounded; one more is refused at once."""
    state, log = gated(tmp_path, StoreLimits(pending_writes=5))
    futures = [state.write(KIND, "default", "first", "ADDED", configmap("first"))]
    await log.enter()
    for n in range(5):
        futures.append(state.write(KIND, "default", f"n{n}", "ADDED", configmap(f"n{n}")))
    with pytest.raises(Overloaded, match="5 writes wait"):
        state.write(KIND, "default", "more", "ADDED", configmap("more"))
    for _ in range(2):
        log.allowed.release()
    await asyncio.gather(*futures)
    log.allowed.release()
    assert (await put(state, "more")).rv == 8
    await state.close()


async def test_large_batches_are_cut(tmp_path: Path) -> None:
    """One commit has a bounded number of writes and bytes."""
    state, log = gated(tmp_path, StoreLimits(batch_writes=4, batch_bytes=1000))
    for _ in range(20):
        log.allowed.release()
    futures = [
        state.write(KIND, "default", f"n{n}", "ADDED", configmap(f"n{n}", value="x" * size))
        for n, size in enumerate([1, 1, 1, 1, 1, 1, 600, 600, 600])
    ]
    await asyncio.gather(*futures)
    assert log.commits == [[2, 3, 4, 5], [6, 7, 8], [9, 10]]
    await state.close()


async def test_closing_stores_what_waits(tmp_path: Path) -> None:
    """Writes that were accepted are stored before the log is closed; later ones are refused."""
    state = State.open(tmp_path, clock=time.monotonic)
    futures = [
        state.write(KIND, "default", f"n{n}", "ADDED", configmap(f"n{n}")) for n in range(10)
    ]
    await state.close()
    assert all(future.done() for future in futures)
    with pytest.raises(WriteFailed, match="closed"):
        state.write(KIND, "default", "late", "ADDED", configmap("late"))
    again = State.open(tmp_path, clock=time.monotonic)
    assert keys(again.list(KIND).entries) == [f"default/n{n}" for n in range(10)]
    await again.close()


async def test_pages_go_on_where_the_last_one_ended() -> None:
    """Paging through a namespace visits each of its objects once, in order of keys."""
    state = memory()
    for namespace in ("a", "a-b", "b"):
        for n in range(7):
            await put(state, f"n{n}", namespace=namespace)
    page = state.list(KIND, "a", limit=3)
    assert (keys(page.entries), page.last, page.remaining) == (
        ["a/n0", "a/n1", "a/n2"],
        "a/n2",
        4,
    )
    page = state.list(KIND, "a", limit=3, after="a/n2")
    assert (keys(page.entries), page.remaining) == (["a/n3", "a/n4", "a/n5"], 1)
    page = state.list(KIND, "a", limit=3, after="a/n5")
    assert (keys(page.entries), page.last, page.remaining) == (["a/n6"], None, 0)
    assert keys(state.list(KIND).entries)[0] == "a-b/n0"
    assert (state.count(KIND), state.count(KIND, "a"), state.count(KIND, "c")) == (21, 7, 0)
    assert state.list(KIND, "c") == ([], 22, None, 0)


async def test_a_selected_page_says_nothing_of_what_remains() -> None:
    """With a selector a page is filled with matches, and the rest is not counted."""
    state = memory()
    for n in range(10):
        await put(state, f"n{n}", labels={"odd": str(n % 2)})
    page = state.list(KIND, limit=3, matches=lambda entry: entry.labels["odd"] == "1")
    assert keys(page.entries) == ["default/n1", "default/n3", "default/n5"]
    assert (page.last, page.remaining) == ("default/n5", None)
    page = state.list(
        KIND, limit=3, matches=lambda entry: entry.labels["odd"] == "1", after="default/n5"
    )
    assert (keys(page.entries), page.last) == (["default/n7", "default/n9"], None)


async def test_old_states_expire_with_age_and_watches_with_numbers() -> None:
    """An exact list works up to an age; a watch may resume while the history has the event."""
    clock = Ticks()
    state = memory(clock, StoreLimits(history_age=300, history_keep=3, history_events=5))
    for n in range(3):
        await put(state, f"n{n}")
        clock.now += 100
    assert len(state.list(KIND, rv_at=2).entries) == 1
    clock.now += 100
    with pytest.raises(Expired, match=r"too old resource version: 2 \(3\)"):
        state.list(KIND, rv_at=2)
    assert len(state.list(KIND, rv_at=3).entries) == 2
    assert state.watch(KIND, since=2).poll()
    with pytest.raises(VersionTooLarge, match="Too large resource version: 5, current: 4"):
        state.list(KIND, rv_at=5)
    clock.now += 200
    for n in range(3, 6):
        await put(state, f"n{n}")
    assert state.floor == 4
    with pytest.raises(Expired):
        state.watch(KIND, since=3)
    assert state.watch(KIND, since=4).poll()


async def test_listeners_hear_of_every_write_before_its_writer() -> None:
    """A listener is called for each event before its writer continues, and its failure stops
    nothing.
    """
    state = memory()
    heard: list[tuple[str, str, str]] = []

    def broken(kind: str, event: StoreEvent) -> None:
        raise RuntimeError("no")

    state.listen(broken)
    state.listen(lambda kind, event: heard.append((kind, event.type, event.entry.key)))
    watcher = state.watch(KIND)
    future = state.write(KIND, "default", "a", "ADDED", configmap("a"))
    assert heard == [(KIND, "ADDED", "default/a")]
    assert state.get(KIND, "default", "a") is await future
    assert watcher.poll()


async def test_waiting_for_a_version_ends_when_it_is_there() -> None:
    """A reader may wait for a version of the near future, and is refused when it does not come."""
    state = memory()
    await state.wait_for_version(1, timeout=0)
    waiting = asyncio.create_task(state.wait_for_version(3, timeout=30))
    await put(state, "a")
    assert not waiting.done()
    await put(state, "b")
    await waiting
    with pytest.raises(VersionTooLarge):
        await state.wait_for_version(9, timeout=0)


async def renew(state: State, value: str) -> Entry:
    """Update an object in a way that need not be durable."""
    build = configmap("lease", value=value)
    return await state.write(KIND, "default", "lease", "MODIFIED", build, durable=False)


async def test_renewals_are_seen_at_once_and_stored_with_the_next_commit(tmp_path: Path) -> None:
    """A write that need not be durable causes no sync but keeps its order."""
    state, log = gated(tmp_path, StoreLimits(unsynced_seconds=3600), permits=50)
    await put(state, "lease")
    await renew(state, "1")  # the first one stores the ceiling
    assert log.commits == [[2], [3]]
    watcher = state.watch(KIND)
    renewed = [await renew(state, str(n)) for n in range(2, 5)]
    assert log.commits == [[2], [3]]
    assert state.get(KIND, "default", "lease") is renewed[-1]
    assert watcher.progress == 3
    assert b'"4"' in (watcher.poll() or b"")
    await put(state, "other")
    assert log.commits == [[2], [3], [4, 5, 6, 7]]
    await renew(state, "5")
    await state.close()
    assert log.commits[3:] == [[8]]


async def test_renewals_never_overtake(tmp_path: Path) -> None:
    """A renewal behind a write that is being stored waits for it."""
    state, log = gated(tmp_path, StoreLimits(unsynced_seconds=3600), permits=2)
    await put(state, "lease")
    await renew(state, "1")
    for _ in range(2):
        await log.enter()
    durable = state.write(KIND, "default", "a", "ADDED", configmap("a"))
    await log.enter()
    passing = asyncio.create_task(renew(state, "2"))
    log.allowed.release(2)
    await durable
    assert (await passing).rv == durable.result().rv + 1
    assert log.commits == [[2], [3], [4]]
    await state.close()


async def test_renewals_are_stored_soon_even_alone(tmp_path: Path) -> None:
    """When no other write comes, what is not stored yet is stored after a while."""
    state, log = gated(tmp_path, StoreLimits(unsynced_seconds=0.001), permits=50)
    await put(state, "lease")
    await renew(state, "1")
    last = await renew(state, "2")
    for _ in range(3):
        await log.enter()
    await state.close()
    assert log.commits == [[2], [3], [last.rv]]


async def test_a_renewal_that_could_not_be_stored_is_kept_for_the_next_try(tmp_path: Path) -> None:
    """What was visible stays, and is stored with the next commit that succeeds."""
    clock = Ticks()
    state, log = gated(tmp_path, StoreLimits(unsynced_seconds=3600), clock, permits=50)
    await put(state, "lease")
    await renew(state, "1")
    renewed = await renew(state, "2")
    log.trouble = WriteFailed("full", permanent=False)
    with pytest.raises(WriteFailed):
        await put(state, "a")
    assert state.get(KIND, "default", "lease") is state.latest(KIND, "default", "lease") is renewed
    clock.now += 2
    log.trouble = None
    await put(state, "a")
    assert log.commits == [[2], [3], [4, 5]]
    await state.close()


async def test_versions_that_were_seen_are_never_used_again(tmp_path: Path) -> None:
    """After a crash that lost renewals, versions continue above all that were visible."""
    state = State.open(
        tmp_path / "a", clock=time.monotonic, limits=StoreLimits(unsynced_seconds=3600)
    )
    await put(state, "lease")
    for n in range(20):
        last = await renew(state, str(n))
    crashed = tmp_path / "b"
    crashed.mkdir()
    for file in (tmp_path / "a").iterdir():
        (crashed / file.name).write_bytes(file.read_bytes())
    await state.close()
    after = State.open(crashed, clock=time.monotonic)
    assert after.visible_rv >= last.rv
    assert after.watch(KIND, since=last.rv).poll() == b""
    assert (await put(after, "next")).rv > last.rv
    await after.close()
    clean = State.open(tmp_path / "a", clock=time.monotonic)
    assert clean.visible_rv == last.rv
    await clean.close()


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "a-b", "b"]), st.sampled_from("xyz"), st.sampled_from(["put", "del"])
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps=_STEPS, data=st.data())
def test_every_old_state_can_be_listed(
    steps: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    """A list at any version is exactly the state at that version, in order, page by page."""

    async def run() -> None:
        state = memory()
        model: dict[str, int] = {}
        states = {1: dict(model)}
        for namespace, name, what in steps:
            key = f"{namespace}/{name}"
            if what == "put":
                kind: WatchEventType = "MODIFIED" if key in model else "ADDED"
                model[key] = (await put(state, name, kind, namespace=namespace)).rv
            elif key in model:
                await put(state, name, "DELETED", namespace=namespace)
                del model[key]
            states[state.visible_rv] = dict(model)
        for rv, then in states.items():
            namespace = data.draw(st.sampled_from(["", "a", "a-b", "b"]))
            limit = data.draw(st.integers(0, 3))
            expected = {
                key: version
                for key, version in then.items()
                if key.startswith(f"{namespace}/"[-len(namespace) - 1 :] if namespace else "")
            }
            listed: list[Entry] = []
            after: str | None = ""
            while after is not None:
                page = state.list(KIND, namespace, rv_at=rv, limit=limit, after=after)
                assert page.rv == rv
                listed += page.entries
                after = page.last
                assert page.remaining == len(expected) - len(listed)
            assert [(entry.key, entry.rv) for entry in listed] == sorted(expected.items())

    asyncio.run(run())


async def test_a_restart_has_the_same_objects_versions_and_history(tmp_path: Path) -> None:
    """Objects, versions and the events to resume from are the same after a restart."""
    state = State.open(tmp_path, clock=time.monotonic)
    await asyncio.gather(*(put(state, f"n{n}", value=str(n)) for n in range(20)))
    await put(state, "n3", "DELETED")
    await put(state, "n4", "MODIFIED", value="new")
    before = contents(state)
    stream = state.watch(KIND, since=10).poll()
    old = keys(state.list(KIND, rv_at=12).entries)
    rv = state.visible_rv
    await state.close()
    again = State.open(tmp_path, clock=time.monotonic, inline=True)
    assert contents(again) == before
    assert again.visible_rv == rv
    assert again.watch(KIND, since=10).poll() == stream
    assert keys(again.list(KIND, rv_at=12).entries) == old
    assert (await put(again, "n3")).rv == rv + 1
    await again.close()
