"""Components over one cache, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api import Node
from zonewise.api.meta import ObjectMeta
from zonewise.runtime.controller.components import ComponentContext, ComponentGroup
from zonewise.runtime.controller.controller import Controller, own_key


class Greeter:
    """Annotates every node."""

    def __init__(self, context: ComponentContext) -> None:
        self._client = context.client
        self.controller = Controller("greeter", self._greet, cache=context.cache)
        self.nodes = self.controller.watches(Node, own_key)

    async def run(self) -> None:
        """Greet."""
        await self.controller.run()

    async def _greet(self, key: tuple[str, str]) -> float | None:
        if key in self.nodes:
            body = {"metadata": {"annotations": {"example.com/hello": "yes"}}}
            await self._client.apply(Node, key[1], None, body)
        return None


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_part_sees_objects_and_writes_under_its_name() -> None:
    """A part is woken up by objects and writes as a field manager of its own."""
    async with virtual_cluster({"greeter": Greeter}) as cluster:
        nodes = cluster.components.cache.store(Node)
        await cluster.client.create(Node(metadata=ObjectMeta(name="n1")))

        def greeted() -> bool:
            node = nodes.get(("", "n1"))
            return node is not None and "example.com/hello" in node.metadata.annotations

        await until(greeted)
        whole = await cluster.client.raw("GET", "/api/v1/nodes/n1")
        assert b'"manager":"greeter"' in whole.body


class Quitter:
    """Ends at once."""

    def __init__(self, context: ComponentContext) -> None:
        del context

    async def run(self) -> None:
        """Nothing."""


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_part_that_ends_ends_the_crew() -> None:
    """Half a cluster that looks whole is worse than none."""
    async with virtual_cluster({}) as cluster:
        loop = asyncio.get_running_loop()
        components: ComponentGroup = ComponentGroup(
            cluster.server.connect, clock=loop.time, rng=cluster.components.context("x").rng
        )
        components.add("quitter", Quitter)
        with pytest.raises(ExceptionGroup, match="unhandled errors") as caught:
            await components.run()
        assert "quitter ended by itself" in str(caught.value.exceptions[0])
