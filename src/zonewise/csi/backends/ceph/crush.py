"""What Ceph's own maps say about pools. Pure.

A pool's rule names where its data may be (``take``), and below that are OSDs, up or not. From that
follows which domain a pool really is in, whether any of it is alive, and how much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from zonewise.storage.pools import PoolSpec, PoolState

_FULL = frozenset({"full", "full_quota", "full_no_quota"})


@dataclass(frozen=True, slots=True)
class CephPool:
    """A pool: how much it can still take, how much of it is up, and where it is."""

    name: str
    id: int
    application: frozenset[str]
    available: int
    full: bool
    osds: int
    up: int
    needed: int
    """How many must be up for it to serve."""
    buckets: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Types of buckets (``zone``) to the names of those that its data is in."""

    @property
    def alive(self) -> bool:
        """Whether it can serve at all."""
        return self.up >= max(1, self.needed)

    @property
    def state(self) -> PoolState:
        """What placement needs. Ceph enforces space itself: volumes are thin."""
        return PoolState(
            capacity=0 if self.full else self.available,
            health=Fraction(self.up, self.osds) if self.osds else Fraction(0),
            alive=self.alive,
            limited=False,
        )


def read_pools(
    space: Mapping[str, Any], osds: Mapping[str, Any], crush: Mapping[str, Any]
) -> dict[str, CephPool]:
    """The pools of ``df``, ``osd dump`` and ``osd crush dump``."""
    available = {one["name"]: one["stats"]["max_avail"] for one in space["pools"]}
    used = {one["name"]: one["stats"].get("stored", 0) for one in space["pools"]}
    up = {one["osd"] for one in osds["osds"] if one["up"]}
    buckets = {one["id"]: one for one in crush["buckets"]}
    rules = {one["rule_id"]: one for one in crush["rules"]}
    found = {}
    for pool in osds["pools"]:
        name = pool["pool_name"]
        taken = [step["item"] for step in rules[pool["crush_rule"]]["steps"] if "item" in step]
        members = {osd for item in taken for osd in _below(item, buckets)}
        room = available.get(name, 0)
        if pool["quota_max_bytes"]:
            room = min(room, max(0, pool["quota_max_bytes"] - used.get(name, 0)))
        found[name] = CephPool(
            name=name,
            id=pool["pool"],
            application=frozenset(pool.get("application_metadata", {})),
            available=int(room),
            full=bool(_FULL & set(pool["flags_names"].split(","))),
            osds=len(members),
            up=len(members & up),
            needed=pool["min_size"],
            buckets=_above(members, buckets),
        )
    return found


def contradictions(
    declared: Iterable[PoolSpec], pools: Mapping[str, CephPool]
) -> list[dict[str, str]]:
    """Where what is declared about pools is not what CRUSH does; by pool.

    A segment is compared where CRUSH has buckets of that type: a label ``zone`` with zones.
    """
    found = []
    for spec in sorted(declared, key=lambda one: one.name):
        pool = pools.get(spec.name)
        if pool is None:
            found.append({"pool": spec.name, "declared": "", "crush": "there is no such pool"})
            continue
        for label, value in spec.segments.items():
            real = pool.buckets.get(label)
            if real is not None and real != {value}:
                names = ", ".join(sorted(real))
                found.append(
                    {"pool": spec.name, "declared": f"{label}={value}", "crush": f"{label}={names}"}
                )
    return found


def failed_domains(
    osds: Mapping[str, Any], crush: Mapping[str, Any], types: Iterable[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The buckets of the smallest of these types that CRUSH has, and those that have no OSD up.

    Buckets that hold no OSD at all say nothing.
    """
    up = {one["osd"] for one in osds["osds"] if one["up"]}
    buckets = {one["id"]: one for one in crush["buckets"]}
    found: dict[str, dict[str, bool]] = {}
    for id, bucket in buckets.items():
        members = _below(id, buckets)
        if members and "~" not in bucket["name"]:
            found.setdefault(bucket["type_name"], {})[bucket["name"]] = not members & up
    for kind in reversed([*types]):
        if kind in found:
            failed = {name for name, down in found[kind].items() if down}
            return frozenset(found[kind]), frozenset(failed)
    return frozenset(), frozenset()


def _below(item: int, buckets: Mapping[int, Mapping[str, Any]]) -> set[int]:
    if item >= 0:
        return {item}
    return {
        osd
        for one in buckets.get(item, {"items": ()})["items"]
        for osd in _below(one["id"], buckets)
    }


def _above(
    osds: set[int], buckets: Mapping[int, Mapping[str, Any]]
) -> Mapping[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for id, bucket in buckets.items():
        if _below(id, buckets) & osds and "~" not in bucket["name"]:
            found.setdefault(bucket["type_name"], set()).add(bucket["name"])
    return {kind: frozenset(names) for kind, names in found.items()}
