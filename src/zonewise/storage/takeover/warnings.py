"""What an administrator is warned of when domains are taken over or given back. Pure.

A map in a file may name domains that do not exist yet, and only causes a warning. A command is
typed by an administrator who looks at the cluster now: an unknown name is a typo, and is refused
with the names that exist. A domain with Ready nodes is taken over only if that is forced; if nodes
of a domain that is given back are not yet Ready, that is a warning.

All domains are given in the order of their labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zonewise.api.reason import Reason
from zonewise.storage.domains import Segments
from zonewise.storage.pools import Pool
from zonewise.storage.takeover.stand_ins import ALL, NO_TAKEOVER, TakeoverMap, covers, domain_name

TAKEN_POOL_DEAD = "TakenPoolDead"
"""The code of a warning that only a caller with access to the storage can give."""


@dataclass(frozen=True, slots=True)
class NodeReadiness:
    """Whether a node is Ready, and its domain."""

    domain: Segments
    ready: bool


def find_unknown_domain(names: Iterable[str], domains: Iterable[Segments]) -> str | None:
    """The sentence for the first name that is not a domain; None without known domains."""
    known = [domain for domain in domains if domain]
    for name in names:
        if known and name != ALL and not any(covers(name, domain) for domain in known):
            listed = ", ".join(sorted({domain_name(domain) for domain in known}))
            return f"there is no domain {name}; the domains are {listed}"
    return None


def warn_of_ready_nodes(source: str, nodes: Iterable[NodeReadiness]) -> Reason | None:
    """The warning for taking over a domain that is alive."""
    within = [node for node in nodes if covers(source, node.domain)]
    ready = sum(node.ready for node in within)
    if not ready:
        return None
    return Reason(
        code="TakenNodesReady",
        message=f"{ready} of {len(within)} nodes of {source} are Ready: a takeover declares them"
        " dead",
        numbers={"ready": ready, "nodes": len(within)},
        fix=f"If {source} is alive, give it back: zonewise takeover clear {source}.",
    )


def explain_force(source: str, nodes: Iterable[NodeReadiness], taken: TakeoverMap) -> str | None:
    """Why a takeover needs --force; None if the domain is down, or taken over already."""
    warning = warn_of_ready_nodes(source, nodes)
    if warning is None or source in taken.targets:
        return None
    return (
        f"{warning.message}; wait until they are not Ready, or add --force to take {source} over"
        " nevertheless"
    )


def warn_of_down_nodes(source: str, nodes: Iterable[NodeReadiness]) -> Reason | None:
    """The warning for giving back a domain without a Ready node."""
    within = [node for node in nodes if covers(source, node.domain)]
    if any(node.ready for node in within):
        return None
    state = (
        f"none of {len(within)} nodes of {source} is Ready" if within else f"{source} has no node"
    )
    return Reason(
        code="GivenBackDown",
        message=f"{state}: pods that start with its volumes are Pending until it is back",
        fix="Leave pods that still run elsewhere until then, or take it over again.",
    )


@dataclass(frozen=True, slots=True)
class VolumeUse:
    """A pod that uses a volume, and the domains of both."""

    volume: str
    pod: str
    """``namespace/name``; empty if only the volume is still attached."""
    node: str
    home: Segments
    """The volume's domain; empty if it can be used from everywhere."""
    node_domain: Segments


def find_away_from_home(
    uses: Iterable[VolumeUse], takeover: TakeoverMap = NO_TAKEOVER
) -> tuple[Reason, ...]:
    """Pods that run outside of their volume's domain, to be reported when domains are given back.

    No pod is evicted: pods keep running, and return home when they are started again. A pod that is
    away from a domain that is still taken over is where it should be.
    """
    away = sorted(
        (use for use in uses if not use.home.items() <= use.node_domain.items()),
        key=lambda use: (use.pod, use.volume, use.node),
    )
    return tuple(
        Reason(
            code="AwayFromHome",
            message=(
                f"pod {use.pod} uses volume {use.volume} of {domain_name(use.home)} on"
                if use.pod
                else f"volume {use.volume} of {domain_name(use.home)} is still attached to"
            )
            + f" node {use.node} in {domain_name(use.node_domain) or 'no domain'}",
            object=f"Pod/{use.pod}" if use.pod else f"PersistentVolume/{use.volume}",
            fix=_suggest_way_home(use, takeover),
        )
        for use in away
    )


def _suggest_way_home(use: VolumeUse, takeover: TakeoverMap) -> str:
    if not use.pod:
        return "It is detached once its last pod is gone."
    if takeover.is_taken_over(use.home):
        return f"Nothing: {domain_name(use.home)} is taken over, so it is where it should be."
    return (
        "Delete the pod soon: its replacement starts at home. Under a spread constraint it can keep"
        " other pods of its set Pending until then. An eviction may be refused, because a budget"
        " counts those as unavailable; deleting is not."
    )


def find_takeover_warnings(
    takeover: TakeoverMap, pools: Iterable[Pool], nodes: Iterable[Segments]
) -> tuple[Reason, ...]:
    """What is wrong with a valid map: unknown names, pools that failed as well."""
    sorted_pools = sorted(pools, key=lambda pool: pool.name)
    domains = [*(pool.segments for pool in sorted_pools), *nodes]
    warnings: list[Reason] = []
    for source, targets in sorted(takeover.targets.items()):
        names = [name for name in (source, *targets) if name != ALL]
        for name in names:
            if not any(covers(name, domain) for domain in domains):
                warnings.append(
                    Reason(
                        code="UnknownDomain",
                        message=f"topology-takeover names domain {name}, and no node or pool is in"
                        " it",
                        fix="Correct the name: the values of the domain labels, as in r1/zone-a.",
                    )
                )
        dead_pools = [
            pool for pool in sorted_pools if covers(source, pool.segments) and not pool.alive
        ]
        warnings += [
            Reason(
                code=TAKEN_POOL_DEAD,
                message=f"pool {pool.name} of {source} has no replica that is alive: its volumes"
                " cannot be used from anywhere until it is back, whichever domain takes over",
                object=f"Pool/{pool.name}",
                fix="Take over domains only whose pools keep replicas in others.",
            )
            for pool in dead_pools
        ]
    return tuple(warnings)
