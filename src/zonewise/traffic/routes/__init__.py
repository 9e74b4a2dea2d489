"""Where a connection goes: the routes of every way into a Service, on every node. Pure.

``choice`` says which endpoints traffic of a kind uses, ``policy`` which kind that of a Service is,
``endpoints`` and ``ways`` read slices and Services as a proxy does, ``claims`` says which Service
has a way that several name, ``service`` puts them together, ``table`` is the result, and ``flow``
adds up what all proxies do. Proxies, ``zonewise explain`` and simulated clients use it.
"""

from zonewise.traffic.routes.addresses import Address, Network, parse_address, parse_network
from zonewise.traffic.routes.choice import (
    NodeLabels,
    ProxyLocation,
    RouteRule,
    Selection,
    by_keys,
    by_weights,
    local,
    nearby,
    node_addresses,
)
from zonewise.traffic.routes.claims import Claim, Title, Way, WayClaims
from zonewise.traffic.routes.endpoints import read_endpoints
from zonewise.traffic.routes.flow import Flow, flow, flow_from
from zonewise.traffic.routes.policy import ServicePolicy
from zonewise.traffic.routes.service import (
    PROXY_NAME_LABEL,
    RouteSettings,
    is_routed,
    node_routes,
    port_endpoints,
    service_routes,
    ways_wanted,
)
from zonewise.traffic.routes.table import (
    Backend,
    Family,
    HealthCheck,
    NodeRoutes,
    Path,
    PortRoutes,
    Route,
    RouteAction,
    ServiceRoutes,
    Source,
)
from zonewise.traffic.routes.ways import NO_ADDRESSES, NodeAddresses

__all__ = [
    "NO_ADDRESSES",
    "PROXY_NAME_LABEL",
    "Address",
    "Backend",
    "Claim",
    "Family",
    "Flow",
    "HealthCheck",
    "Network",
    "NodeAddresses",
    "NodeLabels",
    "NodeRoutes",
    "Path",
    "PortRoutes",
    "ProxyLocation",
    "Route",
    "RouteAction",
    "RouteRule",
    "RouteSettings",
    "Selection",
    "ServicePolicy",
    "ServiceRoutes",
    "Source",
    "Title",
    "Way",
    "WayClaims",
    "by_keys",
    "by_weights",
    "flow",
    "flow_from",
    "is_routed",
    "local",
    "nearby",
    "node_addresses",
    "node_routes",
    "parse_address",
    "parse_network",
    "port_endpoints",
    "read_endpoints",
    "service_routes",
    "ways_wanted",
]
