"""A cluster on one page: its zones, and how much of each Service's traffic stays in its zone.

In-zone numbers are those of the simulated traffic of an embedded cluster; others have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from zonewise.api import Node, Pod, Service
from zonewise.api.gates import TOPOLOGY_AWARE_HINTS
from zonewise.api.meta import Key
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod_state import is_pod_finished, is_pod_ready
from zonewise.topology.nodes import cpu_milli, is_node_ready, zone_of
from zonewise.traffic.endpoint import read_as_proxy
from zonewise.traffic.modes import GATE_OFF, hint_request_of, reported_gates
from zonewise.traffic.slices.identity import service_keys_of
from zonewise.traffic.topology_keys import topology_keys_of


class ServiceTraffic(msgspec.Struct, frozen=True, rename="camel"):
    """The results of a Service's requests, as simulated traffic counts them.

    ``failed`` is the part of the requests without an answer, ``in_zone`` that of the others which
    stayed in their zone; None if there were no others.
    """

    requests: int
    failed: float
    in_zone: float | None = None


class ZoneOverview(msgspec.Struct, frozen=True, rename="camel"):
    """One zone; "" is that of nodes without one."""

    name: str
    nodes: int
    nodes_ready: int
    cpu_milli: int
    pods: int
    pods_ready: int


class ServiceOverview(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One Service; ``in_zone`` and ``failed`` are parts of simulated requests, if there are any.

    ``mode`` is Off also where topology keys decide instead, or the gate of hints is off; then
    ``topology_keys`` are these keys, or ``requested_mode`` what it would be with the gate.
    """

    namespace: str
    name: str
    mode: str
    endpoints: int
    in_zone: float | None
    failed: float | None
    topology_keys: tuple[str, ...] = ()
    requested_mode: str = ""

    @property
    def mode_text(self) -> str:
        """The mode as people read it."""
        if self.topology_keys:
            return "Keys"
        return f"{self.requested_mode} (gate off)" if self.requested_mode else self.mode


class Overview(msgspec.Struct, frozen=True, rename="camel"):
    """The page."""

    zones: tuple[ZoneOverview, ...]
    pods: int
    pods_ready: int
    pods_pending: int
    services: tuple[ServiceOverview, ...]

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return sum(zone.nodes for zone in self.zones)


def summarize_cluster(
    *,
    nodes: Iterable[Node],
    pods: Iterable[Pod],
    services: Iterable[Service],
    slices: Iterable[EndpointSlice],
    traffic: Mapping[Key, ServiceTraffic],
) -> Overview:
    """The page of a cluster."""
    living = [pod for pod in pods if not is_pod_finished(pod)]
    pods_on, ready_on = Counter[str](), Counter[str]()
    for pod in living:
        pods_on[pod.spec.node_name] += 1
        ready_on[pod.spec.node_name] += is_pod_ready(pod)
    by_zone: dict[str, list[Node]] = {}
    for node in nodes:
        by_zone.setdefault(zone_of(node), []).append(node)
    return Overview(
        zones=tuple(
            ZoneOverview(
                name=zone,
                nodes=len(members),
                nodes_ready=sum(map(is_node_ready, members)),
                cpu_milli=sum(map(cpu_milli, members)),
                pods=sum(pods_on[node.metadata.name] for node in members),
                pods_ready=sum(ready_on[node.metadata.name] for node in members),
            )
            for zone, members in sorted(by_zone.items())
        ),
        pods=len(living),
        pods_ready=ready_on.total(),
        pods_pending=pods_on[""],
        services=tuple(_summarize_services(services, slices, traffic)),
    )


def _summarize_services(
    services: Iterable[Service],
    slices: Iterable[EndpointSlice],
    traffic: Mapping[Key, ServiceTraffic],
) -> Iterable[ServiceOverview]:
    ready: dict[Key, set[str]] = {}
    for piece in slices:
        targets = map(read_as_proxy, piece.endpoints or ())
        names = {target.name for target in targets if target.ready}
        for key in service_keys_of(piece):
            ready.setdefault(key, set()).update(names)
    for service in sorted(services, key=lambda service: service.key):
        if not service.spec.selector:
            continue
        measured = traffic.get(service.key)
        mode, topology_keys, requested_mode = _read_mode(service)
        yield ServiceOverview(
            namespace=service.metadata.namespace,
            name=service.metadata.name,
            mode=mode,
            topology_keys=topology_keys,
            requested_mode=requested_mode,
            endpoints=len(ready.get(service.key, ())),
            in_zone=measured.in_zone if measured else None,
            failed=measured.failed if measured else None,
        )


def _read_mode(service: Service) -> tuple[str, tuple[str, ...], str]:
    """The mode that counts, the keys that decide instead, the mode that only the gate prevents.

    The gates of the controller are known by its condition on the Service only.
    """
    if service.spec.cluster_ip == "None":
        return "headless", (), ""
    gates = reported_gates(service)
    request = hint_request_of(service, gates)
    keys = topology_keys_of(service, gates)
    requested = ""
    if request.reason is not None and request.reason.code == GATE_OFF:
        requested = hint_request_of(service, {**gates, TOPOLOGY_AWARE_HINTS: True}).mode.value
    return request.mode.value, keys, requested
