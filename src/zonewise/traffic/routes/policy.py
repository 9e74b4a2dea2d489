"""How the traffic of a Service chooses among its endpoints: what of the Service decides it.

Everybody who says where a connection goes takes it from here: routes of proxies, simulated clients,
and reports on what proxies do with hints that are not written yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zonewise.api.gates import TOPOLOGY_AWARE_HINTS
from zonewise.api.objects.core import Service
from zonewise.traffic.keys import topology_keys
from zonewise.traffic.routes.choice import (
    NodeLabels,
    P,
    ProxyLocation,
    Selection,
    by_keys,
    by_weights,
    local,
    nearby,
)
from zonewise.traffic.weights import Rows


@dataclass(frozen=True, slots=True)
class ServicePolicy:
    """What decides: topology keys, else weights and hints; ``internal_local`` before all of them.

    ``internal_local`` is about traffic to the ClusterIP.
    """

    keys: tuple[str, ...] = ()
    hints: bool = True
    internal_local: bool = False

    @classmethod
    def of(cls, service: Service, gates: Mapping[str, bool]) -> ServicePolicy:
        """The policy of a Service; the gate enables PreferZone."""
        spec = service.spec
        return cls(
            topology_keys(service),
            spec.traffic_policy != "PreferZone" or gates[TOPOLOGY_AWARE_HINTS],
            "Local" in (spec.traffic_policy, spec.internal_traffic_policy),
        )

    def cluster(
        self, known: Iterable[P], place: ProxyLocation, nodes: NodeLabels, rows: Rows | None
    ) -> Selection[P]:
        """The endpoints for traffic that may leave its node; ``rows`` are weights, if any."""
        if self.keys:
            return by_keys(known, place, self.keys, nodes)
        if self.hints and rows is not None:
            return by_weights(known, place, rows)
        return nearby(known, place, hints=self.hints)

    def internal(
        self, known: Iterable[P], place: ProxyLocation, nodes: NodeLabels, rows: Rows | None
    ) -> Selection[P]:
        """The endpoints for traffic to the ClusterIP."""
        return (
            local(known, place) if self.internal_local else self.cluster(known, place, nodes, rows)
        )
