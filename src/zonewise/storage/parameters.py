"""Strict parsing of the parameters of a StorageClass.

An unknown key, a pool list of the wrong shape, a segment that is missing or duplicated is refused
with its path (``topologyConstrainedPools[1].domainSegments[0].value``): a class of which a part is
silently ignored puts volumes into the wrong zone for years.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

import msgspec

from zonewise.storage import strict_json
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels
from zonewise.storage.errors import Refusal, StorageError, invalid
from zonewise.storage.labelled_pools.selection import (
    POOL_LABELS,
    PoolSelector,
    parse_pool_selector,
    refuse_unlabelled,
    select_pools,
)
from zonewise.storage.pools import PoolSpec, PoolState, parse_pool_name, parse_pools
from zonewise.storage.strict_json import ShapeError

PARAMETERS_LIMIT = 4096
"""Bytes of all keys and values: the protocol's limit for a map."""
FOREIGN_PREFIX = "csi.storage.k8s.io/"
"""Keys for other components: secrets, file system, names of the claim."""
PARAMETER_KEYS = (
    "pool",
    "dataPool",
    "topologyConstrainedPools",
    "poolSet",
    POOL_LABELS,
    "placement",
    "crossDomain",
    "clusterID",
    "fsName",
)

RBD_KEYS = frozenset({"imageFeatures", "mkfsOptions", "mounter"})
"""Keys that only classes for RBD have."""


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
    """The parsed parameters of a class."""

    pool: str = ""
    """The pool of the journal, and the default pool."""
    data_pool: str = ""
    pools: tuple[PoolSpec, ...] = ()
    """The pools that volumes may be cut from, in the order of the class."""
    default_pool: PoolSpec | None = None
    """The default pool, if the class names one; it need not be among the others."""
    placement: PlacementPolicy = PlacementPolicy.REQUEST
    cross_domain: CrossDomain = CrossDomain.SAME_DOMAIN
    cluster_id: str = ""
    fs_name: str = ""
    backend_parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters that only the backend reads."""
    digest: str = ""
    """Equal for requests with equal parameters: this recognises a repeated request."""
    placement_refusal: Refusal | None = None
    """Why no volume can be placed: a pool or set of the class is not in the configuration."""
    pool_labels: PoolSelector | None = None
    """Which pools to take by their own labels: ``with_labelled_pools`` adds them."""


def parse_placeable_class(
    parameters: Mapping[str, str],
    labels: DomainLabels,
    configuration: StorageConfiguration,
    *,
    backend_keys: frozenset[str] = frozenset(),
) -> ClassParameters:
    """Parse a class whose volumes can be placed in the pools of the configuration.

    Raises StorageError. ``backend_keys`` are accepted besides ours. Where the configuration names
    pools, volumes of a class can be in no other.
    """
    result = with_labelled_pools(
        parse_class(parameters, labels, configuration, backend_keys=backend_keys),
        configuration.pool_states,
        labels,
        configuration,
    )
    if result.placement_refusal is not None:
        raise StorageError(result.placement_refusal)
    return result


def parse_class(
    parameters: Mapping[str, str],
    labels: DomainLabels,
    configuration: StorageConfiguration,
    *,
    backend_keys: frozenset[str] = frozenset(),
) -> ClassParameters:
    """Parse a class; raises StorageError with INVALID_ARGUMENT and the path of the error.

    Pools that the configuration lacks are a ``placement_refusal`` and no error: volumes that were
    placed before are still found by a repeated request.
    """
    own_parameters = {
        key: value for key, value in parameters.items() if not key.startswith(FOREIGN_PREFIX)
    }
    _check_keys(own_parameters, backend_keys)
    try:
        pool, data_pool = (
            _parse_pool_name(own_parameters, "pool"),
            _parse_pool_name(own_parameters, "dataPool"),
        )
        cluster_id, fs_name = (
            _parse_text(own_parameters, "clusterID"),
            _parse_text(own_parameters, "fsName"),
        )
        default_pool = _find_default_pool(pool, data_pool, configuration)
        pools = _find_pools(own_parameters, default_pool, labels, configuration)
        selector = _parse_selector(own_parameters, fs_name)
    except ShapeError as error:
        raise invalid("BadParameter", str(error), fix="Correct the StorageClass.") from None
    placement = _parse_choice(own_parameters, "placement", PlacementPolicy, PlacementPolicy.REQUEST)
    if placement is PlacementPolicy.DEFAULT_POOL and default_pool is None:
        raise invalid(
            "NoDefaultPool",
            f"{PlacementPolicy.DEFAULT_POOL.value!r} needs the parameter pool",
            path="placement",
            fix="Name the default pool with the parameter pool.",
        )
    uses_default = default_pool and placement is PlacementPolicy.DEFAULT_POOL
    used_by_policy = (default_pool,) if uses_default else ()
    return ClassParameters(
        pool,
        data_pool,
        pools,
        default_pool,
        placement,
        _parse_choice(own_parameters, "crossDomain", CrossDomain, CrossDomain.SAME_DOMAIN),
        cluster_id,
        fs_name,
        {key: own_parameters[key] for key in sorted(own_parameters) if key in backend_keys},
        hashlib.sha256(msgspec.json.encode(own_parameters, order="sorted")).hexdigest()[:32],
        _find_absent_pool(own_parameters.get("poolSet"), (*pools, *used_by_policy), configuration),
        selector,
    )


def with_labelled_pools(
    parameters: ClassParameters,
    states: Mapping[str, PoolState],
    labels: DomainLabels,
    configuration: StorageConfiguration,
) -> ClassParameters:
    """The class with the pools that it takes by their labels, of those that a backend has now.

    Where the configuration names pools, only these count. A class that has none left gets a
    ``placement_refusal``.
    """
    if parameters.pool_labels is None:
        return parameters
    pools = tuple(
        pool
        for pool in select_pools(parameters.pool_labels, states, labels)
        if not configuration.pools or configuration.find_pool(pool.name) is not None
    )
    if pools or parameters.placement is PlacementPolicy.DEFAULT_POOL:
        return replace(parameters, pools=pools)
    refusal = refuse_unlabelled(parameters.pool_labels, states, labels)
    return replace(parameters, placement_refusal=parameters.placement_refusal or refusal)


def lenient_class_pools(
    parameters: Mapping[str, str], labels: DomainLabels, states: Mapping[str, PoolState]
) -> tuple[PoolSpec, ...]:
    """The pools that a class lists or takes by their labels, and their data pools.

    Empty if its parameters are not valid.
    """
    try:
        selector = _parse_selector(parameters, parameters.get("fsName", ""))
        if selector is not None:
            pools = select_pools(selector, states, labels)
        else:
            value = strict_json.parse(parameters.get("topologyConstrainedPools", ""), "")
            pools = parse_pools(value, "", labels)
    except ShapeError:
        return ()
    default_data_pool = parameters.get("dataPool", "")
    data_pools = [
        PoolSpec(pool.data_pool or default_data_pool, segments=pool.segments) for pool in pools
    ]
    return (*pools, *(pool for pool in data_pools if pool.name))


def _check_keys(own_parameters: Mapping[str, str], backend_keys: frozenset[str]) -> None:
    known = sorted({*PARAMETER_KEYS, *backend_keys})
    for key in sorted(own_parameters):
        if key not in known:
            raise invalid(
                "UnknownParameter",
                f"unknown parameter; known are {', '.join(known)}",
                path=key,
                fix="Correct the StorageClass.",
            )
    size = sum(len(key.encode()) + len(value.encode()) for key, value in own_parameters.items())
    if size > PARAMETERS_LIMIT:
        raise invalid(
            "ParametersTooLong",
            f"the parameters take {size} bytes, allowed are {PARAMETERS_LIMIT}",
            fix="Put the pools into poolSets of the driver's configuration, and name the set with"
            " the parameter poolSet.",
        )


def _parse_text(parameters: Mapping[str, str], key: str) -> str:
    return strict_json.expect_text(parameters[key], key) if key in parameters else ""


def _parse_pool_name(parameters: Mapping[str, str], key: str) -> str:
    return parse_pool_name(parameters[key], key) if key in parameters else ""


def _find_default_pool(
    pool: str, data_pool: str, configuration: StorageConfiguration
) -> PoolSpec | None:
    if not pool:
        return None
    declared = configuration.find_pool(pool)
    return PoolSpec(pool, data_pool, declared.segments if declared is not None else {})


def _find_pools(
    parameters: Mapping[str, str],
    default_pool: PoolSpec | None,
    labels: DomainLabels,
    configuration: StorageConfiguration,
) -> tuple[PoolSpec, ...]:
    """The pools a class lists, or the set it names, or its default, or the configuration's.

    A set that is not in the configuration has none; pools with labels are added later.
    """
    pool_list, pool_set = parameters.get("topologyConstrainedPools"), parameters.get("poolSet")
    given = [
        key for key in ("topologyConstrainedPools", "poolSet", POOL_LABELS) if key in parameters
    ]
    if len(given) > 1:
        raise ShapeError(given[1], f"cannot be used together with {given[0]}")
    if POOL_LABELS in parameters:
        return ()
    if pool_list is not None:
        path = "topologyConstrainedPools"
        return parse_pools(strict_json.parse(pool_list, path), path, labels)
    if pool_set is not None:
        return configuration.pool_sets.get(pool_set, ())
    return configuration.pools if default_pool is None else (default_pool,)


def _parse_selector(parameters: Mapping[str, str], file_system: str) -> PoolSelector | None:
    if POOL_LABELS not in parameters:
        return None
    return parse_pool_selector(parameters[POOL_LABELS], POOL_LABELS, file_system)


def _find_absent_pool(
    pool_set: str | None, pools: tuple[PoolSpec, ...], configuration: StorageConfiguration
) -> Refusal | None:
    if pool_set is not None and pool_set not in configuration.pool_sets:
        known = ", ".join(sorted(configuration.pool_sets)) or "none"
        return invalid(
            "BadParameter",
            f"{pool_set!r} is not in poolSets of the configuration; known are {known}",
            path="poolSet",
            fix="Correct the StorageClass.",
        ).refusal
    for pool in pools if configuration.pools else ():
        if configuration.find_pool(pool.name) is None:
            known = ", ".join(sorted(pool_spec.name for pool_spec in configuration.pools))
            return invalid(
                "UnknownPool",
                f"there is no pool {pool.name!r}; the configuration has {known}",
                fix="Correct the StorageClass, or add the pool to the driver's configuration.",
            ).refusal
    return None


EnumChoice = TypeVar("EnumChoice", bound=Enum)


def _parse_choice(
    parameters: Mapping[str, str], key: str, choices: type[EnumChoice], default: EnumChoice
) -> EnumChoice:
    if key not in parameters:
        return default
    choices_by_value = {str(choice.value): choice for choice in choices if choice.value}
    if parameters[key] not in choices_by_value:
        raise invalid(
            "BadParameter",
            f"{parameters[key]!r} is not one of {', '.join(choices_by_value)}",
            path=key,
            fix="Correct the StorageClass.",
        )
    return choices_by_value[parameters[key]]
