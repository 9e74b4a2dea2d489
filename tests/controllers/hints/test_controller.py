"""The hints controller on a virtual cluster: slices, retries, selection, roles."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.hints.shops import SPACE, Shop, hints
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.api import EndpointSlice, Node, Pod, Service
from zonewise.api.codec import convert
from zonewise.api.values.selector import parse
from zonewise.controllers.hints.controller import HintsSettings, SliceRole

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_slices_and_hints_appear_for_a_new_service() -> None:
    """Pods of a Service become endpoints with hints, in one slice."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1, c=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2, c0=2)
        await until(lambda: shop.per_zone() == {"a": 2, "b": 2, "c": 2})
        assert len(shop.of("web")) == 1


async def test_pods_that_leave_a_service_leave_its_slices() -> None:
    """Labels, readiness and deletion of pods, and the selector of the Service, are followed."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web", annotations={})
        await shop.pods(a0=2, b0=2)
        await until(lambda: len(shop.endpoints("web")) == 4)
        relabel = {"metadata": {"labels": {"app": "other"}}}
        await shop.client.patch(Pod, "web-a0-0", SPACE, relabel)
        await until(lambda: len(shop.endpoints("web")) == 3)
        await shop.client.delete(Pod, "web-a0-1", SPACE, grace_period=0)
        await until(lambda: len(shop.endpoints("web")) == 2)
        await shop.ready("web-b0-0", "10.3.98.0", ready=False)
        await until(lambda: sum(bool(e.conditions.ready) for e in shop.endpoints("web")) == 1)
        await shop.client.patch(Service, "web", SPACE, {"spec": {"selector": {"app": "other"}}})
        await until(lambda: len(shop.endpoints("web")) == 1)


async def test_a_foreign_edit_is_repaired_after_a_second() -> None:
    """Scenario 36: slices that another client changes or deletes are repaired, not before 1 s."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.per_zone() == {"a": 2, "b": 2})
        await asyncio.sleep(5)
        name = shop.of("web")[0].metadata.name
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await shop.client.patch(EndpointSlice, name, SPACE, {"endpoints": []})
        await until(lambda: shop.endpoints("web") == [])
        await until(lambda: len(shop.endpoints("web")) == 4)
        assert loop.time() - begun >= 1
        await shop.client.delete(EndpointSlice, name, SPACE)
        await until(lambda: shop.of("web") == [])
        await until(lambda: len(shop.endpoints("web")) == 4)


async def test_own_writes_cause_no_turn() -> None:
    """A change costs one turn, and its echo none; a settled cluster is not written to."""
    async with virtual_cluster({}) as cluster:
        part = hints()(cluster.program.context("hints"))
        work = asyncio.create_task(part.run())
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.per_zone() == {"a": 2, "b": 2})
        await asyncio.sleep(20)
        turns = part.controller.stats.done
        versions = shop.versions()
        await asyncio.sleep(600)
        assert part.controller.stats.done == turns
        await shop.ready("web-a0-0", "10.3.97.0", ready=False)
        await until(lambda: sum(bool(e.conditions.ready) for e in shop.endpoints("web")) == 3)
        await asyncio.sleep(30)
        assert part.controller.stats.done == turns + 1
        assert shop.versions() != versions
        work.cancel()


async def test_changes_of_pods_are_collected() -> None:
    """With a batch period many pods that are added within it are one write."""
    async with virtual_cluster({"hints": hints(HintsSettings(batch=5.0))}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web", annotations={})
        await until(lambda: len(shop.of("web")) == 1)
        first = int(shop.of("web")[0].metadata.resource_version)
        await shop.pods(a0=10, b0=10)
        await until(lambda: len(shop.endpoints("web")) == 20)
        assert shop.of("web")[0].metadata.generation == 2
        assert int(shop.of("web")[0].metadata.resource_version) > first


async def test_a_pod_whose_node_comes_later_is_added() -> None:
    """A pod without its node is left out, and written as soon as the node is there."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1)
        await shop.service("web", annotations={})
        await shop.pods(a0=1, z0=1)
        await until(lambda: len(shop.endpoints("web")) == 1)
        await shop.node("z0", "z")
        await until(lambda: len(shop.endpoints("web")) == 2)


async def test_a_node_that_moves_takes_its_endpoints_along() -> None:
    """The zone of endpoints follows the label of their node, in any mode."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1)
        await shop.service("web", annotations={})
        await shop.pods(a0=1)
        await until(lambda: [endpoint.zone for endpoint in shop.endpoints("web")] == ["a"])
        label = {"metadata": {"labels": {"topology.kubernetes.io/zone": "q"}}}
        await shop.client.patch(Node, "a0", None, label)
        await until(lambda: [endpoint.zone for endpoint in shop.endpoints("web")] == ["q"])


async def test_selectors_choose_whose_hints_are_written() -> None:
    """Services and namespaces that are not chosen have slices without hints."""
    settings = HintsSettings(
        services=parse("tier=1"), namespaces=parse("kubernetes.io/metadata.name=default")
    )
    async with virtual_cluster({"hints": hints(settings)}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2)
        await until(lambda: shop.per_zone() == {"": 4})
        assert shop.condition() is None
        await shop.client.patch(Service, "web", SPACE, {"metadata": {"labels": {"tier": "1"}}})
        await until(lambda: shop.per_zone() == {"a": 2, "b": 2})


async def test_selectorless_services_are_left_alone() -> None:
    """A Service without a selector, or an ExternalName, has no slices of ours."""
    async with virtual_cluster({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.service("bare", selector=None)
        await shop.service("name", type="ExternalName", externalName="example.com", ports=None)
        await shop.service("web")
        await until(lambda: len(shop.of("web")) == 1)
        assert (shop.of("bare"), shop.of("name")) == ([], [])


@pytest.mark.parametrize("role", [SliceRole.ADOPT, SliceRole.OBSERVE])
async def test_roles_that_do_not_own_slices(role: SliceRole) -> None:
    """Adopt puts hints on slices of others; observe only reports its decision."""
    async with virtual_cluster({"watcher": hints(HintsSettings(role=role))}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1)
        await shop.service("web")
        piece = {
            "metadata": {
                "name": "web-x",
                "namespace": SPACE,
                "labels": {
                    "kubernetes.io/service-name": "web",
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
            },
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": [f"10.0.0.{n}"], "zone": "ab"[n % 2], "conditions": {"ready": True}}
                for n in range(4)
            ],
        }
        await shop.client.create(convert(EndpointSlice, piece))
        await until(lambda: shop.condition() == ("True", "Hinted"))
        expected = {"a": 2, "b": 2} if role is SliceRole.ADOPT else {"": 4}
        assert shop.per_zone() == expected
        await asyncio.sleep(30)
        assert shop.of("web")[0].metadata.generation == (2 if role is SliceRole.ADOPT else 1)
