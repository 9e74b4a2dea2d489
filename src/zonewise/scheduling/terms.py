"""Affinity, anti-affinity and topology spread of a pod: compiled.

Two terms that mean the same are equal, so that many pods share one count (``pod_counts``).
``matchLabelKeys`` and ``mismatchLabelKeys`` are resolved with the labels of the pod that carries
the term; an API server has usually done so already, and doing it twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from zonewise.api.errors import ParseError
from zonewise.api.meta import LabelSelector
from zonewise.api.objects.pod import PodAffinityTerm, TopologySpreadConstraint
from zonewise.api.values import selector as labelselector
from zonewise.api.values.selector import NOTHING, Operator, Requirement, Selector
from zonewise.topology import HOSTNAME_LABEL, ZONE_LABEL


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Which pods are meant: by namespace, by the namespace's labels, by their own.

    Terminating pods are not ``counted`` where only others matter.
    """

    namespaces: frozenset[str]
    space: Selector
    pods: Selector
    ending: bool = True

    def has(
        self, namespace: str, space_labels: Mapping[str, str], labels: Mapping[str, str]
    ) -> bool:
        """Whether a pod of that namespace with these labels is meant."""
        if namespace not in self.namespaces and not self.space.matches(space_labels):
            return False
        return self.pods.matches(labels)

    def keys(self) -> Iterator[str]:
        """The labels of pods that it selects by."""
        return (requirement.key for requirement in self.pods.requirements)


@dataclass(frozen=True, slots=True)
class Term:
    """A crowd, and the topology key that says what "near" is."""

    selection: PodSelection
    key: str


@dataclass(frozen=True, slots=True)
class Constraint:
    """How unevenly a crowd may be spread over the domains of a topology key."""

    selection: PodSelection
    key: str
    max_skew: int
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False
    itself: bool = True
    """Whether the pod belongs to the crowd."""


def term_of(term: PodAffinityTerm, namespace: str, labels: Mapping[str, str]) -> Term:
    """The compiled term of a pod with these labels."""
    extra = [
        *_keyed(term.match_label_keys, labels, Operator.IN),
        *_keyed(term.mismatch_label_keys, labels, Operator.NOT_IN),
    ]
    own = not term.namespaces and term.namespace_selector is None
    selection = PodSelection(
        namespaces=frozenset((namespace,) if own else term.namespaces),
        space=understood(term.namespace_selector),
        pods=_selector(term.label_selector, extra),
    )
    return Term(selection, term.topology_key)


def constraint_of(
    constraint: TopologySpreadConstraint, namespace: str, labels: Mapping[str, str]
) -> Constraint:
    """The compiled constraint of a pod with these labels."""
    pods = _selector(
        constraint.label_selector, [*_keyed(constraint.match_label_keys, labels, Operator.IN)]
    )
    return Constraint(
        selection=living(namespace, pods),
        key=constraint.topology_key,
        max_skew=constraint.max_skew,
        min_domains=constraint.min_domains or 1,
        honor_affinity=constraint.node_affinity_policy != "Ignore",
        honor_taints=constraint.node_taints_policy == "Honor",
        itself=pods.matches(labels),
    )


def default_constraints(namespace: str, pods: Selector) -> tuple[Constraint, ...]:
    """What every scheduler prefers for pods that a Service or a workload holds together."""
    selection = living(namespace, pods)
    return Constraint(selection, HOSTNAME_LABEL, 3), Constraint(selection, ZONE_LABEL, 5)


def living(namespace: str, pods: Selector) -> PodSelection:
    """The pods of a namespace that are not terminating; an empty selector counts none."""
    counted = pods if pods.requirements else NOTHING
    return PodSelection(frozenset((namespace,)), NOTHING, counted, ending=False)


def understood(selector: LabelSelector | None) -> Selector:
    """The compiled selector; one that makes no sense selects nothing."""
    try:
        return labelselector.from_object(selector)
    except ParseError:
        return NOTHING


def _selector(selector: LabelSelector | None, extra: list[Requirement]) -> Selector:
    found = understood(selector)
    if found is NOTHING or not extra:
        return found
    return Selector({str(one): one for one in (*found.requirements, *extra)}.values())


def _keyed(
    keys: Iterable[str], labels: Mapping[str, str], operator: Operator
) -> Iterator[Requirement]:
    for key in keys:
        if key in labels:
            yield Requirement(key, operator, frozenset((labels[key],)))
