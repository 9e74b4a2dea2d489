"""What a StorageClass says, strictly.

An unknown key, a pool list of the wrong shape, a segment that is missing or duplicated is refused
and the place is named (``topologyConstrainedPools[1].domainSegments[0].value``): a class that is
silently half understood puts volumes into the wrong zone for years.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

import msgspec

from zonewise.storage import declared_pools, strict_json
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.errors import Refusal, StorageError, invalid
from zonewise.storage.pools import PoolSpec
from zonewise.storage.strict_json import ShapeFault

PARAMETERS_LIMIT = 4096
"""Bytes of all keys and values: the protocol's limit for a map."""
FOREIGN = "csi.storage.k8s.io/"
"""Keys for other components: secrets, file system, names of the claim."""
KNOWN = (
    "pool",
    "dataPool",
    "topologyConstrainedPools",
    "poolSet",
    "placement",
    "crossDomain",
    "clusterID",
    "fsName",
)


class PlacementPolicy(Enum):
    """How the volumes of a class are placed."""

    REQUEST = ""
    """As the request says: its preference, or balanced if it has none."""
    PREFERRED = "preferred"
    """The same, and nowhere else: a domain without a pool is refused."""
    BALANCED = "balanced"
    DEFAULT_POOL = "default-pool"


class CrossDomain(Enum):
    """What happens to copies that are requested in another domain than their source."""

    SAME_DOMAIN = "same-domain"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class ClassParameters:
    """A class, understood."""

    pool: str = ""
    """Where the journal is, and the default pool."""
    data_pool: str = ""
    pools: tuple[PoolSpec, ...] = ()
    """What volumes may be cut from, in the order they were named."""
    default: PoolSpec | None = None
    """The default pool, if the class names one; it need not be among the others."""
    placement: PlacementPolicy = PlacementPolicy.REQUEST
    cross_domain: CrossDomain = CrossDomain.SAME_DOMAIN
    cluster_id: str = ""
    fs_name: str = ""
    further: Mapping[str, str] = field(default_factory=dict)
    """What only the backend understands."""
    digest: str = ""
    """The same for requests with the same parameters: how a repeated request is recognised."""
    absent: Refusal | None = None
    """Why no volume can be placed: a pool or set of the class is not in the configuration."""


def parse_parameters(
    parameters: Mapping[str, str],
    labels: DomainLabels,
    configuration: StorageConfiguration,
    *,
    further: frozenset[str] = frozenset(),
) -> ClassParameters:
    """A class whose volumes can be placed; raises StorageError with INVALID_ARGUMENT.

    ``further`` are the keys the backend accepts besides ours. Where the configuration names pools,
    volumes of a class can be in no other.
    """
    found = read_parameters(parameters, labels, configuration, further=further)
    if found.absent is not None:
        raise StorageError(found.absent)
    return found


def read_parameters(
    parameters: Mapping[str, str],
    labels: DomainLabels,
    configuration: StorageConfiguration,
    *,
    further: frozenset[str] = frozenset(),
) -> ClassParameters:
    """A class; raises StorageError with INVALID_ARGUMENT and the place of the fault.

    Pools that the configuration lacks are ``absent`` and no fault: volumes that were placed before
    are still found by a repeated request.
    """
    own = {key: value for key, value in parameters.items() if not key.startswith(FOREIGN)}
    _check_keys(own, further)
    try:
        pool, data_pool = _name(own, "pool"), _name(own, "dataPool")
        cluster_id, fs_name = _text(own, "clusterID"), _text(own, "fsName")
        default = _default(pool, data_pool, configuration)
        pools = _pools(own, default, labels, configuration)
    except ShapeFault as fault:
        raise invalid("BadParameter", str(fault), fix="Correct the StorageClass.") from None
    placement = _choice(own, "placement", PlacementPolicy, PlacementPolicy.REQUEST)
    if placement is PlacementPolicy.DEFAULT_POOL and default is None:
        raise invalid(
            "NoDefaultPool",
            f"{PlacementPolicy.DEFAULT_POOL.value!r} needs the parameter pool",
            where="placement",
            fix="Name the default pool with the parameter pool.",
        )
    used = (default,) if default and placement is PlacementPolicy.DEFAULT_POOL else ()
    return ClassParameters(
        pool,
        data_pool,
        pools,
        default,
        placement,
        _choice(own, "crossDomain", CrossDomain, CrossDomain.SAME_DOMAIN),
        cluster_id,
        fs_name,
        {key: own[key] for key in sorted(own) if key in further},
        hashlib.sha256(msgspec.json.encode(own, order="sorted")).hexdigest()[:32],
        _absent(own.get("poolSet"), (*pools, *used), configuration),
    )


def _check_keys(own: Mapping[str, str], further: frozenset[str]) -> None:
    for key in sorted(own):
        if key not in KNOWN and key not in further:
            raise invalid(
                "UnknownParameter",
                f"unknown parameter; known are {', '.join(sorted({*KNOWN, *further}))}",
                where=key,
                fix="Correct the StorageClass.",
            )
    size = sum(len(key.encode()) + len(value.encode()) for key, value in own.items())
    if size > PARAMETERS_LIMIT:
        raise invalid(
            "ParametersTooLong",
            f"the parameters take {size} bytes, allowed are {PARAMETERS_LIMIT}",
            fix="Put the pools into poolSets of the driver's configuration, and name the set with"
            " the parameter poolSet.",
        )


def _text(own: Mapping[str, str], key: str) -> str:
    return strict_json.text(own[key], key) if key in own else ""


def _name(own: Mapping[str, str], key: str) -> str:
    return declared_pools.pool_name(own[key], key) if key in own else ""


def _default(pool: str, data_pool: str, configuration: StorageConfiguration) -> PoolSpec | None:
    if not pool:
        return None
    known = configuration.pool(pool)
    return PoolSpec(pool, data_pool, known.segments if known is not None else {})


def _pools(
    own: Mapping[str, str],
    default: PoolSpec | None,
    labels: DomainLabels,
    configuration: StorageConfiguration,
) -> tuple[PoolSpec, ...]:
    """The pools a class lists, or the set it names, or its default, or the configuration's.

    A set that is not in the configuration has none.
    """
    listed, named = own.get("topologyConstrainedPools"), own.get("poolSet")
    if listed is not None and named is not None:
        raise ShapeFault("poolSet", "cannot be used together with topologyConstrainedPools")
    if listed is not None:
        where = "topologyConstrainedPools"
        return declared_pools.pool_list(strict_json.read(listed, where), where, labels)
    if named is not None:
        return configuration.pool_sets.get(named, ())
    return configuration.pools if default is None else (default,)


def _absent(
    named: str | None, pools: tuple[PoolSpec, ...], configuration: StorageConfiguration
) -> Refusal | None:
    if named is not None and named not in configuration.pool_sets:
        known = ", ".join(sorted(configuration.pool_sets)) or "none"
        return invalid(
            "BadParameter",
            f"{named!r} is not in poolSets of the configuration; known are {known}",
            where="poolSet",
            fix="Correct the StorageClass.",
        ).refusal
    for pool in pools if configuration.pools else ():
        if configuration.pool(pool.name) is None:
            known = ", ".join(sorted(one.name for one in configuration.pools))
            return invalid(
                "UnknownPool",
                f"there is no pool {pool.name!r}; the configuration has {known}",
                fix="Correct the StorageClass, or add the pool to the driver's configuration.",
            ).refusal
    return None


EnumChoice = TypeVar("EnumChoice", bound=Enum)


def _choice(
    own: Mapping[str, str], key: str, choices: type[EnumChoice], usual: EnumChoice
) -> EnumChoice:
    if key not in own:
        return usual
    known = {str(one.value): one for one in choices if one.value}
    if own[key] not in known:
        raise invalid(
            "BadParameter",
            f"{own[key]!r} is not one of {', '.join(known)}",
            where=key,
            fix="Correct the StorageClass.",
        )
    return known[own[key]]
