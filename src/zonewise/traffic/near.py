"""Which endpoints of a headless Service a name server returns to a client, by the client's place.

The rules are those of a proxy, out of ``zonewise.traffic.routes``, over ready endpoints alone:
clients cache the answer, so a terminating endpoint is never returned. Topology keys decide if there
are any, and if none of them matches the answer is empty. Else hints decide.

A Service that publishes addresses which are not ready is for peer discovery: all of them have to be
found, so only its keys, which were set on purpose, leave any out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zonewise.traffic.routes.choice import (
    NodeLabels,
    ProxyLocation,
    RoutableEndpoint,
    RouteRule,
    Selection,
    T,
    by_keys,
    nearby,
)


def by_place(targets: Iterable[RoutableEndpoint], keys: Sequence[str], *, peers: bool) -> bool:
    """Whether clients in different places may get different endpoints."""
    return bool(keys) or (not peers and any(target.hint for target in targets if target.ready))


def near(
    targets: Iterable[T],
    place: ProxyLocation,
    keys: Sequence[str],
    nodes: NodeLabels,
    *,
    peers: bool,
) -> Selection[T]:
    """The endpoints, of one address family, for a client in a place."""
    ready = tuple(target for target in targets if target.ready)
    if keys:
        return by_keys(ready, place, keys, nodes)
    if peers:
        return Selection(RouteRule.IGNORED if ready else RouteRule.NOTHING, ready)
    return nearby(ready, place)
