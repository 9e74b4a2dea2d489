"""Puts our hints on EndpointSlices that another controller writes.

Where Kubernetes' own controller cannot be switched off, it strips or replaces foreign hints on
every sync. Called before each of its writes, we put ours back: decided from the Service's other
slices as the store has them, the slice at hand as it is about to be, and the hints it had. A write
that would only strip hints is then a write without a change, which the API server does not even
store; so the two writers do not trigger each other in a loop.

Nothing is waited for and nothing is written here. A store that lags behind, or two slices that are
written at the same moment, may give a decision on incomplete state; the controller sees the write
and corrects it. Its own writes are let through as they are.

A Service whose shares depend on its pods is only maintained: endpoints keep the hints they had, and
new ones get their own zone until the controller, which watches pods, decides. There are too many
pods for every replica of a webhook to watch.

The values of the Service's topology keys are put on the slice as well, from the Nodes as the store
has them.

If anything is unknown the write passes unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from zonewise.api.gates import FeatureGates
from zonewise.api.objects.core import Namespace, Node, Service
from zonewise.api.objects.discovery import Endpoint, EndpointSlice, service_name_of
from zonewise.api.values.selector import EVERYTHING, Selector
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.webhook.admission import AdmissionAnswer, AdmissionRequest, Allowed
from zonewise.topology.shares import MissingCpu, MissingZone, Shares, counted_node, shares_of
from zonewise.traffic.endpoint import Hint, read_as_writer
from zonewise.traffic.modes import ShareNodes, hint_request_of
from zonewise.traffic.slices.identity import is_managed, service_keys_of
from zonewise.traffic.slices.rehinting import rehint_slice, requests_hints, with_topology
from zonewise.traffic.slices.topology import (
    TOPOLOGY_ANNOTATION,
    SliceTopology,
    annotated_keys,
)
from zonewise.traffic.topology_keys import topology_keys_of
from zonewise.traffic.weights import WEIGHTS_ANNOTATION

_SERVICE = "webhook:service"


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionSettings:
    """How hints are decided, equal to the controller's; ``writer`` is the controller's user."""

    writer: str = ""
    gates: Mapping[str, bool] = field(default_factory=FeatureGates)
    missing_cpu: MissingCpu = MissingCpu.DISABLE
    missing_zone: MissingZone = MissingZone.DISABLE
    services: Selector = EVERYTHING
    namespaces: Selector = EVERYTHING


class HintInjection:
    """The handler for EndpointSlices, over stores that a cache fills."""

    def __init__(self, cache: Cache, settings: InjectionSettings | None = None) -> None:
        self.settings = settings or InjectionSettings()
        self._services = cache.store(Service)
        self._slices = cache.store(EndpointSlice, indexes={_SERVICE: service_keys_of})
        self._nodes = cache.store(Node)
        self._namespaces = (
            None if self.settings.namespaces == EVERYTHING else cache.store(Namespace)
        )
        self._shares: Shares | None = None
        self._nodes.on_change(self._node_changed)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if (old and counted_node(old)) != (new and counted_node(new)):
            self._shares = None

    def shares(self) -> Shares:
        """The shares of all zones, recomputed only when a node that counts has changed."""
        if self._shares is None:
            self._shares = shares_of(
                self._nodes,
                missing_cpu=self.settings.missing_cpu,
                missing_zone=self.settings.missing_zone,
            )
        return self._shares

    async def __call__(self, request: AdmissionRequest) -> AdmissionAnswer:
        """Answer for one slice that is about to be written."""
        piece = request.new(EndpointSlice)
        if piece is None or not is_managed(piece):
            return Allowed()
        if request.user_info.username == self.settings.writer:
            return Allowed()
        service = self._services.get((request.namespace, service_name_of(piece)))
        if service is None or not self._selected(service):
            return Allowed()
        hint_request = hint_request_of(service, self.settings.gates)
        topology = self._topology(service, piece)
        before = request.old(EndpointSlice)
        if not requests_hints(hint_request):
            hinted = with_topology(piece, topology)
        elif hint_request.share_nodes is ShareNodes.TOLERATED:
            hinted = with_topology(carry_hints(piece, before), topology)
        else:
            hinted = rehint_slice(
                piece,
                previous=before,
                others=self._slices.by(_SERVICE, service.key),
                request=hint_request,
                shares=self.shares(),
                topology=topology,
            )
        return Allowed(patch=patch(piece, hinted))

    def _topology(self, service: Service, piece: EndpointSlice) -> SliceTopology:
        """What the values of the Service's topology keys are on the nodes of a slice."""
        keys = annotated_keys(topology_keys_of(service, self.settings.gates))
        names = {endpoint.node_name or "" for endpoint in piece.endpoints or ()} if keys else ()
        nodes = filter(None, (self._nodes.get(("", name)) for name in names))
        return SliceTopology(keys, {node.metadata.name: node.metadata.labels for node in nodes})

    def _selected(self, service: Service) -> bool:
        if not self.settings.services.matches(service.metadata.labels):
            return False
        if self._namespaces is None:
            return True
        namespace = self._namespaces.get(("", service.metadata.namespace))
        labels = {} if namespace is None else namespace.metadata.labels
        return self.settings.namespaces.matches(labels)


def carry_hints(piece: EndpointSlice, before: EndpointSlice | None) -> EndpointSlice:
    """A slice with the hints it had; new endpoints get their own zone if all others have one."""
    targets = [read_as_writer(endpoint) for endpoint in (before and before.endpoints) or ()]
    known = {target.name: target.hint for target in targets if target.ready}
    if not known or not all(hint.zones for hint in known.values()):
        return piece
    endpoints = []
    for endpoint in piece.endpoints or ():
        target = read_as_writer(endpoint)
        own = Hint((target.zone,)) if target.zone else Hint()
        hint = known.get(target.name, own) if target.ready else Hint()
        endpoints.append(msgspec.structs.replace(endpoint, hints=hint.to_object()))
    return msgspec.structs.replace(piece, endpoints=tuple(endpoints))


def patch(submitted: EndpointSlice, hinted: EndpointSlice) -> list[dict[str, Any]]:
    """The operations that give one slice the hints of the other."""
    pairs = zip(submitted.endpoints or (), hinted.endpoints or (), strict=True)
    return [
        _operation(index, new)
        for index, (old, new) in enumerate(pairs)
        if Hint.from_object(old.hints) != Hint.from_object(new.hints)
    ] + _annotations_patch(submitted.metadata.annotations, hinted.metadata.annotations)


def _annotations_patch(
    submitted: Mapping[str, str], hinted: Mapping[str, str]
) -> list[dict[str, Any]]:
    if not submitted:
        added = dict(hinted)
        return [{"op": "add", "path": "/metadata/annotations", "value": added}] if added else []
    operations: list[dict[str, Any]] = []
    for name in (TOPOLOGY_ANNOTATION, WEIGHTS_ANNOTATION):
        old, new = submitted.get(name), hinted.get(name)
        path = "/metadata/annotations/" + name.replace("/", "~1")
        if new is None and old is not None:
            operations.append({"op": "remove", "path": path})
        elif new != old:
            operations.append({"op": "add", "path": path, "value": new})
    return operations


def _operation(index: int, new: Endpoint) -> dict[str, Any]:
    path = f"/endpoints/{index}/hints"
    if new.hints is None:
        return {"op": "remove", "path": path}
    return {"op": "add", "path": path, "value": msgspec.to_builtins(new.hints)}
