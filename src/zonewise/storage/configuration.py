"""The driver's configuration file: parsing it, and editing the takeover map in it.

Version 2 is an object::

    {"version": 2,
     "topology-takeover": {"zone-a": ["zone-b"], "zone-c": ["all"]},
     "automatic-takeover": {"by": ["all"], "pause": "5m"},
     "pools": [{"poolName": "a", "capacity": "8Gi", "health": 1,
                "domainSegments": [{"domainLabel": "zone", "value": "a"}]}],
     "poolSets": {"fast": [{"poolName": …, "domainSegments": …} | "a"]},
     "clusters": [{"clusterID": …, "monitors": […], "user": …, "keyFile": …,
                   "readAffinity": true}]}

and is parsed strictly: an error is one sentence that names the path. Version 1 is a bare list of
clusters, as older drivers have it, with members for other programs, which are ignored here. It
cannot express a takeover: reading one after a version 2 file keeps the takeover that is in force,
because a failed domain that is given back by accident takes its volumes along.

The map of takeovers is edited as text: the rest keeps its meaning and its order, and neither a text
that is not valid nor one that would become invalid is changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from zonewise.api.errors import ConfigError, ParseError
from zonewise.api.values import quantity
from zonewise.storage import strict_json
from zonewise.storage.domains import DomainLabels
from zonewise.storage.pools import (
    PoolSpec,
    PoolState,
    check_unique_names,
    parse_pool,
    parse_pool_name,
    parse_segments,
)
from zonewise.storage.strict_json import ShapeError, child
from zonewise.storage.takeover.automatic import AutomaticTakeover, parse_automatic
from zonewise.storage.takeover.stand_ins import NO_TAKEOVER, TakeoverMap, parse_takeover_map

CAPACITY_LIMIT = 2**63 - 1
CLUSTER_ID_LIMIT = 64
"""Characters: what the other parts leave of the length of a volume's id."""


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
    """The content of the file."""

    version: int = 2
    pools: tuple[PoolSpec, ...] = ()
    pool_states: Mapping[str, PoolState] = field(default_factory=dict)
    """Capacity and health of the pools of the backend that keeps volumes in folders."""
    pool_sets: Mapping[str, tuple[PoolSpec, ...]] = field(default_factory=dict)
    clusters: tuple[CephCluster, ...] = ()
    takeover: TakeoverMap = NO_TAKEOVER
    automatic_takeover: AutomaticTakeover | None = None
    """How failed domains are taken over without an administrator; None: they are not."""

    def inherit_takeover(self, previous: StorageConfiguration) -> StorageConfiguration:
        """This configuration where it replaces another: version 1 keeps the takeover in force."""
        if self.version > 1:
            return self
        return replace(
            self, takeover=previous.takeover, automatic_takeover=previous.automatic_takeover
        )

    def find_pool(self, name: str) -> PoolSpec | None:
        """A pool by its name."""
        return next((pool for pool in self.pools if pool.name == name), None)

    def find_cluster(self, cluster_id: str) -> CephCluster | None:
        """A cluster by its id."""
        return next((spec for spec in self.clusters if spec.cluster_id == cluster_id), None)


def parse_configuration(text: str, labels: DomainLabels) -> StorageConfiguration:
    """Parse the file; raises ConfigError with one sentence."""
    try:
        value = strict_json.parse(text, "")
        if strict_json.is_array(value):
            clusters = _parse_clusters(value, "", strict=False)
            return StorageConfiguration(version=1, clusters=clusters)
        return _parse_version_2(value, labels)
    except ShapeError as error:
        raise ConfigError(str(error)) from None


def _parse_version_2(value: Any, labels: DomainLabels) -> StorageConfiguration:
    members = strict_json.expect_object(
        value,
        "",
        required=("version",),
        optional=("topology-takeover", "automatic-takeover", "pools", "poolSets", "clusters"),
    )
    if members["version"] != 2 or isinstance(members["version"], bool):
        raise ShapeError("version", "must be 2; version 1 is a list of clusters without a version")
    pools: list[PoolSpec] = []
    states: dict[str, PoolState] = {}
    for item_path, item in strict_json.expect_list(members.get("pools", []), "pools"):
        pool, state = _parse_pool_with_state(item, item_path, labels)
        pools.append(pool)
        states[pool.name] = state
    check_unique_names(tuple(pools), "pools")
    return StorageConfiguration(
        pools=tuple(pools),
        pool_states=states,
        pool_sets=_parse_pool_sets(members["poolSets"], {pool.name: pool for pool in pools}, labels)
        if "poolSets" in members
        else {},
        clusters=_parse_clusters(members.get("clusters", []), "clusters", strict=True),
        takeover=parse_takeover_map(members["topology-takeover"], "topology-takeover")
        if "topology-takeover" in members
        else NO_TAKEOVER,
        automatic_takeover=parse_automatic(members["automatic-takeover"], "automatic-takeover")
        if "automatic-takeover" in members
        else None,
    )


def _parse_pool_with_state(
    value: Any, path: str, labels: DomainLabels
) -> tuple[PoolSpec, PoolState]:
    members = strict_json.expect_object(
        value, path, required=("poolName", "capacity"), optional=("health", "domainSegments")
    )
    spec = PoolSpec(
        parse_pool_name(members["poolName"], child(path, "poolName")),
        segments=parse_segments(members["domainSegments"], child(path, "domainSegments"), labels)
        if "domainSegments" in members
        else {},
    )
    health = members.get("health", 1)
    if isinstance(health, bool) or not isinstance(health, int | Fraction) or not 0 <= health <= 1:
        raise ShapeError(child(path, "health"), "must be a number from 0 to 1")
    return spec, PoolState(
        _parse_capacity(members["capacity"], child(path, "capacity")),
        0,
        Fraction(health),
        labels=spec.segments,
    )


def _parse_capacity(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ShapeError(
            path, f"must be a quantity such as '8Gi', not {strict_json.describe_type(value)}"
        )
    try:
        amount = quantity.value(value)
    except ParseError as error:
        raise ShapeError(path, str(error)) from None
    if amount.denominator != 1 or not 0 < amount <= CAPACITY_LIMIT:
        raise ShapeError(path, f"{value!r} is not a number of bytes above 0")
    return int(amount)


def _parse_pool_sets(
    value: Any, pools: Mapping[str, PoolSpec], labels: DomainLabels
) -> dict[str, tuple[PoolSpec, ...]]:
    sets: dict[str, tuple[PoolSpec, ...]] = {}
    for name, pool_list in strict_json.expect_object(value, "poolSets", optional=None).items():
        path = child("poolSets", name)
        specs: list[PoolSpec] = []
        for item_path, item in strict_json.expect_list(pool_list, path):
            if isinstance(item, str):
                if item not in pools:
                    raise ShapeError(item_path, f"{item!r} is not one of the pools")
                specs.append(pools[item])
            else:
                specs.append(parse_pool(item, item_path, labels))
        if not specs:
            raise ShapeError(path, "has no pool")
        check_unique_names(tuple(specs), path)
        sets[name] = tuple(specs)
    return sets


def _parse_clusters(value: Any, path: str, *, strict: bool) -> tuple[CephCluster, ...]:
    clusters: list[CephCluster] = []
    for item_path, item in strict_json.expect_list(value, path):
        members = strict_json.expect_object(
            item,
            item_path,
            required=("clusterID",),
            optional=("monitors", "user", "keyFile", "readAffinity") if strict else None,
        )
        cluster = CephCluster(
            strict_json.expect_text(members["clusterID"], child(item_path, "clusterID")),
            tuple(
                strict_json.expect_text(monitor, monitor_path)
                for monitor_path, monitor in strict_json.expect_list(
                    members.get("monitors", []), child(item_path, "monitors")
                )
            ),
            _parse_text(members, "user", item_path),
            _parse_text(members, "keyFile", item_path),
            strict and _parse_flag(members, "readAffinity", item_path),
        )
        name = cluster.cluster_id
        if len(name) > CLUSTER_ID_LIMIT or not name.isascii() or " " in name:
            raise ShapeError(
                child(item_path, "clusterID"),
                f"must have at most {CLUSTER_ID_LIMIT} letters, digits and signs without a space",
            )
        if any(other.cluster_id == cluster.cluster_id for other in clusters):
            raise ShapeError(
                child(item_path, "clusterID"), f"cluster {cluster.cluster_id!r} is given twice"
            )
        clusters.append(cluster)
    return tuple(clusters)


def _parse_text(members: Mapping[str, Any], name: str, path: str) -> str:
    return strict_json.expect_text(members[name], child(path, name)) if name in members else ""


def _parse_flag(members: Mapping[str, Any], name: str, path: str) -> bool:
    value = members.get(name, False)
    if not isinstance(value, bool):
        raise ShapeError(
            child(path, name), f"must be true or false, not {strict_json.describe_type(value)}"
        )
    return value


TAKEOVER_MEMBER = "topology-takeover"


def parse_before_edit(text: str, labels: DomainLabels) -> StorageConfiguration:
    """Parse a configuration that is to be edited; ConfigError says to correct it first."""
    try:
        return parse_configuration(text, labels)
    except ConfigError as error:
        raise ConfigError(f"the configuration is not valid, correct it first: {error}") from None


def edit_takeover(
    text: str, changes: Mapping[str, tuple[str, ...] | None], labels: DomainLabels
) -> str:
    """The text of a configuration with domains taken over, or (None) given back.

    Raises ConfigError with one sentence.
    """
    parse_before_edit(text, labels)
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ConfigError(
            "the configuration is of version 1, which cannot express a takeover; make it version 2"
        )
    entries = dict(value.get(TAKEOVER_MEMBER, {}))
    for source, targets in changes.items():
        if targets is None:
            entries.pop(source, None)
        else:
            entries[source] = list(targets)
    if entries:
        value[TAKEOVER_MEMBER] = entries
    else:
        value.pop(TAKEOVER_MEMBER, None)
    changed = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    parse_configuration(changed, labels)
    return changed
