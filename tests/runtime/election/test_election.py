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
    """A dead man's switch that only records its deadline."""

    def __init__(self) -> None:
        self.deadline: float | None = None

    def arm(self, deadline: float) -> None:
        self.deadline = deadline

    def disarm(self) -> None:
        self.deadline = None


class Replica:
    """One process: its transport, its skewed clocks, and work that writes all the time."""

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
        """Write its own object again and again, so that no version protects another writer."""
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
    """Without a lease a replica leads at once; the record has the holder, the times and the
    duration.
    """
    replica = Replica(server, "one")
    replica.start(replica.idle)
    await replica.leading.wait()
    assert asyncio.get_running_loop().time() == 0
    assert server.objects[PATH]["spec"] == {
        "holderIdentity": "one",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }
    assert (
        replica.election.leading and replica.election.leader == "one" and replica.changes == [True]
    )
    await replica.stop()


@pytest.mark.looptime
async def test_renewals_keep_the_acquire_time_and_change_the_renew_time(server: SwapServer) -> None:
    """A renewal changes the renew time only, and has the version it replaces."""
    replica = Replica(server, "one")
    replica.start(replica.idle)
    await asyncio.sleep(60)
    spec = server.objects[PATH]["spec"]
    assert spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"
    assert spec["renewTime"] > "2026-01-01T00:00:56"
    patches = [request for request in replica.way.requests if request.method == "PATCH"]
    assert all(b"resourceVersion" in (request.body or b"") for request in patches)
    assert 60 / 3.6 - 1 <= len(patches) <= 60 / 2.4 + 1
    await replica.stop()


@pytest.mark.looptime
async def test_a_follower_takes_over_from_a_dead_leader(server: SwapServer) -> None:
    """A follower waits for the lease of a dead leader to expire, by its own clock."""
    first, second = Replica(server, "one", skew=-1e6), Replica(server, "two", skew=1e6)
    first.start(first.idle)
    await first.leading.wait()
    second.start(second.idle)
    await asyncio.sleep(30)
    assert not second.leading.is_set()
    died = asyncio.get_running_loop().time()
    first.way.cut = True
    await second.leading.wait()
    took = asyncio.get_running_loop().time() - died
    assert 15 - 3.6 <= took <= 15 + 2.4
    assert holder(server) == "two" and server.objects[PATH]["spec"]["leaseTransitions"] == 1
    await first.stop()
    await second.stop()


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
    replica = Replica(server, "one")
    replica.start(replica.idle)
    await replica.leading.wait()
    assert asyncio.get_running_loop().time() == pytest.approx(40, abs=0.1)
    await replica.stop()


@pytest.mark.looptime
async def test_shutdown_gives_the_lease_back(server: SwapServer) -> None:
    """After an orderly stop the next replica leads at its next poll, not after the lease."""
    first, second = Replica(server, "one"), Replica(server, "two")
    first.start(first.idle)
    await first.leading.wait()
    second.start(second.idle)
    await asyncio.sleep(10)
    begin = asyncio.get_running_loop().time()
    await first.stop()
    assert asyncio.get_running_loop().time() == begin
    assert holder(server) == "" and first.changes == [True, False]
    assert first.switch.deadline is None
    await second.leading.wait()
    assert asyncio.get_running_loop().time() - begin <= 2.4
    await second.stop()


async def test_a_renewal_that_arrived_unnoticed_does_not_keep_the_lease(server: SwapServer) -> None:
    """A leader that is stopped gives the lease back also if it does not know its last version."""
    replica = Replica(server, "one")
    replica.start(replica.idle)
    await replica.leading.wait()
    server.put(PATH, {"spec": server.objects[PATH]["spec"] | {"renewTime": "2026-01-01T00:00:00Z"}})
    await replica.stop()
    assert holder(server) == ""


@pytest.mark.looptime
async def test_the_lease_is_kept_while_the_work_ends(server: SwapServer) -> None:
    """No other replica leads before the work has ended, even if it outlasts the lease."""
    first, second = Replica(server, "one"), Replica(server, "two")

    async def slow() -> None:
        try:
            await first.idle()
        finally:
            await asyncio.sleep(40)
            first.election.fence()

    first.start(slow)
    await first.leading.wait()
    second.start(second.idle)
    await asyncio.sleep(5)
    await first.stop()
    assert not second.leading.is_set() and asyncio.get_running_loop().time() >= 45
    await second.leading.wait()
    await second.stop()


@pytest.mark.looptime
async def test_a_write_that_was_cut_off_gets_the_margin_before_the_lease_is_given_back(
    server: SwapServer,
) -> None:
    """The lease is not free while a write of the old leader may still arrive."""
    server.put(f"{NODES}/one", {})
    replica = Replica(server, "one")

    async def writing() -> None:
        replica.way.there = lambda request: 1.0
        await replica.client.patch(Node, "one", None, {"metadata": {"labels": {"a": "b"}}})

    replica.start(writing)
    await asyncio.sleep(0.5)
    begin = asyncio.get_running_loop().time()
    replica.way.there = lambda request: 0.0
    await replica.stop()
    assert asyncio.get_running_loop().time() - begin == pytest.approx(3 - 0.5)
    assert holder(server) == ""


@pytest.mark.looptime
async def test_work_that_returns_ends_the_election(server: SwapServer) -> None:
    """When the work returns, the election ends and the lease is released."""
    replica = Replica(server, "one")

    async def brief() -> None:
        await asyncio.sleep(1)

    await replica.start(brief)
    assert holder(server) == ""


@pytest.mark.looptime
async def test_work_that_fails_gives_the_lease_back_and_raises(server: SwapServer) -> None:
    """The exception reaches the caller, and the next replica can lead."""
    replica = Replica(server, "one")

    async def broken() -> None:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await replica.start(broken)
    assert holder(server) == ""


@pytest.mark.looptime
async def test_a_leader_that_cannot_renew_stops_before_its_deadline(server: SwapServer) -> None:
    """Without a connection to the server the work ends while the lease is still valid."""
    replica = Replica(server, "one")
    task = replica.start()
    server.put(f"{NODES}/one", {})
    await replica.leading.wait()
    await asyncio.sleep(20)
    deadline = replica.switch.deadline
    assert deadline is not None
    replica.way.cut = True
    with pytest.raises(LeadershipLost, match="could not be renewed"):
        await task
    assert asyncio.get_running_loop().time() <= deadline
    assert not replica.leading.is_set() and replica.switch.deadline is None
    with pytest.raises(LeadershipLost, match="was not sent"):
        replica.election.fence()


@pytest.mark.looptime
async def test_a_lost_answer_does_not_cost_the_lease(server: SwapServer) -> None:
    """A renewal that was done but not answered is recognised as our own."""
    replica = Replica(server, "one")
    replica.start(replica.idle)
    await replica.leading.wait()
    losses = cycle([True, False, False])
    replica.way.loses = lambda request: request.method == "PATCH" and next(losses)
    await asyncio.sleep(120)
    assert replica.election.leading and replica.changes == [True]
    await replica.stop()


@pytest.mark.looptime
async def test_a_lost_answer_while_acquiring_does_not_cost_the_lease(server: SwapServer) -> None:
    """A lease that was acquired without an answer is recognised at the next poll."""
    replica = Replica(server, "one")
    losses = iter([True])
    replica.way.loses = lambda request: request.method == "POST" and next(losses, False)
    replica.start(replica.idle)
    await replica.leading.wait()
    assert server.objects[PATH]["spec"]["leaseTransitions"] == 0
    await replica.stop()


@pytest.mark.looptime
async def test_the_deadline_counts_from_before_the_request(server: SwapServer) -> None:
    """A slow renewal shortens the leader's time, it never lengthens it."""
    replica = Replica(server, "one")
    replica.start(replica.idle)
    await replica.leading.wait()
    replica.way.there = lambda request: 0.7
    replica.way.back = lambda request: 0.9
    await asyncio.sleep(30)
    renewals = [write for write in server.writes if write.method == "PATCH"]
    assert replica.switch.deadline == pytest.approx(renewals[-1].at - 0.7 + 15 - 3)
    await replica.stop()


@pytest.mark.looptime
async def test_another_holder_in_the_lease_ends_leading_at_once(server: SwapServer) -> None:
    """A leader that sees another holder in its lease writes nothing more."""
    replica = Replica(server, "one")
    task = replica.start(replica.idle)
    await replica.leading.wait()
    server.put(PATH, {"spec": {"holderIdentity": "usurper", "leaseDurationSeconds": 15}})
    with pytest.raises(LeadershipLost, match="usurper holds it now"):
        await task
    assert holder(server) == "usurper"


@pytest.mark.looptime
async def test_a_deleted_lease_is_lost_and_followers_wait_it_out(server: SwapServer) -> None:
    """Deleting the lease never makes two leaders."""
    first, second = Replica(server, "one"), Replica(server, "two")
    task = first.start(first.idle)
    await first.leading.wait()
    second.start(second.idle)
    await asyncio.sleep(5)
    first.way.cut = True
    del server.objects[PATH]
    begin = asyncio.get_running_loop().time()
    await second.leading.wait()
    assert asyncio.get_running_loop().time() - begin > 15 - 3.6 - 2.4
    assert not first.leading.is_set()
    with pytest.raises(LeadershipLost):
        await task
    await second.stop()


@pytest.mark.looptime
async def test_a_replica_can_follow_again_after_a_loss(server: SwapServer) -> None:
    """After a lost lease the caller may run the election again."""
    replica = Replica(server, "one")
    with pytest.raises(LeadershipLost):
        task = replica.start(replica.idle)
        await replica.leading.wait()
        replica.way.cut = True
        await task
    replica.way.cut = False
    replica.start(replica.idle)
    await replica.leading.wait()
    replica.election.fence()
    await replica.stop()
    assert replica.changes == [True, False, True, False]


@pytest.mark.looptime
async def test_followers_are_fenced(server: SwapServer) -> None:
    """A replica that never led cannot write."""
    replica = Replica(server, "one")
    with pytest.raises(LeadershipLost):
        await replica.client.patch(Node, "shared", None, {})
    assert replica.way.requests == []


@pytest.mark.looptime
async def test_missing_permission_is_retried_at_the_normal_pace(server: SwapServer) -> None:
    """Roles may be granted later; until then there is one request per poll, with jitter."""
    replica = Replica(server, "one")
    replica.way.refuses = lambda request: refusal(403, Forbidden.__name__)
    replica.start(replica.idle)
    await asyncio.sleep(60)
    assert 60 / 2.4 - 1 <= len(replica.way.requests) <= 60 / 1.6 + 1
    replica.way.refuses = lambda request: None
    await replica.leading.wait()
    await replica.stop()


@pytest.mark.looptime
async def test_a_silent_server_does_not_hang_the_election(server: SwapServer) -> None:
    """Requests without an answer time out, for followers and for the leader."""
    replica = Replica(server, "one")
    replica.way.there = lambda request: 1e6
    task = replica.start(replica.idle)
    await asyncio.sleep(20)
    replica.way.there = lambda request: 0
    await replica.leading.wait()
    replica.way.there = lambda request: 1e6
    begin = asyncio.get_running_loop().time()
    with pytest.raises(LeadershipLost):
        await task
    assert asyncio.get_running_loop().time() - begin <= 12


@pytest.mark.looptime
async def test_a_foreign_change_of_the_lease_is_no_loss(server: SwapServer) -> None:
    """A label that another program sets makes one renewal conflict, and nothing else."""
    replica = Replica(server, "one")
    replica.start(replica.idle)
    await replica.leading.wait()
    for _ in range(10):
        await asyncio.sleep(3)
        lease = server.objects[PATH]
        server.put(PATH, {**lease, "metadata": {**lease["metadata"], "labels": {"a": "b"}}})
    await asyncio.sleep(5)
    assert replica.election.leading
    await replica.stop()


def slow(seconds: float) -> Callable[[Request], float]:
    """A random delay for each request, so that requests overtake each other."""
    rng = random.Random(seconds)
    return lambda request: rng.uniform(0, seconds / 5 if request.path == PATH else seconds)


def failing_lease(request: Request) -> Answered | None:
    return refusal(500, "InternalError") if request.path == PATH else None


def lossy(request: Request) -> bool:
    return request.method == "PATCH"


def healthy(_: Request) -> None:
    return None


class Trouble(NamedTuple):
    """What happens to the leader or the follower, and for how long."""

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
    """Every accepted write is by the holder that the lease names at that moment.

    Transports delay by less than the margin, which is what the margin is for.
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
    """A lease too short for two renewals is an error at the start."""
    with pytest.raises(ConfigError, match="at least two must fit"):
        LeaseTiming(duration=5, margin=1, stop=1, renew=2)
    with pytest.raises(ConfigError, match="above zero"):
        LeaseTiming(duration=0)


def test_where_the_lease_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag wins, then the pod's namespace, then the caller's."""
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    assert lease_namespace("given") == "given"
    assert lease_namespace(default="kubeconfig") == "kubeconfig"
    monkeypatch.setenv("POD_NAMESPACE", "pod")
    assert lease_namespace() == "pod"
