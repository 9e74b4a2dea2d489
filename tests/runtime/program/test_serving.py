"""A program run by a process: connected, leading, stopped by a signal."""

from __future__ import annotations

import asyncio

import pytest
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api import Node
from zonewise.api.errors import LeadershipLost
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.coordination import Lease
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.process.process import Process
from zonewise.runtime.program.context import ControllerContext
from zonewise.runtime.program.program import Program
from zonewise.runtime.program.serving import LeaseSettings, ProgramSettings, serve

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class Labeller:
    """Labels nodes, slowly."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self.controller = context.controller("labeller", self._label)
        self.nodes = self.controller.watches(Node, own_key)
        self.busy = asyncio.Event()

    async def run(self) -> None:
        """Label."""
        await self.controller.run()

    def stop(self) -> None:
        """Label no more."""
        self.controller.stop()

    async def _label(self, key: tuple[str, str]) -> float | None:
        node = self.nodes.get(key)
        if node is not None and "seen" not in node.metadata.labels:
            self.busy.set()
            await asyncio.sleep(2.0)
            await self._client.patch(Node, key[1], None, {"metadata": {"labels": {"seen": "yes"}}})
        return None


LED = ProgramSettings(
    name="labels",
    metrics_listen=None,
    rate=(100.0, 100),
    lease=LeaseSettings(name="labels", namespace="default", deadman=False),
)


async def test_a_process_that_is_to_stop_lets_the_program_finish() -> None:
    """A write that has begun is finished, the lease is released, and ``serve`` returns."""
    async with virtual_cluster({}) as cluster:
        process, labellers = Process(), list[Labeller]()
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))

        def assemble(program: Program) -> None:
            labellers.append(program.add("labeller", Labeller))

        serving = asyncio.create_task(serve(process, cluster.client.transport, LED, assemble))
        await until(lambda: bool(labellers))
        await labellers[0].busy.wait()
        process.stop("test")
        await serving
        node = await cluster.client.get(Node, "n1")
        assert node.metadata.labels["seen"] == "yes"
        lease = await cluster.client.get(Lease, "labels", "default")
        assert lease.spec.holder_identity == ""


async def test_a_program_that_lost_its_lease_may_be_served_again() -> None:
    """``assemble`` makes new controllers each time; the former leader's are not used again."""
    async with virtual_cluster({}) as cluster:
        process, labellers = Process(), list[Labeller]()

        def assemble(program: Program) -> None:
            labellers.append(program.add("labeller", Labeller))

        first = asyncio.create_task(serve(process, cluster.client.transport, LED, assemble))
        await asyncio.sleep(5)
        await cluster.client.delete(Lease, "labels", "default")
        with pytest.raises(LeadershipLost):
            await first
        second = asyncio.create_task(serve(process, cluster.client.transport, LED, assemble))
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))
        await asyncio.sleep(60)
        node = await cluster.client.get(Node, "n1")
        assert node.metadata.labels["seen"] == "yes"
        assert len(labellers) == 2
        process.stop("test")
        await second
