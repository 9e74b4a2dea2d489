"""The driver's configuration file, as text.

Version 2 is an object::

    {"version": 2,
     "topology-takeover": {"zone-a": ["zone-b"], "zone-c": ["all"]},
     "automatic-takeover": {"by": ["all"], "pause": "5m"},
     "pools": [{"poolName": "a", "capacity": "8Gi", "health": 1,
                "domainSegments": [{"domainLabel": "zone", "value": "a"}]}],
     "poolSets": {"fast": [{"poolName": …, "domainSegments": …} | "a"]},
     "clusters": [{"clusterID": …, "monitors": […], "user": …, "keyFile": …,
                   "readAffinity": true}]}

and is read strictly: a fault is one sentence that names the place. Version 1 is a bare list of
clusters, as older drivers have it, with members for other programs, which are ignored here. It
cannot express a takeover: reading one after a version 2 file keeps the takeover that is in force,
because a failed domain that is given back by accident takes its volumes along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from zonewise.api.errors import ConfigError, ParseError
from zonewise.api.values import quantity
from zonewise.storage import declared_pools, strict_json, takeover
from zonewise.storage.domains import DomainLabels
from zonewise.storage.pools import PoolSpec, PoolState
from zonewise.storage.strict_json import ShapeFault, at
from zonewise.storage.takeover import NO_TAKEOVER, TakeoverMap
from zonewise.storage.takeover.automatic import AutomaticTakeover, parse_automatic

CAPACITY_LIMIT = 2**63 - 1
CLUSTER_ID_LIMIT = 64
"""How much of an id's length is left for it."""


@dataclass(frozen=True, slots=True)
class CephCluster:
    """A Ceph cluster and the driver's own user in it."""

    cluster_id: str
    monitors: tuple[str, ...] = ()
    user: str = ""
    key_file: str = ""
    read_affinity: bool = False
    """Whether nodes read from the replica that is next to them."""


@dataclass(frozen=True, slots=True)
class StorageConfiguration:
    """What the file says."""

    version: int = 2
    pools: tuple[PoolSpec, ...] = ()
    states: Mapping[str, PoolState] = field(default_factory=dict)
    """What is declared about the embedded backend's pools: capacity and health."""
    pool_sets: Mapping[str, tuple[PoolSpec, ...]] = field(default_factory=dict)
    clusters: tuple[CephCluster, ...] = ()
    takeover: TakeoverMap = NO_TAKEOVER
    automatic: AutomaticTakeover | None = None
    """Whether failed domains are taken over without a person; off if None."""

    def after(self, previous: StorageConfiguration) -> StorageConfiguration:
        """What holds when this file replaces another."""
        if self.version > 1:
            return self
        return replace(self, takeover=previous.takeover, automatic=previous.automatic)

    def pool(self, name: str) -> PoolSpec | None:
        """A pool by its name."""
        return next((pool for pool in self.pools if pool.name == name), None)

    def cluster(self, cluster_id: str) -> CephCluster | None:
        """A cluster by its id."""
        return next((one for one in self.clusters if one.cluster_id == cluster_id), None)


def parse_configuration(text: str, labels: DomainLabels) -> StorageConfiguration:
    """What a file says; raises ConfigError with one sentence."""
    try:
        value = strict_json.read(text, "")
        if strict_json.is_array(value):
            return StorageConfiguration(version=1, clusters=_clusters(value, "", strict=False))
        return _version_2(value, labels)
    except ShapeFault as fault:
        raise ConfigError(str(fault)) from None


def _version_2(value: Any, labels: DomainLabels) -> StorageConfiguration:
    found = strict_json.members(
        value,
        "",
        required=("version",),
        optional=("topology-takeover", "automatic-takeover", "pools", "poolSets", "clusters"),
    )
    if found["version"] != 2 or isinstance(found["version"], bool):
        raise ShapeFault("version", "must be 2; version 1 is a list of clusters without a version")
    pools: list[PoolSpec] = []
    states: dict[str, PoolState] = {}
    for place, item in strict_json.items(found.get("pools", []), "pools"):
        pool, state = _pool(item, place, labels)
        pools.append(pool)
        states[pool.name] = state
    declared_pools.check_names(tuple(pools), "pools")
    return StorageConfiguration(
        pools=tuple(pools),
        states=states,
        pool_sets=_pool_sets(found["poolSets"], {one.name: one for one in pools}, labels)
        if "poolSets" in found
        else {},
        clusters=_clusters(found.get("clusters", []), "clusters", strict=True),
        takeover=takeover.parse_map(found["topology-takeover"], "topology-takeover")
        if "topology-takeover" in found
        else NO_TAKEOVER,
        automatic=parse_automatic(found["automatic-takeover"], "automatic-takeover")
        if "automatic-takeover" in found
        else None,
    )


def _pool(value: Any, where: str, labels: DomainLabels) -> tuple[PoolSpec, PoolState]:
    found = strict_json.members(
        value, where, required=("poolName", "capacity"), optional=("health", "domainSegments")
    )
    spec = PoolSpec(
        declared_pools.pool_name(found["poolName"], at(where, "poolName")),
        segments=declared_pools.segments(
            found["domainSegments"], at(where, "domainSegments"), labels
        )
        if "domainSegments" in found
        else {},
    )
    health = found.get("health", 1)
    if isinstance(health, bool) or not isinstance(health, int | Fraction) or not 0 <= health <= 1:
        raise ShapeFault(at(where, "health"), "must be a number from 0 to 1")
    return spec, PoolState(_capacity(found["capacity"], at(where, "capacity")), 0, Fraction(health))


def _capacity(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ShapeFault(where, f"must be a quantity such as '8Gi', not {strict_json.sort(value)}")
    try:
        amount = quantity.value(value)
    except ParseError as error:
        raise ShapeFault(where, str(error)) from None
    if amount.denominator != 1 or not 0 < amount <= CAPACITY_LIMIT:
        raise ShapeFault(where, f"{value!r} is not a number of bytes above 0")
    return int(amount)


def _pool_sets(
    value: Any, pools: Mapping[str, PoolSpec], labels: DomainLabels
) -> dict[str, tuple[PoolSpec, ...]]:
    sets: dict[str, tuple[PoolSpec, ...]] = {}
    for name, listed in strict_json.members(value, "poolSets", optional=None).items():
        where = at("poolSets", name)
        specs: list[PoolSpec] = []
        for place, item in strict_json.items(listed, where):
            if isinstance(item, str):
                if item not in pools:
                    raise ShapeFault(place, f"{item!r} is not one of the pools")
                specs.append(pools[item])
            else:
                specs.append(declared_pools.pool(item, place, labels))
        if not specs:
            raise ShapeFault(where, "has no pool")
        declared_pools.check_names(tuple(specs), where)
        sets[name] = tuple(specs)
    return sets


def _clusters(value: Any, where: str, *, strict: bool) -> tuple[CephCluster, ...]:
    found: list[CephCluster] = []
    for place, item in strict_json.items(value, where):
        known = strict_json.members(
            item,
            place,
            required=("clusterID",),
            optional=("monitors", "user", "keyFile", "readAffinity") if strict else None,
        )
        cluster = CephCluster(
            strict_json.text(known["clusterID"], at(place, "clusterID")),
            tuple(
                strict_json.text(one, spot)
                for spot, one in strict_json.items(known.get("monitors", []), at(place, "monitors"))
            ),
            _text(known, "user", place),
            _text(known, "keyFile", place),
            strict and _flag(known, "readAffinity", place),
        )
        name = cluster.cluster_id
        if len(name) > CLUSTER_ID_LIMIT or not name.isascii() or " " in name:
            raise ShapeFault(
                at(place, "clusterID"),
                f"must have at most {CLUSTER_ID_LIMIT} letters, digits and signs without a space",
            )
        if any(one.cluster_id == cluster.cluster_id for one in found):
            raise ShapeFault(
                at(place, "clusterID"), f"cluster {cluster.cluster_id!r} is given twice"
            )
        found.append(cluster)
    return tuple(found)


def _text(found: Mapping[str, Any], name: str, where: str) -> str:
    return strict_json.text(found[name], at(where, name)) if name in found else ""


def _flag(found: Mapping[str, Any], name: str, where: str) -> bool:
    value = found.get(name, False)
    if not isinstance(value, bool):
        raise ShapeFault(at(where, name), f"must be true or false, not {strict_json.sort(value)}")
    return value
