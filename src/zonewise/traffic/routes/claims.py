"""Which of several Services owns a frontend that all of them name. Pure.

External IPs are free text that a tenant writes, load balancer addresses are what their controller
assigned, and a dump may have a node port twice. A frontend (an address and a port) that several
Services name belongs to one of them:

1. the Service whose ClusterIP it is;
2. then one to which it was assigned: a load balancer's address in its status, or a node port;
3. then one that names it in ``externalIPs``;
4. then one whose external IP is the address of a node, where those are allowed. It has no port
   there that is a node port of any Service.

A port of nodes on which health checks are answered (TCP) is claimed as well, and comes after node
ports: one that the API server allocated first, then one that an annotation names.

Among equals the oldest Service owns it, then the first by namespace and name, so a Service that is
created later takes no packets of another one by naming its address. The others have no route there,
and a note that names the owner.

This is decided nowhere else: routes are made for the frontends a Service owns, and writing rules,
removing flows and printing tables start from routes.

Claims change Service by Service. ``claim`` takes the frontends of one Service and returns the other
Services that are affected; its cost depends on that Service, not on their number. The owners are
the same in whatever order Services are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from zonewise.api.meta import Key
from zonewise.api.reason import Reason
from zonewise.traffic.routes.table import Family

Frontend: TypeAlias = tuple[Family, str, str | None, int]
"""Family, protocol, address (None: any of the node's) and port."""

_LISTED = 3
"""How many frontends a note names."""


class ClaimBasis(IntEnum):
    """Why a Service claims a frontend; a lower basis comes first."""

    CLUSTER_IP = 0
    ASSIGNED = 1
    NAMED = 2
    NAMED_ON_NODE = 3
    HEALTH_CHECK = 4
    HEALTH_CHECK_NAMED = 5


class Claim(NamedTuple):
    """How a Service ranks among those that name a frontend; the lowest claim owns it.

    ``since`` is when the Service was created, as an API server writes it; unknown is last.
    """

    basis: ClaimBasis
    since: tuple[bool, str] = (True, "")

    @classmethod
    def of(cls, basis: ClaimBasis, created: str | None) -> Claim:
        """The claim of a Service with this time of creation."""
        return cls(basis, (not created, created or ""))


class FrontendClaims:
    """Which Services name each frontend, and which one owns it."""

    def __init__(self) -> None:
        self._claims_by_service: dict[Key, Mapping[Frontend, Claim]] = {}
        self._claims_by_frontend: dict[Frontend, tuple[tuple[Claim, Key], ...]] = {}
        """The Services that name a frontend, its owner first."""
        self._services_by_node_port: dict[Frontend, dict[Key, int]] = {}
        """By node port, the Services that name that port of a node's address, and how often."""

    def claim(self, key: Key, claims: Mapping[Frontend, Claim]) -> set[Key]:
        """Replace the claims of a Service; returns the other Services that are affected."""
        affected: set[Key] = set()
        previous = self._claims_by_service.get(key, {})
        for frontend, claim in previous.items():
            if claims.get(frontend) != claim:
                affected |= self._remove(key, frontend, claim)
        for frontend, claim in claims.items():
            if previous.get(frontend) != claim:
                affected |= self._add(key, frontend, claim)
        if claims:
            self._claims_by_service[key] = claims
        else:
            self._claims_by_service.pop(key, None)
        affected.discard(key)
        return affected

    def owner(self, frontend: Frontend) -> Key | None:
        """The Service that owns a frontend; None if no Service names it."""
        claims = self._claims_by_frontend.get(frontend)
        if claims is None:
            return None
        claim, key = claims[0]
        if claim.basis is ClaimBasis.NAMED_ON_NODE:
            return self._node_port_owner(_node_port(frontend)) or key
        return key

    def _node_port_owner(self, frontend: Frontend) -> Key | None:
        """The Service that has a node port; None if none has, or only health checks are there."""
        claim, key = self._claims_by_frontend.get(frontend, ((None, None),))[0]
        return key if claim is not None and claim.basis < ClaimBasis.HEALTH_CHECK else None

    def _add(self, key: Key, frontend: Frontend, claim: Claim) -> set[Key]:
        others = self._claims_by_frontend.get(frontend, ())
        self._claims_by_frontend[frontend] = tuple(sorted((*others, (claim, key))))
        if claim.basis is ClaimBasis.NAMED_ON_NODE:
            counts = self._services_by_node_port.setdefault(_node_port(frontend), {})
            counts[key] = counts.get(key, 0) + 1
        return {other for _, other in others} | self._services_by_node_port.get(frontend, {}).keys()

    def _remove(self, key: Key, frontend: Frontend, claim: Claim) -> set[Key]:
        others = tuple(entry for entry in self._claims_by_frontend[frontend] if entry[1] != key)
        if others:
            self._claims_by_frontend[frontend] = others
        else:
            del self._claims_by_frontend[frontend]
        if claim.basis is ClaimBasis.NAMED_ON_NODE:
            port = _node_port(frontend)
            counts = self._services_by_node_port[port]
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
            if not counts:
                del self._services_by_node_port[port]
        return {other for _, other in others} | self._services_by_node_port.get(frontend, {}).keys()


def _node_port(frontend: Frontend) -> Frontend:
    """The frontend of the node port with the same number."""
    family, protocol, _, number = frontend
    return family, protocol, None, number


def address_in_use(key: Key, owner: Key, frontends: Iterable[str]) -> Reason:
    """The note on a Service of whose frontends, given as text, another Service owns some."""
    names = list(dict.fromkeys(frontends))
    more = len(names) - _LISTED
    listed = ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
    single = len(names) == 1
    return Reason(
        code="AddressInUse",
        message=f"{listed} {'is' if single else 'are'} not routed: Service {'/'.join(owner)} has"
        f" {'it' if single else 'them'}",
        object=f"Service/{'/'.join(key)}",
        fix="Use an address and port that no other Service has: ClusterIPs come first, then"
        " load balancer addresses and node ports, then externalIPs; among equals the oldest"
        " Service.",
    )
