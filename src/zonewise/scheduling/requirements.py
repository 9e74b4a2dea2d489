"""What a pod requires of its node, compiled once for all pods that require the same.

Pods of one template differ in their names only, so they share one ``Requirements``, and what was
computed about a node for one of them is valid for the next. Two pods require the same if the parts
of their specs that matter are equal, their namespaces too, and those of their labels that any term
selects by. So the pods of a StatefulSet have the same requirements although each has a label with
its own name.

``RequirementsCache`` caches them. Which labels matter follows from the terms of all pods; when that
set grows, pods may differ that were equal before, so the cache is cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

import msgspec

from zonewise.api.objects.core import NodeSelector
from zonewise.api.objects.pod import Pod, PodSpec, Toleration
from zonewise.api.values import nodeselector, selector
from zonewise.api.values.nodeselector import NodeTerm, NodeTerms
from zonewise.api.values.selector import Selector
from zonewise.scheduling.resource_request import ResourceRequest, resource_request_of
from zonewise.scheduling.terms import (
    PodTerm,
    SpreadConstraint,
    constraint_of,
    default_constraints,
    term_of,
)
from zonewise.scheduling.volumes import NO_VOLUMES, VolumeRequirements

HostPort = tuple[str, int, str]
"""Protocol, number and address of a port on the node."""

EVERY_ADDRESS = str(IPv4Address(0))
_CACHE_LIMIT = 20_000
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """The requirements that depend on the node alone, not on pods elsewhere."""

    request: ResourceRequest
    ports: frozenset[HostPort]
    tolerations: tuple[Toleration, ...]
    selector: Selector
    required: NodeTerms | None
    preferred: tuple[tuple[int, NodeTerm], ...]
    names: frozenset[str] | None
    """The only nodes that are considered, if nodes are required by name."""
    volumes: VolumeRequirements = NO_VOLUMES

    def matches_node(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether node selector and required affinity match a node."""
        return self.selector.matches(labels) and (
            self.required is None or self.required.matches(labels, name)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Requirements:
    """All requirements of a pod."""

    namespace: str
    labels: Mapping[str, str]
    node_requirements: NodeRequirements
    affinity_terms: tuple[PodTerm, ...] = ()
    anti_affinity_terms: tuple[PodTerm, ...] = ()
    preferred_terms: tuple[tuple[int, PodTerm], ...] = ()
    """Preferred terms with weights; anti-affinity has negative ones."""
    hard_constraints: tuple[SpreadConstraint, ...] = ()
    soft_constraints: tuple[SpreadConstraint, ...] = ()
    require_all_keys: bool = False
    """Whether nodes without all topology keys of ``soft_constraints`` get no spread score."""

    @property
    def own_terms(self) -> Iterator[tuple[PodTerm, int]]:
        """The terms by which this pod, once it runs, affects others; weight 0: it repels them."""
        yield from ((term, 0) for term in self.anti_affinity_terms)
        yield from ((term, 1) for term in self.affinity_terms)
        yield from ((term, weight) for weight, term in self.preferred_terms)


class RequirementsCache:
    """Requirements by their content."""

    def __init__(self) -> None:
        self.label_keys: set[str] = set()
        """Keys of pod labels that some term selects by."""
        self._requirements: dict[object, Requirements] = {}

    def compile(
        self,
        pod: Pod,
        *,
        default_selector_of: Callable[[Pod], Selector] | None = None,
        volumes: VolumeRequirements = NO_VOLUMES,
    ) -> Requirements:
        """Compile a pod; ``default_selector_of`` gives the pods it is spread with by default."""
        default_selector = None
        if default_selector_of is not None and not pod.spec.topology_spread_constraints:
            default_selector = default_selector_of(pod)
        cached = self._requirements.get(self._key(pod, default_selector, volumes))
        if cached is not None:
            return cached
        requirements = _compile(pod, default_selector, volumes)
        selected = _selected_label_keys(requirements)
        new_keys = {key for keys in selected for key in keys} - self.label_keys
        if new_keys:
            self.label_keys |= new_keys
            self._requirements.clear()
        elif len(self._requirements) >= _CACHE_LIMIT:
            self._requirements.clear()
        self._requirements[self._key(pod, default_selector, volumes)] = requirements
        return requirements

    def _key(
        self, pod: Pod, default_selector: Selector | None, volumes: VolumeRequirements
    ) -> object:
        spec, labels = pod.spec, pod.metadata.labels
        label_keys = self.label_keys
        return (
            pod.metadata.namespace,
            _encode(
                (
                    spec.containers,
                    spec.init_containers,
                    spec.node_selector,
                    spec.affinity,
                    spec.tolerations,
                    spec.topology_spread_constraints,
                    spec.overhead,
                    spec.resources,
                )
            ),
            tuple(sorted([item for item in labels.items() if item[0] in label_keys])),
            default_selector,
            volumes,
        )


def _selected_label_keys(requirements: Requirements) -> Iterator[Iterable[str]]:
    for term, _ in requirements.own_terms:
        yield term.selection.label_keys()
    for constraint in (*requirements.hard_constraints, *requirements.soft_constraints):
        yield constraint.selection.label_keys()


def _compile(
    pod: Pod, default_selector: Selector | None, volumes: VolumeRequirements
) -> Requirements:
    spec, namespace, labels = pod.spec, pod.metadata.namespace, pod.metadata.labels
    affinity = spec.affinity
    node_affinity = affinity.node_affinity if affinity else None
    pod_affinity = affinity.pod_affinity if affinity else None
    pod_anti_affinity = affinity.pod_anti_affinity if affinity else None
    required = node_affinity.required if node_affinity else None
    constraints = spec.topology_spread_constraints

    def compile_constraints(action: str) -> tuple[SpreadConstraint, ...]:
        return tuple(
            constraint_of(constraint, namespace, labels)
            for constraint in constraints
            if constraint.when_unsatisfiable == action
        )

    soft_constraints = compile_constraints("ScheduleAnyway")
    if default_selector is not None and default_selector.requirements:
        soft_constraints = default_constraints(namespace, default_selector)
    preferred_terms = [
        (sign * weighted.weight, term_of(weighted.pod_affinity_term, namespace, labels))
        for sign, group in ((1, pod_affinity), (-1, pod_anti_affinity))
        if group
        for weighted in group.preferred
    ]
    return Requirements(
        namespace=namespace,
        labels=labels,
        node_requirements=NodeRequirements(
            request=resource_request_of(spec),
            ports=frozenset(_host_ports(spec)),
            tolerations=spec.tolerations,
            selector=selector.from_labels(spec.node_selector),
            required=None if required is None else nodeselector.from_object(required),
            preferred=tuple(
                (weighted.weight, nodeselector.from_term_leniently(weighted.preference))
                for weighted in (node_affinity.preferred if node_affinity else ())
                if weighted.weight
            ),
            names=None if required is None else _required_names(required),
            volumes=volumes,
        ),
        affinity_terms=tuple(
            term_of(term, namespace, labels)
            for term in (pod_affinity.required if pod_affinity else ())
        ),
        anti_affinity_terms=tuple(
            term_of(term, namespace, labels)
            for term in (pod_anti_affinity.required if pod_anti_affinity else ())
        ),
        preferred_terms=tuple(preferred_terms),
        hard_constraints=compile_constraints("DoNotSchedule"),
        soft_constraints=soft_constraints,
        require_all_keys=bool(constraints),
    )


def _host_ports(spec: PodSpec) -> Iterator[HostPort]:
    sidecars = (item for item in spec.init_containers if item.restart_policy == "Always")
    for container in (*(spec.containers or ()), *sidecars):
        for port in container.ports:
            if port.host_port > 0:
                yield port.protocol, port.host_port, port.host_ip or EVERY_ADDRESS


def _required_names(required: NodeSelector) -> frozenset[str] | None:
    """The nodes that all terms require by name; None if one of them does not."""
    names: set[str] = set()
    for term in required.node_selector_terms or ():
        name_sets = [
            set(requirement.values or ())
            for requirement in term.match_fields or ()
            if requirement.key == nodeselector.NAME_FIELD and requirement.operator == "In"
        ]
        if not name_sets:
            return None
        names |= set.intersection(*name_sets)
    return frozenset(names) if required.node_selector_terms else None
