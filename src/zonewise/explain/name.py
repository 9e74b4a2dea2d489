"""What a client gets when it resolves a Service by name, and why.

The same functions that the name server answers with, over a snapshot: what the name means, where
the client is, which rule chose, and why all other endpoints were left out. A name of one endpoint,
a cluster IP or an alias is the same for all clients, and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.api.reason import Reason
from zonewise.explain.columns import table
from zonewise.topology.locator_index import UNKNOWN_LOCATION, LocatorIndex, NodeLocation
from zonewise.topology.nodes import ZONE_LABEL
from zonewise.traffic.dns_answers import (
    NamedEndpoint,
    NamedService,
    choose_for_client,
    depends_on_location,
    read_named_endpoints,
    read_named_service,
)
from zonewise.traffic.dns_names import SVC, NameQuestion, parse_name
from zonewise.traffic.routes.choice import ClientLocation, RouteRule, Selection
from zonewise.traffic.topology_keys import ANY_ENDPOINT


@dataclass(frozen=True, slots=True)
class NameClient:
    """The client: an address, the pod that has it, and where that is."""

    address: str = ""
    pod: str = ""
    spot: NodeLocation = UNKNOWN_LOCATION

    @property
    def text(self) -> str:
        """For a sentence."""
        who = f"pod {self.pod}" if self.pod else self.address or "an unknown client"
        if not self.spot.node:
            return f"{who}, whose location is unknown"
        zone = self.spot.labels.get(ZONE_LABEL, "")
        return f"{who} on node {self.spot.node}" + (f" in zone {zone}" if zone else "")


@dataclass(frozen=True, slots=True)
class ToldEndpoint:
    """An address that is returned, or the reason why it is not."""

    address: str
    node: str
    zone: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class FamilyAnswer:
    """The answer in one address family."""

    family: str
    reason: Reason
    key: str | None
    told: tuple[ToldEndpoint, ...]
    left_out: tuple[ToldEndpoint, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "family": self.family,
            "rule": self.reason.code,
            "key": self.key,
            "message": self.reason.message,
            "fix": self.reason.fix,
            "told": [_plain(one) for one in self.told],
            "leftOut": [_plain(one) | {"reason": one.reason} for one in self.left_out],
        }


@dataclass(frozen=True, slots=True)
class NameReport:
    """Everything about one name and one client."""

    name: str
    client: NameClient
    code: str
    """How a question ends: NOERROR, NODATA or NXDOMAIN."""

    reason: Reason
    families: tuple[FamilyAnswer, ...] = ()
    by_endpoints: bool = False
    """Whether its endpoints decide the answer, rather than the Service alone."""

    @property
    def verdict(self) -> str:
        """One sentence."""
        return f"{self.name} for {self.client.text}: {self.code}, {self.reason.message}."

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.name,
            "client": {
                "address": self.client.address,
                "pod": self.client.pod,
                "node": self.client.spot.node,
                "labels": dict(self.client.spot.labels),
            },
            "code": self.code,
            "rule": self.reason.code,
            "message": self.reason.message,
            "fix": self.reason.fix,
            "families": [part.plain() for part in self.families],
        }


def explain_name(
    name: str,
    labels: Sequence[str],
    client: NameClient,
    *,
    services: Iterable[Service],
    slices: Iterable[LeanEndpointSlice],
    locators: LocatorIndex,
) -> NameReport:
    """The report on a name, given by its labels left of the cluster's domain."""
    asked = parse_name(labels)
    service = None
    if asked is not None and asked.kind == SVC and asked.service:
        key = (asked.namespace, asked.service)
        service = next((one for one in services if one.key == key), None)
    if asked is None or service is None:
        return NameReport(name, client, "NXDOMAIN", _unknown(asked))
    entry = read_named_service(service)
    about = f"Service/{entry.namespace}/{entry.name}"
    if entry.external_name is not None:
        text = f"an alias for {entry.external_name}, the same for every client"
        return NameReport(
            name, client, "NOERROR", Reason(code="ExternalName", message=text, object=about)
        )
    endpoints = read_named_endpoints(slices)
    if not entry.headless and not asked.endpoint:
        text = "the Service has an address of its own, the same for every client"
        fix = "Proxies choose its endpoints: zonewise explain service tells how."
        return NameReport(
            name, client, "NOERROR", Reason(code="ClusterIP", message=text, object=about, fix=fix)
        )
    if not asked.names_all_endpoints:
        text = "a name that is the same for every client"
        return NameReport(
            name, client, "NOERROR", Reason(code="OneName", message=text, object=about)
        )
    if not endpoints:
        text = "no endpoint of the headless Service is ready"
        return NameReport(
            name,
            client,
            "NXDOMAIN",
            Reason(code="NotReady", message=text, object=about),
            by_endpoints=True,
        )
    families = tuple(_families(endpoints, entry, client, locators, about))
    shown = next((part for part in families if part.told), families[0])
    code = "NOERROR" if any(part.told for part in families) else "NODATA"
    return NameReport(name, client, code, shown.reason, families, by_endpoints=True)


def name_page(report: NameReport) -> str:
    """A report for people."""
    blocks = [[report.verdict]]
    for part in report.families:
        rows = [
            [one.address, one.node or "–", one.zone or "–", "returned", ""] for one in part.told
        ]
        rows += [
            [one.address, one.node or "–", one.zone or "–", "left out", one.reason]
            for one in part.left_out
        ]
        heads = ["ADDRESS", "NODE", "ZONE", "ANSWER", "WHY"]
        blocks.append([f"{part.family}: {part.reason.message}.", *table(heads, rows)])
    fix = report.reason.fix
    if fix:
        blocks.append([fix])
    return "\n\n".join("\n".join(block) for block in blocks)


def _families(
    endpoints: tuple[NamedEndpoint, ...],
    entry: NamedService,
    client: NameClient,
    locators: LocatorIndex,
    about: str,
) -> Iterable[FamilyAnswer]:
    each = {one.address: one for one in reversed(endpoints)}
    place = ClientLocation.of_labels(client.spot.node, client.spot.labels)
    nodes = {one.node: locators.labels_of(one.node) for one in each.values() if one.node}
    placed = depends_on_location(
        each.values(), entry.topology_keys, peer_discovery=entry.peer_discovery
    )
    for family, size in (("IPv4", 4), ("IPv6", 16)):
        here = sorted(
            (one for one in each.values() if len(one.packed) == size), key=lambda one: one.packed
        )
        if not here:
            continue
        chosen = choose_for_client(
            here, place, entry.topology_keys, nodes, peer_discovery=entry.peer_discovery
        )
        told = {one.address for one in chosen.endpoints}
        reason = _reason(chosen, entry, client, about, placed=placed, count=len(here))
        yield FamilyAnswer(
            family,
            reason,
            chosen.key,
            tuple(_told(one, nodes) for one in here if one.address in told),
            tuple(
                _told(one, nodes, _why_not(one, chosen, place, entry.topology_keys, nodes))
                for one in here
                if one.address not in told
            ),
        )


def _reason(
    chosen: Selection[NamedEndpoint],
    entry: NamedService,
    client: NameClient,
    about: str,
    *,
    placed: bool,
    count: int,
) -> Reason:
    """Why these are returned."""
    told, zone = len(chosen.endpoints), client.spot.labels.get(ZONE_LABEL, "")
    some = f"{told} of {count} endpoints are returned"
    hinted = "zone" if any(one.hint.zones for one in chosen.endpoints) else "node"
    fix = ""
    match chosen.rule:
        case RouteRule.TOPOLOGY_KEY if chosen.key == ANY_ENDPOINT:
            text = f"all {count} endpoints are returned, because no key before * matches"
        case RouteRule.TOPOLOGY_KEY:
            value = client.spot.labels.get(chosen.key or "", "")
            text = f"{some}, those whose node has {chosen.key}={value}"
        case RouteRule.NO_KEY_MATCHES:
            text = f"none is returned: no endpoint matches {', '.join(entry.topology_keys)}"
            fix = "End the topology keys with * to return the others then."
        case RouteRule.SAME_NODE:
            text = f"{some}, those hinted for node {client.spot.node}"
        case RouteRule.SAME_ZONE:
            text = f"{some}, those hinted for zone {zone}"
        case RouteRule.PARTLY_HINTED:
            text = f"all {count} endpoints are returned: not all of them carry hints"
        case RouteRule.NO_HINT_FOR_LOCATION:
            here = f"zone {zone}" if hinted == "zone" else f"node {client.spot.node}"
            text = f"all {count} endpoints are returned: none is hinted for {here}"
        case RouteRule.LOCATION_UNKNOWN:
            text = f"all {count} endpoints are returned: the client's {hinted} is not known"
        case RouteRule.IGNORED:
            text = f"all {count} endpoints are returned: peers look for each other by this name"
        case _:
            text = f"all {count} endpoints are returned, the same to every client"
    if not placed:
        fix = (
            "Near answers need topology keys (annotation zonewise.io/topology-keys) or hints"
            " (spec.trafficDistribution)."
        )
    return Reason(code=chosen.rule.value, message=text, object=about, fix=fix)


def _why_not(
    one: NamedEndpoint,
    chosen: Selection[NamedEndpoint],
    place: ClientLocation,
    keys: Sequence[str],
    nodes: dict[str, Any],
) -> str:
    """Why an endpoint is not returned."""
    match chosen.rule:
        case RouteRule.SAME_NODE:
            return f"hinted for node {', '.join(one.hint.nodes)}"
        case RouteRule.SAME_ZONE:
            return f"hinted for zone {', '.join(one.hint.zones)}"
    if not one.node:
        return "it is on no node"
    labels = nodes.get(one.node) or {}
    if not labels:
        return f"the labels of node {one.node} are not known"
    key = chosen.key or next((key for key in keys if key in place.labels), "")
    if not key:
        return "the client has none of the labels that are keys"
    if key not in labels:
        return f"its node has no label {key}"
    return f"its node has {key}={labels[key]}, the client {place.labels.get(key, 'no such label')}"


def _told(one: NamedEndpoint, nodes: dict[str, Any], reason: str = "") -> ToldEndpoint:
    zone = (nodes.get(one.node) or {}).get(ZONE_LABEL, "")
    return ToldEndpoint(one.address, one.node, zone, reason)


def _plain(one: ToldEndpoint) -> dict[str, Any]:
    return {"address": one.address, "node": one.node, "zone": one.zone}


def _unknown(asked: NameQuestion | None) -> Reason:
    if asked is None or asked.kind != SVC or not asked.service:
        return Reason(
            code="NoSuchName",
            message="that is not the name of a Service",
            fix="Write it like web.shop.svc.cluster.local.",
        )
    return Reason(
        code="NoSuchService",
        message=f"there is no Service {asked.service} in namespace {asked.namespace}",
        object=f"Service/{asked.namespace}/{asked.service}",
    )
