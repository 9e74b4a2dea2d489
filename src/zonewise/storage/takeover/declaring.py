"""What an administrator who declares a domain dead, or gives it back, is warned of. Pure.

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
from zonewise.storage.takeover.standing_in import ALL, TakeoverMap, covers, domain_name


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A node's domain, and whether the node is Ready."""

    at: Segments
    ready: bool


def unknown_domain(names: Iterable[str], domains: Iterable[Segments]) -> str | None:
    """The sentence for the first name that is no domain; None if all are, or no domain is known."""
    known = [one for one in domains if one]
    for name in names:
        if known and name != ALL and not any(covers(name, one) for one in known):
            listed = ", ".join(sorted({domain_name(one) for one in known}))
            return f"there is no domain {name}; the domains are {listed}"
    return None


def still_ready(source: str, nodes: Iterable[NodePlace]) -> Reason | None:
    """The warning for taking over a domain that is alive."""
    within = [one for one in nodes if covers(source, one.at)]
    ready = sum(one.ready for one in within)
    if not ready:
        return None
    return Reason(
        code="TakenNodesReady",
        message=f"{ready} of {len(within)} nodes of {source} are Ready: a takeover declares them"
        " dead",
        numbers={"ready": ready, "nodes": len(within)},
        fix=f"If {source} lives, give it back: zonewise takeover clear {source}.",
    )


def force_needed(source: str, nodes: Iterable[NodePlace], taken: TakeoverMap) -> str | None:
    """The sentence for taking over a domain that is alive; None if it is down, or taken already."""
    warning = still_ready(source, nodes)
    if warning is None or source in taken.targets:
        return None
    return (
        f"{warning.message}; wait until they are not Ready, or add --force to take {source} over"
        " nevertheless"
    )


def still_down(source: str, nodes: Iterable[NodePlace]) -> Reason | None:
    """The warning for giving back a domain without a Ready node."""
    within = [one for one in nodes if covers(source, one.at)]
    if any(one.ready for one in within):
        return None
    what = (
        f"none of {len(within)} nodes of {source} is Ready" if within else f"{source} has no node"
    )
    return Reason(
        code="GivenBackDown",
        message=f"{what}: pods that start with its volumes are Pending until it is back",
        fix="Leave pods that still run elsewhere until then, or take it over again.",
    )
