"""Which domain stands in for which, and how that is labelled.

A volume's node affinity can never change, so it has two terms from the beginning: its home, and "a
node that stands in for its home", one label that no node has until there is a takeover. Taking
over is putting that label on nodes, giving back is removing it. Neither touches volumes, nor the
keys that nodes report: a provisioner that finds nodes with different keys leaves some of them out.

A domain is named by its values from the largest to the smallest, ``r1/zone-a``, or shorter by the
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
from zonewise.api.values.labels import NAME_LIMIT
from zonewise.storage import strict_json
from zonewise.storage.domains import (
    KEY_PREFIX,
    TAKEOVER_PREFIX,
    DomainLabels,
    Segments,
    domain_value_error,
)
from zonewise.storage.strict_json import ShapeError, child

ALL = "all"
LABEL_VALUE = "true"
HASH_DIGITS = 10


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

    def is_taken_over(self, segments: Segments) -> bool:
        """Whether a domain is taken over, so that everything in it counts as dead."""
        return any(covers(source, segments) for source in self.targets)


NO_TAKEOVER = TakeoverMap()


def parse_takeover_map(value: Any, path: str) -> TakeoverMap:
    """Parse ``{"<source>": ["<target>", …] | ["all"]}``; raises ShapeError."""
    targets_by_source: dict[str, tuple[str, ...]] = {}
    for source, target_list in strict_json.expect_object(value, path, optional=None).items():
        source_path = child(path, source)
        _check_name(source, source_path)
        if source == ALL:
            raise ShapeError(source_path, f"{ALL!r} cannot be taken over")
        targets: dict[str, None] = {}
        for target_path, item in strict_json.expect_list(target_list, source_path):
            target = strict_json.expect_text(item, target_path)
            _check_name(target, target_path)
            if target in targets:
                raise ShapeError(target_path, f"domain {target!r} is given twice")
            if target == source or target.startswith(f"{source}/"):
                raise ShapeError(target_path, f"domain {source!r} cannot take over itself")
            targets[target] = None
        if not targets:
            raise ShapeError(source_path, f"names no domain that takes over, nor {ALL!r}")
        if ALL in targets and len(targets) > 1:
            raise ShapeError(source_path, f"{ALL!r} cannot be combined with others")
        targets_by_source[source] = tuple(targets)
    if loop := find_takeover_loop(targets_by_source):
        raise ShapeError(path, f"domains take over each other: {' → '.join(loop)}")
    return TakeoverMap(targets_by_source)


def _check_name(name: str, path: str) -> None:
    for part in name.split("/"):
        if error := domain_value_error(part):
            raise ShapeError(path, f"{name!r} is not a domain: {part!r} {error}")


def find_takeover_loop(targets: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Domains that take over each other, the first one also at the end; empty if there are none.

    ``all`` leads to every domain that names its stand-ins: a domain whose stand-in is taken over by
    ``all`` would wait for itself. Domains that are both taken over by ``all`` do not lead to each
    other: domains that are not taken over stand in for both.
    """
    edges = {**targets, ALL: tuple(source for source, by in targets.items() if by != (ALL,))}
    finished: set[str] = set()
    for start in targets:
        if start in finished:
            continue
        route: dict[str, Iterator[str]] = {start: iter(edges[start])}
        while route:
            name, successors = next(reversed(route.items()))
            successor = next(successors, None)
            if successor is None:
                finished.add(name)
                del route[name]
                continue
            if successor in route:
                names = list(route)
                return [*names[names.index(successor) :], successor]
            if successor in edges and successor not in finished:
                route[successor] = iter(edges[successor])
    return []


def covers(name: str, segments: Segments) -> bool:
    """Whether a domain, given in the order of its labels, is the named one or within it."""
    values = list(segments.values())
    counts = range(1, len(values) + 1)
    return any(name in (values[count - 1], "/".join(values[:count])) for count in counts)


def domain_name(segments: Segments) -> str:
    """The full name of a domain, given in the order of its labels."""
    return "/".join(segments.values())


def takeover_key(segments: Segments, labels: DomainLabels) -> str:
    """The key of the label of nodes that stand in for a domain."""
    values = list(labels.ordered(segments).values())
    joined = TAKEOVER_PREFIX + ".".join(values)
    ambiguous = len(values) > 1 and any("." in value for value in values)
    if ambiguous or len(joined) > NAME_LIMIT:
        digest = hashlib.sha256("/".join(values).encode()).hexdigest()[:HASH_DIGITS]
        joined = f"{joined[: NAME_LIMIT - HASH_DIGITS - 1].rstrip('-_.')}-{digest}"
    return f"{KEY_PREFIX}{labels.driver}/{joined}"


def takeover_term(segments: Segments, labels: DomainLabels) -> dict[str, str]:
    """The second term of a volume's topology: nodes that stand in for its home. One key only."""
    return {takeover_key(segments, labels): LABEL_VALUE} if segments else {}


def add_takeover_term(
    accessible_topology: tuple[Mapping[str, str], ...], segments: Segments, labels: DomainLabels
) -> tuple[Mapping[str, str], ...]:
    """The topology of a volume with its second term; the home is first: some read only that.

    A volume that can be used from everywhere stays so.
    """
    return (
        (*accessible_topology, takeover_term(segments, labels))
        if accessible_topology and segments
        else accessible_topology
    )


def home_of(volume: PersistentVolume, labels: DomainLabels) -> dict[str, str]:
    """The domain of a volume, in the order of the labels: the first term of its affinity."""
    affinity = volume.spec.node_affinity
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    for term in terms or ():
        term_values = {
            expression.key: expression.values[0]
            for expression in term.match_expressions or ()
            if expression.operator == "In" and expression.values
        }
        return labels.ordered(labels.segments_of(term_values))
    return {}


def fully_named_domains(takeover: TakeoverMap, labels: DomainLabels) -> list[dict[str, str]]:
    """The failed domains that are given by full names: no pool has to list these."""
    return [
        dict(zip(labels.names, values, strict=True))
        for source in takeover.targets
        if len(values := source.split("/")) == len(labels.names)
    ]


def desired_takeover_labels(
    node: Segments, takeover: TakeoverMap, domains: Iterable[Segments], labels: DomainLabels
) -> dict[str, str]:
    """The takeover labels that a node must have now; ``domains`` are the homes of volumes."""
    home = labels.ordered(node)
    keys = {
        takeover_key(domain, labels)
        for domain in map(labels.ordered, domains)
        for source in takeover.targets
        if covers(source, domain) and takeover.stands_in(home, source)
    }
    return dict.fromkeys(sorted(keys), LABEL_VALUE)


def diff_takeover_labels(
    current: Mapping[str, str], desired: Mapping[str, str], labels: DomainLabels
) -> dict[str, str | None]:
    """What to patch on a node: labels to set, and None for those to remove; no others."""
    prefix = f"{KEY_PREFIX}{labels.driver}/{TAKEOVER_PREFIX}"
    changes: dict[str, str | None] = {
        key: None for key in current if key.startswith(prefix) and key not in desired
    }
    changes |= {key: value for key, value in desired.items() if current.get(key) != value}
    return dict(sorted(changes.items()))
