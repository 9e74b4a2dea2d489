"""Which Service has a way in that several name; pure.

External IPs are free text, load balancer addresses are whatever their controller writes, and a dump
may hold a node port twice. A way that several Services name belongs to the one whose ClusterIP it
is, so that no Service takes another's packets by naming its address; else to the first by namespace
and name. The others have no route there, and a note that names the owner.

This is the only place where that is decided: routes are made for the ways a Service has, and
writing rules, removing flows and printing tables start from routes.

It is kept Service by Service. ``claim`` takes the ways of one Service and returns the other
Services that are affected; its cost depends on that Service, not on their number. The owners are
the same in whatever order Services are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from zonewise.api.meta import Key
from zonewise.api.reason import Reason
from zonewise.traffic.routes.table import Family

Way: TypeAlias = tuple[Family, str, str | None, int]
"""Family, protocol, address (None: any of the node's) and port."""

_SHOWN = 3
"""How many ways a note names."""


class WayClaims:
    """Which Services name each way, and which one has it."""

    def __init__(self) -> None:
        self._wanted: dict[Key, Mapping[Way, bool]] = {}
        self._claims: dict[Way, tuple[tuple[bool, Key], ...]] = {}
        """The Services that name a way, its owner first; False for one whose ClusterIP it is."""

    def claim(self, key: Key, wanted: Mapping[Way, bool]) -> set[Key]:
        """A Service names these ways and no others; returns the Services that are affected.

        A way is True if it is a ClusterIP of the Service's own.
        """
        woken: set[Key] = set()
        before = self._wanted.get(key, {})
        for way, own in before.items():
            if wanted.get(way) is not own:
                woken |= self._leave(key, way)
        for way, own in wanted.items():
            if before.get(way) is not own:
                woken |= self._join(key, way, own)
        if wanted:
            self._wanted[key] = wanted
        else:
            self._wanted.pop(key, None)
        woken.discard(key)
        return woken

    def owner(self, way: Way) -> Key | None:
        """The Service that has a way; None if no Service names it."""
        found = self._claims.get(way)
        return None if found is None else found[0][1]

    def _join(self, key: Key, way: Way, own: bool) -> set[Key]:
        others = self._claims.get(way, ())
        self._claims[way] = tuple(sorted((*others, (not own, key))))
        return {other for _, other in others}

    def _leave(self, key: Key, way: Way) -> set[Key]:
        others = tuple(one for one in self._claims[way] if one[1] != key)
        if others:
            self._claims[way] = others
        else:
            del self._claims[way]
        return {other for _, other in others}


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
        fix="Take an address and port that no other Service has; a port of a ClusterIP is its"
        " Service's own, any other belongs to the first by namespace and name.",
    )
