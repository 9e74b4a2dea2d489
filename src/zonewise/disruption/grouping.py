"""Which domain a node belongs to, and which domains a budget guards.

A budget's term does two things at once, and one rule tells them apart. Keys with ``Exists`` (or
``topologyKeys``, if they are given) are *grouping keys*: their values name the domains. Any other
expression on a grouping key says which domains are *guarded*; one on another key, and a field, says
which nodes are *considered*. So "zone NotIn bar, zone Exists" guards every zone but bar, and counts
all of them.

Without a term everything is one domain, ``*``; with a term that groups by nothing, the nodes it
selects are. A node that is not considered, or lacks a grouping key, is in no domain: its pods are
``ELSEWHERE``, which is never guarded and in every sum. An empty term selects no node.

A domain's name is its values in the order of the keys, joined by ``/``, which no value contains.
The keys of zones and regions have an old and a new spelling; either means both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from zonewise.api.objects.core import NodeSelectorRequirement, NodeSelectorTerm
from zonewise.api.values import nodeselector
from zonewise.api.values.nodeselector import NodeTerm
from zonewise.api.values.selector import EVERYTHING, Selector
from zonewise.topology import REGION_LABEL, ZONE_LABEL

WHOLE = "*"
ELSEWHERE = ""
SEPARATOR = "/"

OLD_KEYS = {
    "failure-domain.beta.kubernetes.io/zone": ZONE_LABEL,
    "failure-domain.beta.kubernetes.io/region": REGION_LABEL,
}


@dataclass(frozen=True, slots=True)
class Grouping:
    """A compiled term; ``nodes`` is None where every node is looked at."""

    keys: tuple[str, ...] = ()
    guard: Selector = EVERYTHING
    nodes: NodeTerm | None = None
    nothing: bool = False

    def domain(self, labels: Mapping[str, str], name: str) -> str:
        """The domain of a node of this name with these labels."""
        if self.nothing:
            return ELSEWHERE
        if not self.keys and self.nodes is None:
            return WHOLE
        labels = renewed(labels)
        if self.nodes is not None and not self.nodes.matches(labels, name):
            return ELSEWHERE
        if not self.keys:
            return WHOLE
        values = [labels.get(key, "") for key in self.keys]
        return SEPARATOR.join(values) if all(values) else ELSEWHERE

    def guards(self, domain: str) -> bool:
        """Whether a domain of this name is guarded."""
        if domain == ELSEWHERE:
            return False
        if not self.keys:
            return True
        return self.guard.matches(dict(zip(self.keys, domain.split(SEPARATOR), strict=True)))

    @property
    def unguarded(self) -> Grouping:
        """The same domains, whichever of them are guarded."""
        return replace(self, guard=EVERYTHING)

    def names(self, domain: str) -> bool:
        """Whether a text could be the name of a domain; a remembered one may be of other keys."""
        if domain == ELSEWHERE:
            return True
        if not self.keys:
            return domain == WHOLE
        values = domain.split(SEPARATOR)
        return len(values) == len(self.keys) and all(values)


EVERYWHERE = Grouping()


def grouping_of(term: NodeSelectorTerm | None, topology_keys: tuple[str, ...] = ()) -> Grouping:
    """Compile a term; raises ParseError where it cannot be understood."""
    explicit = tuple(dict.fromkeys(OLD_KEYS.get(key, key) for key in topology_keys))
    if term is None:
        return Grouping(keys=explicit)
    expressions = [_renewed_key(one) for one in term.match_expressions or ()]
    keys = explicit or tuple(
        dict.fromkeys(one.key for one in expressions if one.operator == "Exists")
    )
    guards = NodeSelectorTerm(
        match_expressions=tuple(one for one in expressions if one.key in keys)
    )
    others = NodeSelectorTerm(
        match_expressions=tuple(one for one in expressions if one.key not in keys),
        match_fields=term.match_fields,
    )
    filters = bool(others.match_expressions or others.match_fields)
    return Grouping(
        keys=keys,
        guard=nodeselector.from_term(guards).labels,
        nodes=nodeselector.from_term(others) if filters else None,
        nothing=not (expressions or term.match_fields),
    )


def old_keys(term: NodeSelectorTerm | None, topology_keys: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The keys of a budget that have a newer spelling."""
    said = [one.key for one in (term.match_expressions or () if term is not None else ())]
    return tuple(sorted({key for key in (*said, *topology_keys) if key in OLD_KEYS}))


def renewed(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Labels with the new keys added wherever only the old ones are set."""
    missing = {
        new: labels[old] for old, new in OLD_KEYS.items() if old in labels and new not in labels
    }
    return {**labels, **missing} if missing else labels


def _renewed_key(one: NodeSelectorRequirement) -> NodeSelectorRequirement:
    if one.key not in OLD_KEYS:
        return one
    return NodeSelectorRequirement(key=OLD_KEYS[one.key], operator=one.operator, values=one.values)
