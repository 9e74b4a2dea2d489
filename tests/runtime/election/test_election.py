"""The election in virtual time: one leader, fenced writes, quick and safe handover."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any, NamedTuple

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.memory_server import Answered, refusal
from tests.runtime.swap_server import SwapServer, Way, Write

from zonewise.api.errors import ConfigError, ConnectionFailed, Forbidden, LeadershipLost
from zonewise.api.objects.coordination import Lease
from zonewise.api.objects.core import Node
from zonewise.runtime.client.transport import Request
from zonewise.runtime.election.election import Election, LeaseTiming, lease_namespace

NAME, NAMESPACE = "zonewise-test", "zw"
PATH = Lease.resource.path(NAMESPACE, NAME)
NODES = Node.resource.path()
START = datetime(2026, 1, 1, tzinfo=UTC)
TIMING = LeaseTiming(duration=15, margin=3, stop=2, renew=3, retry=2)
HASTY = LeaseTiming(duration=6, margin=3, stop=0.3, renew=0.8, retry=0.1)


class Switch:
    """A deadman switch that only remembers."""

    def __init__(self) -> None:
        self.deadline: float | None = None

    def arm(self, deadline: float) -> None:
        self.deadline = deadline

    def disarm(self) -> None:
        self.deadline = None


class Replica:
    """One process: its way to the server, its skewed clocks, and work that writes all the time."""

    def __init__(
        self, server: SwapServer, name: str, *, skew: float = 0.0, timing: LeaseTiming = TIMING
    ) -> None:
        self.way: Way = server.way(name)
        self.changes: list[bool] = []
        self.switch = Switch()
        self.election = Election(
            self.way.client(),
            name=NAME,
            namespace=NAMESPACE,
            identity=name,
            timing=timing,
            deadman=self.switch,
            on_change=self.changes.append,
            clock=lambda: asyncio.get_running_loop().time() + skew,
            now=lambda: START + timedelta(seconds=skew + asyncio.get_running_loop().time()),
            rng=random.Random(name),
        )
        self.client = self.way.client(fence=self.election.fence)
        self.leading = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def lead(self) -> None:
        """Write an object of its own again and again, so that no version protects anybody."""
        self.leading.set()
        try:
            while True:
                with suppress(ConnectionFailed):
                    labels = {"at": str(asyncio.get_running_loop().time())}
                    await self.client.patch(
                        Node, self.way.name, None, {"metadata": {"labels": labels}}
                    )
                await asyncio.sleep(0.3)
        finally:
            self.leading.clear()

    async def idle(self) -> None:
        self.leading.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.leading.clear()

    def start(self, lead: Callable[[], Awaitable[None]] | None = None) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self.election.run(lead or self.lead))
        return self.task

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.way.close()


@pytest.fixture
def server() -> SwapServer:
    return SwapServer()


def holder(server: SwapServer) -> Any:
    return server.objects[PATH]["spec"].get("holderIdentity")


@pytest.mark.looptime
async def test_the_first_replica_creates_the_lease_and_leads(server: SwapServer) -> None:
    """With no lease there is nobody to wait for; the record says who, since when, for how long."""
    one = Replica(server, "one")
    one.start(one.idle)
    await one.leading.wait()
    assert asyncio.get_running_loop().time() == 0
    assert server.objects[PATH]["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }
    assert one.election.leading and one.election.leader == "one" and one.changes == [True]
    await one.stop()


@pytest.mark.looptime
async def test_renewals_keep_the_acquire_time_and_change_the_renew_time(server: SwapServer) -> None:
    """A renewal says nothing new but the time, and carries the version it follows."""
    one = Replica(server, "one")
    one.start(one.idle)
    await asyncio.sleep(60)
    spec = server.objects[PATH]["spec"]
    assert spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"
    assert spec["renewTime"] > "2026-01-01T00:00:56"
    patches = [request for request in one.way.requests if request.method == "PATCH"]
    assert all(b"resourceVersion" in (request.body or b"") for request in patches)
    assert 60 / 3.6 - 1 <= len(patches) <= 60 / 2.4 + 1
    await one.stop()


@pytest.mark.looptime
async def test_a_follower_takes_over_what_a_dead_leader_left(server: SwapServer) -> None:
    """A leader that vanishes is followed after its lease, counted by the follower's own clock."""
    one, two = Replica(server, "one", skew=-1e6), Replica(server, "two", skew=1e6)
    one.start(one.idle)
    await one.leading.wait()
    two.start(two.idle)
    await asyncio.sleep(30)
    assert not two.leading.is_set()
    died = asyncio.get_running_loop().time()
    one.way.cut = True
    await two.leading.wait()
    took = asyncio.get_running_loop().time() - died
    assert 15 - 3.6 <= took <= 15 + 2.4
    assert holder(server) == "two" and server.objects[PATH]["spec"]["leaseTransitions"] == 1
    await one.stop()
    await two.stop()


@pytest.mark.looptime
async def test_a_stale_record_of_long_ago_is_still_waited_out(server: SwapServer) -> None:
    """A renew time in the past proves nothing, because it is another machine's clock."""
    server.put(
        PATH,
        {
            "spec": {
                "holderIdentity": "ghost",
                "leaseDurationSeconds": 40,
                "renewTime": "1999-01-01T00:00:00.000000Z",
            }
        },
    )
    one = Replica(server, "one")
    one.start(one.idle)
    await one.leading.wait()
    assert asyncio.get_running_loop().time() == pytest.approx(40, abs=0.1)
    await one.stop()


@pytest.mark.looptime
async def test_shutdown_gives_the_lease_back(server: SwapServer) -> None:
    """After an orderly stop the next replica leads at its next look, not after the lease."""
    one, two = Replica(server, "one"), Replica(server, "two")
    one.start(one.idle)
    await one.leading.wait()
    two.start(two.idle)
    await asyncio.sleep(10)
    begin = asyncio.get_running_loop().time()
    await one.stop()
    assert asyncio.get_running_loop().time() == begin
    assert holder(server) == "" and one.changes == [True, False]
    assert one.switch.deadline is None
    await two.leading.wait()
    assert asyncio.get_running_loop().time() - begin <= 2.4
    await two.stop()


@pytest.mark.looptime
async def test_the_lease_is_kept_while_the_work_ends(server: SwapServer) -> None:
    """A work that takes longer to end than the lease lasts is still alone until it has ended."""
    one, two = Replica(server, "one"), Replica(server, "two")

    async def slow() -> None:
        try:
            await one.idle()
        finally:
            await asyncio.sleep(40)
            one.election.fence()

    one.start(slow)
    await one.leading.wait()
    two.start(two.idle)
    await asyncio.sleep(5)
    await one.stop()
    assert not two.leading.is_set() and asyncio.get_running_loop().time() >= 45
    await two.leading.wait()
    await two.stop()


@pytest.mark.looptime
async def test_a_write_that_was_cut_off_gets_the_margin_before_the_lease_is_given_back(
    server: SwapServer,
) -> None:
    """The lease is not free while a write of the old leader may still arrive."""
    server.put(f"{NODES}/one", {})
    one = Replica(server, "one")

    async def writing() -> None:
        one.way.there = lambda request: 1.0
        await one.client.patch(Node, "one", None, {"metadata": {"labels": {"a": "b"}}})

    one.start(writing)
    await asyncio.sleep(0.5)
    begin = asyncio.get_running_loop().time()
    one.way.there = lambda request: 0.0
    await one.stop()
    assert asyncio.get_running_loop().time() - begin == pytest.approx(3 - 0.5)
    assert holder(server) == ""


@pytest.mark.looptime
async def test_work_that_returns_ends_the_election(server: SwapServer) -> None:
    """A task with an end is done once; the lease is free afterwards."""
    one = Replica(server, "one")

    async def brief() -> None:
        await asyncio.sleep(1)

    await one.start(brief)
    assert holder(server) == ""


@pytest.mark.looptime
async def test_work_that_fails_gives_the_lease_back_and_raises(server: SwapServer) -> None:
    """A crash of the leader's work is the caller's to see, and the next replica's to take over."""
    one = Replica(server, "one")

    async def broken() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await one.start(broken)
    assert holder(server) == ""


@pytest.mark.looptime
async def test_a_leader_that_cannot_renew_stops_before_its_deadline(server: SwapServer) -> None:
    """Cut off from the server, the work has ended while the lease still lasts."""
    one = Replica(server, "one")
    task = one.start()
    server.put(f"{NODES}/one", {})
    await one.leading.wait()
    await asyncio.sleep(20)
    deadline = one.switch.deadline
    assert deadline is not None
    one.way.cut = True
    with pytest.raises(LeadershipLost, match="could not be renewed"):
        await task
    assert asyncio.get_running_loop().time() <= deadline
    assert not one.leading.is_set() and one.switch.deadline is None
    with pytest.raises(LeadershipLost, match="was not sent"):
        one.election.fence()


@pytest.mark.looptime
async def test_a_lost_answer_does_not_cost_the_lease(server: SwapServer) -> None:
    """A renewal that was done but got no answer is recognised as our own."""
    one = Replica(server, "one")
    one.start(one.idle)
    await one.leading.wait()
    losses = cycle([True, False, False])
    one.way.loses = lambda request: request.method == "PATCH" and next(losses)
    await asyncio.sleep(120)
    assert one.election.leading and one.changes == [True]
    await one.stop()


@pytest.mark.looptime
async def test_a_lost_answer_while_acquiring_does_not_cost_the_lease(server: SwapServer) -> None:
    """A lease that we have taken without being told is ours at the next look."""
    one = Replica(server, "one")
    losses = iter([True])
    one.way.loses = lambda request: request.method == "POST" and next(losses, False)
    one.start(one.idle)
    await one.leading.wait()
    assert server.objects[PATH]["spec"]["leaseTransitions"] == 0
    await one.stop()


@pytest.mark.looptime
async def test_the_deadline_counts_from_before_the_request(server: SwapServer) -> None:
    """A slow renewal shortens the leader's time, it never lengthens it."""
    one = Replica(server, "one")
    one.start(one.idle)
    await one.leading.wait()
    one.way.there = lambda request: 0.7
    one.way.back = lambda request: 0.9
    await asyncio.sleep(30)
    renewals = [write for write in server.writes if write.method == "PATCH"]
    assert one.switch.deadline == pytest.approx(renewals[-1].at - 0.7 + 15 - 3)
    await one.stop()


@pytest.mark.looptime
async def test_another_holder_in_the_lease_ends_leading_at_once(server: SwapServer) -> None:
    """Whoever finds another name in its lease writes nothing more."""
    one = Replica(server, "one")
    task = one.start(one.idle)
    await one.leading.wait()
    server.put(PATH, {"spec": {"holderIdentity": "usurper", "leaseDurationSeconds": 15}})
    with pytest.raises(LeadershipLost, match="usurper holds it now"):
        await task
    assert holder(server) == "usurper"


@pytest.mark.looptime
async def test_a_deleted_lease_is_lost_and_followers_wait_it_out(server: SwapServer) -> None:
    """Deleting the lease never makes two leaders."""
    one, two = Replica(server, "one"), Replica(server, "two")
    task = one.start(one.idle)
    await one.leading.wait()
    two.start(two.idle)
    await asyncio.sleep(5)
    one.way.cut = True
    del server.objects[PATH]
    begin = asyncio.get_running_loop().time()
    await two.leading.wait()
    assert asyncio.get_running_loop().time() - begin > 15 - 3.6 - 2.4
    assert not one.leading.is_set()
    with pytest.raises(LeadershipLost):
        await task
    await two.stop()


@pytest.mark.looptime
async def test_a_replica_can_follow_again_after_a_loss(server: SwapServer) -> None:
    """The caller decides whether to leave or to stand for election again."""
    one = Replica(server, "one")
    with pytest.raises(LeadershipLost):
        task = one.start(one.idle)
        await one.leading.wait()
        one.way.cut = True
        await task
    one.way.cut = False
    one.start(one.idle)
    await one.leading.wait()
    one.election.fence()
    await one.stop()
    assert one.changes == [True, False, True, False]


@pytest.mark.looptime
async def test_followers_are_fenced(server: SwapServer) -> None:
    """Who never led cannot write."""
    one = Replica(server, "one")
    with pytest.raises(LeadershipLost):
        await one.client.patch(Node, "shared", None, {})
    assert one.way.requests == []


@pytest.mark.looptime
async def test_missing_permission_is_retried_at_the_normal_pace(server: SwapServer) -> None:
    """Roles may be granted later; until then there is one request per look, with jitter."""
    one = Replica(server, "one")
    one.way.refuses = lambda request: refusal(403, Forbidden.__name__)
    one.start(one.idle)
    await asyncio.sleep(60)
    assert 60 / 2.4 - 1 <= len(one.way.requests) <= 60 / 1.6 + 1
    one.way.refuses = lambda request: None
    await one.leading.wait()
    await one.stop()


@pytest.mark.looptime
async def test_a_silent_server_does_not_hang_the_election(server: SwapServer) -> None:
    """Requests without an answer are given up in time, by followers and by the leader."""
    one = Replica(server, "one")
    one.way.there = lambda request: 1e6
    task = one.start(one.idle)
    await asyncio.sleep(20)
    one.way.there = lambda request: 0
    await one.leading.wait()
    one.way.there = lambda request: 1e6
    begin = asyncio.get_running_loop().time()
    with pytest.raises(LeadershipLost):
        await task
    assert asyncio.get_running_loop().time() - begin <= 12


@pytest.mark.looptime
async def test_a_foreign_change_of_the_lease_is_no_loss(server: SwapServer) -> None:
    """Somebody's label on the lease makes one renewal conflict, and nothing else."""
    one = Replica(server, "one")
    one.start(one.idle)
    await one.leading.wait()
    for _ in range(10):
        await asyncio.sleep(3)
        lease = server.objects[PATH]
        server.put(PATH, {**lease, "metadata": {**lease["metadata"], "labels": {"a": "b"}}})
    await asyncio.sleep(5)
    assert one.election.leading
    await one.stop()


def slow(seconds: float) -> Callable[[Request], float]:
    """Another time for each request, so that requests overtake each other."""
    rng = random.Random(seconds)
    return lambda request: rng.uniform(0, seconds / 5 if request.path == PATH else seconds)


def failing_lease(request: Request) -> Answered | None:
    return refusal(500, "InternalError") if request.path == PATH else None


def lossy(request: Request) -> bool:
    return request.method == "PATCH"


def healthy(_: Request) -> None:
    return None


class Trouble(NamedTuple):
    """What the leader or the follower has to bear, until something else, and for how long."""

    leader: bool
    what: str
    delay: float
    seconds: float


TROUBLES = st.builds(
    Trouble,
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["none", "cut", "slow there", "slow back", "lossy", "no renewal", "stop"]),
    st.sampled_from([0.0, 1.0, 2.9]),
    st.sampled_from([0.3, 3.0, 8.0]),
)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(TROUBLES, min_size=3, max_size=12), st.tuples(st.floats(-1e5, 1e5), st.just(0.0)))
def test_writes_of_two_leaders_never_interleave(
    troubles: list[Trouble], skews: tuple[float, float]
) -> None:
    """Whatever happens, each write that is accepted is of whom the lease names at that moment.

    The ways delay by less than the margin, which is what the margin is for.
    """

    async def scenario() -> list[Write]:
        server = SwapServer()
        replicas = [
            Replica(server, f"r{i}", skew=skew, timing=HASTY) for i, skew in enumerate(skews)
        ]
        for replica in replicas:
            server.put(f"{NODES}/{replica.way.name}", {})
        server.writes.clear()

        async def forever(replica: Replica) -> None:
            while True:
                try:
                    await replica.election.run(replica.lead)
                except LeadershipLost:
                    continue

        tasks = {i: asyncio.create_task(forever(replicas[i])) for i in range(2)}
        for leader, what, delay, seconds in troubles:
            number = int(replicas[1].election.leading == leader)
            way = replicas[number].way
            way.cut = what == "cut"
            way.there = slow(delay if what in ("slow there", "no renewal", "stop") else 0.0)
            way.back = slow(delay if what == "slow back" else 0.0)
            way.loses = lossy if what == "lossy" else healthy
            way.refuses = failing_lease if what == "no renewal" else healthy
            await asyncio.sleep(seconds)
            if what == "stop":
                tasks[number].cancel()
                await asyncio.wait([tasks[number]])
                await asyncio.sleep(delay)
                tasks[number] = asyncio.create_task(forever(replicas[number]))
            assert sum(replica.election.leading for replica in replicas) <= 1
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values())
        for replica in replicas:
            await replica.way.close()
        return server.writes

    loop = looptime.new_event_loop()
    try:
        writes = loop.run_until_complete(scenario())
    finally:
        loop.close()
    holding = ""
    for write in writes:
        if write.path == PATH:
            holding = write.result["spec"].get("holderIdentity", "")
        else:
            assert write.by == holding


def test_timing_that_cannot_work_is_refused() -> None:
    """A lease too short for two renewals is a mistake in the flags, said at start."""
    with pytest.raises(ConfigError, match="at least two must fit"):
        LeaseTiming(duration=5, margin=1, stop=1, renew=2)
    with pytest.raises(ConfigError, match="above zero"):
        LeaseTiming(duration=0)


def test_where_the_lease_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag wins, then the pod's namespace, then what the caller has."""
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    assert lease_namespace("given") == "given"
    assert lease_namespace(default="kubeconfig") == "kubeconfig"
    monkeypatch.setenv("POD_NAMESPACE", "pod")
    assert lease_namespace() == "pod"
