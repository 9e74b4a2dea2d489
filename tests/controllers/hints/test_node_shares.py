"""Nodes come, go and change: which Services are decided again, and which are not. Virtual time."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.hints.shops import Shop, hints
from tests.embedded.virtual_cluster import until, virtual_cluster
from tests.traffic.clusters import shares

from zonewise.api import Node
from zonewise.api.reason import Reason
from zonewise.controllers.hints.controller import HintsSettings
from zonewise.controllers.hints.decided import DecidedService, find_concerned
from zonewise.topology.eligible_nodes import EligibleNodes
from zonewise.topology.shares import MissingCpu, Shares
from zonewise.traffic.hints import HINTED, HintDecision
from zonewise.traffic.limits import HintCounts
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.slices.planning import FamilyPlan

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

ZONE = "topology.kubernetes.io/zone"


async def label(shop: Shop, node: str, **labels: str | None) -> None:
    """Change the zone, or the role, of a node."""
    names = {"zone": ZONE, "role": "node-role.kubernetes.io/control-plane"}
    body = {"metadata": {"labels": {names[key]: value for key, value in labels.items()}}}
    await shop.client.patch(Node, node, None, body)


async def test_a_node_without_a_zone_removes_all_hints_until_it_has_one() -> None:
    """Scenarios 15 and 19: a node without a zone removes all hints, and the reason names it; a
    later label is enough.
    """
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.condition() == ("True", "Hinted"))
        await shop.node("dark", None, cpu="100m", ready=False)
        await label(shop, "dark", role="")
        await shop.status("dark", cpu="100m")
        await asyncio.sleep(5)
        assert shop.per_zone() == {"a": 2, "b": 2}
        await label(shop, "dark", role=None)
        await until(lambda: shop.condition() == ("False", "NodeWithoutZone"))
        assert shop.per_zone() == {"": 4}
        service = shop.services.get(("default", "web"))
        assert service is not None
        assert "node dark has no zone label" in service.status.conditions[0].message
        await label(shop, "dark", zone="a")
        await until(lambda: shop.condition() == ("True", "Hinted"))
        assert shop.per_zone() == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("missing", "expected"), [(MissingCpu.DISABLE, {"": 4}), (MissingCpu.EQUAL, {"a": 2, "b": 2})]
)
async def test_a_node_without_cpu(missing: MissingCpu, expected: dict[str, int]) -> None:
    """Scenario 16: with a node without CPU nothing is hinted, or all nodes count the same."""
    async with virtual_cluster({"hints": hints(HintsSettings(missing_cpu=missing))}) as cluster:
        shop = Shop(cluster)
        await shop.node("a0", "a", cpu="64")
        await shop.node("b0", "b", cpu="0")
        await shop.service("web")
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.per_zone() == expected)


async def test_only_services_that_cross_a_limit_are_written() -> None:
    """Scenario 17: within 30 % nothing is written, above it the hints move."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=5, b=5)
        await shop.service("web")
        await shop.pods(a0=6, b0=6)
        await until(lambda: shop.per_zone() == {"a": 6, "b": 6})
        await asyncio.sleep(5)
        versions = shop.versions()
        await shop.client.delete(Node, "b4")
        await asyncio.sleep(5)
        assert shop.versions() == versions
        for name in ("b3", "b2", "b1"):
            await shop.client.delete(Node, name)
        await until(lambda: shop.per_zone() not in ({"a": 6, "b": 6}, {"": 12}))
        assert shop.per_zone()["a"] > 7


async def test_a_new_node_can_bring_hints() -> None:
    """Scenario 18: without an event of pods, a Service without hints gets them."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1, c=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=1, c0=1)
        await until(lambda: shop.condition() == ("False", "Overload"))
        await shop.node("a1", "a")
        await until(lambda: shop.per_zone() == {"a": 2, "b": 1, "c": 1})


async def test_a_node_that_grows_in_place_counts() -> None:
    """Scenario 20: allocatable CPU that doubles changes the shares."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.pods(a0=4, b0=4)
        await until(lambda: shop.per_zone() == {"a": 4, "b": 4})
        await shop.status("a0", cpu="12")
        await until(lambda: shop.per_zone() == {"a": 6, "b": 2})
        await shop.status("a0", cpu="12", ready=False)
        await until(lambda: shop.condition() == ("False", "OneZone"))


async def test_shares_of_the_nodes_within_reach() -> None:
    """A Service can exclude nodes its pods never run on; a removed taint is noticed."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.node("gpu", "b", cpu="100")
        taint = {"spec": {"taints": [{"key": "gpu", "value": "1", "effect": "NoSchedule"}]}}
        await shop.client.patch(Node, "gpu", None, taint)
        mode = {"service.kubernetes.io/topology-mode": "Auto"}
        await shop.service("web", annotations={**mode, "zonewise.io/share-nodes": "tolerated"})
        await shop.pods(a0=6, b0=6)
        await until(lambda: shop.per_zone() == {"a": 6, "b": 6})
        await shop.client.patch(Node, "gpu", None, {"spec": {"taints": None}})
        await until(lambda: shop.per_zone() == {"a": 2, "b": 10})


def standing(ready: int, per_zone: dict[str, int], *, hinted: bool) -> DecidedService:
    """A Service in mode Auto."""
    reason = Reason(code=HINTED, message="x")
    there = [(zone, (zone,)) for zone, count in per_zone.items() for _ in range(count)]
    counts = HintCounts.of(there or [("a", ())] * ready)
    family = FamilyPlan(HintDecision(Mode.AUTO, hinted, reason), counts, ready, 1, 1)
    return DecidedService("u", HintRequest(Mode.AUTO), {"IPv4": family}, None, "", "")


async def test_of_ten_thousand_services_few_are_concerned() -> None:
    """One node event wakes up only the Services that cross a limit, in either direction."""
    fine = standing(30, {"a": 10, "b": 10, "c": 10}, hinted=True)
    over = standing(30, {"a": 4, "b": 13, "c": 13}, hinted=True)
    never = standing(4, {}, hinted=False)
    could = standing(9, {}, hinted=False)
    known = {("n", str(n)): fine if n % 2 else never for n in range(10_000)}
    known |= {("n", "over"): over, ("n", "could"): could}

    def of(reach: EligibleNodes | None) -> Shares:
        return shares(4, 4, 4)

    assert sorted(find_concerned(known, of)) == [("n", "could"), ("n", "over")]


async def test_a_node_deleted_by_mistake_takes_no_endpoints() -> None:
    """While its pods exist and nothing else happens, slices stay as they are."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1)
        await shop.service("web", annotations={})
        await shop.pods(a0=2)
        await until(lambda: len(shop.endpoints("web")) == 2)
        versions = shop.versions()
        await shop.client.delete(Node, "a0")
        await asyncio.sleep(30)
        assert shop.versions() == versions
        await shop.node("a0", "a")
        await asyncio.sleep(30)
        assert shop.versions() == versions
