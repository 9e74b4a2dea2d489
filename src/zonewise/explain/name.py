"""What a client gets when it resolves a Service by name, and why.

The functions of the DNS server, applied to a snapshot: what the name means, where the client is,
which rule chose, and why all other endpoints were left out. A name of one endpoint, a cluster IP or
an alias is the same for all clients, and the report says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zonewise.api.gates import TOPOLOGY_AWARE_HINTS
from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.api.reason import Reason
from zonewise.explain.columns import format_table
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
from zonewise.traffic.modes import reported_gates
from zonewise.traffic.routes.choice import ClientLocation, RouteRule, Selection
from zonewise.traffic.slices.topology import domain_of
from zonewise.traffic.topology_keys import ANY_ENDPOINT


@dataclass(frozen=True, slots=True)
class NameClient:
    """The client: an address, the pod that has it, and where that is."""

    address: str = ""
    pod: str = ""
    location: NodeLocation = UNKNOWN_LOCATION

    @property
    def zone(self) -> str:
        """The zone of its node, "" if it is not known."""
        return self.location.labels.get(ZONE_LABEL, "")

    @property
    def text(self) -> str:
        """For a sentence."""
        who = f"pod {self.pod}" if self.pod else self.address
        if not who:
            return "an unknown client"
        if not self.location.node:
            return f"{who}, whose location is unknown"
        zone = f" in zone {self.zone}" if self.zone else ""
        return f"{who} on node {self.location.node}{zone}"


@dataclass(frozen=True, slots=True)
class NameAddress:
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
    returned: tuple[NameAddress, ...]
    left_out: tuple[NameAddress, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "family": self.family,
            "rule": self.reason.code,
            "key": self.key,
            "message": self.reason.message,
            "fix": self.reason.fix,
            "told": [_to_dict(entry) for entry in self.returned],
            "leftOut": [_to_dict(entry) | {"reason": entry.reason} for entry in self.left_out],
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

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "name": self.name,
            "client": {
                "address": self.client.address,
                "pod": self.client.pod,
                "node": self.client.location.node,
                "labels": dict(self.client.location.labels),
            },
            "code": self.code,
            "rule": self.reason.code,
            "message": self.reason.message,
            "fix": self.reason.fix,
            "families": [part.to_dict() for part in self.families],
        }


def explain_name(
    name: str,
    labels: Sequence[str],
    client: NameClient,
    *,
    services: Iterable[Service],
    slices: Iterable[LeanEndpointSlice],
    locators: LocatorIndex,
    gates: Mapping[str, bool] | None = None,
) -> NameReport:
    """The report on a name, given by its labels left of the cluster's domain.

    Without gates they are those that the controller's condition on the Service shows.
    """
    question = parse_name(labels)
    service = None
    if question is not None and question.kind == SVC and question.service:
        key = (question.namespace, question.service)
        service = next((service for service in services if service.key == key), None)
    if question is None or service is None:
        return NameReport(name, client, "NXDOMAIN", _explain_unknown(question))
    entry = read_named_service(service, reported_gates(service) if gates is None else gates)
    about = f"Service/{entry.namespace}/{entry.name}"
    if entry.external_name is not None:
        text = f"an alias for {entry.external_name}, the same for every client"
        reason = Reason(code="ExternalName", message=text, object=about)
        return NameReport(name, client, "NOERROR", reason)
    if not entry.headless and not question.endpoint:
        text = "the Service has an address of its own, the same for every client"
        fix = "Proxies choose its endpoints: zonewise explain service tells how."
        reason = Reason(code="ClusterIP", message=text, object=about, fix=fix)
        return NameReport(name, client, "NOERROR", reason)
    if not question.names_all_endpoints:
        text = "a name that is the same for every client"
        reason = Reason(code="OneName", message=text, object=about)
        return NameReport(name, client, "NOERROR", reason)
    endpoints = read_named_endpoints(slices)
    if not endpoints:
        text = "no endpoint of the headless Service is ready"
        reason = Reason(code="NotReady", message=text, object=about)
        return NameReport(name, client, "NXDOMAIN", reason, by_endpoints=True)
    families = tuple(_answer_families(endpoints, entry, client, locators, about))
    primary = next((part for part in families if part.returned), families[0])
    code = "NOERROR" if primary.returned else "NODATA"
    return NameReport(name, client, code, primary.reason, families, by_endpoints=True)


def render_name(report: NameReport) -> str:
    """A report for people."""
    blocks = [[report.verdict]]
    for part in report.families:
        rows = [
            [entry.address, entry.node or "–", entry.zone or "–", answer, entry.reason]
            for answer, entries in (("returned", part.returned), ("left out", part.left_out))
            for entry in entries
        ]
        heads = ["ADDRESS", "NODE", "ZONE", "ANSWER", "WHY"]
        blocks.append([f"{part.family}: {part.reason.message}.", *format_table(heads, rows)])
    if report.reason.fix:
        blocks.append([report.reason.fix])
    return "\n\n".join("\n".join(block) for block in blocks)


def _answer_families(
    endpoints: tuple[NamedEndpoint, ...],
    entry: NamedService,
    client: NameClient,
    locators: LocatorIndex,
    about: str,
) -> Iterable[FamilyAnswer]:
    by_address = {endpoint.address: endpoint for endpoint in reversed(endpoints)}
    each = by_address.values()
    location = ClientLocation.of_labels(client.location.node, client.location.labels)
    nodes = {endpoint.node: locators.labels_of(endpoint.node) for endpoint in each if endpoint.node}
    located = depends_on_location(each, entry.topology_keys, hints=entry.hints)
    for family, size in (("IPv4", 4), ("IPv6", 16)):
        members = [endpoint for endpoint in each if len(endpoint.packed) == size]
        members.sort(key=lambda endpoint: endpoint.packed)
        if not members:
            continue
        chosen = choose_for_client(members, location, entry.topology_keys, nodes, hints=entry.hints)
        reason = _reason_for(chosen, entry, client, about, located=located, count=len(members))
        addresses = {endpoint.address for endpoint in chosen.endpoints}
        returned, left_out = [], []
        for endpoint in members:
            zone = (nodes.get(endpoint.node) or {}).get(ZONE_LABEL, "")
            row = NameAddress(endpoint.address, endpoint.node, zone)
            if endpoint.address in addresses:
                returned.append(row)
            else:
                why = _explain_omission(
                    endpoint, chosen, location, entry.topology_keys, nodes, locators
                )
                left_out.append(replace(row, reason=why))
        yield FamilyAnswer(family, reason, chosen.key, tuple(returned), tuple(left_out))


def _reason_for(
    chosen: Selection[NamedEndpoint],
    entry: NamedService,
    client: NameClient,
    about: str,
    *,
    located: bool,
    count: int,
) -> Reason:
    """Why these are returned."""
    some = f"{len(chosen.endpoints)} of {count} endpoints are returned"
    everything = f"all {count} endpoints are returned"
    hinted = "zone" if any(endpoint.hint.zones for endpoint in chosen.endpoints) else "node"
    fix = ""
    match chosen.rule:
        case RouteRule.TOPOLOGY_KEY if chosen.key == ANY_ENDPOINT:
            text = f"{everything}, because no key before * matches"
        case RouteRule.TOPOLOGY_KEY:
            client_location = ClientLocation.of_labels(client.location.node, client.location.labels)
            label = client_location.domain(chosen.key or "")
            text = f"{some}, those whose node has {chosen.key}={label}"
        case RouteRule.NO_KEY_MATCHES:
            text = f"none is returned: no endpoint matches {', '.join(entry.topology_keys)}"
            fix = "End the topology keys with * to return the others then."
        case RouteRule.SAME_NODE:
            text = f"{some}, those hinted for node {client.location.node}"
        case RouteRule.SAME_ZONE:
            text = f"{some}, those hinted for zone {client.zone}"
        case RouteRule.PARTLY_HINTED:
            text = f"{everything}: not all of them carry hints"
        case RouteRule.NO_HINT_FOR_LOCATION:
            domain = client.zone if hinted == "zone" else client.location.node
            text = f"{everything}: none is hinted for {hinted} {domain}"
        case RouteRule.LOCATION_UNKNOWN:
            text = f"{everything}: the client's {hinted} is not known"
        case RouteRule.IGNORED if not entry.gate_is_on:
            text = f"{everything}: hints are switched off (feature gate {TOPOLOGY_AWARE_HINTS})"
        case RouteRule.IGNORED:
            text = f"{everything}: this name is for pods that look for each other"
        case _:
            text = f"{everything}, the same to every client"
    if not located:
        fix = (
            "Near answers need topology keys (annotation zonewise.io/topology-keys) or hints"
            " (spec.trafficDistribution)."
        )
    return Reason(code=chosen.rule.value, message=text, object=about, fix=fix)


def _explain_omission(
    endpoint: NamedEndpoint,
    chosen: Selection[NamedEndpoint],
    location: ClientLocation,
    keys: Sequence[str],
    nodes: dict[str, Any],
    locators: LocatorIndex,
) -> str:
    """Why an endpoint is not returned."""
    match chosen.rule:
        case RouteRule.SAME_NODE:
            return f"hinted for node {', '.join(endpoint.hint.nodes)}"
        case RouteRule.SAME_ZONE:
            return f"hinted for zone {', '.join(endpoint.hint.zones)}"
    if not endpoint.node:
        return "it is on no node"
    key = chosen.key or next((key for key in keys if location.domain(key) is not None), "")
    if not key:
        return "the client has none of the labels that are keys"
    value, other = domain_of(endpoint, key, nodes), location.domain(key)
    if value is not None:
        return f"its node has {key}={value}, the client {other or 'no such label'}"
    if key not in endpoint.labels and not locators.knows(endpoint.node, (key,)):
        return f"whether node {endpoint.node} has the label {key} is not known"
    return f"its node has no label {key}"


def _to_dict(entry: NameAddress) -> dict[str, Any]:
    return {"address": entry.address, "node": entry.node, "zone": entry.zone}


def _explain_unknown(question: NameQuestion | None) -> Reason:
    if question is None or question.kind != SVC or not question.service:
        return Reason(
            code="NoSuchName",
            message="that is not the name of a Service",
            fix="Write it like web.shop.svc.cluster.local.",
        )
    return Reason(
        code="NoSuchService",
        message=f"there is no Service {question.service} in namespace {question.namespace}",
        object=f"Service/{question.namespace}/{question.service}",
    )
