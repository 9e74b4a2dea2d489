"""Programs: controllers over one cache that live and end together, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api import Node
from zonewise.api.errors import LeadershipLost, ProtocolError
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.coordination import Lease
from zonewise.api.objects.events import Event
from zonewise.runtime.client.client import Client
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.election.election import Election
from zonewise.runtime.monitoring.metrics import Metrics
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import ControllerFailed, Program

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

HELLO = "example.com/hello"


class Greeter:
    """Annotates every node, and reports it."""

    def __init__(self, context: ControllerContext, word: str = "yes") -> None:
        self._context = context
        self._word = word
        self.busy = asyncio.Event()
        self.controller = context.controller("greeter", self._greet)
        self.nodes = self.controller.watches(Node, own_key)

    async def run(self) -> None:
        """Greet."""
        await self.controller.run()

    def stop(self) -> None:
        """Greet no more."""
        self.controller.stop()

    async def _greet(self, key: tuple[str, str]) -> float | None:
        node = self.nodes.get(key)
        if node is not None and HELLO not in node.metadata.annotations:
            self.busy.set()
            await asyncio.sleep(1.0)
            body = {"metadata": {"annotations": {HELLO: self._word}}}
            await self._context.client.apply(Node, key[1], None, body)
            self._context.recorder.event(
                node, type="Normal", reason="Greeted", action="Greet", note="hello"
            )
        return None


class Raiser:
    """A controller that raises what it was given, or returns at once."""

    def __init__(self, context: ControllerContext, error: Exception | None = None) -> None:
        self._error = error

    async def run(self) -> None:
        """Raise."""
        if self._error is not None:
            raise self._error


def program_on(cluster: VirtualCluster, *, lease: str = "", reporter: str = "") -> Program:
    """A program on a virtual cluster, with a lease if one is named."""
    client = cluster.server.connect("program")
    if not lease:
        return Program(
            cluster.server.connect,
            clock=cluster.program.context("clock").clock,
            rng=random.Random(1),
            reporter=reporter,
            metrics=Metrics(),
        )
    loop = asyncio.get_running_loop()
    election = Election(
        Client(client.transport, retries=0), name=lease, namespace="default", clock=loop.time
    )
    fenced = Client(client.transport, fence=election.fence)
    return Program(
        lambda _: fenced,
        clock=cluster.program.context("clock").clock,
        rng=random.Random(1),
        election=election,
    )


@asynccontextmanager
async def running(program: Program) -> AsyncIterator[asyncio.Task[None]]:
    """Run the program, and cancel it at the end if it has not ended."""
    task = asyncio.create_task(program.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def greeting(cluster: VirtualCluster, name: str) -> str | None:
    """The annotation of a node."""
    node = await cluster.client.get(Node, name)
    return node.metadata.annotations.get(HELLO)


async def test_a_controller_is_woken_by_objects_and_writes_under_its_name() -> None:
    """A controller is woken up by objects and writes as a field manager of its own."""
    async with virtual_cluster({"greeter": Greeter}) as cluster:
        nodes = cluster.program.cache.store(Node)
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))

        def greeted() -> bool:
            node = nodes.get(("", "n1"))
            return node is not None and HELLO in node.metadata.annotations

        await until(greeted)
        response = await cluster.client.raw("GET", "/api/v1/nodes/n1")
        assert b'"manager":"greeter"' in response.body


async def test_settings_follow_the_context() -> None:
    """``add`` passes arguments on to the class, and returns the controller."""
    async with virtual_cluster({}) as cluster:
        program = program_on(cluster)
        greeter = program.add("greeter", Greeter, "good morning")
        assert program.runnables == {"greeter": greeter}
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))
        async with running(program):
            await asyncio.sleep(10)
            assert await greeting(cluster, "n1") == "good morning"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (None, "raiser ended by itself, which is a fault in zonewise; please report it"),
        (ValueError("odd"), r"raiser failed \(ValueError: odd\), a fault in zonewise; -v shows"),
        (ProtocolError("no JSON"), "raiser failed: no JSON"),
    ],
)
async def test_a_controller_that_ends_ends_the_program(
    error: Exception | None, sentence: str
) -> None:
    """A controller that returns or raises ends the program; the error names it."""
    async with virtual_cluster({}) as cluster:
        program = program_on(cluster)
        program.add("greeter", Greeter)
        program.add("raiser", Raiser, error)
        with pytest.raises(ControllerFailed, match=sentence):
            await program.run()


async def test_a_stopped_program_finishes_what_it_does_and_flushes_its_events() -> None:
    """A reconcile that has begun writes, its event is sent, and ``run`` returns."""
    async with virtual_cluster({}) as cluster:
        program = program_on(cluster, reporter="greetings")
        greeter = program.add("greeter", Greeter)
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))
        async with running(program) as task:
            await greeter.busy.wait()
            program.stop()
            await task
        assert await greeting(cluster, "n1") == "yes"
        events = await cluster.client.list(Event, "default")
        assert [(event.reason, event.reporting_controller) for event in events] == [
            ("Greeted", "greetings")
        ]


async def test_metrics_are_counted_without_wiring() -> None:
    """Results, queue and watches of a controller are in the program's metrics by name."""
    async with virtual_cluster({}) as cluster:
        program = program_on(cluster)
        program.add("greeter", Greeter)
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))
        async with running(program):
            await asyncio.sleep(10)
            assert program.metrics is not None
            text = program.metrics.render().decode()
        assert 'zonewise_reconcile_total{controller="greeter",result="done"} 2.0' in text
        assert 'workqueue_depth{name="greeter"} 0.0' in text
        assert 'zonewise_watch_objects{namespace="",resource="nodes"} 1.0' in text


async def test_only_the_leader_writes_and_a_follower_takes_over() -> None:
    """Two replicas: one greets; when it is stopped it releases the lease and the other goes on."""
    async with virtual_cluster({}) as cluster:
        first, second = (program_on(cluster, lease="greeters") for _ in range(2))
        first.add("greeter", Greeter, "first")
        second.add("greeter", Greeter, "second")
        async with running(first) as leading:
            await asyncio.sleep(1)
            async with running(second):
                await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))
                await asyncio.sleep(60)
                assert await greeting(cluster, "n1") == "first"
                first.stop()
                await leading
                await cluster.client.create(Node(metadata=ObjectMeta(name="n2")))
                await asyncio.sleep(60)
                assert await greeting(cluster, "n2") == "second"


async def test_a_follower_that_is_stopped_just_ends() -> None:
    """A follower that is stopped wrote nothing, and the leader keeps its lease."""
    async with virtual_cluster({}) as cluster:
        first, second = (program_on(cluster, lease="greeters") for _ in range(2))
        first.add("greeter", Greeter)
        second.add("greeter", Greeter)
        async with running(first), running(second) as following:
            await asyncio.sleep(30)
            second.stop()
            await following
            lease = await cluster.client.get(Lease, "greeters", "default")
            assert first.election is not None
            assert lease.spec.holder_identity == first.election.identity


async def test_a_lost_lease_ends_the_program_and_it_may_follow_again() -> None:
    """A program that lost its lease ends with an error that names it; another can follow again."""
    async with virtual_cluster({}) as cluster:
        program = program_on(cluster, lease="greeters")
        program.add("greeter", Greeter)
        async with running(program) as task:
            await asyncio.sleep(5)
            await cluster.client.delete(Lease, "greeters", "default")
            with pytest.raises(LeadershipLost, match="lost lease default/greeters"):
                await task
        again = program_on(cluster, lease="greeters")
        again.add("greeter", Greeter)
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))
        async with running(again):
            await asyncio.sleep(60)
            assert await greeting(cluster, "n1") == "yes"
