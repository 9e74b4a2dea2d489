"""Where the proxy reads topology: slices, then PodLocators, then Nodes, as long as needed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.embedded.virtual_cluster import until
from tests.proxy.proxier_trial import SLICE, Trial, trial
from tests.proxy.remembering_kernel import SERVICE, Remembering

from zonewise.api.errors import ServerError, Status
from zonewise.api.meta import Key
from zonewise.api.objects.apiextensions import CustomResourceDefinition
from zonewise.api.objects.core import Node
from zonewise.api.objects.locator import PodLocator
from zonewise.api.unstructured import unstructured
from zonewise.controllers.locators.definition import definition
from zonewise.proxy.nodes import LINGER, SETTLE
from zonewise.proxy.proxier import Proxier
from zonewise.proxy.settings import ProxySettings

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

RACK, ZONE = "example.com/rack", "topology.kubernetes.io/zone"
LOCATOR = unstructured(PodLocator.resource)
LOCATORS, OTHER_NODES = "podlocators.zonewise.io", "nodes"
DB: Key = ("default", "db")


def watched(proxy: Trial) -> list[str]:
    """What is watched beside Services, slices and the own Node."""
    names = sorted(stats.resource for stats in proxy.cache.stats)
    for name in ("endpointslices.discovery.k8s.io", "nodes", "services"):
        names.remove(name)
    return names


async def state(proxy: Trial, values: str | None) -> None:
    """Put values of topology keys on the slice of Service db."""
    body = {"metadata": {"annotations": {"zonewise.io/topology": values}}}
    await proxy.client.patch(SLICE, "db-x", "default", body)


async def label(proxy: Trial, node: str, rack: str) -> None:
    await proxy.client.patch(Node, node, None, {"metadata": {"labels": {RACK: rack}}})


async def define_locators(proxy: Trial) -> None:
    body = definition()
    name = body["metadata"]["name"]
    await proxy.client.apply(CustomResourceDefinition, name, None, body)
    await asyncio.sleep(1.0)
    assert await proxy.cache.is_readable(PodLocator)


async def locate(proxy: Trial, name: str, node: str, *keys: str, **labels: str) -> None:
    """Write a PodLocator, limited to some keys or with all labels."""
    body: dict[str, Any] = {"nodeName": node, "nodeLabels": labels, "ips": [{"ip": "10.9.9.9"}]}
    if keys:
        body["nodeLabelKeys"] = keys
    await proxy.client.apply(LOCATOR, name, "default", body, force=True)


def values_of(*racks: str | None) -> str:
    """The annotation for endpoints 0, 1…"""
    rows = {f"10.244.0.{at}": {RACK: rack} for at, rack in enumerate(racks)}
    return json.dumps(rows)


def notes(proxy: Trial) -> list[str]:
    routes = proxy.observer.routes.get(DB)
    return [] if routes is None else [note.code for note in routes.notes]


async def test_values_on_the_slices_are_enough() -> None:
    """With the annotation no other object is watched: a node's label is no event for the proxy."""
    async with trial() as proxy:
        await define_locators(proxy)
        await proxy.node("n2", **{RACK: "r9"})
        await proxy.node("n3", **{RACK: "r9"})
        await label(proxy, "n1", "r1")
        address = await proxy.service("db", "n2", "n3", keys=RACK)
        await state(proxy, values_of("r1", None))
        await proxy.reaches(address, 0)
        await asyncio.sleep(10 * SETTLE)
        assert (watched(proxy), notes(proxy)) == ([], [])
        await state(proxy, values_of("r2", "r1"))
        await proxy.reaches(address, 1)
        assert watched(proxy) == []


async def test_hostname_and_zone_are_fields_of_a_slice() -> None:
    """Keys for hostname and zone need the slice only, whatever a node's own labels say."""
    managed = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
    async with trial() as proxy:
        keys = "kubernetes.io/hostname,topology.kubernetes.io/zone"
        own = {"metadata": {"labels": {"kubernetes.io/hostname": "another-name"}}}
        await proxy.client.patch(Node, "n1", None, own)
        address = await proxy.service("db", "n2", "n3", keys=keys)
        slices = await proxy.client.get(SLICE, "db-x", "default")
        there = slices.raw["endpoints"]
        there[0]["zone"], there[1]["zone"] = "b", "a"
        patch = {"metadata": {"labels": managed}, "endpoints": there}
        await proxy.client.patch(SLICE, "db-x", "default", patch)
        await proxy.reaches(address, 1)
        there[0]["nodeName"] = "n1"
        await proxy.client.patch(SLICE, "db-x", "default", {"endpoints": there})
        await proxy.reaches(address, 0)
        await asyncio.sleep(10 * SETTLE)
        assert watched(proxy) == []


async def test_locators_come_before_nodes() -> None:
    """Without the annotation labels are those of PodLocators; Nodes are then not watched."""
    async with trial() as proxy:
        await define_locators(proxy)
        await proxy.node("n2", **{RACK: "r9"})
        await proxy.node("n3", **{RACK: "r1"})
        await label(proxy, "n1", "r1")
        await locate(proxy, "db-0", "n2", **{RACK: "r1"})
        await locate(proxy, "db-1", "n3", **{RACK: "r2"})
        address = await proxy.service("db", "n2", "n3", keys=RACK)
        await proxy.reaches(address, 0)
        assert (watched(proxy), notes(proxy)) == ([LOCATORS], [])
        await locate(proxy, "db-1", "n3", **{RACK: "r1"})
        await proxy.reaches(address, 0, 1)
        await asyncio.sleep(10 * SETTLE)
        assert watched(proxy) == [LOCATORS]


async def test_nodes_come_last_with_a_note() -> None:
    """A node without a locator is looked up among all Nodes, and the Service has a note."""
    async with trial() as proxy:
        await define_locators(proxy)
        await proxy.node("n2", **{RACK: "r9"})
        await proxy.node("n3", **{RACK: "r1"})
        await label(proxy, "n1", "r1")
        await locate(proxy, "db-0", "n2", **{RACK: "r1"})
        address = await proxy.service("db", "n2", "n3", keys=RACK)
        await proxy.reaches(address, 0, 1)
        assert (watched(proxy), notes(proxy)) == ([OTHER_NODES, LOCATORS], ["LabelsFromNodes"])


async def test_labels_that_limited_locators_leave_out_are_those_of_nodes() -> None:
    """A label that locators were not to have is looked up among Nodes, with a note; one that they
    were to have, and one that locators of all labels do not have, does not exist.
    """
    async with trial() as proxy:
        await define_locators(proxy)
        await proxy.node("n2", **{RACK: "r1"})
        await proxy.node("n3", **{RACK: "r2"})
        await label(proxy, "n1", "r1")
        for name, node in (("db-0", "n2"), ("db-1", "n3")):
            await locate(proxy, name, node, "row", RACK)
        address = await proxy.service("db", "n2", "n3", keys=RACK)
        await proxy.reaches(address)
        await asyncio.sleep(10 * SETTLE)
        assert (watched(proxy), notes(proxy)) == ([LOCATORS], [])
        await locate(proxy, "db-0", "n2", "row")
        await locate(proxy, "db-1", "n3")
        await proxy.reaches(address, 0)
        assert (watched(proxy), notes(proxy)) == ([OTHER_NODES, LOCATORS], ["LabelsFromNodes"])


async def test_a_zone_that_a_slice_does_not_have_is_not_known() -> None:
    """A label that a node gets after Kubernetes' controller wrote the slice is read elsewhere."""
    managed = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
    async with trial() as proxy:
        await define_locators(proxy)
        await proxy.node("n2")
        await locate(proxy, "db-0", "n2")
        address = await proxy.service("db", "n2", keys=ZONE)
        await proxy.client.patch(SLICE, "db-x", "default", {"metadata": {"labels": managed}})
        await proxy.reaches(address)
        await locate(proxy, "db-0", "n2", **{ZONE: proxy.proxier.location.zone})
        await proxy.reaches(address, 0)
        assert (watched(proxy), notes(proxy)) == ([LOCATORS], [])


async def test_without_locators_nodes_are_read() -> None:
    """Where the server has no PodLocators, Nodes are watched, and a start waits for them."""
    async with trial(run=False) as proxy:
        await proxy.node("n2", **{RACK: "r1"})
        await proxy.node("n3", **{RACK: "r2"})
        await label(proxy, "n1", "r1")
        address = await proxy.service("db", "n2", "n3", keys=RACK)
        task = asyncio.create_task(proxy.proxier.run())
        await proxy.reaches(address, 0)
        assert (watched(proxy), notes(proxy)) == ([OTHER_NODES], ["LabelsFromNodes"])
        assert len(proxy.kernel.writes) == 1
        task.cancel()


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_server_without_an_answer_about_locators_delays_keyed_services_only(
    restarted: bool,
) -> None:
    """At the start other Services are written after seconds, keyed ones once labels are known; what
    an earlier process wrote stays until then.
    """
    async with trial(run=False) as proxy:
        await define_locators(proxy)
        await proxy.node("n2", **{RACK: "r1"})
        await label(proxy, "n1", "r1")
        await locate(proxy, "db-0", "n2", **{RACK: "r1"})
        address = await proxy.service("db", "n2", keys=RACK)
        other = await proxy.service("other", "n2")
        if restarted:
            earlier = asyncio.create_task(proxy.proxier.run())
            await proxy.reaches(address, 0)
            earlier.cancel()
            await asyncio.gather(earlier, return_exceptions=True)
            proxy.kernel.heard = Remembering().heard
            proxy.proxier = Proxier(proxy.cache, proxy.kernel, ProxySettings(node_name="n1"))
        await proxy.endpoints("other", "n2", "n2")
        readable = proxy.cache.is_readable

        async def fail(kind: type[Any]) -> bool:
            raise ServerError(Status(code=503, reason="ServiceUnavailable", message=kind.__name__))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(proxy.cache, "is_readable", fail)
            task = asyncio.create_task(proxy.proxier.run())
            await proxy.reaches(other, 0, 1)
            await asyncio.sleep(100)
            assert proxy.kernel.chosen(address) == ({"10.244.0.0"} if restarted else set())
            assert proxy.proxier.waiting_since is None
            patch.setattr(proxy.cache, "is_readable", readable)
            await proxy.reaches(address, 0)
        await until(lambda: watched(proxy) == [LOCATORS])
        await proxy.client.delete(SERVICE, "db", "default")
        await proxy.reaches(address)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_moment_without_values_starts_no_watch() -> None:
    """A Service keeps its rules while its slices get their values: nothing is listed for that."""
    async with trial() as proxy:
        await define_locators(proxy)
        await label(proxy, "n1", "r1")
        address = await proxy.service("db", "n2", "n3")
        await proxy.reaches(address, 0, 1)
        keys = {"metadata": {"annotations": {"zonewise.io/topology-keys": RACK}}}
        await proxy.client.patch(SERVICE, "db", "default", keys)
        await asyncio.sleep(SETTLE / 2)
        assert proxy.kernel.chosen(address) == {"10.244.0.0", "10.244.0.1"}
        await state(proxy, values_of("r1", None))
        await proxy.reaches(address, 0)
        await asyncio.sleep(10 * SETTLE)
        assert watched(proxy) == []


async def test_sources_that_nothing_needs_are_left() -> None:
    """Once slices have their values, PodLocators and Nodes matter no more and are unwatched."""
    async with trial() as proxy:
        await define_locators(proxy)
        await proxy.node("n2", **{RACK: "r1"})
        await label(proxy, "n1", "r1")
        address = await proxy.service("db", "n2", keys=RACK)
        await proxy.reaches(address, 0)
        assert watched(proxy) == [OTHER_NODES, LOCATORS]
        await state(proxy, values_of("r1"))
        await until(lambda: notes(proxy) == [])
        proxy.observer.keys.clear()
        await label(proxy, "n2", "r2")
        await asyncio.sleep(LINGER + SETTLE)
        assert (watched(proxy), proxy.observer.keys) == ([], [])
        await state(proxy, None)
        await proxy.reaches(address)
        assert watched(proxy) == [OTHER_NODES, LOCATORS]
