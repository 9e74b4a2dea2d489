"""``adopt``: Kubernetes' own controller writes EndpointSlices, and our hints are on all of them.

Everything runs under what ``zonewise install`` prints, with the rights printed there and no others.
The API server's audit log counts writes, a watch sees every change. Only where the webhook is
called differs: at an address of this machine, because no Service leads anywhere without a network.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.run_program import apart
from tests.kubernetes.crowd import Witness
from tests.kubernetes.installed import Installed, cluster, complete, quiet, until

from tools import realkube as real
from zonewise.api import EndpointSlice, Node, Service
from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.objects.discovery import service_name_of
from zonewise.runtime.cache.cache import Cache
from zonewise.topology.shares import shares_of
from zonewise.traffic.modes import hint_request_of
from zonewise.traffic.slices.rehinting import rehint

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

AUDIT = (
    {
        "level": "Metadata",
        "verbs": ["create", "update", "patch", "delete"],
        "resources": [{"group": "discovery.k8s.io", "resources": ["endpointslices"]}],
    },
    {"level": "None"},
)
CONTROLLERS = ("endpointslice-controller", "serviceaccount-controller", "namespace-controller")


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A control plane whose controller manager fills EndpointSlices."""
    settings = real.Settings(
        controllers=CONTROLLERS,
        scheduler=False,
        fsync=False,
        audit=AUDIT,
        controller_manager_args=("--kube-api-qps=500", "--kube-api-burst=1000"),
    )
    with real.start(settings, binaries=real_binaries) as running:
        yield running


class Judge:
    """Tracks which Services currently have other hints than ours."""

    def __init__(self, cache: Cache, namespace: str) -> None:
        self._namespace = namespace
        self._waiting: set[str] = set()
        self._slices: dict[Key, EndpointSlice] = {}
        self._services = cache.store(Service)
        self._nodes = cache.store(Node)
        cache.store(EndpointSlice).on_change(self.see)

    @property
    def waiting(self) -> list[str]:
        """The Services without our hints now."""
        return sorted(self._waiting)

    def see(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """A slice changed."""
        piece = new or old
        assert piece is not None
        if piece.metadata.namespace != self._namespace:
            return
        if new is None:
            self._slices.pop(piece.key, None)
        else:
            self._slices[piece.key] = new
        self.look(service_name_of(piece))

    def look(self, name: str) -> None:
        """Check a Service."""
        service = self._services.get((self._namespace, name))
        if service is None:
            return
        mine = [piece for piece in self._slices.values() if service_name_of(piece) == name]
        decided = rehint(mine, hint_request_of(service, FeatureGates()), shares_of(self._nodes))
        if decided.update:
            self._waiting.add(name)
        else:
            self._waiting.discard(name)


async def explain_services(
    plane: real.ControlPlane, namespace: str, kinds: str, home: Path
) -> list[Any]:
    """What ``zonewise explain`` reports of every Service, from what kubectl prints."""
    dump = await asyncio.to_thread(plane.kubectl, "get", kinds, "-A", "-o", "yaml")
    (home / "dump.yaml").write_text(dump.stdout)
    call = ("explain", "services", "-n", namespace, "-f", home / "dump.yaml", "-o", "jsonl")
    result = await asyncio.to_thread(apart, home, *call)
    assert (result.code, result.err) == (0, "")
    return [json.loads(line) for line in result.out.splitlines()]


async def test_our_hints_on_what_others_write(plane: real.ControlPlane, tmp_path: Path) -> None:
    """Under churn our hints are on every slice; writes are few, and end when the churn ends.

    ``zonewise explain`` on kubectl's dump agrees with the slices, with pods in the dump or not.
    """
    async with cluster(plane, "adopted") as (crowd, cache):
        installed = Installed(plane, crowd.client, "zonewise-adopted")
        try:
            await installed.apply()
            judge = Judge(cache, crowd.namespace)
            await crowd.settle(services=200, most=30)
            await complete(crowd, cache)
            before = await quiet(plane, crowd.namespace)
            assert judge.waiting == []
            crowd.events = 0
            await crowd.churn(60)
            await complete(crowd, cache)
            writers = (await quiet(plane, crowd.namespace))[len(before) :]
            ours = writers.count(installed.account)
            assert judge.waiting == []
            # A pod comes in two steps, and the other controller may write once after each of ours.
            assert len(writers) - ours <= 2 * crowd.events + ours
            for kinds in ("nodes,services,endpointslices", "nodes,services,endpointslices,pods"):
                lines = await explain_services(plane, crowd.namespace, kinds, tmp_path)
                assert len(lines) == len(crowd.pods)
                for line in lines:
                    assert line["applied"] == {key: line[key] for key in line["applied"]}
        finally:
            await installed.remove()


async def test_without_the_webhook(plane: real.ControlPlane) -> None:
    """Without the webhook endpoints still come and go; once it is back, so are the hints."""
    async with cluster(plane, "orphaned") as (crowd, cache):
        installed = Installed(plane, crowd.client, "zonewise-orphaned")
        try:
            await installed.apply()
            await crowd.settle(services=10, most=9)
            await complete(crowd, cache)
            installed.end("controller")
            installed.end("webhook")
            await crowd.churn(5)
            await complete(crowd, cache)
            judge = Judge(cache, crowd.namespace)
            await installed.start("webhook", "--listen", "127.0.0.1:0", "--host", "127.0.0.1")
            await installed.start("controller", "--lease-namespace", installed.namespace)
            await until(lambda: not judge.waiting)
        finally:
            await installed.remove()


async def test_handed_over_and_back(plane: real.ControlPlane) -> None:
    """Adopted and given back under churn, no Service lacks an endpoint or has one twice."""
    async with cluster(plane, "handed-over") as (crowd, cache):
        witness = Witness(crowd.namespace)
        cache.store(EndpointSlice).on_change(witness.see)
        installed = Installed(plane, crowd.client, "zonewise-handed-over")
        await crowd.settle(services=30, most=9)
        churn = asyncio.create_task(crowd.churn(45, pause=0.1))
        try:
            await installed.apply()
            judge = Judge(cache, crowd.namespace)
            await until(lambda: not judge.waiting)
        finally:
            await installed.remove()
        await churn
        await complete(crowd, cache)
        assert witness.faults == []
        assert witness.changes > crowd.events / 2
