"""Kubernetes' own EndpointSlice controller and ours write the same.

Odd Services and pods (see ``oddities``) on a dual-stack cluster. First the built-in controller
fills slices, and our plan has nothing to change; then it is off and we fill them, and once it is
back it has nothing to change either. We differ only in hints by CPU, which are off here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest
from tests.kubernetes.crowd import Crowd, plans, versions
from tests.kubernetes.installed import Installed, until
from tests.kubernetes.oddities import SERVICES, plant

from tools import realkube as real
from zonewise.api import EndpointSlice, Namespace, ObjectMeta
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CONTROLLERS = ("serviceaccount-controller", "endpointslice-controller")
NODES = {"n1": "zone-a", "n2": "zone-b", "n3": ""}
QUIET = 6.0
FILLED = len(SERVICES) - 1
"""One Service selects nothing."""


@pytest.fixture
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A dual-stack control plane whose controller manager fills EndpointSlices."""
    settings = real.Settings(
        controllers=CONTROLLERS,
        scheduler=False,
        fsync=False,
        apiserver_args=("--service-cluster-ip-range=10.96.0.0/12,fd00:10:96::/112",),
    )
    with real.start(settings, binaries=real_binaries) as running:
        yield running


async def quiet(cache: Cache, namespace: str) -> dict[str, str]:
    """Wait until every Service has slices and there were no writes for a while."""
    while True:
        before = versions(cache, namespace)
        await asyncio.sleep(QUIET)
        if len(before) >= FILLED and versions(cache, namespace) == before:
            return before


async def test_both_write_the_same(plane: real.ControlPlane) -> None:
    """Neither the built-in controller nor ours finds anything to change in slices that the other
    wrote.
    """
    built_in = plane.controller_manager
    assert built_in is not None
    async with Client(HttpsTransport(load_config(plane.kubeconfig))) as client:
        await client.create(Namespace(metadata=ObjectMeta(name="odd")))
        cache = Cache(client)
        slices = cache.store(EndpointSlice)
        following = asyncio.create_task(cache.run())
        await plant(client, "odd", NODES)
        await quiet(cache, "odd")
        by_service = await plans(Crowd(client, "odd", random.Random(1)))
        assert {name: plan.writes for name, plan in by_service.items() if plan.writes} == {}
        assert sum(
            plan.families["IPv4"].desired_endpoints
            for plan in by_service.values()
            if "IPv4" in plan.families
        )
        await asyncio.to_thread(built_in.stop)
        for piece in slices.values():
            if piece.metadata.namespace == "odd":
                await client.delete(EndpointSlice, piece.metadata.name, "odd")
        installed = Installed(plane, client, "zonewise-odd", role="own")
        try:
            await installed.apply()
            await until(lambda: len(versions(cache, "odd")) >= FILLED)
            ours = await quiet(cache, "odd")
        finally:
            await installed.remove()
        await asyncio.to_thread(built_in.start)
        await asyncio.sleep(2 * QUIET)
        assert versions(cache, "odd") == ours
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
