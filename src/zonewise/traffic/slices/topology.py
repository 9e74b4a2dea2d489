"""What the slices of a Service say of its topology keys: the labels of the endpoints' nodes.

A slice has fields for the node and the zone of an endpoint. The values of other keys are in its
annotation ``zonewise.io/topology``, for each endpoint's address an object of key and value::

    {"10.244.1.5":{"example.com/rack":"r1"},"10.244.2.7":{"example.com/rack":null}}

``null`` says that the node has no such label. A key that is missing is not known, and neither is an
address that is missing: so a slice that was written before the Service's keys were changed, or
before another controller added an endpoint, is not mistaken for one whose nodes have no labels.
Who reads it then asks other sources. The same holds for a zone: an endpoint without one is on a
node without one only if the annotation has a row for it. Kubernetes' controller writes the zone of
an endpoint once, and notices a new label of its node when something else has it sync the Service.

The text is bounded like that of weights, because every proxy receives it with every change of the
slice. Above the bound a slice has no such annotation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import msgspec

from zonewise.api.objects.discovery import LeanEndpoint, LeanEndpointSlice
from zonewise.api.reason import Reason
from zonewise.topology.nodes import HOSTNAME_LABEL, ZONE_LABEL
from zonewise.traffic.slices.identity import is_managed
from zonewise.traffic.topology_keys import ANY_ENDPOINT
from zonewise.traffic.weights import MAX_TEXT_LENGTH

TOPOLOGY_ANNOTATION = "zonewise.io/topology"

NodeLabels: TypeAlias = Mapping[str, Mapping[str, str]]
"""The labels of nodes, by their names."""
KeysByNode: TypeAlias = Mapping[str, frozenset[str]]
"""Keys of labels, by the nodes that they are of."""
StatedLabels: TypeAlias = Mapping[str, str | None]
"""Labels of an endpoint's node as its slice states them; None for those that it does not have."""

NOTHING_STATED: StatedLabels = MappingProxyType({})
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class KeyedEndpoint(Protocol):
    """What topology keys read of an endpoint."""

    @property
    def node(self) -> str: ...
    @property
    def labels(self) -> StatedLabels: ...


def annotated_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """The topology keys for which slices have no field, sorted."""
    return tuple(sorted({*keys} - {ANY_ENDPOINT, HOSTNAME_LABEL, ZONE_LABEL}))


def domain_of(endpoint: KeyedEndpoint, key: str, node_labels: NodeLabels) -> str | None:
    """The value of a topology key for an endpoint: what its slice states, else its node's label."""
    if not endpoint.node:
        return None
    if key == HOSTNAME_LABEL:
        return endpoint.node
    if key in endpoint.labels:
        return endpoint.labels[key]
    return node_labels.get(endpoint.node, _NO_LABELS).get(key)


def unstated_labels(endpoints: Iterable[KeyedEndpoint], keys: Sequence[str]) -> KeysByNode:
    """The labels that the keys need and slices do not state, by the nodes that they are of."""
    return _unstated(((endpoint.node, endpoint.labels) for endpoint in endpoints), keys)


def unstated_labels_of(slices: Iterable[LeanEndpointSlice], keys: Sequence[str]) -> KeysByNode:
    """The labels that the keys need and the slices of a Service do not state, by their nodes."""
    return _unstated(
        (
            (endpoint.node_name or "", stated.labels(endpoint))
            for endpoint_slice in slices
            for stated in [StatedTopology.of(endpoint_slice)]
            for endpoint in endpoint_slice.endpoints or ()
        ),
        keys,
    )


def _unstated(rows: Iterable[tuple[str, StatedLabels]], keys: Sequence[str]) -> KeysByNode:
    needed = frozenset(keys) - {ANY_ENDPOINT, HOSTNAME_LABEL}
    unstated: dict[str, frozenset[str]] = {}
    if needed:
        for node, labels in rows:
            if node and not needed <= labels.keys():
                missing = needed - labels.keys()
                unstated[node] = unstated[node] | missing if node in unstated else missing
    return unstated


@dataclass(frozen=True, slots=True)
class StatedTopology:
    """What one slice states."""

    by_address: Mapping[str, StatedLabels]

    @classmethod
    def of(cls, endpoint_slice: LeanEndpointSlice) -> StatedTopology:
        """What a slice states."""
        text = endpoint_slice.metadata.annotations.get(TOPOLOGY_ANNOTATION, "")
        by_address = _parse(text) if text else None
        return cls(by_address or {})

    def labels(self, endpoint: LeanEndpoint) -> StatedLabels:
        """The stated labels of the node of an endpoint."""
        stated = self.by_address.get(endpoint.addresses[0]) if endpoint.addresses else None
        if stated is None:
            return _zone_labels(endpoint.zone) if endpoint.zone else NOTHING_STATED
        return {**stated, ZONE_LABEL: endpoint.zone or None}


@dataclass(slots=True)
class SliceTopology:
    """Writes the annotation of the slices of one Service; ``keys`` are those of ``annotated_keys``.

    ``too_long`` becomes the length of a text above the bound.
    """

    keys: tuple[str, ...] = ()
    node_labels: NodeLabels = field(default_factory=dict)
    too_long: int = 0

    def text(self, endpoints: Iterable[LeanEndpoint]) -> str:
        """The annotation of a slice with these endpoints; "" for none."""
        if not self.keys:
            return ""
        text = format_topology(endpoints, self.keys, self.node_labels)
        if len(text) > MAX_TEXT_LENGTH:
            self.too_long = max(self.too_long, len(text))
            return ""
        return text

    @property
    def reason(self) -> Reason | None:
        """Why a slice has no such annotation although the Service has keys for it."""
        if not self.too_long:
            return None
        return Reason(
            code="TopologyTooLong",
            message=f"the values of the topology keys take {self.too_long} bytes in a slice,"
            f" allowed are {MAX_TEXT_LENGTH}, so proxies and DNS servers read them from PodLocators"
            " or Nodes",
            numbers={"bytes": self.too_long, "limitBytes": MAX_TEXT_LENGTH},
            fix="Use fewer or shorter topology keys, or a lower --endpoints-per-slice.",
        )


def left_over_reason(slices: Iterable[LeanEndpointSlice], topology: SliceTopology) -> Reason | None:
    """That slices, which are not ours to write, state what was true when we last wrote them."""
    names = sorted(
        piece.metadata.name
        for piece in slices
        for text in [piece.metadata.annotations.get(TOPOLOGY_ANNOTATION, "")]
        if topology.keys
        and text
        and is_managed(piece)
        and text != topology.text(piece.endpoints or ())
    )
    if not names:
        return None
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return Reason(
        code="TopologyLeftOver",
        message=f"the annotation {TOPOLOGY_ANNOTATION} on EndpointSlice {names[0]}{others} is not"
        " kept current and is not what the nodes' labels are now; proxies and DNS servers obey it",
        numbers={"slices": len(names)},
        fix=f"Remove them: kubectl annotate endpointslices -A --all {TOPOLOGY_ANNOTATION}-",
    )


def format_topology(
    endpoints: Iterable[LeanEndpoint], keys: Sequence[str], node_labels: NodeLabels
) -> str:
    """The annotation's text: sorted, no blanks; "" without an endpoint on a node.

    Of two endpoints with one address the one that does not terminate counts, as for a proxy.
    """
    rows: dict[str, StatedLabels] = {}
    for endpoint in sorted(endpoints, key=_is_terminating, reverse=True):
        if endpoint.addresses and endpoint.node_name:
            labels = node_labels.get(endpoint.node_name, _NO_LABELS)
            rows[endpoint.addresses[0]] = {key: labels.get(key) for key in keys}
    return msgspec.json.encode(rows, order="sorted").decode() if rows else ""


def parse_topology(text: str) -> Mapping[str, StatedLabels] | None:
    """The labels that an annotation states, by address; None if it is not well formed."""
    if len(text) > MAX_TEXT_LENGTH:
        return None
    try:
        rows: Any = msgspec.json.decode(text, type=dict[str, dict[str, str | None]])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    result: Mapping[str, StatedLabels] = rows
    return result


_parse = lru_cache(maxsize=256)(parse_topology)
"""A slice is read again whenever another one of its Service changes."""


@lru_cache(maxsize=1024)
def _zone_labels(zone: str) -> StatedLabels:
    """What the field for the zone states; few zones have many endpoints."""
    return MappingProxyType({ZONE_LABEL: zone})


def _is_terminating(endpoint: LeanEndpoint) -> bool:
    return bool(endpoint.conditions.terminating)
