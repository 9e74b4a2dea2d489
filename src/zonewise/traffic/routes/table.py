"""What a node's proxy must do: frozen values, the same for every proxy and every printer.

A Service has *frontends*: its ClusterIPs, its external IPs, its load balancer's addresses, its node
ports. For each frontend there is a ``Route``: which packets, and what happens to them. A frontend
that is treated differently by where a packet starts (``externalTrafficPolicy: Local``, or the host
as the only topology key) has two routes, ``inside`` for this node and its pods, ``outside`` for all
others. A frontend that does not exist has no route.

Routes of one selection share one tuple of endpoints, so ``is`` tells whether two routes are the
same choice. Equal inputs in any order give equal values: a difference is a change to be written.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from zonewise.api.meta import Key
from zonewise.api.reason import Reason
from zonewise.api.struct import Struct
from zonewise.traffic.routes.choice import RouteRule

Family: TypeAlias = Literal["IPv4", "IPv6"]
RoutePath: TypeAlias = Literal["ClusterIP", "ExternalIP", "LoadBalancer", "NodePort"]
RouteSource: TypeAlias = Literal["any", "inside", "outside"]
RouteAction: TypeAlias = Literal["dnat", "reject", "drop"]
SourceAddress: TypeAlias = Literal["kept", "masqueraded"]


class Backend(Struct):
    """An endpoint of a Service port: an address, a port, and the node it is on ("": unknown).

    ``weight`` says how often it is chosen, compared with the others of its route.
    """

    address: str
    port: int
    node: str = ""
    weight: int = 1

    def to_dict(self) -> dict[str, Any]:
        """The value of ``-o json``."""
        return {"address": self.address, "port": self.port, "weight": self.weight}


class Route(Struct):
    """What happens to packets to one frontend.

    ``address`` is None for a node port: any address of the node. ``endpoints`` are those that are
    chosen from, sorted; there are some exactly if the action is ``dnat``. ``key`` is the topology
    key that matched, if keys decided. ``source_ranges`` are the networks that may use a load
    balancer's address, all if there are none; packets from ``own_sources`` may as well: the
    addresses a packet of this node itself carries, if the node is in range.
    """

    path: RoutePath
    address: str | None
    number: int
    source: RouteSource
    action: RouteAction
    rule: RouteRule
    key: str | None = None
    endpoints: tuple[Backend, ...] = ()
    source_ranges: tuple[str, ...] = ()
    own_sources: tuple[str, ...] = ()

    @property
    def source_address(self) -> SourceAddress | None:
        """What an endpoint sees of a client from outside; None if none comes in by this route.

        Answers come back through this node if it masquerades, or if the endpoint is on it.
        """
        if self.path == "ClusterIP" or self.source == "inside":
            return None
        return "kept" if self.source == "outside" else "masqueraded"


class PortRoutes(Struct):
    """A port of a Service in one address family, with all its frontends.

    ``serving`` is for UDP ports: every endpoint that still serves, on whatever node and whatever
    the topology says. A flow to any other one is stale. Other protocols need none of this.
    """

    name: str
    family: Family
    protocol: str
    affinity_seconds: int | None
    routes: tuple[Route, ...]
    serving: tuple[Backend, ...] = ()


class HealthCheck(Struct):
    """A port on which the node answers whether it has endpoints of a Service: 200 if it has."""

    family: Family
    port: int
    local_endpoints: int


class ServiceRoutes(Struct):
    """Everything a proxy does for one Service. ``keyed``: it depends on labels of other nodes."""

    namespace: str
    service: str
    ports: tuple[PortRoutes, ...] = ()
    health_checks: tuple[HealthCheck, ...] = ()
    notes: tuple[Reason, ...] = ()
    keyed: bool = False

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, self.service

    def rows(self) -> list[dict[str, Any]]:
        """The routes as rows of ``-o json``, each complete in itself."""
        return [
            {
                "namespace": self.namespace,
                "service": self.service,
                "port": port.name,
                "family": port.family,
                "protocol": port.protocol,
                "path": route.path,
                "address": route.address,
                "number": route.number,
                "from": route.source,
                "action": route.action,
                "why": route.rule.value,
                "key": route.key,
                "endpoints": [backend.to_dict() for backend in route.endpoints],
                "affinitySeconds": port.affinity_seconds,
                "sourceRanges": list(route.source_ranges),
                **({"sourceAddress": route.source_address} if route.source_address else {}),
            }
            for port in self.ports
            for route in port.routes
        ]


class NodeRoutes(Struct):
    """Everything the proxy of a node does, by Service in order of their names.

    ``notes`` are those that belong to no existing Service.
    """

    node: str
    zone: str
    services: tuple[ServiceRoutes, ...] = ()
    notes: tuple[Reason, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The value of ``-o json``."""
        notes = [*self.notes, *(note for part in self.services for note in part.notes)]
        return {
            "node": self.node,
            "zone": self.zone,
            "routes": [row for part in self.services for row in part.rows()],
            "healthChecks": [
                {
                    "namespace": part.namespace,
                    "service": part.service,
                    "family": check.family,
                    "port": check.port,
                    "localEndpoints": check.local_endpoints,
                }
                for part in self.services
                for check in part.health_checks
            ],
            "notes": [
                {"code": note.code, "object": note.object, "message": note.message}
                for note in notes
            ],
        }
