"""Cases of placement as plain dictionaries, and our decision about one."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from tests.storage.placement_model import Case

from zonewise.storage.domains import build_domain_labels
from zonewise.storage.parameters import CrossDomain, PlacementPolicy
from zonewise.storage.placement import (
    AccessibilityRequirement,
    Placement,
    PlacementRequest,
    PlacementSource,
    place_volume,
)
from zonewise.storage.pools import Pool, PoolSpec, PoolState


def pool_of(value: dict[str, Any]) -> Pool:
    """A pool of a case."""
    return Pool(
        PoolSpec(value["name"], "", value["segments"]),
        PoolState(value["capacity"], value["promised"], Fraction(value["health"]), value["alive"]),
    )


def decided(case: Case, seed: str = "") -> Placement:
    """Our decision."""
    requirement = None
    if case["requisite"] is not None:
        requirement = AccessibilityRequirement(tuple(case["requisite"]), tuple(case["preferred"]))
    source = case["source"]
    request = PlacementRequest(
        case["bytes"],
        requirement,
        PlacementPolicy(case["policy"]),
        case["default"] and pool_of(case["default"]),
        source and PlacementSource(source["pool"], source["segments"]),
        CrossDomain(case["cross"]),
        seed,
    )
    labels = build_domain_labels(case["labels"].values(), case["driver"])
    return place_volume(request, map(pool_of, case["pools"]), labels)
