"""A cluster as reports read it: plain objects, indexed once, wherever they came from.

Nothing is asked of the objects but what ``kubectl get nodes,services,endpointslices`` prints.
Pods may be missing; then the slices stand for them. A namespace that is not written is ``default``,
as it is when such a file is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from zonewise.api.core import Node, Service
from zonewise.api.discovery import LeanEndpointSlice
from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key, Object
from zonewise.topology import MissingCpu, MissingZone, Shares, shares_of, zone_of

SERVICE_LABEL = "kubernetes.io/service-name"
DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Settings:
    """How the cluster's controller is set: what a report assumes of it."""

    gates: Mapping[str, bool] = field(default_factory=FeatureGates)
    missing_cpu: MissingCpu = MissingCpu.DISABLE
    missing_zone: MissingZone = MissingZone.DISABLE


class Cluster:
    """The objects that reports are made from."""

    def __init__(
        self,
        *,
        nodes: Iterable[Node] = (),
        services: Iterable[Service] = (),
        slices: Iterable[LeanEndpointSlice] = (),
        settings: Settings | None = None,
    ) -> None:
        self.settings = settings or Settings()
        self.nodes = {node.metadata.name: node for node in nodes}
        self.services = {key_of(service): service for service in services}
        self._slices = tuple(slices)

    @cached_property
    def shares(self) -> Shares:
        """The shares of all zones."""
        return shares_of(
            self.nodes.values(),
            missing_cpu=self.settings.missing_cpu,
            missing_zone=self.settings.missing_zone,
        )

    @cached_property
    def _by_service(self) -> dict[Key, list[LeanEndpointSlice]]:
        found: dict[Key, list[LeanEndpointSlice]] = {}
        for part in sorted(self._slices, key=key_of):
            name = part.metadata.labels.get(SERVICE_LABEL)
            if name:
                found.setdefault((key_of(part)[0], name), []).append(part)
        return found

    def slices(self, service: Service) -> tuple[LeanEndpointSlice, ...]:
        """The slices of a Service, whoever writes them, by name."""
        return tuple(self._by_service.get(key_of(service), ()))

    def zone(self, node: str, otherwise: str) -> str:
        """The zone of a node; what was written about it counts only once the node is gone."""
        known = self.nodes.get(node)
        return otherwise if known is None else zone_of(known)


def key_of(item: Object) -> Key:
    """Namespace and name, the namespace never empty."""
    return item.metadata.namespace or DEFAULT_NAMESPACE, item.metadata.name
