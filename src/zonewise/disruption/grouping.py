"""Which domain a node belongs to, and which domains a budget guards.

A budget's term does two things at once, and one rule distinguishes them. Keys with ``Exists`` (or
``topologyKeys``, if they are given) are *grouping keys*: their values name the domains. Any other
expression on a grouping key says which domains are *guarded*; one on another key, and a field, says
which nodes are *considered*. So "zone NotIn bar, zone Exists" guards every zone but bar, and counts
all of them.

Without a term everything is one domain, ``*``; with a term that groups by nothing, the nodes it
selects are. A node that is not considered, or lacks a grouping key, is in no domain: its pods are
in ``NO_DOMAIN``, which is never guarded and in every sum. An empty term selects no node.

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
from zonewise.topology.nodes import REGION_LABEL, ZONE_LABEL

ALL_DOMAINS = "*"
NO_DOMAIN = ""
SEPARATOR = "/"

OLD_KEYS = {
    "failure-domain.beta.kubernetes.io/zone": ZONE_LABEL,
    "failure-domain.beta.kubernetes.io/region": REGION_LABEL,
}


@dataclass(frozen=True, slots=True)
class Grouping:
    """A compiled term; ``node_filter`` is None where every node is considered."""

    keys: tuple[str, ...] = ()
    guard_selector: Selector = EVERYTHING
    node_filter: NodeTerm | None = None
    selects_nothing: bool = False

    def domain_of(self, labels: Mapping[str, str], name: str) -> str:
        """The domain of a node of this name with these labels."""
        if self.selects_nothing:
            return NO_DOMAIN
        if not self.keys and self.node_filter is None:
            return ALL_DOMAINS
        labels = with_new_keys(labels)
        if self.node_filter is not None and not self.node_filter.matches(labels, name):
            return NO_DOMAIN
        if not self.keys:
            return ALL_DOMAINS
        values = [labels.get(key, "") for key in self.keys]
        return SEPARATOR.join(values) if all(values) else NO_DOMAIN

    def guards(self, domain: str) -> bool:
        """Whether a domain of this name is guarded."""
        if domain == NO_DOMAIN:
            return False
        if not self.keys:
            return True
        return self.guard_selector.matches(
            dict(zip(self.keys, domain.split(SEPARATOR), strict=True))
        )

    @property
    def without_guard(self) -> Grouping:
        """The same domains, all of them guarded."""
        return replace(self, guard_selector=EVERYTHING)

    def is_domain_name(self, domain: str) -> bool:
        """Whether a text can be the name of a domain; a recorded name may be of other keys."""
        if domain == NO_DOMAIN:
            return True
        if not self.keys:
            return domain == ALL_DOMAINS
        values = domain.split(SEPARATOR)
        return len(values) == len(self.keys) and all(values)


NO_GROUPING = Grouping()


def grouping_of(term: NodeSelectorTerm | None, topology_keys: tuple[str, ...] = ()) -> Grouping:
    """Compile a term; raises ParseError if it is not valid."""
    given_keys = tuple(dict.fromkeys(OLD_KEYS.get(key, key) for key in topology_keys))
    if term is None:
        return Grouping(keys=given_keys)
    expressions = [_with_new_key(expression) for expression in term.match_expressions or ()]
    keys = given_keys or tuple(
        dict.fromkeys(
            expression.key for expression in expressions if expression.operator == "Exists"
        )
    )
    guards = NodeSelectorTerm(
        match_expressions=tuple(expression for expression in expressions if expression.key in keys)
    )
    others = NodeSelectorTerm(
        match_expressions=tuple(
            expression for expression in expressions if expression.key not in keys
        ),
        match_fields=term.match_fields,
    )
    has_filter = bool(others.match_expressions or others.match_fields)
    return Grouping(
        keys=keys,
        guard_selector=nodeselector.from_term(guards).labels,
        node_filter=nodeselector.from_term(others) if has_filter else None,
        selects_nothing=not (expressions or term.match_fields),
    )


def find_old_keys(term: NodeSelectorTerm | None, keys: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The keys of a budget that have a new spelling."""
    expressions = (term.match_expressions or ()) if term is not None else ()
    return tuple(sorted({*(item.key for item in expressions), *keys} & OLD_KEYS.keys()))


def with_new_keys(labels: Mapping[str, str]) -> Mapping[str, str]:
    """Labels with the new keys added wherever only the old ones are set."""
    missing = {
        new: labels[old] for old, new in OLD_KEYS.items() if old in labels and new not in labels
    }
    return {**labels, **missing} if missing else labels


def _with_new_key(expression: NodeSelectorRequirement) -> NodeSelectorRequirement:
    if expression.key not in OLD_KEYS:
        return expression
    return NodeSelectorRequirement(
        key=OLD_KEYS[expression.key], operator=expression.operator, values=expression.values
    )
