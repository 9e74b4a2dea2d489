"""``own``: Zonewise is the EndpointSlice controller of a real cluster, the built-in one is off.

Everything runs with the rights that ``zonewise install`` prints. The controller is the program
itself, in a process of its own; whether slices and hints are right is judged from what the API
server shows, by a plan over fresh lists.
"""

from __future__ import annotations

import asyncio
import re
import socket
import urllib.request
from collections.abc import Iterator

import pytest
from tests.kubernetes.crowd import Crowd, Witness, plans, versions
from tests.kubernetes.installed import Installed, cluster, complete, until

from tools import realkube as real
from zonewise.api import EndpointSlice, Node
from zonewise.runtime.cache.cache import Cache
from zonewise.topology.shares import shares_of
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.slices.planning import MAX_ENDPOINTS, SlicePlan

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CONTROLLERS = ("serviceaccount-controller", "namespace-controller")
SLICES = "endpointslice-controller"
FEW = OverloadLimits()


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A control plane that fills no EndpointSlices."""
    settings = real.Settings(controllers=CONTROLLERS, scheduler=False, fsync=False)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


@pytest.fixture
def manager(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A control plane whose controller manager fills EndpointSlices, and can be ended."""
    settings = real.Settings(controllers=(*CONTROLLERS, SLICES), scheduler=False, fsync=False)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


async def settled(
    crowd: Crowd, cache: Cache, *, limit: int = MAX_ENDPOINTS
) -> dict[str, SlicePlan]:
    """Wait until another pass would write nothing; returns its plans."""
    await complete(crowd, cache)
    async with asyncio.timeout(180):
        while True:
            by_service = await plans(crowd, limit=limit)
            if not any(plan.writes for plan in by_service.values()):
                return by_service
            await asyncio.sleep(0.5)


def free_port() -> int:
    """A port without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def turns(port: int) -> float:
    """How many syncs of Services a controller's metrics report."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    match = re.search(
        r'^endpoint_slice_controller_syncs_total\{result="success"\} (\S+)', text, re.M
    )
    return float(match[1]) if match else 0.0


async def test_two_hundred_services(plane: real.ControlPlane) -> None:
    """After churn of pods and nodes slices and hints are right, and a restart writes nothing."""
    async with cluster(plane, "owned") as (crowd, cache):
        installed = Installed(plane, crowd.client, "zonewise-owned", role="own")
        try:
            await installed.apply()
            await crowd.settle(services=200, most=30)
            for _ in range(600):
                await crowd.step()
            by_service = await settled(crowd, cache)
            hinted = [plan.families["IPv4"] for plan in by_service.values() if plan.families]
            shares = shares_of((await crowd.client.list(Node)).items)
            for family in hinted:
                if family.decision.hinted:
                    assert FEW.is_within_drop(shares, family.counts.ready, family.counts.per_zone)
                else:
                    assert not FEW.can_add(shares, family.counts.ready)
            assert sum(family.decision.hinted for family in hinted) > 100
            before = versions(cache, crowd.namespace)
            await asyncio.to_thread(installed.end, "controller")
            port = free_port()
            await installed.lead("controller", "--metrics-listen", f"127.0.0.1:{port}")
            await until(lambda: turns(port) >= len(by_service))
            assert versions(cache, crowd.namespace) == before
        finally:
            await installed.remove()


async def test_handed_over_and_back(manager: real.ControlPlane) -> None:
    """Built-in, own, built-in under churn: no Service lacks an endpoint or has one twice."""
    built_in = manager.controller_manager
    assert built_in is not None
    async with cluster(manager, "handed-over") as (crowd, cache):
        witness = Witness(crowd.namespace)
        cache.store(EndpointSlice).on_change(witness.see)
        installed = Installed(manager, crowd.client, "zonewise-handed-over", role="own")
        await crowd.settle(services=30, most=9)
        await complete(crowd, cache)
        churn = asyncio.create_task(crowd.churn(40, pause=0.1))
        try:
            await asyncio.to_thread(built_in.stop)
            await installed.apply()
            await until(lambda: hinted(cache, crowd) > 0)
            await asyncio.sleep(5)
        finally:
            await installed.remove()
        await asyncio.to_thread(built_in.start)
        await churn
        await complete(crowd, cache)
        assert witness.faults == []
        assert witness.changes > crowd.events / 2


def hinted(cache: Cache, crowd: Crowd) -> int:
    """How many endpoints have a hint."""
    return sum(
        endpoint.hints is not None
        for piece in cache.store(EndpointSlice)
        if piece.metadata.namespace == crowd.namespace
        for endpoint in piece.endpoints or ()
    )


async def test_the_next_leader_writes(plane: real.ControlPlane) -> None:
    """The leader is killed; the other replica takes its lease and writes what changed meanwhile.

    How soon is shown in virtual time, by ``tests/runtime/election``.
    """
    async with cluster(plane, "failing-over") as (crowd, cache):
        installed = Installed(plane, crowd.client, "zonewise-failing-over", role="own")
        try:
            await installed.apply()
            await installed.start("controller-2", "--lease-namespace", installed.namespace)
            await crowd.settle(services=5, most=6)
            await settled(crowd, cache)
            await installed.heard("controller-2", "leader seen")
            await asyncio.to_thread(installed.end, "controller")
            before = versions(cache, crowd.namespace)
            await crowd.add_pod("s000")
            await until(lambda: versions(cache, crowd.namespace) != before)
            await settled(crowd, cache)
        finally:
            await installed.remove()


async def test_killed_at_random_moments(plane: real.ControlPlane) -> None:
    """A controller that is killed again and again during 500 events converges; no endpoint is ever
    in two slices.
    """
    async with cluster(plane, "killed") as (crowd, cache):
        witness = Witness(crowd.namespace)
        cache.store(EndpointSlice).on_change(witness.see)
        installed = Installed(plane, crowd.client, "zonewise-killed", role="own")
        short = ("--lease-duration", "8s", "--endpoints-per-slice", "5")
        try:
            await installed.apply(*short)
            await crowd.settle(services=20, most=12)
            for _ in range(500):
                await crowd.step()
                if crowd.rng.random() < 0.01:
                    await asyncio.to_thread(installed.end, "controller")
                    await installed.lead("controller", *short)
            await settled(crowd, cache, limit=5)
            assert installed.programs["controller"].poll() is None
            assert witness.faults == []
        finally:
            await installed.remove()
