"""Pools: what volumes are cut from, their domains, their free space, and how they are declared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from zonewise.storage import strict_json
from zonewise.storage.domains import DomainLabels, domain_value_error
from zonewise.storage.strict_json import ShapeError, child

POOL_NAME_LIMIT = 128
_POOL_NAME = re.compile(r"[A-Za-z0-9._][-A-Za-z0-9._]*")


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool as a class or the configuration declares it.

    ``segments`` says which domain it belongs to: short label names (``zone``) to values, in the
    order of the domain labels, the largest domain first. A pool without segments is everywhere.
    """

    name: str
    data_pool: str = ""
    segments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolState:
    """What a backend reports about a pool: bytes it can hold, bytes promised, and its health."""

    capacity: int
    promised: int = 0
    health: Fraction = Fraction(1)
    alive: bool = True
    """Whether it can serve at all: the pool of a failed zone may look like the emptiest."""
    limited: bool = True
    """Whether no more than its capacity may be promised; else its volumes are thin."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What it says about itself: short label names to values (``storage.labelled_pools``)."""
    file_system: str = ""
    """The file system that it is a data pool of."""

    @property
    def usable(self) -> bool:
        """Whether anything can be written in it now: it is alive and has some health."""
        return self.alive and self.health > 0

    @property
    def limit(self) -> int | None:
        """What may be promised in total; None if that is not enforced here."""
        return self.capacity if self.limited else None


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that can be chosen."""

    spec: PoolSpec
    state: PoolState

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.spec.name

    @property
    def segments(self) -> Mapping[str, str]:
        """The domain it belongs to."""
        return self.spec.segments

    @property
    def free(self) -> int:
        """Bytes that are not promised yet; 0 if more is promised than the pool has."""
        return max(0, self.state.capacity - self.state.promised)

    @property
    def alive(self) -> bool:
        """Whether volumes can be created in it now."""
        return self.state.usable

    def can_take(self, size: int) -> bool:
        """Whether a volume of so many bytes can be created in it now."""
        return self.alive and self.state.promised + size <= self.state.capacity

    @property
    def effective_free(self) -> Fraction:
        """Free bytes times health: what balancing compares."""
        return self.free * self.state.health


ABSENT_POOL = PoolState(0, health=Fraction(0), alive=False)
"""The state of a pool that a backend does not have."""


def existing_pools(specs: Iterable[PoolSpec], states: Mapping[str, PoolState]) -> tuple[Pool, ...]:
    """The pools that a backend has, with their states; the others are left out."""
    return tuple(Pool(spec, states[spec.name]) for spec in specs if spec.name in states)


def declared_pools(specs: Iterable[PoolSpec], states: Mapping[str, PoolState]) -> tuple[Pool, ...]:
    """All pools; one that the backend does not have is dead, so its domain still has a pool."""
    return tuple(Pool(spec, states.get(spec.name, ABSENT_POOL)) for spec in specs)


def parse_pools(value: Any, path: str, labels: DomainLabels) -> tuple[PoolSpec, ...]:
    """``[{"poolName", "dataPool"?, "domainSegments": [{"domainLabel", "value"}]}]``, not empty."""
    pools = tuple(
        parse_pool(item, item_path, labels)
        for item_path, item in strict_json.expect_list(value, path)
    )
    if not pools:
        raise ShapeError(path, "has no pool")
    check_unique_names(pools, path)
    return pools


def check_unique_names(pools: tuple[PoolSpec, ...], path: str) -> None:
    """Raise ShapeError if a pool is in a list twice."""
    first_index: dict[str, int] = {}
    for index, pool in enumerate(pools):
        if pool.name in first_index:
            raise ShapeError(
                f"{path}[{index}].poolName",
                f"pool {pool.name!r} is given twice, first as {path}[{first_index[pool.name]}]",
            )
        first_index[pool.name] = index


def parse_pool(value: Any, path: str, labels: DomainLabels) -> PoolSpec:
    """Parse a pool of such a list."""
    members = strict_json.expect_object(
        value, path, required=("poolName", "domainSegments"), optional=("dataPool",)
    )
    return PoolSpec(
        parse_pool_name(members["poolName"], child(path, "poolName")),
        parse_pool_name(members["dataPool"], child(path, "dataPool"))
        if "dataPool" in members
        else "",
        parse_segments(members["domainSegments"], child(path, "domainSegments"), labels),
    )


def parse_pool_name(value: Any, path: str) -> str:
    """Parse the name of a pool."""
    name = strict_json.expect_text(value, path)
    if len(name) > POOL_NAME_LIMIT or not _POOL_NAME.fullmatch(name) or name in {".", ".."}:
        raise ShapeError(
            path,
            f"{name!r} is not a pool name: letters, digits, '.', '_' and '-', at most"
            f" {POOL_NAME_LIMIT}",
        )
    return name


def parse_file_system_name(value: Any, path: str) -> str:
    """Parse the name of a file system, which Ceph takes for an option if it begins so."""
    name = strict_json.expect_text(value, path)
    if len(name) > POOL_NAME_LIMIT or not _POOL_NAME.fullmatch(name):
        raise ShapeError(
            path,
            f"{name!r} is not the name of a file system: letters, digits, '.', '_' and '-', not"
            f" '-' first, at most {POOL_NAME_LIMIT}",
        )
    return name


def parse_segments(value: Any, path: str, labels: DomainLabels) -> dict[str, str]:
    """``[{"domainLabel", "value"}]``, not empty, in the order of the labels.

    Labels may be given with their prefix or without. Where the driver has no domain labels, any
    name is accepted: nothing compares them.
    """
    segments: dict[str, str] = {}
    for name, segment, item_path in _parse_segment_items(value, path, labels):
        if name in segments:
            raise ShapeError(child(item_path, "domainLabel"), f"label {name!r} is given twice")
        segments[name] = segment
    if not segments:
        raise ShapeError(path, "has no segment")
    return labels.ordered(segments)


def _parse_segment_items(
    value: Any, path: str, labels: DomainLabels
) -> Iterator[tuple[str, str, str]]:
    for item_path, item in strict_json.expect_list(value, path):
        members = strict_json.expect_object(item, item_path, required=("domainLabel", "value"))
        label = strict_json.expect_text(members["domainLabel"], child(item_path, "domainLabel"))
        name = labels.name_of(label) if labels.labels else label.rpartition("/")[2]
        if not name:
            raise ShapeError(
                child(item_path, "domainLabel"),
                f"{label!r} is not one of the domain labels: {', '.join(labels.labels)}",
            )
        segment = strict_json.expect_text(members["value"], child(item_path, "value"))
        if error := domain_value_error(segment):
            raise ShapeError(child(item_path, "value"), f"{segment!r} {error}")
        yield name, segment, item_path
