"""UDP flows that lead to no serving endpoint: which they are, and their removal.

The kernel remembers for each UDP flow where it was rewritten to, and a client that keeps sending
keeps that alive, long after the endpoint is deleted. After a change of a Service's UDP ports, flows
to it whose answers come from none of its serving endpoints are removed; the next packet is routed
again. That also holds when no endpoint serves any more, and for flows that began before the Service
existed and were never rewritten.

What counts is which endpoints serve, not which were chosen: hints, policies and readiness move new
flows only. The first write of a program removes nothing: it cannot tell what changed.

A flow is checked against the Service that owns its address and port (a *way*), and no other; a node
port owns flows to any address that no Service has. A way that moves from one Service to another is
checked against the endpoints that serve in the end, whichever of the two is updated first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network

from zonewise.api.errors import ZonewiseError
from zonewise.api.meta import Key
from zonewise.proxy.netlink import conntrack
from zonewise.proxy.netlink.addresses import interface_addresses
from zonewise.proxy.netlink.conntrack import UdpFlow
from zonewise.proxy.netlink.namespace import HOME, NetworkNamespace
from zonewise.proxy.netlink.nftables import IPV4, IPV6, NetlinkFamily
from zonewise.proxy.netlink.socket import NetlinkSocket
from zonewise.proxy.observer import Observer, Sync
from zonewise.proxy.tables.ruleset import FamilyName
from zonewise.runtime.process.logs import logger
from zonewise.traffic.routes.table import ServiceRoutes

Way = tuple[str, str | None, int]
"""Family, address (None: any of the node's) and port."""
ServingEndpoints = frozenset[tuple[str, int]]

_ONE_BY_ONE = 16
"""Up to so many ways the kernel searches for each; above, every UDP flow is looked at once."""

_FAMILIES: Mapping[FamilyName, NetlinkFamily] = {"IPv4": IPV4, "IPv6": IPV6}

_UNOWNED: tuple[Key | None, ServingEndpoints] = (None, frozenset())

_log = logger("flows")


def ways_of(routes: ServiceRoutes | None) -> dict[Way, ServingEndpoints]:
    """Every way into the UDP ports of a Service, and the endpoints that serve there."""
    if routes is None:
        return {}
    return {
        (port.family, route.address, route.number): frozenset(
            (backend.address, backend.port) for backend in port.serving
        )
        for port in routes.ports
        if port.protocol == "UDP"
        for route in port.routes
    }


def is_stale(
    flow: UdpFlow,
    family: str,
    changed: Mapping[Way, ServingEndpoints],
    *,
    owned: Container[Way] = (),
    node: Iterable[str],
) -> bool:
    """Whether a flow uses a way that changed and is answered by no serving endpoint.

    ``owned`` are the ways that Services have, changed or not, ``node`` the addresses of this node
    that take node ports.
    """
    way: Way = (family, flow.target, flow.target_port)
    if way not in changed and way not in owned and (flow.rewritten or flow.target in node):
        way = (family, None, flow.target_port)
    serving = changed.get(way)
    return serving is not None and (flow.answered_by, flow.answered_from) not in serving


def _count_nothing(_family: str, _removed: int, _seconds: float) -> None:
    """Counts nothing."""


@dataclass(slots=True)
class StaleFlows(Observer):
    """Removes stale flows after each write.

    ``networks`` are where node ports are.
    """

    networks: Callable[[], Mapping[FamilyName, Collection[str]]]
    namespace: NetworkNamespace = HOME
    count: Callable[[str, int, float], None] = _count_nothing
    """Called with the family, the number of flows removed, and the seconds that took."""
    _ways: dict[Key, Collection[Way]] = field(default_factory=dict)
    _owned: dict[Way, tuple[Key, ServingEndpoints]] = field(default_factory=dict)
    """Which Service has a way, and the endpoints that serve there."""
    _changed: dict[Way, None] = field(default_factory=dict)

    def routed(self, key: Key, routes: ServiceRoutes | None) -> None:
        after = ways_of(routes)
        for way in self._ways.pop(key, ()):
            owner, _ = self._owned.get(way, _UNOWNED)
            if way not in after and owner == key:
                del self._owned[way]
                self._changed[way] = None
        for way, serving in after.items():
            if way not in self._owned or self._owned[way][1] != serving:
                self._changed[way] = None
            self._owned[way] = (key, serving)
        if after:
            self._ways[key] = tuple(after)

    def synced(self, sync: Sync) -> None:
        changed = {way: self._owned.get(way, _UNOWNED)[1] for way in self._changed}
        self._changed.clear()
        if sync.first or not changed:
            return
        try:
            for family in _FAMILIES:
                began = time.monotonic()
                removed = self._clean(family, changed)
                self.count(family, removed, time.monotonic() - began)
        except (ZonewiseError, OSError) as error:
            _log.warning("stale UDP flows could not be removed", error=str(error))

    def _clean(self, family: FamilyName, changed: Mapping[Way, ServingEndpoints]) -> int:
        ways = [way for way in changed if way[0] == family]
        if not ways:
            return 0
        number = _FAMILIES[family]
        with self.namespace.entered():
            link = NetlinkSocket()
            node = self._nodeport_addresses(family, ways)
        with link:
            stale = [
                flow
                for flow in _read_flows(link, number, ways)
                if is_stale(flow, family, changed, owned=self._owned, node=node)
            ]
            return sum(conntrack.remove(link, number, flow) for flow in stale)

    def _nodeport_addresses(self, family: FamilyName, ways: Iterable[Way]) -> set[str]:
        """The addresses of this thread's namespace that take node ports, if a way is one."""
        if all(address is not None for _, address, _ in ways):
            return set()
        inside = [ip_network(text) for text in self.networks()[family]]
        return {
            str(address).partition("%")[0]
            for address in interface_addresses()
            if not address.is_loopback and any(address in network for network in inside)
        }


def _read_flows(link: NetlinkSocket, family: NetlinkFamily, ways: list[Way]) -> Iterator[UdpFlow]:
    if len(ways) > _ONE_BY_ONE:
        yield from conntrack.flows(link, family)
        return
    for _, address, port in ways:
        yield from conntrack.flows(link, family, target=address, port=port)
