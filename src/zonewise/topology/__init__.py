"""Where things are: zones of nodes and the share of traffic each zone sends. Pure."""

from zonewise.topology.eligible_nodes import EligibleNodes, PodPlacement, need_of, reach_of
from zonewise.topology.nodes import (
    CONTROL_PLANE_LABELS,
    HOSTNAME_LABEL,
    REGION_LABEL,
    ZONE_LABEL,
    counts,
    cpu_milli,
    is_control_plane,
    is_ready,
    zone_of,
)
from zonewise.topology.shares import MissingCpu, MissingZone, Shares, ZoneShare, shares_of

__all__ = [
    "CONTROL_PLANE_LABELS",
    "HOSTNAME_LABEL",
    "REGION_LABEL",
    "ZONE_LABEL",
    "EligibleNodes",
    "MissingCpu",
    "MissingZone",
    "PodPlacement",
    "Shares",
    "ZoneShare",
    "counts",
    "cpu_milli",
    "is_control_plane",
    "is_ready",
    "need_of",
    "reach_of",
    "shares_of",
    "zone_of",
]
