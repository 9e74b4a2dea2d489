"""Devices: claims, and what drivers offer."""

from __future__ import annotations

from typing import Any

from zonewise.embedded.apiserver.codec.printers.base import (
    Obj,
    age_of,
    name_of,
    prints,
    spec_of,
    status_of,
)


@prints("resource.k8s.io/resourceclaims")
def _resource_claim(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    states: list[str] = []
    if obj["metadata"].get("deletionTimestamp"):
        states.append("deleted")
    if status.get("allocation") is not None:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    return [name_of(obj), ",".join(states or ["pending"]), age_of(obj, now)]


@prints("resource.k8s.io/resourceslices")
def _resource_slice(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    return [
        name_of(obj),
        spec.get("nodeName") or "",
        spec.get("driver", ""),
        (spec.get("pool") or {}).get("name", ""),
        age_of(obj, now),
    ]
