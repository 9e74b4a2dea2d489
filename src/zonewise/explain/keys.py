"""What the topology keys of a Service mean on every node: its endpoints there, and by which key.

The function of the proxy decides, over the endpoints that a proxy reads: those of the slices as
they are, port by port, without slices that it ignores. For a headless Service it is the DNS server
that obeys keys, and its endpoints are those that have names. A policy Local comes before the keys,
as it does in a proxy. Nodes with the same values of the keys have the same verdict, so it is
computed once for each combination of values. Traffic is divided by the CPU of nodes that send
traffic, as for shares; all ports have the same part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from zonewise.api.objects.core import Service
from zonewise.api.reason import Reason
from zonewise.explain.cluster import ReportedCluster
from zonewise.explain.columns import format_percent, format_table
from zonewise.traffic.dns_answers import read_named_endpoints
from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.host_key import (
    HEALTH_PORT_ANNOTATION,
    health_port_of,
    is_reachable_from_outside,
    stays_on_host,
)
from zonewise.traffic.routes.choice import (
    ClientLocation,
    PlacedEndpoint,
    RouteRule,
    Selection,
    ServicePolicy,
    is_usable,
)
from zonewise.traffic.routes.endpoints import FAMILIES, read_route_endpoints
from zonewise.traffic.routes.service import read_port_endpoints
from zonewise.traffic.topology_keys import ANY_ENDPOINT

_Endpoints: TypeAlias = tuple[TrafficEndpoint, ...]

_HOST_ONLY = (
    "Or leave it so, if clients in the cluster are to reach their own node only: that key alone"
    " keeps the addresses of clients outside."
)
_CHECKED = "By the health check port load balancers leave out nodes without an endpoint."
_NOT_CHECKED = (
    f"With annotation {HEALTH_PORT_ANNOTATION} load balancers can leave out nodes without an"
    " endpoint."
)

NAMES = 4
"""How many nodes and endpoints a line of the table lists."""


@dataclass(frozen=True, slots=True)
class KeyVerdict:
    """Where traffic of a node to some ports goes."""

    node: str
    zone: str
    ports: tuple[str, ...]
    rule: RouteRule
    key: str | None
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeysReport:
    """The verdicts of all nodes, by name; parts of all traffic in its zone, and rejected.

    A node has one verdict, or several if ports differ in their endpoints. ``ignored`` are slices
    that a proxy ignores, and why. With ``local`` a policy Local decides instead of the keys, and
    traffic without an endpoint on its node is dropped. ``unlabelled`` are nodes that have none of
    the labels which the keys name. ``from_outside`` is a Service whose only key is the host, so
    that packets from outside keep their address; ``health_checked`` says that load balancers can
    ask which nodes have an endpoint.
    """

    keys: tuple[str, ...]
    nodes: tuple[KeyVerdict, ...]
    in_zone: Fraction
    rejected: Fraction
    ignored: tuple[Reason, ...] = ()
    local: bool = False
    unlabelled: frozenset[str] = frozenset()
    from_outside: bool = False
    health_checked: bool = False

    @property
    def in_zone_of_answered(self) -> Fraction:
        """The part of the traffic that is not rejected which stays in its zone."""
        return self.in_zone / (1 - self.rejected) if self.rejected < 1 else Fraction(0)

    @property
    def result(self) -> str:
        """How much traffic stays in its zone, and how much is rejected."""
        stays = f"{format_percent(self.in_zone)} of the traffic stays in its zone"
        return (
            f"{stays} and {format_percent(self.rejected)} is rejected" if self.rejected else stays
        )

    @property
    def silent(self) -> int:
        """On how many nodes some port rejects everything."""
        return len({verdict.node for verdict in self.nodes if not verdict.endpoints})

    @property
    def advice(self) -> str:
        """What would help clients that have no endpoint, or only a far one; "" if nothing would."""
        if self.local:
            return ""
        if all(verdict.rule is RouteRule.NOTHING for verdict in self.nodes):
            return "Run an endpoint that is ready." if self.nodes else ""
        refused = self._nodes_where(lambda verdict: not verdict.endpoints)
        far = self._nodes_where(lambda verdict: len(self.keys) > 1 and verdict.key == ANY_ENDPOINT)
        bare = [node for node in (*refused, *far) if node in self.unlabelled]
        keys = ", ".join(key for key in self.keys if key != ANY_ENDPOINT)
        sentences = []
        if bare:
            sentences.append(f"Label {_list_some(bare)}: no key matches on a node without {keys}.")
        if missing := [node for node in refused if node not in bare]:
            where = _list_some(missing)
            sentences.append(
                f"Run an endpoint on {where}, for example with a DaemonSet."
                if stays_on_host(self.keys)
                else f"Run an endpoint that matches {keys} of {where}."
            )
        if refused and self.from_outside:
            sentences.append(_HOST_ONLY)
            sentences.append(_CHECKED if self.health_checked else _NOT_CHECKED)
        elif refused and ANY_ENDPOINT not in self.keys:
            sentences.append(
                f"Or end the topology keys with {ANY_ENDPOINT}: all others are used then."
            )
        if missing := [node for node in far if node not in bare]:
            where = _list_some(missing)
            sentences.append(f"For nearer endpoints run one that matches {keys} of {where}.")
        return " ".join(sentences)

    def _nodes_where(self, holds: Callable[[KeyVerdict], bool]) -> list[str]:
        return list(dict.fromkeys(verdict.node for verdict in self.nodes if holds(verdict)))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "keys": list(self.keys),
            "inZone": float(round(self.in_zone, 6)),
            "rejected": float(round(self.rejected, 6)),
            "nodes": [
                {
                    "node": verdict.node,
                    "zone": verdict.zone,
                    "ports": list(verdict.ports),
                    "why": verdict.rule.value,
                    "key": verdict.key,
                    "endpoints": list(verdict.endpoints),
                }
                for verdict in self.nodes
            ],
        }

    def render(self) -> list[str]:
        """As people read it: nodes with the same verdict share a line."""
        alike: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for verdict in self.nodes:
            key = (self._decided_by(verdict), verdict.ports, verdict.endpoints)
            alike.setdefault(key, []).append(verdict.node)
        heads = ["DECIDED BY", "ON NODES", "PORTS", "ENDPOINTS"]
        rows = [
            [rule, _list_some(nodes), ", ".join(port or "-" for port in ports), _list_some(ends)]
            for (rule, ports, ends), nodes in alike.items()
        ]
        if len({verdict.ports for verdict in self.nodes}) <= 1:
            heads, *rows = ([*row[:2], row[3]] for row in (heads, *rows))
        lines = format_table(heads, rows)
        return [f"Topology keys: {', '.join(self.keys)}", *lines, self._summary()]

    def _decided_by(self, verdict: KeyVerdict) -> str:
        if self.local:
            return "policy Local" if verdict.endpoints else "dropped: no endpoint on the node"
        rejected = "rejected: no endpoint" if verdict.rule is RouteRule.NOTHING else "rejected"
        return verdict.key or rejected

    def _summary(self) -> str:
        if self.local:
            stays = f"{format_percent(self.in_zone)} of the traffic stays in its zone"
            nodes = len({verdict.node for verdict in self.nodes})
            dropped = (
                f"{format_percent(self.rejected)} is dropped, on {self.silent} of {nodes} nodes"
            )
            return (
                "The policy Local comes before the topology keys for traffic to the ClusterIP:"
                f" {stays} and {dropped}."
            )
        return (
            f"By its topology keys {self.result}, where the proxy is Zonewise's; kube-proxy does"
            " not know them."
        )


def report_keys(
    cluster: ReportedCluster, service: Service, policy: ServicePolicy, family: str
) -> KeysReport | None:
    """What the keys mean for the endpoints of one family; None if there are no keys that count."""
    keys, local = policy.keys, policy.internal_local
    if not keys:
        return None
    others = [_endpoints_by_port(cluster, service, other) for other in FAMILIES if other != family]
    alike: dict[tuple[_Endpoints, bool], list[str]] = {}
    for port, endpoints in _endpoints_by_port(cluster, service, family).items():
        elsewhere = any(is_usable(target) for other in others for target in other.get(port, ()))
        alike.setdefault((endpoints, elsewhere), []).append(port)
    port_count = sum(map(len, alike.values()))
    labels = cluster.labels
    weights = {location.node: weight for location, weight in cluster.senders}
    selections: dict[tuple[str | None, ...], list[Selection[TrafficEndpoint]]] = {}
    verdicts: list[KeyVerdict] = []
    total, stays, lost = 0, Fraction(0), Fraction(0)
    for name in sorted(labels):
        location = ClientLocation.of_labels(name, labels[name])
        values = (name,) if local else tuple(map(location.domain, keys))
        if values not in selections:
            selections[values] = [
                policy.choose_for_cluster_ip(
                    endpoints, location, labels, None, in_other_family=elsewhere
                )
                for endpoints, elsewhere in alike
            ]
        zone = cluster.zones[name]
        weight = weights.get(name, 0)
        total += weight
        for ports, chosen in zip(alike.values(), selections[values], strict=True):
            addresses = tuple(dict.fromkeys(target.name for target in chosen.endpoints))
            verdicts.append(
                KeyVerdict(name, zone, tuple(ports), chosen.rule, chosen.key, addresses)
            )
            part = Fraction(weight * len(ports), port_count)
            if chosen.endpoints:
                near = sum(target.zone == zone != "" for target in chosen.endpoints)
                stays += part * near / len(chosen.endpoints)
            else:
                lost += part
    whole = Fraction(total or 1)
    ignored = () if _is_headless(service) else read_route_endpoints(cluster.slices(service)).notes
    named = set(keys) - {ANY_ENDPOINT}
    return KeysReport(
        keys,
        tuple(verdicts),
        stays / whole,
        lost / whole,
        ignored,
        local,
        unlabelled=frozenset(name for name in labels if named.isdisjoint(labels[name])),
        from_outside=stays_on_host(keys) and is_reachable_from_outside(service),
        health_checked=health_port_of(service, keys) > 0,
    )


def _endpoints_by_port(
    cluster: ReportedCluster, service: Service, family: str
) -> Mapping[str, _Endpoints]:
    """The endpoints of each port by its name, as the program that obeys the keys reads them."""
    slices = cluster.slices(service)
    if _is_headless(service):
        by_address = {named.address: named for named in reversed(read_named_endpoints(slices))}
        size = 4 if family == "IPv4" else 16
        members = (named for _, named in sorted(by_address.items()) if len(named.packed) == size)
        return {"": tuple(_locate(cluster, named.address, named) for named in members)}
    return {
        name: tuple(_locate(cluster, endpoint.backend.address, endpoint) for endpoint in endpoints)
        for (name, _), endpoints in read_port_endpoints(service, slices, family).items()
    } or {"": ()}


def _locate(cluster: ReportedCluster, address: str, endpoint: PlacedEndpoint) -> TrafficEndpoint:
    """An endpoint by its address; its zone is that of its node."""
    return TrafficEndpoint(
        address,
        zone=cluster.zones.get(endpoint.node, endpoint.zone),
        node=endpoint.node,
        ready=endpoint.ready,
        serving=endpoint.serving,
        terminating=endpoint.terminating,
        labels=endpoint.labels,
    )


def _is_headless(service: Service) -> bool:
    return service.spec.cluster_ip == "None"


def _list_some(names: list[str] | tuple[str, ...]) -> str:
    more = len(names) - NAMES
    first = ", ".join(names[:NAMES]) or "-"
    return f"{first} and {more} more" if more > 0 else first
