"""Affinity, anti-affinity and topology spread of a pod: compiled.

Two terms that mean the same are equal, so that many pods share one count (``pod_counts``).
``matchLabelKeys`` and ``mismatchLabelKeys`` are resolved with the labels of the pod that carries
the term; an API server has usually done so already, and repeating it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from zonewise.api.errors import ParseError
from zonewise.api.meta import LabelSelector
from zonewise.api.objects.pod import PodAffinityTerm, TopologySpreadConstraint
from zonewise.api.values import selector as labelselector
from zonewise.api.values.selector import NOTHING, Operator, Requirement, Selector
from zonewise.topology.nodes import HOSTNAME_LABEL, ZONE_LABEL


@dataclass(frozen=True, slots=True)
class PodSelection:
    """Which pods are selected: by namespace, by the namespace's labels, by their own labels."""

    namespaces: frozenset[str]
    namespace_selector: Selector
    pod_selector: Selector
    includes_terminating: bool = True

    def matches(
        self, namespace: str, namespace_labels: Mapping[str, str], labels: Mapping[str, str]
    ) -> bool:
        """Whether a pod of that namespace with these labels is selected."""
        if namespace not in self.namespaces and not self.namespace_selector.matches(
            namespace_labels
        ):
            return False
        return self.pod_selector.matches(labels)

    def label_keys(self) -> Iterator[str]:
        """The keys of pod labels that it selects by."""
        return (requirement.key for requirement in self.pod_selector.requirements)


@dataclass(frozen=True, slots=True)
class PodTerm:
    """Selected pods, and the topology key over which they attract or repel."""

    selection: PodSelection
    key: str


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """How unevenly selected pods may be spread over the domains of a topology key."""

    selection: PodSelection
    key: str
    max_skew: int
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False
    self_match: bool = True
    """Whether the pod itself is selected."""


def term_of(term: PodAffinityTerm, namespace: str, labels: Mapping[str, str]) -> PodTerm:
    """The compiled term of a pod with these labels."""
    label_requirements = [
        *_label_requirements(term.match_label_keys, labels, Operator.IN),
        *_label_requirements(term.mismatch_label_keys, labels, Operator.NOT_IN),
    ]
    own_namespace = not term.namespaces and term.namespace_selector is None
    selection = PodSelection(
        namespaces=frozenset((namespace,) if own_namespace else term.namespaces),
        namespace_selector=compile_selector(term.namespace_selector),
        pod_selector=_compile_with(term.label_selector, label_requirements),
    )
    return PodTerm(selection, term.topology_key)


def constraint_of(
    constraint: TopologySpreadConstraint, namespace: str, labels: Mapping[str, str]
) -> SpreadConstraint:
    """The compiled constraint of a pod with these labels."""
    more = [*_label_requirements(constraint.match_label_keys, labels, Operator.IN)]
    pods = _compile_with(constraint.label_selector, more)
    return SpreadConstraint(
        selection=live_pods_of(namespace, pods),
        key=constraint.topology_key,
        max_skew=constraint.max_skew,
        min_domains=constraint.min_domains or 1,
        honor_affinity=constraint.node_affinity_policy != "Ignore",
        honor_taints=constraint.node_taints_policy == "Honor",
        self_match=pods.matches(labels),
    )


def default_constraints(namespace: str, pods: Selector) -> tuple[SpreadConstraint, ...]:
    """The default constraints for pods of one Service or workload, as in Kubernetes."""
    selection = live_pods_of(namespace, pods)
    return SpreadConstraint(selection, HOSTNAME_LABEL, 3), SpreadConstraint(
        selection, ZONE_LABEL, 5
    )


def live_pods_of(namespace: str, pods: Selector) -> PodSelection:
    """The pods of a namespace that are not terminating; an empty selector counts none."""
    pod_selector = pods if pods.requirements else NOTHING
    return PodSelection(frozenset((namespace,)), NOTHING, pod_selector, includes_terminating=False)


def compile_selector(selector: LabelSelector | None) -> Selector:
    """Compile a selector; one that is not valid selects nothing."""
    try:
        return labelselector.from_object(selector)
    except ParseError:
        return NOTHING


def _compile_with(
    selector: LabelSelector | None, label_requirements: list[Requirement]
) -> Selector:
    compiled = compile_selector(selector)
    if compiled is NOTHING or not label_requirements:
        return compiled
    return Selector(
        {
            str(requirement): requirement
            for requirement in (*compiled.requirements, *label_requirements)
        }.values()
    )


def _label_requirements(
    keys: Iterable[str], labels: Mapping[str, str], operator: Operator
) -> Iterator[Requirement]:
    for key in keys:
        if key in labels:
            yield Requirement(key, operator, frozenset((labels[key],)))
