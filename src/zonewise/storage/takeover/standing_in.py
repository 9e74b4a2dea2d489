"""Which domain stands in for which, and how that is labelled.

A volume's node affinity can never change, so it names two places from the beginning: its home, and
"a node that stands in for its home", one label that no node has until there is a takeover. Taking
over is putting that label on nodes, giving back is removing it. Neither touches volumes, nor the
keys that nodes report: a provisioner that finds nodes with different keys leaves some of them out.

A domain is called by its values from the largest to the smallest, ``r1/zone-a``, or shorter by the
last of them, ``zone-a``. A larger domain covers those within it: a node that stands in for ``r1``
stands in for ``r1/zone-a``, too. ``all`` are the nodes of every domain that is not taken over
itself.

The label is ``topology.<driver>/takeover.<domain>``. Names that do not fit, and those that two
domains might share once they are joined, end in a hash of the domain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zonewise.api.objects.storage import PersistentVolume
from zonewise.api.reason import Reason
from zonewise.api.values.labels import NAME_LIMIT
from zonewise.storage import strict_json
from zonewise.storage.domains import KEY_PREFIX, TAKEOVER, DomainLabels, Segments, value_fault
from zonewise.storage.pools import Pool
from zonewise.storage.strict_json import ShapeFault, at

ALL = "all"
YES = "true"
HASH_DIGITS = 10
TAKEN_POOL_DEAD = "TakenPoolDead"
"""The reason of a warning that only a caller with access to the storage can give."""


@dataclass(frozen=True, slots=True)
class TakeoverMap:
    """Failed domains, and those that stand in for each: names of domains, or ``all``."""

    targets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def stands_in(self, node: Segments, source: str) -> bool:
        """Whether a node in a domain stands in for a failed one."""
        if not node or covers(source, node):
            return False
        targets = self.targets.get(source, ())
        if targets == (ALL,):
            return not any(covers(failed, node) for failed in self.targets)
        return any(covers(target, node) for target in targets)

    def taken(self, segments: Segments) -> bool:
        """Whether a domain is taken over, so that what is in it counts as dead."""
        return any(covers(source, segments) for source in self.targets)


NO_TAKEOVER = TakeoverMap()


def parse_map(value: Any, where: str) -> TakeoverMap:
    """``{"<source>": ["<target>", …] | ["all"]}`` as ``strict_json`` read it; raises ShapeFault."""
    found: dict[str, tuple[str, ...]] = {}
    for source, listed in strict_json.members(value, where, optional=None).items():
        place = at(where, source)
        _check_name(source, place)
        if source == ALL:
            raise ShapeFault(place, f"{ALL!r} cannot be taken over")
        targets: dict[str, None] = {}
        for spot, item in strict_json.items(listed, place):
            target = strict_json.text(item, spot)
            _check_name(target, spot)
            if target in targets:
                raise ShapeFault(spot, f"domain {target!r} is given twice")
            if target == source or target.startswith(f"{source}/"):
                raise ShapeFault(spot, f"domain {source!r} cannot take over itself")
            targets[target] = None
        if not targets:
            raise ShapeFault(place, f"names no domain that takes over, nor {ALL!r}")
        if ALL in targets and len(targets) > 1:
            raise ShapeFault(place, f"{ALL!r} cannot be combined with others")
        found[source] = tuple(targets)
    if loop := takeover_loop(found):
        raise ShapeFault(where, f"domains take over each other: {' → '.join(loop)}")
    return TakeoverMap(found)


def _check_name(name: str, where: str) -> None:
    for part in name.split("/"):
        if fault := value_fault(part):
            raise ShapeFault(where, f"{name!r} is not a domain: {part!r} {fault}")


def takeover_loop(targets: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Domains that take over each other, the first one also at the end; empty if there are none.

    ``all`` leads to every domain that names who takes it over: one that names a domain which is
    taken over by ``all`` would wait for itself. Domains that are both taken over by ``all`` do not
    lead to each other: they are left to those that are not taken over.
    """
    edges = {**targets, ALL: tuple(source for source, by in targets.items() if by != (ALL,))}
    finished: set[str] = set()
    for start in targets:
        if start in finished:
            continue
        way: dict[str, Iterator[str]] = {start: iter(edges[start])}
        while way:
            name, ahead = next(reversed(way.items()))
            following = next(ahead, None)
            if following is None:
                finished.add(name)
                del way[name]
                continue
            if following in way:
                names = list(way)
                return [*names[names.index(following) :], following]
            if following in edges and following not in finished:
                way[following] = iter(edges[following])
    return []


def covers(name: str, segments: Segments) -> bool:
    """Whether a domain, given in the order of its labels, is the named one or within it."""
    values = list(segments.values())
    return any(
        name in (values[count - 1], "/".join(values[:count])) for count in range(1, len(values) + 1)
    )


def domain_name(segments: Segments) -> str:
    """The full name of a domain, given in the order of its labels."""
    return "/".join(segments.values())


def takeover_key(segments: Segments, labels: DomainLabels) -> str:
    """The key of the label of nodes that stand in for a domain."""
    values = list(labels.ordered(segments).values())
    joined = TAKEOVER + ".".join(values)
    ambiguous = len(values) > 1 and any("." in value for value in values)
    if ambiguous or len(joined) > NAME_LIMIT:
        digest = hashlib.sha256("/".join(values).encode()).hexdigest()[:HASH_DIGITS]
        joined = f"{joined[: NAME_LIMIT - HASH_DIGITS - 1].rstrip('-_.')}-{digest}"
    return f"{KEY_PREFIX}{labels.driver}/{joined}"


def takeover_term(segments: Segments, labels: DomainLabels) -> dict[str, str]:
    """The second place of a volume: nodes that stand in for its home. One key only."""
    return {takeover_key(segments, labels): YES} if segments else {}


def with_takeover(
    accessible: tuple[Mapping[str, str], ...], segments: Segments, labels: DomainLabels
) -> tuple[Mapping[str, str], ...]:
    """The topology of a volume with its second place, the home first: some read only that.

    A volume that can be used from everywhere stays so.
    """
    return (*accessible, takeover_term(segments, labels)) if accessible and segments else accessible


def home_of(volume: PersistentVolume, labels: DomainLabels) -> dict[str, str]:
    """The domain of a volume, in the order of the labels: the first place it names."""
    affinity = volume.spec.node_affinity
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    for term in terms or ():
        said = {
            one.key: one.values[0]
            for one in term.match_expressions or ()
            if one.operator == "In" and one.values
        }
        return labels.ordered(labels.understood(said))
    return {}


def named_domains(takeover: TakeoverMap, labels: DomainLabels) -> list[dict[str, str]]:
    """The failed domains that are called by their full names, so that no pool must list them."""
    return [
        dict(zip(labels.names, values, strict=True))
        for source in takeover.targets
        if len(values := source.split("/")) == len(labels.names)
    ]


def takeover_labels(
    node: Segments, takeover: TakeoverMap, domains: Iterable[Segments], labels: DomainLabels
) -> dict[str, str]:
    """The labels a node must have now, for the domains that volumes have their home in."""
    home = labels.ordered(node)
    found = {
        takeover_key(domain, labels)
        for domain in map(labels.ordered, domains)
        for source in takeover.targets
        if covers(source, domain) and takeover.stands_in(home, source)
    }
    return dict.fromkeys(sorted(found), YES)


def label_changes(
    existing: Mapping[str, str], wanted: Mapping[str, str], labels: DomainLabels
) -> dict[str, str | None]:
    """What to patch on a node: labels to set, and None for those to remove; no others."""
    begin = f"{KEY_PREFIX}{labels.driver}/{TAKEOVER}"
    changes: dict[str, str | None] = {
        key: None for key in existing if key.startswith(begin) and key not in wanted
    }
    changes |= {key: value for key, value in wanted.items() if existing.get(key) != value}
    return dict(sorted(changes.items()))


@dataclass(frozen=True, slots=True)
class VolumeUse:
    """A pod that uses a volume, and where both are."""

    volume: str
    pod: str
    """``namespace/name``; empty if only the volume is still attached."""
    node: str
    home: Segments
    """The volume's domain; empty if it can be used from everywhere."""
    at: Segments
    """The node's domain."""


def away_from_home(
    uses: Iterable[VolumeUse], takeover: TakeoverMap = NO_TAKEOVER
) -> tuple[Reason, ...]:
    """What still runs outside of its volume's domain, to be reported when domains are given back.

    No pod is evicted: pods keep running, and return home when they are started again. A pod that is
    away from a domain that is still taken over is where it should be.
    """
    away = sorted(
        (one for one in uses if not one.home.items() <= one.at.items()),
        key=lambda one: (one.pod, one.volume, one.node),
    )
    return tuple(
        Reason(
            code="AwayFromHome",
            message=(
                f"pod {one.pod} uses volume {one.volume} of {domain_name(one.home)} on"
                if one.pod
                else f"volume {one.volume} of {domain_name(one.home)} is still attached to"
            )
            + f" node {one.node} in {domain_name(one.at) or 'no domain'}",
            object=f"Pod/{one.pod}" if one.pod else f"PersistentVolume/{one.volume}",
            fix=_way_home(one, takeover),
        )
        for one in away
    )


def _way_home(use: VolumeUse, takeover: TakeoverMap) -> str:
    if not use.pod:
        return "It is detached once its last pod is gone."
    if takeover.taken(use.home):
        return f"Nothing: {domain_name(use.home)} is taken over, so it is where it should be."
    return "Delete the pod when it suits: the next one starts at home."


def takeover_warnings(
    takeover: TakeoverMap, pools: Iterable[Pool], nodes: Iterable[Segments]
) -> tuple[Reason, ...]:
    """What is wrong with a map that can be read: unknown names, pools that failed as well.

    All domains are given in the order of their labels.
    """
    offered = sorted(pools, key=lambda pool: pool.name)
    places = [*(pool.segments for pool in offered), *nodes]
    found: list[Reason] = []
    for source, targets in sorted(takeover.targets.items()):
        named = [name for name in (source, *targets) if name != ALL]
        for name in named:
            if not any(covers(name, place) for place in places):
                found.append(
                    Reason(
                        code="UnknownDomain",
                        message=f"topology-takeover names domain {name}, and no node or pool is in"
                        " it",
                        fix="Correct the name: the values of the domain labels, as in r1/zone-a.",
                    )
                )
        dead = [pool for pool in offered if covers(source, pool.segments) and not pool.living]
        found += [
            Reason(
                code=TAKEN_POOL_DEAD,
                message=f"pool {pool.name} of {source} has no living part: its volumes cannot be"
                " used from anywhere until it is back, whichever domain takes over",
                object=f"Pool/{pool.name}",
                fix="Take over domains only whose pools keep replicas in others.",
            )
            for pool in dead
        ]
    return tuple(found)
