"""Controllers that are killed at any moment, and two at once. Virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from contextlib import suppress
from functools import partial

import pytest
from tests.controllers.hints.shops import SPACE, Shop, hints
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster
from tests.traffic.clusters import shares

from zonewise.api import EndpointSlice, FeatureGates, Pod
from zonewise.controllers.hints.controller import HintsController, HintsSettings, SliceRole
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import Request, Response, Transport
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.modes import MODE_ANNOTATION
from zonewise.traffic.weights import WEIGHTS_ANNOTATION

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

NODES = ("a0", "a1", "b0", "b1", "c0", "c1")


class SlowNodes:
    """A transport that lists nodes late."""

    def __init__(self, transport: Transport, seconds: float) -> None:
        self._transport = transport
        self._seconds = seconds

    async def send(self, request: Request) -> Response:
        """Send a request, perhaps late."""
        if request.path == "/api/v1/nodes":
            await asyncio.sleep(self._seconds)
        return await self._transport.send(request)

    async def close(self) -> None:
        """End every connection."""
        await self._transport.close()


class Killed:
    """A controller with its own cache, as in a separate process, that can be killed."""

    def __init__(
        self,
        cluster: VirtualCluster,
        *,
        nodes_after: float = 0.0,
        settings: HintsSettings | None = None,
    ) -> None:
        context = cluster.program.context("hints")
        client = Client(SlowNodes(context.client.transport, nodes_after), field_manager="hints")
        self.cache = Cache(client)
        context = dataclasses.replace(context, client=client, cache=self.cache)
        self.part = HintsController(context, settings)
        self._tasks = [
            asyncio.create_task(self.cache.run()),
            asyncio.create_task(self.part.run()),
            asyncio.create_task(context.recorder.run()),
        ]

    async def kill(self) -> None:
        """End it at once, whatever it is doing."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task


async def churn(shop: Shop, rng: random.Random, pods: dict[str, tuple[str, int]]) -> None:
    """One random event: a pod is added, removed or changes its readiness."""
    app = rng.choice(("web", "api"))
    mine = [name for name, (owner, _) in pods.items() if owner == app]
    what = rng.random()
    if len(mine) < 8 or (what < 0.4 and len(mine) < 40):
        number = max((n for _, n in pods.values()), default=0) + 1
        name = f"{app}-{number}"
        pods[name] = (app, number)
        address = f"10.7.{number >> 8}.{number & 255}"
        await shop.pod(name, rng.choice(NODES), address, app=app)
    elif what < 0.7:
        name = rng.choice(mine)
        del pods[name]
        await shop.client.delete(Pod, name, SPACE, grace_period=0)
    else:
        name = rng.choice(mine)
        number = pods[name][1]
        address = f"10.7.{number >> 8}.{number & 255}"
        await shop.ready(name, address, ready=rng.random() < 0.7)


def duplicates(shop: Shop) -> list[str]:
    """Pods that are in two slices."""
    names = [
        endpoint.target_ref.name
        for app in ("web", "api")
        for endpoint in shop.endpoints(app)
        if endpoint.target_ref is not None
    ]
    return sorted({name for name in names if names.count(name) > 1})


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_killed_at_random_moments_of_500_events(seed: int) -> None:
    """Scenario 30: a controller that is killed at random moments converges without duplicates, and
    no start removes hints.
    """
    rng = random.Random(seed)
    async with virtual_cluster({}, seed=seed) as cluster:
        shop = Shop(cluster)
        wrong: list[str] = []

        def watch(old: EndpointSlice | None, new: EndpointSlice | None) -> None:
            if old is None or new is None:
                return
            ready = sum(bool(endpoint.conditions.ready) for endpoint in new.endpoints or ())
            had = any(endpoint.hints is not None for endpoint in old.endpoints or ())
            has = any(endpoint.hints is not None for endpoint in new.endpoints or ())
            if had and ready and not has:
                needed = sum(OverloadLimits().minimum_to_keep(shares(1, 1, 1), ready).values())
                if needed <= ready:
                    wrong.append(f"{new.metadata.name} with {ready}")

        shop.slices.on_change(watch)
        for zone in "abc":
            await shop.zones(**{zone: 2})
        await shop.service("web")
        await shop.service("api")
        pods: dict[str, tuple[str, int]] = {}
        running: Killed | None = None
        for _ in range(500):
            if running is None:
                running = Killed(cluster, nodes_after=rng.choice((0, 0, 0.1, 0.5)))
            await churn(shop, rng, pods)
            await asyncio.sleep(rng.choice((0, 0, 0, 0.01, 0.3)))
            if rng.random() < 0.05:
                await running.kill()
                running = None
        running = running or Killed(cluster)

        def right() -> bool:
            there = sorted(
                endpoint.target_ref.name
                for app in ("web", "api")
                for endpoint in shop.endpoints(app)
                if endpoint.target_ref is not None
            )
            return there == sorted(pods) and not duplicates(shop)

        await until(right)
        for _ in range(5):
            await running.kill()
            running = Killed(cluster)
            await asyncio.sleep(20)
        assert wrong == []
        versions = shop.versions()
        await running.kill()
        running = Killed(cluster)
        await asyncio.sleep(60)
        assert shop.versions() == versions
        assert right()
        await running.kill()


async def test_a_restart_takes_no_hints_away() -> None:
    """A hundred starts over a hinted Service write nothing: nodes are known before any sync."""
    async with virtual_cluster({}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=2, b=2, c=2)
        await shop.service("web")
        await shop.pods(a0=3, b0=3, c0=3)
        running = Killed(cluster)
        await until(lambda: shop.condition() == ("True", "Hinted"))
        versions = shop.versions()
        for number in range(100):
            await running.kill()
            running = Killed(cluster, nodes_after=number % 4)
            await asyncio.sleep(number % 6)
        assert shop.versions() == versions
        await running.kill()


async def test_two_controllers_at_once_do_no_harm() -> None:
    """If two lead at once, conflicts protect: no duplicate lasts, both settle."""
    async with virtual_cluster({"one": hints(), "two": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.service("api")
        pods: dict[str, tuple[str, int]] = {}
        rng = random.Random(5)
        for node in NODES:
            if node not in ("a0", "b0"):
                await shop.node(node, node[0])
        for _ in range(60):
            await churn(shop, rng, pods)
            await asyncio.sleep(0.05)
        await until(
            lambda: (
                not duplicates(shop)
                and sum(len(shop.endpoints(app)) for app in ("web", "api")) == len(pods)
            )
        )
        await asyncio.sleep(60)
        versions = shop.versions()
        await asyncio.sleep(600)
        assert shop.versions() == versions


def reports(shop: Shop, condition: tuple[str, str]) -> bool:
    """Whether the Service has this condition."""
    return shop.condition() == condition


@pytest.mark.parametrize("mode", ["Auto", "zonewise.io/shared", "zonewise.io/weighted"])
@pytest.mark.parametrize("role", [SliceRole.OWN, SliceRole.ADOPT, SliceRole.OBSERVE])
async def test_the_gate_takes_hints_away_and_gives_them_back(role: SliceRole, mode: str) -> None:
    """A controller started without the gate removes hints and weights, says GateOff, and one with
    it brings them back; one that observes says the same and writes no slice.
    """
    async with virtual_cluster({}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web", annotations={MODE_ANNOTATION: mode})
        await shop.pods(a0=2, b0=2)
        first = Killed(cluster)
        await until(lambda: shop.condition() == ("True", "Hinted"))
        await first.kill()
        hinted = shop.per_zone()
        weights = [WEIGHTS_ANNOTATION in piece.metadata.annotations for piece in shop.of("web")]
        assert "" not in hinted and weights == [mode == "zonewise.io/weighted"]
        for gate, condition in ((False, ("False", "GateOff")), (True, ("True", "Hinted"))):
            gates = FeatureGates({"TopologyAwareHints": gate})
            controller = Killed(cluster, settings=HintsSettings(role=role, gates=gates))
            await until(partial(reports, shop, condition))
            await asyncio.sleep(5)
            await controller.kill()
            still_hinted = gate or role is SliceRole.OBSERVE
            assert shop.per_zone() == (hinted if still_hinted else {"": 4})
            (piece,) = shop.of("web")
            assert (WEIGHTS_ANNOTATION in piece.metadata.annotations) is (
                still_hinted and weights[0]
            )
