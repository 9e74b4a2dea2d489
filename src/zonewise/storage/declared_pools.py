"""Lists of pools, as classes and the configuration declare them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zonewise.storage import strict_json
from zonewise.storage.domains import DomainLabels, value_fault
from zonewise.storage.pools import PoolSpec
from zonewise.storage.strict_json import ShapeFault, at

NAME_LIMIT = 128
_POOL_NAME = re.compile(r"[A-Za-z0-9._][-A-Za-z0-9._]*")


def pool_list(value: Any, where: str, labels: DomainLabels) -> tuple[PoolSpec, ...]:
    """``[{"poolName", "dataPool"?, "domainSegments": [{"domainLabel", "value"}]}]``, not empty."""
    pools = tuple(pool(item, place, labels) for place, item in strict_json.items(value, where))
    if not pools:
        raise ShapeFault(where, "has no pool")
    check_names(pools, where)
    return pools


def pools_of_class(parameters: Mapping[str, str], labels: DomainLabels) -> tuple[PoolSpec, ...]:
    """The pools with domains that a class lists, and where their data is; none if it is wrong."""
    try:
        value = strict_json.read(parameters.get("topologyConstrainedPools", ""), "")
        pools = pool_list(value, "", labels)
    except ShapeFault:
        return ()
    usual = parameters.get("dataPool", "")
    apart = [PoolSpec(one.data_pool or usual, segments=one.segments) for one in pools]
    return (*pools, *(one for one in apart if one.name))


def check_names(pools: tuple[PoolSpec, ...], where: str) -> None:
    """A pool is in a list once."""
    seen: dict[str, int] = {}
    for place, one in enumerate(pools):
        if one.name in seen:
            raise ShapeFault(
                f"{where}[{place}].poolName",
                f"pool {one.name!r} is given twice, first as {where}[{seen[one.name]}]",
            )
        seen[one.name] = place


def pool(value: Any, where: str, labels: DomainLabels) -> PoolSpec:
    """One pool of such a list."""
    found = strict_json.members(
        value, where, required=("poolName", "domainSegments"), optional=("dataPool",)
    )
    return PoolSpec(
        pool_name(found["poolName"], at(where, "poolName")),
        pool_name(found["dataPool"], at(where, "dataPool")) if "dataPool" in found else "",
        segments(found["domainSegments"], at(where, "domainSegments"), labels),
    )


def pool_name(value: Any, where: str) -> str:
    """The name of a pool."""
    name = strict_json.text(value, where)
    if len(name) > NAME_LIMIT or not _POOL_NAME.fullmatch(name) or name in {".", ".."}:
        raise ShapeFault(
            where,
            f"{name!r} is not a pool name: letters, digits, '.', '_' and '-', at most {NAME_LIMIT}",
        )
    return name


def segments(value: Any, where: str, labels: DomainLabels) -> dict[str, str]:
    """``[{"domainLabel", "value"}]``, not empty, in the order of the labels.

    Labels may be given with their prefix or without. Where the driver has no domain labels, any
    name is accepted: nothing compares them.
    """
    found: dict[str, str] = {}
    for name, segment, place in _segments(value, where, labels):
        if name in found:
            raise ShapeFault(at(place, "domainLabel"), f"label {name!r} is given twice")
        found[name] = segment
    if not found:
        raise ShapeFault(where, "has no segment")
    return labels.ordered(found)


def _segments(value: Any, where: str, labels: DomainLabels) -> Iterator[tuple[str, str, str]]:
    for place, item in strict_json.items(value, where):
        found = strict_json.members(item, place, required=("domainLabel", "value"))
        label = strict_json.text(found["domainLabel"], at(place, "domainLabel"))
        name = labels.name_of(label) if labels.labels else label.rpartition("/")[2]
        if not name:
            raise ShapeFault(
                at(place, "domainLabel"),
                f"{label!r} is not one of the domain labels: {', '.join(labels.labels)}",
            )
        segment = strict_json.text(found["value"], at(place, "value"))
        if fault := value_fault(segment):
            raise ShapeFault(at(place, "value"), f"{segment!r} {fault}")
        yield name, segment, place
