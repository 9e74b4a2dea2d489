"""Controllers and the cache they share, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from tests.runtime.memory_server import MemoryServer, refusal

from zonewise.api.errors import (
    BadRequest,
    Conflict,
    ConnectionFailed,
    Invalid,
    LeadershipLost,
    Status,
)
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.controller.controller import Controller, Result, own_key

pytestmark = pytest.mark.looptime

NODES = "/api/v1/nodes"
PODS = "/api/v1/pods"

Reconcile = Callable[[Key], Awaitable[float | None]]


class Notes:
    """A reconciler that records each run, and does what a test tells it to."""

    def __init__(self) -> None:
        self.runs: list[tuple[float, str]] = []
        self.does: Reconcile | None = None

    async def __call__(self, key: Key) -> float | None:
        self.runs.append((asyncio.get_running_loop().time(), key[1]))
        return None if self.does is None else await self.does(key)

    def names(self) -> list[str]:
        return [name for _, name in self.runs]


@asynccontextmanager
async def running(*parts: Any) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(part.run()) for part in parts]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def cluster(nodes: int = 2) -> tuple[MemoryServer, Cache]:
    server = MemoryServer()
    for number in range(nodes):
        server.put(NODES, f"node-{number}")
    return server, Cache(Client(server))


async def test_every_object_is_reconciled_and_then_every_change() -> None:
    """Each key of the first list is reconciled, then each that changes, also one that is gone."""
    server, cache = cluster()
    notes = Notes()
    controller: Controller[Key] = Controller("c", notes, cache=cache)
    controller.watches(Node, own_key)
    async with running(cache, controller):
        await asyncio.sleep(1)
        assert notes.names() == ["node-0", "node-1"]
        server.put(NODES, "node-1", spec={"unschedulable": True})
        server.drop(NODES, "node-0")
        await asyncio.sleep(1)
        assert notes.names()[2:] == ["node-1", "node-0"]
    assert controller.stats.done == 4


async def test_work_waits_for_all_stores() -> None:
    """Nothing is reconciled before every watched store has a complete list."""
    server, cache = cluster()
    notes = Notes()
    controller: Controller[Key] = Controller("c", notes, cache=cache)
    controller.watches(Node, own_key)
    controller.watches(Pod, lambda pod: [("", pod.spec.node_name)] if pod.spec.node_name else [])
    server.always = lambda request: refusal(503, "Down") if "pods" in request.path else None
    async with running(cache, controller):
        await asyncio.sleep(30)
        assert notes.runs == []
        server.always = None
        await asyncio.sleep(60)
        assert notes.names() == ["node-0", "node-1"]


async def test_objects_of_another_kind_wake_up_keys_before_and_after() -> None:
    """A pod that moves enqueues the node it left and its new node."""
    server, cache = cluster()
    server.put(PODS, "p", "ns", spec={"nodeName": "node-0"})
    notes = Notes()
    controller: Controller[Key] = Controller("c", notes, cache=cache)

    def node_of(pod: Pod) -> list[Key]:
        return [("", pod.spec.node_name)] if pod.spec.node_name else []

    pods = controller.watches(Pod, node_of, indexes={"node": lambda pod: [pod.spec.node_name]})
    async with running(cache, controller):
        await asyncio.sleep(1)
        notes.runs.clear()
        server.put(PODS, "p", "ns", spec={"nodeName": "node-1"})
        await asyncio.sleep(1)
        assert notes.names() == ["node-0", "node-1"]
        assert len(pods.by("node", "node-1")) == 1


async def test_changes_that_do_not_matter_can_be_left_out() -> None:
    """A predicate sees the object before and after, and can ignore the change."""
    server, cache = cluster()
    notes = Notes()
    controller: Controller[Key] = Controller("c", notes, cache=cache)
    controller.watches(
        Node, own_key, when=lambda old, new: old is None or new is None or old.spec != new.spec
    )
    async with running(cache, controller):
        await asyncio.sleep(1)
        notes.runs.clear()
        server.put(NODES, "node-0", status={"capacity": {"cpu": "1"}})
        await asyncio.sleep(1)
        assert notes.runs == []
        server.put(NODES, "node-0", spec={"unschedulable": True})
        await asyncio.sleep(1)
        assert notes.names() == ["node-0"]


async def test_the_first_list_has_low_priority() -> None:
    """A change overtakes the keys of the first list."""
    server, cache = cluster(20)
    notes = Notes()

    async def slow(key: Key) -> None:
        await asyncio.sleep(1)

    notes.does = slow
    controller: Controller[Key] = Controller("c", notes, cache=cache)
    controller.watches(Node, own_key)
    async with running(cache, controller):
        await asyncio.sleep(0.5)
        server.put(NODES, "node-19", spec={"unschedulable": True})
        await asyncio.sleep(2)
        assert notes.names()[1] == "node-19"
    late: Controller[Key] = Controller("late", notes, cache=cache)
    late.watches(Node, own_key)
    late.enqueue(("", "urgent"))
    assert await late.queue.get() == ("", "urgent")


async def test_again_after_some_time() -> None:
    """A result in seconds enqueues the key after that time, unless something does so earlier."""
    server, cache = cluster(1)
    notes = Notes()

    async def later(key: Key) -> float:
        return 60

    notes.does = later
    controller: Controller[Key] = Controller("c", notes, cache=cache)
    controller.watches(Node, own_key)
    async with running(cache, controller):
        await asyncio.sleep(100)
        server.put(NODES, "node-0", spec={"unschedulable": True})
        await asyncio.sleep(100)
    assert [round(moment) for moment, _ in notes.runs] == [0, 60, 100, 160]
    assert controller.stats.again == 4


async def test_errors_back_off_and_success_forgets_them() -> None:
    """A failing key waits longer each time; other keys are not delayed."""
    _, cache = cluster(2)
    notes = Notes()
    failing = True

    async def fails(key: Key) -> None:
        if key[1] == "node-0" and failing:
            raise ConnectionFailed("down")

    notes.does = fails
    controller: Controller[Key] = Controller("c", notes, cache=cache)
    controller.watches(Node, own_key)
    async with running(cache, controller):
        await asyncio.sleep(60)
        attempts = [moment for moment, name in notes.runs if name == "node-0"]
        gaps = [b - a for a, b in pairwise(attempts)]
        assert 8 <= len(attempts) <= 14
        assert gaps[-1] > 4 * gaps[2]
        assert notes.names().count("node-1") == 1
        assert controller.queue.failures(("", "node-0")) == len(attempts)
        failing = False
        await asyncio.sleep(60)
        assert controller.queue.failures(("", "node-0")) == 0
    assert controller.stats.errors == len(attempts)


@pytest.mark.parametrize(
    "error", [RuntimeError("bug"), Conflict(Status(code=409)), TimeoutError(), KeyError("x")]
)
async def test_any_exception_is_retried(error: Exception) -> None:
    """A bug in a reconciler does not end the controller."""
    _, cache = cluster(1)
    notes = Notes()

    async def once(key: Key) -> None:
        if len(notes.runs) == 1:
            raise error

    notes.does = once
    controller: Controller[Key] = Controller("c", notes, cache=cache)
    controller.watches(Node, own_key)
    async with running(cache, controller) as tasks:
        await asyncio.sleep(10)
        assert len(notes.runs) == 2
        assert not tasks[1].done()


async def test_terminal_rests_until_the_object_changes() -> None:
    """A terminal error is not retried, not even by a resync, before the object changes."""
    server, cache = cluster(2)
    notes = Notes()

    async def refuses(key: Key) -> None:
        if key[1] == "node-0":
            raise Invalid(Status(code=422, message="spec is wrong"))

    notes.does = refuses
    controller: Controller[Key] = Controller("c", notes, cache=cache, resync=100)
    controller.watches(Node, own_key)
    async with running(cache, controller):
        await asyncio.sleep(1000)
        assert notes.names().count("node-0") == 1
        assert 9 <= notes.names().count("node-1") <= 12
        server.put(NODES, "node-0", spec={"unschedulable": True})
        await asyncio.sleep(10)
        assert notes.names().count("node-0") == 2
        assert controller.stats.terminal == 2
        notes.does = None
        server.put(NODES, "node-0", spec={"unschedulable": False})
        await asyncio.sleep(200)
        assert notes.names().count("node-0") >= 4


async def test_a_lost_leader_stops() -> None:
    """LeadershipLost ends the controller instead of being retried."""
    _, cache = cluster(5)
    notes = Notes()

    async def lost(key: Key) -> None:
        if key[1] == "node-1":
            raise LeadershipLost("another leads")
        await asyncio.sleep(1000)

    notes.does = lost
    controller: Controller[Key] = Controller("c", notes, cache=cache, workers=2)
    controller.watches(Node, own_key)
    async with running(cache, controller) as tasks:
        with pytest.raises(LeadershipLost):
            await tasks[1]
    assert len(notes.runs) == 2


async def test_workers_run_in_parallel_but_never_on_one_key() -> None:
    """As many keys as workers run at a time, and no key twice at a time."""
    server, cache = cluster(6)
    notes = Notes()
    active: set[Key] = set()
    most = 0

    async def overlaps(key: Key) -> None:
        nonlocal most
        assert key not in active
        active.add(key)
        most = max(most, len(active))
        await asyncio.sleep(5)
        active.discard(key)

    notes.does = overlaps
    controller: Controller[Key] = Controller("c", notes, cache=cache, workers=3)
    controller.watches(Node, own_key)
    async with running(cache, controller):
        for turn in range(20):
            server.put(NODES, f"node-{turn % 6}", spec={"podCIDR": str(turn)})
            await asyncio.sleep(1)
    assert most == 3
    assert controller.stats.errors == 0


async def test_a_hanging_reconcile_is_cut_off() -> None:
    """With a timeout, a run that never ends is cancelled and retried."""
    _, cache = cluster(1)
    notes = Notes()

    async def hangs(key: Key) -> None:
        if len(notes.runs) == 1:
            await asyncio.Event().wait()

    notes.does = hangs
    controller: Controller[Key] = Controller("c", notes, cache=cache, timeout=30)
    controller.watches(Node, own_key)
    async with running(cache, controller):
        await asyncio.sleep(60)
    assert len(notes.runs) == 2
    assert controller.stats.errors == 1


async def test_stopping_lets_running_work_end() -> None:
    """Stop waits for running work and starts nothing more; other keys are left."""
    _, cache = cluster(5)
    notes = Notes()
    ended = []

    async def slow(key: Key) -> None:
        await asyncio.sleep(10)
        ended.append(key)

    notes.does = slow
    controller: Controller[Key] = Controller("c", notes, cache=cache, workers=2)
    controller.watches(Node, own_key)
    async with running(cache, controller) as tasks:
        await asyncio.sleep(5)
        controller.stop()
        await tasks[1]
    assert len(ended) == 2
    assert len(notes.runs) == 2


async def test_stopping_can_drain() -> None:
    """With drain, all keys that are ready are reconciled first."""
    _, cache = cluster(5)
    notes = Notes()

    async def slow(key: Key) -> None:
        await asyncio.sleep(10)

    notes.does = slow
    controller: Controller[Key] = Controller("c", notes, cache=cache, workers=2)
    controller.watches(Node, own_key)
    async with running(cache, controller) as tasks:
        await asyncio.sleep(5)
        controller.stop(drain=True)
        await tasks[1]
    assert sorted(notes.names()) == [f"node-{number}" for number in range(5)]


async def test_stopping_before_the_stores_are_filled() -> None:
    """A controller that waits for its first list stops at once."""
    server, cache = cluster()
    server.always = lambda _: refusal(503, "Down")
    controller: Controller[Key] = Controller("c", Notes(), cache=cache)
    controller.watches(Node, own_key)
    async with running(cache, controller) as tasks:
        await asyncio.sleep(5)
        assert not tasks[1].done()
        controller.stop()
        await tasks[1]


async def test_every_run_is_observed() -> None:
    """Metrics get the result and the duration of each run."""
    server, cache = cluster(1)
    notes = Notes()
    observed: list[tuple[Result, float]] = []
    answers: list[float | Exception | None] = [
        ConnectionFailed("down"),
        5.0,
        Invalid(Status(code=422)),
        None,
    ]

    async def does(key: Key) -> float | None:
        await asyncio.sleep(2)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    notes.does = does
    controller: Controller[Key] = Controller(
        "c", notes, cache=cache, observe=lambda result, seconds: observed.append((result, seconds))
    )
    controller.watches(Node, own_key)
    async with running(cache, controller):
        await asyncio.sleep(30)
        server.put(NODES, "node-0", spec={"unschedulable": True})
        await asyncio.sleep(30)
    assert [result for result, _ in observed] == ["error", "again", "terminal", "done"]
    assert [round(seconds, 3) for _, seconds in observed] == [2, 2, 2, 2]


async def test_a_reconciler_that_never_awaits_leaves_room_for_others() -> None:
    """A thousand quick keys do not block other tasks of the event loop."""
    _, cache = cluster(1000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    finished = asyncio.Event()

    def count(result: Result, seconds: float) -> None:
        if controller.stats.done == 1000:
            finished.set()

    controller: Controller[Key] = Controller("c", Notes(), cache=cache, observe=count)
    controller.watches(Node, own_key)
    async with running(cache, controller):
        await cache.synced()
        task = asyncio.create_task(other())
        await finished.wait()
        assert turns >= 900
        task.cancel()


async def test_controllers_share_stores() -> None:
    """The same kind and selectors are listed and watched once for all controllers."""
    server, cache = cluster()
    first: Controller[Key] = Controller("first", Notes(), cache=cache)
    second: Controller[Key] = Controller("second", Notes(), cache=cache)
    store = first.watches(Node, own_key)
    other = second.watches(Node, own_key)
    apart = second.watches(Node, own_key, label_selector="a=b")
    assert store is other
    assert apart is not store
    async with running(cache, first, second):
        await cache.synced()
        assert len(server.watches()) == 2
        assert [stats.resource for stats in cache.stats] == ["nodes", "nodes"]
        assert all(stats.synced for stats in cache.stats)


async def test_a_store_requested_late_is_filled_too() -> None:
    """A reflector added to a running cache starts at once."""
    server, cache = cluster()
    server.put(PODS, "p", "ns")
    async with running(cache):
        await asyncio.sleep(5)
        pods = cache.store(Pod, indexes={"phase": lambda pod: [pod.status.phase]})
        await cache.synced()
        assert len(pods) == 1


async def test_a_cache_keeps_some_kinds_compact() -> None:
    """The program chooses once which kinds are stored compactly."""
    _, cache = cluster()
    compact = Cache(Client(MemoryServer()), compact=[Node])
    assert compact.store(Node).compact
    assert not compact.store(Pod).compact
    assert not cache.store(Node).compact


async def test_a_cache_raises_what_its_reflectors_raise() -> None:
    """An invalid selector ends the cache and its watches with the server's message."""
    server, cache = cluster()
    cache.store(Node)
    cache.store(Pod, label_selector="((")
    server.always = lambda request: (
        refusal(400, "BadRequest", "unable to parse") if "pods" in request.path else None
    )
    with pytest.raises(BadRequest, match="unable to parse"):
        await cache.run()
    assert all(stream.closed for _, stream in server.streams)


async def test_a_cache_runs_once() -> None:
    """Running a cache twice would feed each store twice."""
    _, cache = cluster()
    async with running(cache):
        await asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="runs already"):
            await cache.run()
