"""Whether a class has a pool in a domain, and what follows if it has none. Pure.

A zone is added to a cluster, and the classes do not list a pool there yet. Their volumes for pods
in that zone are placed as if no domain was required (``placement.place_volume``), which is noticed
late, by the latency: so it is said on the claim, and by ``zonewise explain pvc``.
"""

from __future__ import annotations

from collections.abc import Mapping

from zonewise.api.reason import Reason
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels, Segments
from zonewise.storage.errors import StorageError
from zonewise.storage.parameters import (
    PARAMETER_KEYS,
    PlacementPolicy,
    parse_class,
    with_labelled_pools,
)
from zonewise.storage.placement_reasons import describe_domain
from zonewise.storage.pools import PoolState

NO_POOL = "NoPoolInDomain"


def find_missing_pool(
    class_name: str,
    parameters: Mapping[str, str],
    domain: Segments,
    labels: DomainLabels,
    configuration: StorageConfiguration,
    states: Mapping[str, PoolState] | None = None,
) -> Reason | None:
    """That a class has no pool in a domain; None if it has one, or does not place by domains.

    ``states`` are those of the backend, by which a class takes pools by their labels; without them
    the pools of the configuration count.

    A class that cannot be parsed has none to miss: creating a volume of it says why.
    """
    own = {key: value for key, value in parameters.items() if key in PARAMETER_KEYS}
    try:
        parsed = with_labelled_pools(
            parse_class(own, labels, configuration),
            configuration.pool_states if states is None else states,
            labels,
            configuration,
        )
    except StorageError:
        return None
    if parsed.placement in (PlacementPolicy.BALANCED, PlacementPolicy.DEFAULT_POOL):
        return None
    if not domain or not parsed.pools:
        return None
    if any(pool.segments.items() <= domain.items() for pool in parsed.pools):
        return None
    add = "Add a pool of that domain to the StorageClass"
    if parsed.pool_labels is not None:
        add = "Label a pool of that domain, as 'zonewise csi pools' prints it"
    message = f"class {class_name} has no pool in {describe_domain(domain)}"
    if parsed.placement is PlacementPolicy.PREFERRED:
        return Reason(
            code=NO_POOL,
            message=f"{message}, and says placement: preferred: its volumes cannot be used there",
            object=f"StorageClass/{class_name}",
            numbers={"pools": len(parsed.pools)},
            fix=f"{add}, or remove placement: preferred.",
        )
    return Reason(
        code=NO_POOL,
        message=f"{message}: volumes for it are made in another pool, as if they were bound"
        " immediately, and can be used from everywhere",
        object=f"StorageClass/{class_name}",
        numbers={"pools": len(parsed.pools)},
        fix=f"{add}; or set placement: preferred, so that pods with such volumes run elsewhere.",
    )
