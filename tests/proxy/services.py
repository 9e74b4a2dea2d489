"""Short constructors for routes of Services."""

from __future__ import annotations

from zonewise.traffic.routes.choice import RouteRule
from zonewise.traffic.routes.table import (
    Backend,
    Family,
    PortRoutes,
    Route,
    RouteAction,
    RoutePath,
    RouteSource,
    ServiceRoutes,
)

HERE = "n1"


def backend(
    last: int, *, node: str = "n2", family: str = "IPv4", port: int = 8080, weight: int = 1
) -> Backend:
    address = f"10.244.0.{last}" if family == "IPv4" else f"fd44::{last:x}"
    return Backend(address=address, port=port, node=node, weight=weight)


def route(
    path: RoutePath,
    address: str | None,
    *backends: Backend,
    number: int = 80,
    source: RouteSource = "any",
    action: RouteAction = "dnat",
    ranges: tuple[str, ...] = (),
    own: tuple[str, ...] = (),
) -> Route:
    return Route(
        path=path,
        address=address,
        number=number,
        source=source,
        action=action if backends or action != "dnat" else "reject",
        rule=RouteRule.UNHINTED,
        endpoints=backends,
        source_ranges=ranges,
        own_sources=own,
    )


def service(
    name: str,
    *routes: Route,
    family: Family = "IPv4",
    protocol: str = "TCP",
    affinity: int | None = None,
    serving: tuple[Backend, ...] = (),
) -> ServiceRoutes:
    port = PortRoutes(
        name="p",
        family=family,
        protocol=protocol,
        affinity_seconds=affinity,
        routes=routes,
        serving=serving,
    )
    return ServiceRoutes(namespace="default", service=name, ports=(port,))
