"""``adopt``: Kubernetes' own controller writes EndpointSlices, and our hints are on all of them.

Everything runs under what ``zonewise install`` prints, with the rights printed there and no others.
The API server's audit log counts writes, a watch sees every change. Only where the webhook is
called differs: at an address of this machine, because no Service leads anywhere without a network.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.kubernetes.crowd import Crowd, Witness

from tools import realkube as real
from zonewise.api import EndpointSlice, Namespace, Node, ObjectMeta, Pod, Service
from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.registration import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from zonewise.cli.deploy import Wanted, manifests
from zonewise.runtime.cache import Cache
from zonewise.runtime.client import Client
from zonewise.runtime.cluster import load_config
from zonewise.runtime.transport import HttpsTransport
from zonewise.topology import shares_of
from zonewise.traffic import wish_of
from zonewise.traffic.slices import rehint, service_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

AUDIT = (
    {
        "level": "Metadata",
        "verbs": ["create", "update", "patch", "delete"],
        "resources": [{"group": "discovery.k8s.io", "resources": ["endpointslices"]}],
    },
    {"level": "None"},
)
CONTROLLERS = ("endpointslice-controller", "serviceaccount-controller", "namespace-controller")
PATHS = ((ValidatingWebhookConfiguration, "/services"), (MutatingWebhookConfiguration, "/hints"))
SECOND = 1.0
QUIET = 5.0
PATIENCE = 60.0


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A control plane whose controller manager fills EndpointSlices."""
    settings = real.Settings(controllers=CONTROLLERS, scheduler=False, fsync=False, audit=AUDIT)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


@dataclass
class Installed:
    """Zonewise on a real cluster, as ``zonewise install`` has it, in a namespace of its own."""

    plane: real.ControlPlane
    client: Client
    namespace: str
    programs: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def account(self) -> str:
        """The user that the programs are."""
        return f"system:serviceaccount:{self.namespace}:zonewise"

    async def apply(self) -> None:
        """Put the printed manifests onto the cluster, and run both programs."""
        await asyncio.to_thread(self._kubectl, "apply", "--server-side")
        await self.start("webhook", "--listen", "127.0.0.1:0", "--host", "127.0.0.1")
        await self.start("controller", "--lease-namespace", self.namespace)
        await self.heard("controller", "leading")

    async def remove(self) -> None:
        """End the programs and take everything away."""
        for name in list(self.programs):
            await asyncio.to_thread(self.end, name)
        await asyncio.to_thread(self._kubectl, "delete", "--wait=false", "--ignore-not-found")

    def _kubectl(self, *words: str) -> None:
        objects = manifests(Wanted(role="adopt", version="test", namespace=self.namespace))
        self.plane.kubectl(*words, "-f", "-", stdin=yaml.safe_dump_all(objects))

    async def _kubeconfig(self) -> Path:
        answer = await self.client.raw(
            "POST",
            f"/api/v1/namespaces/{self.namespace}/serviceaccounts/zonewise/token",
            headers={"Content-Type": "application/json"},
            body=json.dumps({"spec": {"expirationSeconds": 7200}}).encode(),
        )
        return self.plane.kubeconfig_with_token(self.namespace, answer.json()["status"]["token"])

    async def start(self, name: str, *flags: str) -> None:
        """Run a program under the printed account; the webhook is called where it is."""
        kubeconfig = await self._kubeconfig()
        arguments = ("--metrics-listen", "127.0.0.1:0", "-n", self.namespace, *flags)
        log = self._log(name)
        program = await asyncio.to_thread(_program, log, name, kubeconfig, *arguments)
        self.programs[name] = program
        if name == "webhook":
            served = await self.heard(name, "webhooks are served")
            await self._lead_to(served["port"])
            await self.heard(name, "a certificate is served")

    def end(self, name: str) -> None:
        """End a program without a word."""
        program = self.programs.pop(name)
        program.kill()
        program.wait()

    def _log(self, name: str) -> Path:
        return self.plane.folder / f"{self.namespace}-{name}.log"

    async def heard(self, name: str, event: str) -> dict[str, Any]:
        """The line of a program's log that tells of an event."""
        found: list[dict[str, Any]] = []

        def told() -> bool:
            lines = [
                line for line in self._log(name).read_text().splitlines(True) if line[-1:] == "\n"
            ]
            found[:] = [line for line in map(json.loads, lines) if line["event"] == event]
            assert found or self.programs[name].poll() is None, lines[-3:]
            return bool(found)

        await until(told)
        return found[-1]

    async def _lead_to(self, port: int) -> None:
        for cls, path in PATHS:
            place = "/webhooks/0/clientConfig"
            found: Any = await self.client.get(cls, "zonewise")
            here = {"op": "add", "path": f"{place}/url", "value": f"https://127.0.0.1:{port}{path}"}
            gone = {"op": "remove", "path": f"{place}/service"}
            change = [here] if found.webhooks[0].client_config.url else [here, gone]
            await self.client.patch(cls, "zonewise", None, change, kind="json")


def _program(log: Path, name: str, kubeconfig: Path, *flags: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "zonewise", name, "--endpointslices", "adopt"),
                *("-v", "--log-format", "json", "--kubeconfig", str(kubeconfig), *flags),
            ],
            stderr=file,
        )


class Judge:
    """Knows at every moment which Services carry other hints than ours, and since when."""

    def __init__(self, cache: Cache, namespace: str) -> None:
        self.late: dict[str, float] = {}
        self._namespace = namespace
        self._since: dict[str, float] = {}
        self._slices: dict[Key, EndpointSlice] = {}
        self._services = cache.store(Service)
        self._nodes = cache.store(Node)
        cache.store(EndpointSlice).on_change(self.see)

    @property
    def waiting(self) -> list[str]:
        """The Services that have not our hints now."""
        return sorted(self._since)

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
        self.look(service_of(piece))

    def look(self, name: str) -> None:
        """Judge one Service."""
        service = self._services.get((self._namespace, name))
        if service is None:
            return
        now = asyncio.get_running_loop().time()
        mine = [piece for piece in self._slices.values() if service_of(piece) == name]
        decided = rehint(mine, wish_of(service, FeatureGates()), shares_of(self._nodes))
        if decided.update:
            self._since.setdefault(name, now)
        elif name in self._since:
            took = now - self._since.pop(name)
            if took > SECOND:
                self.late[name] = took


@asynccontextmanager
async def cluster(plane: real.ControlPlane, namespace: str) -> AsyncIterator[tuple[Crowd, Cache]]:
    """A crowd in a namespace of its own, and stores over the cluster."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            Client(HttpsTransport(load_config(plane.kubeconfig)))
        )
        await client.create(Namespace(metadata=ObjectMeta(name=namespace)))
        crowd = Crowd(client, namespace, random.Random(namespace))
        cache = Cache(client)
        cache.store(EndpointSlice)
        cache.store(Pod, namespace=namespace)
        cache.store(Service)
        cache.store(Node)
        following = asyncio.create_task(cache.run())
        await cache.synced()
        try:
            yield crowd, cache
        finally:
            for name in crowd.nodes:
                await client.delete(Node, name)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    """Wait for something."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if true():
                return
            await asyncio.sleep(0.1)


def written(plane: real.ControlPlane, namespace: str) -> list[str]:
    """Who wrote slices of a namespace, in order."""
    return [
        entry["user"]["username"]
        for entry in plane.audited()
        if entry["stage"] == "ResponseComplete" and entry["objectRef"]["namespace"] == namespace
    ]


async def quiet(plane: real.ControlPlane, namespace: str) -> list[str]:
    """Wait until nobody has written for a while; gives who wrote so far."""
    async with asyncio.timeout(PATIENCE):
        before: list[str] | None = None
        while (now := await asyncio.to_thread(written, plane, namespace)) != before:
            before = now
            await asyncio.sleep(QUIET)
        return now


async def complete(crowd: Crowd, cache: Cache) -> None:
    """Wait until the slices have exactly the pods there are."""
    pods = cache.store(Pod, namespace=crowd.namespace)
    slices = cache.store(EndpointSlice)

    def same() -> bool:
        there = {pod.status.pod_ip for pod in pods if pod.status.pod_ip}
        told = [
            (row.addresses or ("",))[0]
            for piece in slices
            if piece.metadata.namespace == crowd.namespace
            for row in piece.endpoints or ()
        ]
        return len(told) == len(there) and set(told) == there

    await until(same)


async def test_our_hints_on_what_others_write(plane: real.ControlPlane) -> None:
    """Under churn our hints are on every slice; writes are few, and end when the churn ends."""
    async with cluster(plane, "adopted") as (crowd, cache):
        installed = Installed(plane, crowd.client, "zonewise-adopted")
        try:
            await installed.apply()
            judge = Judge(cache, crowd.namespace)
            await crowd.settle(services=60, most=12)
            await complete(crowd, cache)
            before = await quiet(plane, crowd.namespace)
            assert judge.waiting == []
            judge.late.clear()
            crowd.events = 0
            await crowd.churn(30)
            await complete(crowd, cache)
            writers = (await quiet(plane, crowd.namespace))[len(before) :]
            ours = writers.count(installed.account)
            assert judge.waiting == []
            assert judge.late == {}
            # A pod comes in two steps, and each write of ours is looked at once by the other.
            assert len(writers) - ours <= 2 * crowd.events + ours
        finally:
            await installed.remove()


async def test_without_the_webhook(plane: real.ControlPlane) -> None:
    """While the webhook is dead, endpoints come and go as ever; once it is back, so are hints."""
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
    """Adopted and given back under churn, no Service is ever without endpoint or has one twice."""
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
