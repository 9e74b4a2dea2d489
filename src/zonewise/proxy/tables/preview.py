"""What a proxy would write on a node, as text for ``nft -f``."""

from __future__ import annotations

from collections.abc import Iterable

from zonewise.api.objects.core import Node
from zonewise.proxy.objects import ServiceCIDR
from zonewise.proxy.settings import ProxySettings
from zonewise.proxy.tables.desired import compute_desired
from zonewise.proxy.tables.rendering import render_tables
from zonewise.proxy.tables.ruleset import frame
from zonewise.traffic.routes.choice import ClientLocation
from zonewise.traffic.routes.table import NodeRoutes


def preview(
    routes: NodeRoutes, node: Node, cidrs: Iterable[ServiceCIDR], settings: ProxySettings
) -> str:
    """The tables with all that would be in them; the same input in any order, the same text."""
    desired = compute_desired(routes.services, routes.node)
    texts = tuple(sorted(text for cidr in cidrs for text in cidr.spec.cidrs))
    return render_tables(
        {
            family: frame(family, frame_settings)
            for family, frame_settings in settings.frames().items()
        },
        dict(sorted(desired.elements.items())),
        settings.networks(node, ClientLocation.of(node).addresses, texts),
        sorted(desired.chains(), key=lambda entry: (entry[0], entry[1].name)),
    )
