"""Simulated clients: requests to every Service, drawn and routed, never sent.

Every second a few requests are drawn. Each starts on a node, chosen by its CPU as the zones' shares
are, and goes to a port of the Service's ClusterIP, from where a proxy on that node would send it by
the EndpointSlices of the moment (``zonewise.traffic.routes``). Nothing is sent; what is counted is
whether the endpoint was in the node's zone, in another one, or whether there was no answer: the
proxy drops or rejects, or the endpoint is on a node that failed, which the cluster notices only
after a while. Nodes that failed send nothing. So the numbers say what real traffic of that shape
would have done, no more: no latencies, no connections that stay.

Until the first request to a Service is answered, all of them count as unanswered; from then on they
are forgotten, since waiting for the first endpoint is no outage. The counts of the last ``WINDOW``
seconds are in memory and in the ConfigMap ``zonewise-system/traffic``, one entry per Service, for
readers from outside. It is written when a number in it changed, at most every ``PAUSE`` seconds.
After a restart counting starts again.

Bounded: ``RATE`` requests in a second over all Services, each at most ``RATE_EACH``. What a proxy
in a place does with a Service is computed once and kept until the Service or a slice changes, or
the place; with topology keys, until the labels of any node do.
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
from zonewise.embedded.components.kubelet import FAILED
from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap, ensure_namespace
from zonewise.explain.status import ServiceTraffic
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.process.logs import logger
from zonewise.topology import ZONE_LABEL, counts, cpu_milli
from zonewise.traffic import Backend, ProxyLocation, RouteSettings, service_routes
from zonewise.traffic.slices import families_of, services_of

RATE = 400
RATE_EACH = 20
WINDOW = 60
TICK = 1.0
PAUSE = 5.0
NAME = "traffic"
INDEX = "clients: service"

_log = logger("clients")


@dataclass(slots=True)
class RequestCount:
    """What became of requests."""

    in_zone: int = 0
    elsewhere: int = 0
    nowhere: int = 0

    def add(self, other: RequestCount, sign: int = 1) -> None:
        """Count those of another, or take them back."""
        self.in_zone += sign * other.in_zone
        self.elsewhere += sign * other.elsewhere
        self.nowhere += sign * other.nowhere

    @property
    def requests(self) -> int:
        """How many there were."""
        return self.in_zone + self.elsewhere + self.nowhere


PortBackends: TypeAlias = tuple[tuple[Backend, ...], tuple[int, ...]]
"""The endpoints that a request to a port may go to, and their weights, added up."""
Ports: TypeAlias = tuple[PortBackends, ...]
"""The ports of a Service."""


class SimulatedTraffic:
    """Draws requests and counts them."""

    def __init__(self, context: ComponentContext, *, gates: FeatureGates | None = None) -> None:
        self._client = context.client
        self._cache = context.cache
        self._rng = context.rng
        self._settings = RouteSettings(gates=gates or FeatureGates())
        self._nodes = context.cache.store(Node)
        self._services = context.cache.store(Service)
        self._slices = context.cache.store(EndpointSlice, indexes={INDEX: services_of})
        self._places: tuple[list[ProxyLocation], list[int]] | None = None
        self._dead: frozenset[str] = frozenset()
        self._labels: dict[str, dict[str, str]] = {}
        self._routes: dict[Key, dict[str, tuple[ProxyLocation, Ports]]] = {}
        self._keyed: set[Key] = set()
        self._seconds: deque[dict[Key, RequestCount]] = deque()
        self._totals: dict[Key, RequestCount] = {}
        self._answered: set[Key] = set()
        self._told: dict[str, str] = {}
        self._nodes.on_change(self._node_changed)
        self._services.on_change(self._service_changed)
        self._slices.on_change(self._slice_changed)

    async def run(self) -> None:
        """Draw, count and publish."""
        await self._cache.synced()
        loop = asyncio.get_running_loop()
        next_told = loop.time()
        while True:
            await asyncio.sleep(TICK)
            self._second()
            if loop.time() >= next_told and (self._totals or self._told):
                await self._tell()
                next_told = loop.time() + PAUSE

    def seen(self) -> dict[Key, ServiceTraffic]:
        """What became of each Service's requests in the last ``WINDOW`` seconds."""
        return {
            key: ServiceTraffic(
                requests=total.requests,
                failed=round(total.nowhere / total.requests, 2),
                in_zone=round(total.in_zone / answered, 2) if answered else None,
            )
            for key, total in sorted(self._totals.items())
            for answered in [total.in_zone + total.elsewhere]
        }

    def answered(self, key: Key) -> bool:
        """Whether a Service has ever answered a request."""
        return key in self._answered

    def _second(self) -> None:
        places, weights = self._places or self._settle()
        asked = [service for service in self._services if _asked(service)]
        if len(asked) > RATE:
            asked = self._rng.sample(asked, RATE)
        each = min(RATE_EACH, RATE // len(asked)) if asked else 0
        second: dict[Key, RequestCount] = {}
        for service in asked if places else ():
            count = RequestCount()
            for place in self._rng.choices(places, weights, k=each):
                target = self._draw(self._ports(service, place))
                if target is None or target.node in self._dead:
                    count.nowhere += 1
                elif self._labels.get(target.node, {}).get(ZONE_LABEL, "") == place.zone:
                    count.in_zone += 1
                else:
                    count.elsewhere += 1
            if count.nowhere < each and service.key not in self._answered:
                self._answered.add(service.key)
                self._forget(service.key)
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

    def _forget(self, key: Key) -> None:
        """Count a Service anew."""
        self._totals.pop(key, None)
        for second in self._seconds:
            second.pop(key, None)

    def _settle(self) -> tuple[list[ProxyLocation], list[int]]:
        """Where requests may start, and how often they do, until a node changes."""
        self._dead = frozenset(
            node.metadata.name for node in self._nodes if FAILED in node.metadata.annotations
        )
        self._labels = {node.metadata.name: node.metadata.labels for node in self._nodes}
        living = (
            node for node in self._nodes if counts(node) and node.metadata.name not in self._dead
        )
        nodes = sorted(living, key=lambda node: node.metadata.name)
        self._places = (
            [ProxyLocation.of(node) for node in nodes],
            [max(1, cpu_milli(n)) for n in nodes],
        )
        return self._places

    def _draw(self, ports: Ports) -> Backend | None:
        if not ports:
            return None
        backends, sums = ports[0] if len(ports) == 1 else self._rng.choice(ports)
        return self._rng.choices(backends, cum_weights=sums)[0] if backends else None

    def _ports(self, service: Service, place: ProxyLocation) -> Ports:
        known = self._routes.setdefault(service.key, {})
        found = known.get(place.node)
        if found is None or found[0] != place:
            slices = self._slices.by(INDEX, service.key)
            made = service_routes(service, slices, place, self._labels, self._settings)
            family = families_of(service)[0]
            ports = tuple(
                (route.endpoints, tuple(accumulate(one.weight for one in route.endpoints)))
                for port in made.ports
                if port.family == family
                for route in port.routes
                if route.path == "ClusterIP"
            )
            found = known[place.node] = (place, ports)
            if made.keyed:
                self._keyed.add(service.key)
        return found[1]

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        self._places = None
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            for key in self._keyed:
                self._routes.pop(key, None)
            self._keyed.clear()

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        for service in filter(None, (old, new)):
            self._routes.pop(service.key, None)
            self._keyed.discard(service.key)
        if old is not None and new is None:
            self._answered.discard(old.key)

    def _slice_changed(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        for piece in filter(None, (old, new)):
            for key in services_of(piece):
                self._routes.pop(key, None)

    async def _tell(self) -> None:
        data = {
            ".".join(key): msgspec.json.encode(seen).decode() for key, seen in self.seen().items()
        }
        if data == self._told:
            return
        try:
            await ensure_namespace(self._client)
            await self._client.apply(ConfigMap, NAME, NAMESPACE, {"data": data}, force=True)
            self._told = data
        except ApiError as error:
            _log.debug("measurements failed", error=str(error))


def read(data: dict[str, str]) -> dict[Key, ServiceTraffic]:
    """What the ConfigMap says; entries that are not ours are left out."""
    found: dict[Key, ServiceTraffic] = {}
    for name, text in data.items():
        namespace, dot, service = name.partition(".")
        try:
            if dot:
                found[namespace, service] = msgspec.json.decode(text, type=ServiceTraffic)
        except msgspec.DecodeError:
            continue
    return found


def _asked(service: Service) -> bool:
    spec = service.spec
    return bool(spec.selector) and spec.cluster_ip not in ("", "None")
