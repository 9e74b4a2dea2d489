"""A Service, its pods on nodes and its slices: plans are applied as a server would apply them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace
from tests.traffic.clusters import ZONES, shares

from zonewise.api import EndpointSlice, Pod, Service
from zonewise.api.codec import convert, decode, encode
from zonewise.api.objects.discovery import Endpoint
from zonewise.topology.shares import Shares
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.slices.planning import PlanCache, SlicePlan, SliceSnapshot, plan_slices
from zonewise.traffic.slices.topology import annotated_keys
from zonewise.traffic.topology_keys import topology_keys_of

AUTO = HintRequest(Mode.AUTO)
OFF = HintRequest()
BORN = "2026-01-01T00:00:00Z"
SINCE = "2026-01-02T00:00:00Z"


def service(name: str = "web", *, uid: str = "svc-1", labels: Any = None, **spec: Any) -> Service:
    """A Service with an IPv4 address and one numbered port."""
    body = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "creationTimestamp": BORN,
            "labels": labels or {},
        },
        "spec": {
            "selector": {"app": name},
            "clusterIP": "10.0.0.1",
            "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
            **spec,
        },
    }
    return convert(Service, body)


def pod(
    number: int,
    node: str = "a",
    *,
    ready: bool | None = True,
    since: str = SINCE,
    ips: Sequence[str] | None = None,
    meta: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    """A running pod; its number is its name and its address."""
    addresses = [f"10.1.{number >> 8}.{number & 255}"] if ips is None else list(ips)
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": since}
    body = {
        "metadata": {
            "name": f"web-{number:04}",
            "namespace": "default",
            "uid": f"pod-{number}",
            **(meta or {}),
        },
        "spec": {"nodeName": node, **spec},
        "status": {
            "phase": "Running",
            "podIP": addresses[0] if addresses else "",
            "podIPs": [{"ip": ip} for ip in addresses],
            "conditions": [] if ready is None else [condition],
            **(status or {}),
        },
    }
    return convert(Pod, body)


def pods(*counts: int, start: int = 0) -> list[Pod]:
    """These numbers of pods on the nodes a, b, c…"""
    created: list[Pod] = []
    for index, count in enumerate(counts):
        created += [pod(start + len(created) + n, ZONES[index]) for n in range(count)]
    return created


class SliceServer:
    """The slices of one Service, and the state of its cluster."""

    def __init__(
        self,
        *,
        owner: Service | None = None,
        hint_request: HintRequest = OFF,
        cpu: Sequence[int] | Shares = (1, 1, 1),
        limit: int = 100,
        node_hints: bool = True,
        remember: bool = True,
    ) -> None:
        self.service = owner or service()
        self.hint_request = hint_request
        self.shares = cpu if isinstance(cpu, Shares) else shares(*cpu)
        self.zones = {zone: zone for zone in ZONES}
        self.labels: dict[str, dict[str, str]] = {}
        self.pods: dict[str, Pod] = {}
        self.slices: dict[str, EndpointSlice] = {}
        self.limit = limit
        self.node_hints = node_hints
        self.memory = PlanCache() if remember else None
        self.version = 0

    def put(self, *many: Iterable[Pod]) -> None:
        """Add or change pods."""
        for some in many:
            for added in some:
                self.pods[added.metadata.name] = added

    def drop(self, *numbers: int) -> None:
        """Remove pods."""
        for number in numbers:
            del self.pods[f"web-{number:04}"]

    def view(self, rng: random.Random | None = None) -> SliceSnapshot:
        """The state, in some order."""
        some, pieces = list(self.pods.values()), list(self.slices.values())
        if rng is not None:
            rng.shuffle(some)
            rng.shuffle(pieces)
        return SliceSnapshot(
            service=self.service,
            hint_request=self.hint_request,
            shares=self.shares,
            pods=some,
            zones=self.zones,
            topology_keys=annotated_keys(topology_keys_of(self.service)),
            node_labels=self.labels,
            slices=pieces,
            limit=self.limit,
            node_hints=self.node_hints,
        )

    def plan(self) -> SlicePlan:
        """The next writes."""
        return plan_slices(self.view(), self.memory)

    def sync(self) -> SlicePlan:
        """Plan and write."""
        plan = self.plan()
        self.apply(plan)
        return plan

    def apply(self, plan: SlicePlan, *, writes: int | None = None) -> None:
        """Write a plan, or only its first writes, as a server would."""
        steps = [*plan.create, *plan.update, *plan.delete][:writes]
        for piece in steps:
            if piece in plan.delete:
                del self.slices[piece.metadata.name]
            else:
                self.store(piece)

    def store(self, piece: EndpointSlice) -> EndpointSlice:
        """Create or replace a slice."""
        self.version += 1
        metadata = piece.metadata
        known = self.slices.get(metadata.name)
        if metadata.name:
            assert known is not None
            assert known.metadata.resource_version == metadata.resource_version
            assert known.address_type == piece.address_type
        name = metadata.name or f"{metadata.generate_name}{self.version:05}"
        uid = metadata.uid or f"slice-{self.version}"
        metadata = replace(metadata, name=name, uid=uid, resource_version=str(self.version))
        stored = decode(EndpointSlice, encode(replace(piece, metadata=metadata)))
        self.slices[name] = stored
        return stored

    def endpoints(self, family: str = "IPv4") -> list[Endpoint]:
        """All endpoints in the slices of a family."""
        return [
            endpoint
            for _, piece in sorted(self.slices.items())
            if piece.address_type == family
            for endpoint in piece.endpoints or ()
        ]

    def sizes(self) -> list[int]:
        """The number of endpoints in each slice, by name."""
        return [len(piece.endpoints or ()) for _, piece in sorted(self.slices.items())]

    def per_zone(self, family: str = "IPv4") -> dict[str, int]:
        """The number of ready endpoints hinted to each zone; "" means no hint."""
        return dict(
            Counter(
                endpoint.hints.for_zones[0].name
                if endpoint.hints and endpoint.hints.for_zones
                else ""
                for endpoint in self.endpoints(family)
                if endpoint.conditions.ready
            )
        )

    def hints(self) -> dict[str, str]:
        """The zone each endpoint is for, by address."""
        return {
            (endpoint.addresses or ("",))[0]: endpoint.hints.for_zones[0].name
            for endpoint in self.endpoints()
            if endpoint.hints
        }

    def settled(self) -> bool:
        """Whether another pass would write nothing."""
        return self.plan().writes == 0


def written(plan: SlicePlan) -> bytes:
    """A plan as bytes, without what only its memory has."""
    parts = (plan.create, plan.update, plan.delete)
    return b"\n".join(b",".join(encode(piece) for piece in part) for part in parts)
