"""What a pod requires of its node, compiled once for all pods that require the same.

Pods of one template differ in their names only, so they are one ``Requirements``, and what was
computed about a node for one of them holds for the next. Two pods require the same if the parts of
their specs that matter are equal, their namespaces too, and those of their labels that any term
selects by. The last point gives the pods of a StatefulSet the same requirements although each has a
label with its own name.

``RequirementsCache`` keeps them. Which labels matter follows from the terms of all pods seen; when
that set grows, pods may differ that were equal before, so the cache is cleared.
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
from zonewise.scheduling.demand import Demand, demand_of
from zonewise.scheduling.terms import (
    Constraint,
    Term,
    constraint_of,
    default_constraints,
    term_of,
)
from zonewise.scheduling.volumes import NO_VOLUMES, Volumes

HostPort = tuple[str, int, str]
"""Protocol, number and address of a port on the node."""

EVERY_ADDRESS = str(IPv4Address(0))
_LIMIT = 20_000
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class NodeRequirements:
    """What one node can answer alone."""

    demand: Demand
    ports: frozenset[HostPort]
    tolerations: tuple[Toleration, ...]
    selector: Selector
    required: NodeTerms | None
    preferred: tuple[tuple[int, NodeTerm], ...]
    names: frozenset[str] | None
    """The only nodes that are considered, if nodes are required by name."""
    volumes: Volumes = NO_VOLUMES

    def selects(self, labels: Mapping[str, str], name: str) -> bool:
        """Whether a node is one the pod may run on."""
        return self.selector.matches(labels) and (
            self.required is None or self.required.matches(labels, name)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Requirements:
    """Everything a pod requires."""

    namespace: str
    labels: Mapping[str, str]
    needs: NodeRequirements
    near: tuple[Term, ...] = ()
    away: tuple[Term, ...] = ()
    likes: tuple[tuple[int, Term], ...] = ()
    """Preferred terms with their weights; to be away has a negative one."""
    hard: tuple[Constraint, ...] = ()
    soft: tuple[Constraint, ...] = ()
    strict: bool = False
    """Whether nodes without all topology keys of ``soft`` get no score for spreading."""

    @property
    def carried(self) -> Iterator[tuple[Term, int]]:
        """What this pod, once it runs, means for others: terms with weights; 0 keeps them off."""
        yield from ((term, 0) for term in self.away)
        yield from ((term, 1) for term in self.near)
        yield from ((term, weight) for weight, term in self.likes)


class RequirementsCache:
    """Requirements by their content."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        """Labels of pods that some term selects by."""
        self._requirements: dict[object, Requirements] = {}

    def requirements(
        self,
        pod: Pod,
        *,
        held_together: Callable[[Pod], Selector] | None = None,
        volumes: Volumes = NO_VOLUMES,
    ) -> Requirements:
        """What a pod requires; ``held_together`` says which pods it is spread with by default."""
        together = None
        if held_together is not None and not pod.spec.topology_spread_constraints:
            together = held_together(pod)
        known = self._requirements.get(self._key(pod, together, volumes))
        if known is not None:
            return known
        requirements = _compiled(pod, together, volumes)
        asked = {key for term in _selections(requirements) for key in term} - self.asked
        if asked:
            self.asked |= asked
            self._requirements.clear()
        elif len(self._requirements) >= _LIMIT:
            self._requirements.clear()
        self._requirements[self._key(pod, together, volumes)] = requirements
        return requirements

    def _key(self, pod: Pod, together: Selector | None, volumes: Volumes) -> object:
        spec, labels = pod.spec, pod.metadata.labels
        asked = self.asked
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
            tuple(sorted([item for item in labels.items() if item[0] in asked])),
            together,
            volumes,
        )


def _selections(requirements: Requirements) -> Iterator[Iterable[str]]:
    for term, _ in requirements.carried:
        yield term.selection.keys()
    for constraint in (*requirements.hard, *requirements.soft):
        yield constraint.selection.keys()


def _compiled(pod: Pod, together: Selector | None, volumes: Volumes) -> Requirements:
    spec, namespace, labels = pod.spec, pod.metadata.namespace, pod.metadata.labels
    affinity = spec.affinity
    node = affinity.node_affinity if affinity else None
    near = affinity.pod_affinity if affinity else None
    away = affinity.pod_anti_affinity if affinity else None
    required = node.required if node else None
    constraints = spec.topology_spread_constraints

    def chosen(action: str) -> tuple[Constraint, ...]:
        return tuple(
            constraint_of(one, namespace, labels)
            for one in constraints
            if one.when_unsatisfiable == action
        )

    soft = chosen("ScheduleAnyway")
    if together is not None and together.requirements:
        soft = default_constraints(namespace, together)
    likes = [
        (sign * one.weight, term_of(one.pod_affinity_term, namespace, labels))
        for sign, group in ((1, near), (-1, away))
        if group
        for one in group.preferred
    ]
    return Requirements(
        namespace=namespace,
        labels=labels,
        needs=NodeRequirements(
            demand=demand_of(spec),
            ports=frozenset(_ports(spec)),
            tolerations=spec.tolerations,
            selector=selector.from_labels(spec.node_selector),
            required=None if required is None else nodeselector.from_object(required),
            preferred=tuple(
                (one.weight, nodeselector.understood(one.preference))
                for one in (node.preferred if node else ())
                if one.weight
            ),
            names=None if required is None else _names(required),
            volumes=volumes,
        ),
        near=tuple(term_of(one, namespace, labels) for one in (near.required if near else ())),
        away=tuple(term_of(one, namespace, labels) for one in (away.required if away else ())),
        likes=tuple(likes),
        hard=chosen("DoNotSchedule"),
        soft=soft,
        strict=bool(constraints),
    )


def _ports(spec: PodSpec) -> Iterator[HostPort]:
    staying = (one for one in spec.init_containers if one.restart_policy == "Always")
    for container in (*(spec.containers or ()), *staying):
        for port in container.ports:
            if port.host_port > 0:
                yield port.protocol, port.host_port, port.host_ip or EVERY_ADDRESS


def _names(required: NodeSelector) -> frozenset[str] | None:
    """The nodes that all terms require by name; None if one of them does not."""
    names: set[str] = set()
    for term in required.node_selector_terms or ():
        asked = [
            set(one.values or ())
            for one in term.match_fields or ()
            if one.key == nodeselector.NAME_FIELD and one.operator == "In"
        ]
        if not asked:
            return None
        names |= set.intersection(*asked)
    return frozenset(names) if required.node_selector_terms else None
