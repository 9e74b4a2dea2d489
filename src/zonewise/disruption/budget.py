"""Budgets of every kind as one value: which pods, how many, where, and the recorded baseline.

A ``TopologyDisruptionBudget``, a PodDisruptionBudget with a ``nodeSelectorTerm`` and a plain
PodDisruptionBudget are read into the same ``Budget``. On a real cluster a plain one is counted by
its own controller; here only its status is read. Where workloads evict (``zonewise up``) it is
counted here like the others, as one domain: its status then has a fingerprint, which no Kubernetes
writes. A budget that is not valid keeps the reason and allows nothing: that admission let it pass,
or that it is from a dump, must not disrupt a pod.
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
from zonewise.api.values.numbers import scale_int_or_percent
from zonewise.api.values.selector import NOTHING, Selector
from zonewise.disruption.grouping import NO_GROUPING, Grouping, find_old_keys, grouping_of

TOPOLOGY_BUDGET = "TopologyDisruptionBudget"
POD_BUDGET = "PodDisruptionBudget"
INVALID_BUDGET = "InvalidBudget"

_PERCENT = re.compile(r"[0-9]{1,3}%", re.ASCII)

BudgetKey: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass(frozen=True, slots=True)
class Limit:
    """``maxUnavailable`` or ``minAvailable``, a number or a percentage."""

    value: IntOrString
    is_max_unavailable: bool

    def desired_healthy(self, expected: int) -> int:
        """How many of the expected pods must be healthy; percentages round up."""
        amount = scale_int_or_percent(self.value, expected, round_up=True)
        return max(expected - amount, 0) if self.is_max_unavailable else amount

    def closes_domain(self, expected: int) -> bool:
        """Whether no expected pod may be unavailable, not even for an update."""
        return (
            self.is_max_unavailable
            and scale_int_or_percent(self.value, expected, round_up=True) == 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A budget; without a limit it is invalid or plain."""

    kind: str
    namespace: str
    name: str
    created: str = ""
    version: str = ""
    generation: int = 0
    observed_generation: int = 0
    """The generation that was counted last."""
    selector: Selector = NOTHING
    limit: Limit | None = None
    grouping: Grouping = NO_GROUPING
    exclusive: bool = False
    always_allow: bool = False
    per_domain: bool = False
    """Whether replicas divided by domains are expected, however pods are distributed."""
    updates_only: bool = False
    """Whether it does not limit evictions of pods of the newest revision."""
    enforced: bool = True
    fingerprint: str = ""
    baseline: Mapping[str, int] | None = None
    plain: PodDisruptionBudget | None = None
    """The object itself, if its own controller counts it."""
    undivided: bool = False
    """Whether it is a PodDisruptionBudget without a term that is counted here: it has no domains,
    so no baseline, and closes none."""
    invalid_reason: Reason | None = None
    old_keys: tuple[str, ...] = ()

    @property
    def key(self) -> BudgetKey:
        """Kind, namespace and name."""
        return self.kind, self.namespace, self.name

    @property
    def has_term(self) -> bool:
        """Whether it is a PodDisruptionBudget with a term, as only the embedded cluster has."""
        return self.kind == POD_BUDGET and self.plain is None and not self.undivided

    @property
    def object(self) -> str:
        """Its name in reasons."""
        return f"{self.kind}/{self.namespace}/{self.name}"


_ALLOWS_NOTHING = "Until it is corrected or deleted it allows no disruption."


def budget_of(
    item: TopologyDisruptionBudget | PodDisruptionBudget, *, counts_plain: bool | None = None
) -> Budget:
    """The budget that an object of either kind declares.

    ``counts_plain`` if plain ones are counted here; None if the object's status says so.
    """
    spec, meta = item.spec, item.metadata
    keys: tuple[str, ...] = ()
    base = Budget(
        kind=item.resource.kind,
        namespace=meta.namespace,
        name=meta.name,
        created=meta.creation_timestamp or "",
        version=meta.resource_version,
        generation=meta.generation,
        observed_generation=item.status.observed_generation,
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
    else:
        base = replace(
            base,
            per_domain=item.spec.expected_pods == "ReplicasPerDomain",
            undivided=item.spec.node_selector_term is None,
        )
    try:
        base = replace(base, selector=selector.from_object(spec.selector))
    except ParseError as error:
        return replace(
            base,
            invalid_reason=_invalid_reason(
                base, str(error), "Until it is corrected it selects no pod."
            ),
        )
    try:
        if isinstance(item, PodDisruptionBudget) and base.undivided:
            if counts_plain is None:
                counts_plain = bool(item.status.fingerprint)
            if not counts_plain:
                return replace(base, plain=item, undivided=False)
        grouping = grouping_of(spec.node_selector_term, keys)
        limit = _parse_limit(spec.max_unavailable, spec.min_available)
    except ParseError as error:
        return replace(base, invalid_reason=_invalid_reason(base, str(error), _ALLOWS_NOTHING))
    current_fingerprint = compute_fingerprint(spec.selector, grouping.keys)
    return replace(
        base,
        limit=limit,
        grouping=grouping,
        fingerprint=current_fingerprint,
        baseline=_parse_baseline(
            item.status.domains, item.status.fingerprint, current_fingerprint, grouping
        ),
        old_keys=find_old_keys(spec.node_selector_term, keys),
    )


def compute_fingerprint(label_selector: LabelSelector | None, keys: tuple[str, ...]) -> str:
    """A hash of what a baseline depends on: the selector and the grouping keys."""
    encoded = msgspec.json.encode([label_selector, keys], order="sorted")
    return hashlib.sha256(encoded).hexdigest()[:16]


def _parse_limit(max_unavailable: IntOrString | None, min_available: IntOrString | None) -> Limit:
    if (max_unavailable is None) == (min_available is None):
        raise ParseError("a budget needs one of maxUnavailable and minAvailable")
    name, value = (
        ("maxUnavailable", max_unavailable)
        if max_unavailable is not None
        else ("minAvailable", min_available)
    )
    assert value is not None
    if isinstance(value, int):
        is_valid = value >= 0
    else:
        is_valid = _PERCENT.fullmatch(value) is not None and int(value[:-1]) <= 100
    if not is_valid:
        raise ParseError(f"{name} {value!r:.64} is neither a number of pods nor 0% to 100%")
    return Limit(value, is_max_unavailable=max_unavailable is not None)


def _parse_baseline(
    domains: tuple[DomainStatus, ...],
    counted_fingerprint: str,
    current_fingerprint: str,
    grouping: Grouping,
) -> Mapping[str, int] | None:
    """The baseline in a status; None if it has none, or that of another spec.

    Only the leader writes it, always with a fingerprint; one without is from a dump written by
    hand.
    """
    if not domains or counted_fingerprint not in ("", current_fingerprint):
        return None
    baseline = {
        row.domain: max(row.expected_pods, 0)
        for row in domains
        if grouping.is_domain_name(row.domain)
    }
    return baseline or None


def _invalid_reason(budget: Budget, error: str, fix: str) -> Reason:
    return Reason(
        code=INVALID_BUDGET,
        message=f"the budget {budget.name} is not valid: {error}",
        object=budget.object,
        fix=fix,
    )
