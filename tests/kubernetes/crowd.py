"""Many Services whose pods and nodes come, go and change, on any API server; no kubelet needed.

Pods are made on a node with their status, as if a kubelet had reported it. The first pod of every
Service stays ready all the time, so that at no moment a Service may be without an endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from zonewise.api import EndpointSlice, Node, Pod, Service, convert
from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.objects.discovery import service_name_of
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.topology.nodes import zone_of
from zonewise.topology.shares import shares_of
from zonewise.traffic.modes import hint_request_of
from zonewise.traffic.slices.identity import has_endpoints
from zonewise.traffic.slices.planning import MAX_ENDPOINTS, SlicePlan, SliceSnapshot, plan_slices

ZONES = ("zone-a", "zone-b", "zone-c")
MODE = "service.kubernetes.io/topology-mode"
NOW = {"gracePeriodSeconds": 0}
PARALLEL = 16


@dataclass
class Crowd:
    """The Services of one namespace, and the names of their pods."""

    client: Client
    namespace: str
    rng: random.Random
    nodes: list[str] = field(default_factory=list)
    pods: dict[str, list[str]] = field(default_factory=dict)
    mode: str = "Auto"
    events: int = 0
    _number: int = 0

    async def settle(self, *, services: int, most: int, per_zone: int = 2) -> None:
        """Make nodes, Services and three to ``most`` pods for each."""
        for zone in ZONES:
            for number in range(per_zone):
                await self.add_node(f"{self.namespace}-{zone}-{number}", zone)
        await together(self._add_service(f"s{n:03}") for n in range(services))
        names = [name for name in self.pods for _ in range(self.rng.randint(3, most))]
        await together(self.add_pod(name) for name in names)

    async def add_node(self, name: str, zone: str) -> None:
        """A node of two to four cores."""
        labels = {"topology.kubernetes.io/zone": zone}
        body: dict[str, Any] = {"metadata": {"name": name, "labels": labels}}
        await self.client.create(convert(Node, body))
        await self.report(name, ready=True, cores=self.rng.randint(2, 4))
        self.nodes.append(name)

    async def report(self, node: str, *, ready: bool, cores: int = 2) -> None:
        """Write the status that a kubelet would report for its node."""
        condition = {"type": "Ready", "status": str(ready), "reason": "Told", "message": ""}
        status = {"allocatable": {"cpu": str(cores)}, "conditions": [condition]}
        await self.client.patch(Node, node, None, {"status": status}, subresource="status")

    async def _add_service(self, name: str) -> None:
        body = {
            "metadata": {
                "name": name,
                "namespace": self.namespace,
                "annotations": {MODE: self.mode},
            },
            "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
        }
        await self.client.create(convert(Service, body))
        self.pods[name] = []

    async def add_pod(self, service: str) -> None:
        """One ready pod more."""
        self._number += 1
        number = self._number
        name = f"{service}-{number}"
        self.pods[service].append(name)
        body = {
            "metadata": {"name": name, "namespace": self.namespace, "labels": {"app": service}},
            "spec": {
                "nodeName": self.rng.choice(self.nodes),
                "containers": [{"name": "box", "image": "box"}],
                "terminationGracePeriodSeconds": 0,
            },
        }
        with contextlib.suppress(AlreadyExists):
            await self.client.create(convert(Pod, body))
        await self.tell(
            name, ready=True, address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        )

    async def tell(self, pod: str, *, ready: bool, address: str = "") -> None:
        """Write the status that a kubelet would report for a pod."""
        status: dict[str, Any] = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
        if address:
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        await self.client.patch(
            Pod, pod, self.namespace, {"status": status}, kind="strategic", subresource="status"
        )

    async def step(self) -> None:
        """Make one random change."""
        self.events += 1
        service = self.rng.choice(sorted(self.pods))
        what = self.rng.random()
        loose = self.pods[service][1:]
        if what < 0.05:
            cores = self.rng.randint(2, 4)
            await self.report(self.rng.choice(self.nodes), ready=True, cores=cores)
        elif what < 0.40 or not loose:
            await self.add_pod(service)
        elif what < 0.70:
            name = self.rng.choice(loose)
            self.pods[service].remove(name)
            with contextlib.suppress(NotFound):
                await self.client.delete(Pod, name, self.namespace, grace_period=0)
        else:
            await self.tell(self.rng.choice(loose), ready=self.rng.random() < 0.7)

    async def churn(self, seconds: float, *, pause: float = 0.05) -> None:
        """Make random changes for a while."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await self.step()
            await asyncio.sleep(pause)


async def together(work: Iterable[Any]) -> None:
    """Await many coroutines, a few at a time."""
    turn = asyncio.Semaphore(PARALLEL)

    async def run_in_turn(thing: Any) -> None:
        async with turn:
            await thing

    async with asyncio.TaskGroup() as tasks:
        for thing in work:
            tasks.create_task(run_in_turn(thing))


@dataclass
class Witness:
    """Checks every change of slices: no Service without an endpoint, no endpoint twice."""

    namespace: str
    faults: list[str] = field(default_factory=list)
    changes: int = 0
    _slices: dict[Key, EndpointSlice] = field(default_factory=dict)
    _served: set[str] = field(default_factory=set)

    def see(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Check the slices after a change."""
        piece = new or old
        assert piece is not None
        if piece.metadata.namespace != self.namespace:
            return
        self.changes += 1
        if new is None:
            self._slices.pop(piece.key, None)
        else:
            self._slices[piece.key] = new
        service = service_name_of(piece)
        rows = [
            (row.addresses or ("",))[0]
            for other in self._slices.values()
            if service_name_of(other) == service
            for row in other.endpoints or ()
            if row.conditions.ready
        ]
        if len(set(rows)) != len(rows):
            self.faults.append(f"{service} has an endpoint twice")
        if rows:
            self._served.add(service)
        elif service in self._served:
            self.faults.append(f"{service} has no endpoint")


def selects(service: Service, pod: Pod) -> bool:
    """Whether a Service selects a pod."""
    return (service.spec.selector or {}).items() <= pod.metadata.labels.items()


async def plans(crowd: Crowd, *, limit: int = MAX_ENDPOINTS) -> dict[str, SlicePlan]:
    """What another pass over every Service would write, from lists read now."""
    client, space = crowd.client, crowd.namespace
    nodes = (await client.list(Node)).items
    pods = (await client.list(Pod, space)).items
    slices = (await client.list(EndpointSlice, space)).items
    shares = shares_of(nodes)
    zones = {node.metadata.name: zone_of(node) for node in nodes}
    return {
        service.metadata.name: plan_slices(
            SliceSnapshot(
                service=service,
                hint_request=hint_request_of(service, FeatureGates()),
                shares=shares,
                pods=[pod for pod in pods if selects(service, pod)],
                zones=zones,
                slices=[
                    piece for piece in slices if service_name_of(piece) == service.metadata.name
                ],
                limit=limit,
            )
        )
        for service in (await client.list(Service, space)).items
        if has_endpoints(service)
    }


def versions(cache: Cache, namespace: str) -> dict[str, str]:
    """The version of every slice of a namespace."""
    return {
        piece.metadata.name: piece.metadata.resource_version
        for piece in cache.store(EndpointSlice)
        if piece.metadata.namespace == namespace
    }
