"""Which Service has a way in that several name; pure.

External IPs are free text that a tenant writes, load balancer addresses are what their controller
assigned, and a dump may hold a node port twice. A way that several Services name belongs to one:

1. the Service whose ClusterIP it is;
2. then one that was given it: a load balancer's address in its status, or a node port;
3. then one that names it in ``externalIPs``;
4. last one whose external IP is the address of a node, where those are allowed. It has no port
   there that is a node port of any Service.

Among equals the oldest Service has it, then the first by namespace and name, so a Service that
comes later takes nobody's packets by naming an address. The others have no route there, and a note
that names the owner.

This is the only place where that is decided: routes are made for the ways a Service has, and
writing rules, removing flows and printing tables start from routes.

It is kept Service by Service. ``claim`` takes the ways of one Service and returns the other
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

Way: TypeAlias = tuple[Family, str, str | None, int]
"""Family, protocol, address (None: any of the node's) and port."""

_SHOWN = 3
"""How many ways a note names."""


class Title(IntEnum):
    """By what right a Service names a way; a lower one comes first."""

    CLUSTER_IP = 0
    ASSIGNED = 1
    NAMED = 2
    NAMED_ON_NODE = 3


class Claim(NamedTuple):
    """How a Service stands among those that name a way; the lowest has it.

    ``since`` is when the Service was created, as an API server writes it; unknown is last.
    """

    title: Title
    since: tuple[bool, str] = (True, "")

    @classmethod
    def of(cls, title: Title, created: str | None) -> Claim:
        """The claim of a Service that was created then."""
        return cls(title, (not created, created or ""))


class WayClaims:
    """Which Services name each way, and which one has it."""

    def __init__(self) -> None:
        self._wanted: dict[Key, Mapping[Way, Claim]] = {}
        self._claims: dict[Way, tuple[tuple[Claim, Key], ...]] = {}
        """The Services that name a way, the first before the others."""
        self._behind: dict[Way, dict[Key, int]] = {}
        """By node port, the Services that name that port of a node's address, and how often."""

    def claim(self, key: Key, wanted: Mapping[Way, Claim]) -> set[Key]:
        """A Service names these ways and no others; returns the Services that are affected."""
        woken: set[Key] = set()
        before = self._wanted.get(key, {})
        for way, claim in before.items():
            if wanted.get(way) != claim:
                woken |= self._leave(key, way, claim)
        for way, claim in wanted.items():
            if before.get(way) != claim:
                woken |= self._join(key, way, claim)
        if wanted:
            self._wanted[key] = wanted
        else:
            self._wanted.pop(key, None)
        woken.discard(key)
        return woken

    def owner(self, way: Way) -> Key | None:
        """The Service that has a way; None if no Service names it."""
        claims = self._claims.get(way)
        if claims is None:
            return None
        claim, key = claims[0]
        if claim.title is Title.NAMED_ON_NODE:
            return self.owner(_node_port(way)) or key
        return key

    def _join(self, key: Key, way: Way, claim: Claim) -> set[Key]:
        others = self._claims.get(way, ())
        self._claims[way] = tuple(sorted((*others, (claim, key))))
        if claim.title is Title.NAMED_ON_NODE:
            counts = self._behind.setdefault(_node_port(way), {})
            counts[key] = counts.get(key, 0) + 1
        return {other for _, other in others} | self._behind.get(way, {}).keys()

    def _leave(self, key: Key, way: Way, claim: Claim) -> set[Key]:
        others = tuple(one for one in self._claims[way] if one[1] != key)
        if others:
            self._claims[way] = others
        else:
            del self._claims[way]
        if claim.title is Title.NAMED_ON_NODE:
            port = _node_port(way)
            counts = self._behind[port]
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
            if not counts:
                del self._behind[port]
        return {other for _, other in others} | self._behind.get(way, {}).keys()


def _node_port(way: Way) -> Way:
    """The same port as a node port."""
    family, protocol, _, number = way
    return family, protocol, None, number


def taken(key: Key, owner: Key, ways: Iterable[str]) -> Reason:
    """The note on a Service whose ways, in words, another one has."""
    names = list(dict.fromkeys(ways))
    more = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    one = len(names) == 1
    return Reason(
        code="AddressInUse",
        message=f"{shown} {'is' if one else 'are'} not routed: Service {'/'.join(owner)} has"
        f" {'it' if one else 'them'}",
        object=f"Service/{'/'.join(key)}",
        fix="Use an address and port that no other Service has: ClusterIPs come first, then"
        " load balancer addresses and node ports, then externalIPs; among equals the oldest"
        " Service.",
    )
