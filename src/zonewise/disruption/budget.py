"""Budgets of every kind as one value: which pods, how many, where, and the recorded baseline.

A ``TopologyDisruptionBudget``, a PodDisruptionBudget with a ``nodeSelectorTerm`` and a plain
PodDisruptionBudget are read into the same ``Budget``. A plain one is counted by its own controller;
here only its status is read. What cannot be parsed is kept with its fault and allows nothing: an
admission that let it pass, or a dump, is no reason to disrupt a pod.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import msgspec

from zonewise.api.errors import ParseError
from zonewise.api.meta import IntOrString, LabelSelector
from zonewise.api.objects.budgets import DomainStatus, TopologyDisruptionBudget
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.reason import Reason
from zonewise.api.values import selector
from zonewise.api.values.int_or_percent import portion
from zonewise.api.values.selector import NOTHING, Selector
from zonewise.disruption.grouping import EVERYWHERE, Grouping, grouping_of, old_keys

TOPOLOGY_BUDGET = "TopologyDisruptionBudget"
POD_BUDGET = "PodDisruptionBudget"
INVALID = "InvalidBudget"

_PERCENT = re.compile(r"[0-9]{1,3}%", re.ASCII)

BudgetKey: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True, slots=True)
class Limit:
    """``maxUnavailable`` or ``minAvailable``, a number or a percentage."""

    value: IntOrString
    unavailable: bool

    def desired(self, expected: int) -> int:
        """How many of the expected pods must be healthy; percentages round up."""
        amount = portion(self.value, expected, up=True)
        return max(expected - amount, 0) if self.unavailable else amount

    def closes(self, expected: int) -> bool:
        """Whether none of the expected pods may be unavailable, not even for an update."""
        return self.unavailable and portion(self.value, expected, up=True) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A budget; without a limit it has a fault, and a plain one has a status instead of both."""

    kind: str
    namespace: str
    name: str
    created: str = ""
    version: str = ""
    generation: int = 0
    observed: int = 0
    """The generation that was counted last."""
    selector: Selector = NOTHING
    limit: Limit | None = None
    grouping: Grouping = EVERYWHERE
    exclusive: bool = False
    always_allow: bool = False
    per_domain: bool = False
    """Expected are the replicas divided by the domains, whatever is where."""
    updates_only: bool = False
    """Evictions of pods that are of the newest revision are none of its business."""
    enforced: bool = True
    fingerprint: str = ""
    baseline: Mapping[str, int] | None = None
    plain: PodDisruptionBudget | None = None
    """The object itself, if its own controller counts it."""
    fault: Reason | None = None
    old_keys: tuple[str, ...] = ()

    @property
    def key(self) -> BudgetKey:
        """Kind, namespace and name."""
        return self.kind, self.namespace, self.name

    @property
    def object(self) -> str:
        """How reasons name it."""
        return f"{self.kind}/{self.namespace}/{self.name}"


_ALLOWS_NOTHING = "Until it is corrected or deleted it allows no disruption."


def budget_of(item: TopologyDisruptionBudget | PodDisruptionBudget) -> Budget:
    """Read a budget of either kind."""
    spec, meta = item.spec, item.metadata
    keys: tuple[str, ...] = ()
    base = Budget(
        kind=item.resource.kind,
        namespace=meta.namespace,
        name=meta.name,
        created=meta.creation_timestamp or "",
        version=meta.resource_version,
        generation=meta.generation,
        observed=item.status.observed_generation,
        always_allow=spec.unhealthy_pod_eviction_policy == "AlwaysAllow",
    )
    if isinstance(item, TopologyDisruptionBudget):
        keys = item.spec.topology_keys
        base = replace(
            base,
            exclusive=item.spec.cross_domain == "Exclusive",
            per_domain=item.spec.expected_pods == "ReplicasPerDomain",
            updates_only=item.spec.holds == "Updates",
            enforced=item.spec.mode != "Observe",
        )
    try:
        base = replace(base, selector=selector.from_object(spec.selector))
    except ParseError as error:
        return replace(
            base, fault=_fault(base, str(error), "Until it is corrected it holds no pod.")
        )
    try:
        if isinstance(item, PodDisruptionBudget) and spec.node_selector_term is None:
            return replace(base, plain=item)
        grouping = grouping_of(spec.node_selector_term, keys)
        limit = _limit(spec.max_unavailable, spec.min_available)
    except ParseError as error:
        return replace(base, fault=_fault(base, str(error), _ALLOWS_NOTHING))
    made_of = fingerprint(spec.selector, grouping.keys)
    return replace(
        base,
        limit=limit,
        grouping=grouping,
        fingerprint=made_of,
        baseline=_remembered(item.status.domains, item.status.fingerprint, made_of, grouping),
        old_keys=old_keys(spec.node_selector_term, keys),
    )


def fingerprint(wanted: LabelSelector | None, keys: tuple[str, ...]) -> str:
    """What a baseline was counted of; another selector or other domains need another."""
    said = msgspec.json.encode([wanted, keys], order="sorted")
    return hashlib.sha256(said).hexdigest()[:16]


def _limit(most: IntOrString | None, least: IntOrString | None) -> Limit:
    if (most is None) == (least is None):
        raise ParseError("a budget needs one of maxUnavailable and minAvailable")
    name, value = ("maxUnavailable", most) if most is not None else ("minAvailable", least)
    assert value is not None
    if isinstance(value, int):
        fine = value >= 0
    else:
        fine = _PERCENT.fullmatch(value) is not None and int(value[:-1]) <= 100
    if not fine:
        raise ParseError(f"{name} {value!r:.64} is neither a number of pods nor 0% to 100%")
    return Limit(value, unavailable=most is not None)


def _remembered(
    domains: tuple[DomainStatus, ...], counted_of: str, wanted: str, grouping: Grouping
) -> Mapping[str, int] | None:
    """The baseline a status holds; None if it holds none, or one of another spec.

    Only the leader writes it, and always says of what; one that does not say is a dump made by
    hand.
    """
    if not domains or counted_of not in ("", wanted):
        return None
    known = {one.domain: max(one.expected_pods, 0) for one in domains if grouping.names(one.domain)}
    return known or None


def _fault(budget: Budget, why: str, meanwhile: str) -> Reason:
    return Reason(
        code=INVALID,
        message=f"the budget {budget.name} cannot be understood: {why}",
        object=budget.object,
        fix=meanwhile,
    )
