"""Services, pods and nodes for tests of the hints controller, on a virtual cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from tests.embedded.virtual_cluster import VirtualCluster

from zonewise.api import EndpointSlice, Node, Pod, Service
from zonewise.api.codec import convert
from zonewise.api.meta import Key
from zonewise.api.objects.discovery import Endpoint
from zonewise.controllers.hints.controller import HintsController, HintsSettings
from zonewise.runtime.program.context import ControllerContext
from zonewise.traffic.modes import MODE_ANNOTATION

SPACE = "default"


def hints(settings: HintsSettings | None = None) -> Callable[[ControllerContext], HintsController]:
    """The controller as a component."""

    def make(context: ControllerContext) -> HintsController:
        return HintsController(context, settings=settings)

    return make


class Shop:
    """A cluster in which a test acts as the kubelet, the scheduler and the user."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.slices = cluster.program.cache.store(EndpointSlice)
        self.services = cluster.program.cache.store(Service)

    async def node(
        self, name: str, zone: str | None, cpu: str = "4", *, ready: bool = True
    ) -> None:
        """Create a node, or change it."""
        labels = {} if zone is None else {"topology.kubernetes.io/zone": zone}
        await self.client.create(convert(Node, {"metadata": {"name": name, "labels": labels}}))
        await self.status(name, cpu=cpu, ready=ready)

    async def status(self, name: str, *, cpu: str = "4", ready: bool = True) -> None:
        """The status that a node reports."""
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        body = {"status": {"allocatable": {"cpu": cpu}, "conditions": [condition]}}
        await self.client.patch(Node, name, None, body, subresource="status")

    async def zones(self, **nodes: int) -> None:
        """This many nodes in each zone: ``zones(a=2, b=2)`` makes a0, a1, b0, b1."""
        for zone, count in nodes.items():
            for number in range(count):
                await self.node(f"{zone}{number}", zone)

    async def service(
        self, name: str, *, annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> Service:
        """A Service that selects ``app=<name>``, in mode Auto without ``annotations``."""
        known = {MODE_ANNOTATION: "Auto"} if annotations is None else annotations
        body = {
            "metadata": {"name": name, "namespace": SPACE, "annotations": dict(known)},
            "spec": {
                "selector": {"app": name},
                "ports": [{"port": 80, "targetPort": 8080}],
                **spec,
            },
        }
        return await self.client.create(convert(Service, body))

    async def pod(
        self,
        name: str,
        node: str,
        address: str | tuple[str, ...],
        *,
        app: str = "web",
        ready: bool = True,
    ) -> None:
        """A pod that runs."""
        body = {
            "metadata": {"name": name, "namespace": SPACE, "labels": {"app": app}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]},
        }
        await self.client.create(convert(Pod, body))
        await self.ready(name, address, ready=ready)

    async def ready(self, name: str, address: str | tuple[str, ...], *, ready: bool = True) -> None:
        """The readiness that a kubelet reports of a pod."""
        addresses = (address,) if isinstance(address, str) else address
        moment = "2026-01-02T03:04:05Z"
        state = {
            "phase": "Running",
            "podIP": addresses[0],
            "podIPs": [{"ip": ip} for ip in addresses],
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "False",
                    "lastTransitionTime": moment,
                }
            ],
        }
        await self.client.patch(Pod, name, SPACE, {"status": state}, subresource="status")

    async def pods(self, app: str = "web", **per_node: int) -> None:
        """This many pods on each node: ``pods(a0=2, b0=1)``."""
        for node, count in per_node.items():
            for number in range(count):
                tail = f"{ord(node[0]) % 250}.{int(node[1:]) * 20 + number}"
                await self.pod(f"{app}-{node}-{number}", node, f"10.{len(app)}.{tail}", app=app)

    def of(self, service: str) -> list[EndpointSlice]:
        """The slices of a Service, by name."""
        pieces = [
            piece
            for piece in self.slices
            if piece.metadata.labels.get("kubernetes.io/service-name") == service
        ]
        return sorted(pieces, key=lambda piece: piece.metadata.name)

    def versions(self) -> dict[str, str]:
        """The version of every slice, by name."""
        return {piece.metadata.name: piece.metadata.resource_version for piece in self.slices}

    def endpoints(self, service: str) -> list[Endpoint]:
        """The endpoints in these slices."""
        return [endpoint for piece in self.of(service) for endpoint in piece.endpoints or ()]

    def per_zone(self, service: str = "web") -> dict[str, int]:
        """The number of endpoints hinted to each zone; "" means no hint."""
        hinted = [endpoint.hints for endpoint in self.endpoints(service)]
        return dict(Counter(hints.for_zones[0].name if hints else "" for hints in hinted))

    def condition(self, service: str = "web") -> tuple[str, str] | None:
        """Status and reason of the condition."""
        stored = self.services.get((SPACE, service))
        for condition in stored.status.conditions if stored else ():
            if condition.type == "zonewise.io/Hints":
                return condition.status, condition.reason
        return None

    async def events(self, service: str = "web") -> list[str]:
        """The reasons of events about a Service, in order."""
        path = f"/apis/events.k8s.io/v1/namespaces/{SPACE}/events"
        answer = (await self.client.raw("GET", path)).json()
        assert isinstance(answer, dict)
        events = [event for event in answer["items"] if event["regarding"]["name"] == service]
        events.sort(key=lambda event: str(event["eventTime"]))
        return [event["reason"] for event in events]


def key(name: str) -> Key:
    """The key of a Service of these tests."""
    return SPACE, name
