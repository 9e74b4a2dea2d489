"""Simulated clients: requests to every Service, drawn and routed, never sent.

Every second a few requests are drawn. Each starts on a node, drawn by its CPU as the zones' shares
are, and goes to a port of the Service's ClusterIP, from where a proxy on that node would send it by
the current EndpointSlices (``zonewise.traffic.routes``). Nothing is sent; what is counted is
whether the endpoint was in the node's zone, in another one, or whether the request failed: the
proxy drops or rejects it, or the endpoint is on a node that failed, which the cluster notices only
after a while. Nodes that failed send nothing. So the numbers tell what real traffic of that shape
would have done, no more: no latencies, no connections that stay.

Until the first request to a Service is answered, all of them count as failed; from then on those
are no longer counted, since waiting for the first endpoint is no outage. The counts of the last
``WINDOW`` seconds are in memory and in the ConfigMap ``zonewise-system/traffic``, one entry per
Service, for readers from outside. It is written when a number in it changed, at most every
``PUBLISH_INTERVAL`` seconds. After a restart counting starts again.

Bounded: ``MAX_RATE`` requests per second over all Services, ``MAX_RATE_PER_SERVICE`` for each. What
a proxy on a node does with a Service is computed once and kept until the Service, a slice or the
node's location changes; with topology keys, until the labels of any node do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import msgspec

from zonewise.api import Node, Service
from zonewise.api.errors import ApiError
from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap, ensure_namespace
from zonewise.explain.status import ServiceTraffic
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.topology.nodes import ZONE_LABEL, cpu_milli, sends_traffic
from zonewise.traffic.routes.choice import ClientLocation
from zonewise.traffic.routes.service import RouteSettings, compute_service_routes
from zonewise.traffic.routes.table import Backend
from zonewise.traffic.slices.identity import families_of, service_keys_of

MAX_RATE = 400
MAX_RATE_PER_SERVICE = 20
WINDOW = 60
TICK = 1.0
PUBLISH_INTERVAL = 5.0
CONFIG_MAP_NAME = "traffic"
BY_SERVICE = "clients: service"

_log = logger("clients")


@dataclass(slots=True)
class RequestCount:
    """Requests by their result."""

    in_zone: int = 0
    cross_zone: int = 0
    failed: int = 0

    def add(self, other: RequestCount, sign: int = 1) -> None:
        """Add another count, or subtract it."""
        self.in_zone += sign * other.in_zone
        self.cross_zone += sign * other.cross_zone
        self.failed += sign * other.failed

    @property
    def requests(self) -> int:
        """All requests."""
        return self.in_zone + self.cross_zone + self.failed


PortBackends: TypeAlias = tuple[tuple[Backend, ...], tuple[int, ...]]
"""The endpoints that a request to a port may go to, and their cumulative weights."""
Ports: TypeAlias = tuple[PortBackends, ...]
"""The ports of a Service."""


class SimulatedTraffic:
    """Draws requests and counts them."""

    def __init__(self, context: ControllerContext, *, gates: FeatureGates | None = None) -> None:
        self._client = context.client
        self._cache = context.cache
        self._rng = context.rng
        self._settings = RouteSettings(gates=gates or FeatureGates())
        self._nodes = context.cache.store(Node)
        self._services = context.cache.store(Service)
        self._slices = context.cache.store(EndpointSlice, indexes={BY_SERVICE: service_keys_of})
        self._sources: tuple[list[ClientLocation], list[int]] | None = None
        self._failed_nodes: frozenset[str] = frozenset()
        self._labels: dict[str, dict[str, str]] = {}
        self._routes: dict[Key, dict[str, tuple[ClientLocation, Ports]]] = {}
        self._services_with_keys: set[Key] = set()
        self._seconds: deque[dict[Key, RequestCount]] = deque()
        self._totals: dict[Key, RequestCount] = {}
        self._answered: set[Key] = set()
        self._published: dict[str, str] = {}
        self._nodes.on_change(self._node_changed)
        self._services.on_change(self._service_changed)
        self._slices.on_change(self._slice_changed)

    async def run(self) -> None:
        """Draw, count and publish until cancelled."""
        await self._cache.synced()
        loop = asyncio.get_running_loop()
        next_publish = loop.time()
        while True:
            await asyncio.sleep(TICK)
            self._simulate_second()
            if loop.time() >= next_publish and (self._totals or self._published):
                await self._publish()
                next_publish = loop.time() + PUBLISH_INTERVAL

    def service_traffic(self) -> dict[Key, ServiceTraffic]:
        """The requests of each Service in the last ``WINDOW`` seconds, by their result."""
        return {
            key: ServiceTraffic(
                requests=total.requests,
                failed=round(total.failed / total.requests, 2),
                in_zone=round(total.in_zone / answered_requests, 2) if answered_requests else None,
            )
            for key, total in sorted(self._totals.items())
            for answered_requests in [total.in_zone + total.cross_zone]
        }

    def has_answered(self, key: Key) -> bool:
        """Whether a Service has ever answered a request."""
        return key in self._answered

    def _simulate_second(self) -> None:
        sources, weights = self._sources or self._update_sources()
        services = [service for service in self._services if _receives_requests(service)]
        if len(services) > MAX_RATE:
            services = self._rng.sample(services, MAX_RATE)
        requests_each = min(MAX_RATE_PER_SERVICE, MAX_RATE // len(services)) if services else 0
        second: dict[Key, RequestCount] = {}
        for service in services if sources else ():
            count = RequestCount()
            for source in self._rng.choices(sources, weights, k=requests_each):
                target = self._draw(self._ports(service, source))
                if target is None or target.node in self._failed_nodes:
                    count.failed += 1
                elif self._labels.get(target.node, {}).get(ZONE_LABEL, "") == source.zone:
                    count.in_zone += 1
                else:
                    count.cross_zone += 1
            if count.failed < requests_each and service.key not in self._answered:
                self._answered.add(service.key)
                self._reset_counts(service.key)
            second[service.key] = count
        self._seconds.append(second)
        for key, count in second.items():
            self._totals.setdefault(key, RequestCount()).add(count)
        if len(self._seconds) > WINDOW:
            for key, count in self._seconds.popleft().items():
                total = self._totals[key]
                total.add(count, -1)
                if not total.requests:
                    del self._totals[key]

    def _reset_counts(self, key: Key) -> None:
        """Start the counts of a Service again."""
        self._totals.pop(key, None)
        for second in self._seconds:
            second.pop(key, None)

    def _update_sources(self) -> tuple[list[ClientLocation], list[int]]:
        """Where requests may start, and with which weight, until a node changes."""
        self._failed_nodes = frozenset(
            node.metadata.name
            for node in self._nodes
            if FAILED_ANNOTATION in node.metadata.annotations
        )
        self._labels = {node.metadata.name: node.metadata.labels for node in self._nodes}
        living = (
            node
            for node in self._nodes
            if sends_traffic(node) and node.metadata.name not in self._failed_nodes
        )
        nodes = sorted(living, key=lambda node: node.metadata.name)
        weights = [max(1, cpu_milli(node)) for node in nodes]
        self._sources = [ClientLocation.of(node) for node in nodes], weights
        return self._sources

    def _draw(self, ports: Ports) -> Backend | None:
        if not ports:
            return None
        backends, sums = ports[0] if len(ports) == 1 else self._rng.choice(ports)
        return self._rng.choices(backends, cum_weights=sums)[0] if backends else None

    def _ports(self, service: Service, source: ClientLocation) -> Ports:
        routes_by_node = self._routes.setdefault(service.key, {})
        cached = routes_by_node.get(source.node)
        if cached is None or cached[0] != source:
            slices = self._slices.by(BY_SERVICE, service.key)
            routes = compute_service_routes(service, slices, source, self._labels, self._settings)
            family = families_of(service)[0]
            ports = tuple(
                (
                    route.endpoints,
                    tuple(accumulate(endpoint.weight for endpoint in route.endpoints)),
                )
                for port in routes.ports
                if port.family == family
                for route in port.routes
                if route.path == "ClusterIP"
            )
            cached = routes_by_node[source.node] = (source, ports)
            if routes.keyed:
                self._services_with_keys.add(service.key)
        return cached[1]

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        self._sources = None
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            for key in self._services_with_keys:
                self._routes.pop(key, None)
            self._services_with_keys.clear()

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        for service in filter(None, (old, new)):
            self._routes.pop(service.key, None)
            self._services_with_keys.discard(service.key)
        if old is not None and new is None:
            self._answered.discard(old.key)

    def _slice_changed(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        for endpoint_slice in filter(None, (old, new)):
            for key in service_keys_of(endpoint_slice):
                self._routes.pop(key, None)

    async def _publish(self) -> None:
        data = {
            ".".join(key): msgspec.json.encode(traffic).decode()
            for key, traffic in self.service_traffic().items()
        }
        if data == self._published:
            return
        try:
            await ensure_namespace(self._client)
            body = {"data": data}
            await self._client.apply(ConfigMap, CONFIG_MAP_NAME, NAMESPACE, body, force=True)
            self._published = data
        except ApiError as error:
            _log.debug("measurements failed", error=str(error))


def read_traffic(data: dict[str, str]) -> dict[Key, ServiceTraffic]:
    """Parse the ConfigMap's data; invalid entries are ignored."""
    traffic: dict[Key, ServiceTraffic] = {}
    for name, text in data.items():
        namespace, dot, service = name.partition(".")
        try:
            if dot:
                traffic[namespace, service] = msgspec.json.decode(text, type=ServiceTraffic)
        except msgspec.DecodeError:
            continue
    return traffic


def _receives_requests(service: Service) -> bool:
    spec = service.spec
    return bool(spec.selector) and spec.cluster_ip not in ("", "None")
