"""What Ceph's own maps say about pools. Pure.

A pool's rule names where its data may be (``take``), and below that are OSDs, up or not. From that
follows which domain a pool really is in, whether any of it is alive, and how much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from zonewise.storage.labelled_pools.selection import labels_in_metadata
from zonewise.storage.pools import PoolSpec, PoolState

RBD = "rbd"
CEPHFS = "cephfs"
"""Ceph's names of what a pool is for."""
_DATA_POOL_KEY = "data"
"""Where Ceph says of which file system a pool is a data pool."""
_FULL_FLAGS = frozenset({"full", "full_quota", "full_no_quota"})


@dataclass(frozen=True, slots=True)
class CephPool:
    """A pool: how much it can still take, how much of it is up, and where it is."""

    name: str
    id: int
    applications: Mapping[str, Mapping[str, str]]
    """What it is for (``rbd``, ``cephfs``), with the metadata of each."""
    available: int
    full: bool
    osd_count: int
    up_count: int
    min_size: int
    """How many must be up for it to serve."""
    buckets: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Types of buckets (``zone``) to the names of those that its data is in."""

    @property
    def alive(self) -> bool:
        """Whether it can serve at all."""
        return self.up_count >= max(1, self.min_size)

    @property
    def state(self) -> PoolState:
        """What placement needs. Ceph enforces space itself: volumes are thin."""
        return PoolState(
            capacity=0 if self.full else self.available,
            health=Fraction(self.up_count, self.osd_count) if self.osd_count else Fraction(0),
            alive=self.alive,
            limited=False,
        )

    def labelled_state(self, application: str) -> PoolState:
        """The same with the labels that the pool has for an application.

        A pool for CephFS that is no data pool of a file system can hold no volume: it has none.
        """
        metadata = self.applications.get(application, {})
        file_system = metadata.get(_DATA_POOL_KEY, "") if application == CEPHFS else ""
        if application == CEPHFS and not file_system:
            return self.state
        return replace(self.state, labels=labels_in_metadata(metadata), file_system=file_system)


def parse_pools(
    space: Mapping[str, Any], osds: Mapping[str, Any], crush: Mapping[str, Any]
) -> dict[str, CephPool]:
    """The pools of ``df``, ``osd dump`` and ``osd crush dump``."""
    available = {pool["name"]: pool["stats"]["max_avail"] for pool in space["pools"]}
    used = {pool["name"]: pool["stats"].get("stored", 0) for pool in space["pools"]}
    up = {osd["osd"] for osd in osds["osds"] if osd["up"]}
    buckets = {bucket["id"]: bucket for bucket in crush["buckets"]}
    rules = {rule["rule_id"]: rule for rule in crush["rules"]}
    pools = {}
    for pool in osds["pools"]:
        name = pool["pool_name"]
        roots = [step["item"] for step in rules[pool["crush_rule"]]["steps"] if "item" in step]
        members = {osd for root in roots for osd in _osds_below(root, buckets)}
        free = available.get(name, 0)
        if pool["quota_max_bytes"]:
            free = min(free, max(0, pool["quota_max_bytes"] - used.get(name, 0)))
        pools[name] = CephPool(
            name=name,
            id=pool["pool"],
            applications=pool.get("application_metadata", {}),
            available=int(free),
            full=bool(_FULL_FLAGS & set(pool["flags_names"].split(","))),
            osd_count=len(members),
            up_count=len(members & up),
            min_size=pool["min_size"],
            buckets=_buckets_above(members, buckets),
        )
    return pools


def find_contradictions(
    declared: Iterable[PoolSpec], pools: Mapping[str, CephPool]
) -> list[dict[str, str]]:
    """Where what is declared about pools is not what CRUSH does; by pool.

    A segment is compared where CRUSH has buckets of that type: a label ``zone`` with zones.
    """
    differences = []
    for spec in sorted(declared, key=lambda spec: spec.name):
        pool = pools.get(spec.name)
        if pool is None:
            differences.append(
                {"pool": spec.name, "declared": "", "crush": "there is no such pool"}
            )
            continue
        for label, value in spec.segments.items():
            actual = pool.buckets.get(label)
            if actual is not None and actual != {value}:
                names = ", ".join(sorted(actual))
                differences.append(
                    {"pool": spec.name, "declared": f"{label}={value}", "crush": f"{label}={names}"}
                )
    return differences


def find_failed_domains(
    osds: Mapping[str, Any], crush: Mapping[str, Any], types: Iterable[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """The buckets of the smallest of these types that CRUSH has, and those that have no OSD up.

    Buckets that hold no OSD at all say nothing.
    """
    up = {osd["osd"] for osd in osds["osds"] if osd["up"]}
    buckets = {bucket["id"]: bucket for bucket in crush["buckets"]}
    down_by_type: dict[str, dict[str, bool]] = {}
    for id, bucket in buckets.items():
        members = _osds_below(id, buckets)
        if members and "~" not in bucket["name"]:
            down_by_type.setdefault(bucket["type_name"], {})[bucket["name"]] = not members & up
    for kind in reversed([*types]):
        if kind in down_by_type:
            failed = {name for name, down in down_by_type[kind].items() if down}
            return frozenset(down_by_type[kind]), frozenset(failed)
    return frozenset(), frozenset()


def _osds_below(item: int, buckets: Mapping[int, Mapping[str, Any]]) -> set[int]:
    if item >= 0:
        return {item}
    return {
        osd
        for child in buckets.get(item, {"items": ()})["items"]
        for osd in _osds_below(child["id"], buckets)
    }


def _buckets_above(
    osds: set[int], buckets: Mapping[int, Mapping[str, Any]]
) -> Mapping[str, frozenset[str]]:
    names_by_type: dict[str, set[str]] = {}
    for id, bucket in buckets.items():
        if _osds_below(id, buckets) & osds and "~" not in bucket["name"]:
            names_by_type.setdefault(bucket["type_name"], set()).add(bucket["name"])
    return {kind: frozenset(names) for kind, names in names_by_type.items()}
