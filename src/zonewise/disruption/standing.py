"""The state of a budget: what is expected, healthy and allowed in each of its domains.

The rules, in the order they are applied; d is a domain, sums are over all of them, guarded or not,
with the pods that are elsewhere as one more.

1.  R is what the owners of the pods request. E is the recorded baseline; if there is none it is
    what is present.
2.  Domains are those of the nodes on which the pods could run, those with present pods, and those
    with E > 0.
3.  E is fitted to R (``baseline.fitted``).
4.  surplus = max(0, Σ present - R); expected_d = max(E_d, present_d - surplus). A surplus pod may
    be taken from any domain that has more than its baseline, but a domain that took in pods of
    another one keeps them until the workload has settled.
5.  desired_d is expected_d less ``maxUnavailable``, or ``minAvailable``; percentages are of
    expected_d, rounded up. allowed_d = max(0, healthy_d - desired_d).
6.  (Settling is the controller's: ``baseline.settled``.)
7.  A domain in which nothing may be unavailable is closed to updates, too: see ``verdict``.
8.  DaemonSets expect a pod on every eligible node, and have no baseline.

A granted pod that still exists is not healthy. ``Exclusive`` budgets allow nothing in a domain
while another one lacks a healthy pod. Grants are subtracted from the count (``less``), because they
change with every decision and the count only with the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from zonewise.api.reason import Reason
from zonewise.api.values.selector import Selector
from zonewise.disruption import baseline as baselines
from zonewise.disruption.budget import Budget, BudgetKey
from zonewise.disruption.domain_counts import DomainCounts
from zonewise.disruption.grouping import ELSEWHERE, WHOLE
from zonewise.disruption.owners import DAEMON_SET, Owners, Place, Reference, ScaleOwner
from zonewise.topology import PodPlacement, need_of

TOO_MANY = "TooManyBudgets"
UNKNOWN_SCALE = "UnknownScale"
NO_PODS = "NoPods"
SUFFICIENT = "SufficientPods"
INSUFFICIENT = "InsufficientPods"


@dataclass(frozen=True, slots=True)
class Domain:
    """The numbers of one domain; ``ready`` and ``outdated`` are before grants."""

    name: str
    guarded: bool
    present: int
    baseline: int
    expected: int
    desired: int
    ready: int
    outdated: int
    """Ready pods of an old revision."""


@dataclass(frozen=True, slots=True)
class Granted:
    """Granted pods of a domain that still exist."""

    ready: int = 0
    outdated: int = 0


NONE_GRANTED = Granted()


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStanding:
    """A budget's numbers by domain; ``replicas`` is None if an owner's scale is not known."""

    budget: Budget
    replicas: int | None
    domains: Mapping[str, Domain]
    trouble: Reason | None = None
    """Why nothing is allowed, whatever the numbers."""
    granted: Mapping[str, Granted] = field(default_factory=dict)
    asked: int = 0
    """What owners other than DaemonSets request, as far as they are known."""
    remembers: bool = True
    """Whether the baseline means anything: that of DaemonSets does not."""

    def less(self, granted: Mapping[str, Granted]) -> BudgetStanding:
        """The same with these grants, by domain."""
        return replace(self, granted=granted)

    def healthy(self, name: str) -> int:
        """Present and Ready pods without a grant."""
        return self.domains[name].ready - self.granted.get(name, NONE_GRANTED).ready

    def outdated(self, name: str) -> int:
        """Those of them that are of an old revision."""
        return self.domains[name].outdated - self.granted.get(name, NONE_GRANTED).outdated

    def allowed(self, name: str) -> int | None:
        """How many more healthy pods may go; None where nothing is guarded."""
        domain = self.domains[name]
        if not domain.guarded:
            return None
        if self.trouble is not None or self.disturbed_elsewhere(name) is not None:
            return 0
        return max(0, self.healthy(name) - domain.desired)

    def disturbed_elsewhere(self, name: str) -> str | None:
        """Another domain that lacks a healthy pod, if that matters to this budget."""
        if not self.budget.exclusive:
            return None
        return next(
            (
                other
                for other, domain in self.domains.items()
                if other != name and self.healthy(other) < domain.expected
            ),
            None,
        )

    def settled(self, domain_counts: DomainCounts, owners: Owners) -> dict[str, int]:
        """The baseline that agrees with the existing pods (rule 6).

        Of all that are equally near it is the one without the pods that a StatefulSet is scaled
        down by: the set cannot delete others in their place, and would wait for them forever.
        """
        known = self.budget.baseline or {}
        present = domain_counts.present
        if sum(present.values()) > self.asked:
            kept = present - Counter(
                place.domain
                for pod, place in domain_counts.pods.values()
                if place.present and owners.dispensable(pod)
            )
            if sum(kept.values()) >= self.asked:
                present = kept
        return baselines.settled(self.asked, known, present, self.domains)

    @property
    def uncovered(self) -> int:
        """Present pods on nodes that are not looked at."""
        return self.domains[ELSEWHERE].present if ELSEWHERE in self.domains else 0

    @property
    def named(self) -> list[Domain]:
        """The domains by name, without what is elsewhere."""
        return [domain for name, domain in sorted(self.domains.items()) if name != ELSEWHERE]

    def reason(self) -> Reason:
        """The state of the budget, in a sentence."""
        if self.trouble is not None:
            return self.trouble
        budget = self.budget
        guarded = [domain for domain in self.named if domain.guarded]
        numbers = {domain.name: self.allowed(domain.name) or 0 for domain in guarded}
        if not any(domain.present for domain in self.domains.values()):
            return Reason(
                code=NO_PODS,
                message=f"the budget {budget.name} selects no pod that is there",
                object=budget.object,
            )
        total = sum(numbers.values())
        shown = ", ".join(f"{name} {count}" for name, count in numbers.items())
        return Reason(
            code=SUFFICIENT if total or not guarded else INSUFFICIENT,
            message=f"pods that may be disrupted now: {shown or 'any, nothing is guarded'}",
            object=budget.object,
            numbers=dict(numbers),
        )


def uncounted(budget: Budget, limit: int) -> BudgetStanding:
    """A budget of a namespace that has too many: nothing is counted, and nothing allowed."""
    trouble = Reason(
        code=TOO_MANY,
        message=f"the namespace {budget.namespace} has more than {limit} budgets per failure"
        f" domain; the {limit} oldest are counted, and {budget.name} is not among them",
        object=budget.object,
        fix="Until budgets are deleted it allows no disruption of the pods it selects.",
    )
    return BudgetStanding(budget=budget, replicas=None, domains={}, trouble=trouble)


def standing(budget: Budget, domain_counts: DomainCounts, asked: OwnerDemand) -> BudgetStanding:
    """Count a budget, without grants."""
    if budget.limit is None:
        domains = {
            name: Domain(name, True, count, 0, 0, 0, domain_counts.ready[name], 0)
            for name, count in (domain_counts.present + domain_counts.daemons).items()
        }
        return BudgetStanding(budget=budget, replicas=None, domains=domains, trouble=budget.fault)
    eligible = _eligible(domain_counts, asked.daemons)
    present: dict[str, int] = dict(domain_counts.present)
    known: Mapping[str, int] = present if budget.baseline is None else budget.baseline
    remembers = bool(asked.replicas or present) or not asked.daemons
    if not remembers:
        known = {}
    names = {
        *_reachable(budget, domain_counts, asked.daemons),
        *(domain_counts.present + domain_counts.daemons),
        *(name for name, count in known.items() if count > 0),
        *eligible,
    }
    fitted = baselines.fitted(asked.replicas, known, names)
    if budget.per_domain:
        fitted = baselines.shares(asked.replicas, known, names)
    surplus = max(0, sum(present.values()) - asked.replicas)
    domains = {}
    for name in sorted(names):
        expected = fitted[name]
        if not budget.per_domain:
            expected = max(expected, present.get(name, 0) - surplus)
        expected += eligible[name]
        domains[name] = Domain(
            name=name,
            guarded=budget.grouping.guards(name),
            present=present.get(name, 0) + domain_counts.daemons[name],
            baseline=fitted[name],
            expected=expected,
            desired=budget.limit.desired(expected),
            ready=domain_counts.ready[name],
            outdated=asked.outdated[name],
        )
    unknown = asked.unknown
    return BudgetStanding(
        budget=budget,
        replicas=None if unknown is not None else asked.replicas + sum(eligible.values()),
        asked=asked.replicas,
        domains=domains,
        trouble=None if unknown is None else _unknown(budget, unknown),
        remembers=remembers,
    )


@dataclass(frozen=True, slots=True)
class OwnerDemand:
    """What the owners of counted pods request, whatever budget asks; DaemonSets apart."""

    replicas: int
    daemons: tuple[ScaleOwner, ...]
    unknown: Reference | None
    """An owner that could not be found."""
    outdated: Counter[str]
    """Ready pods of old revisions, by domain."""


def demand_of(domain_counts: DomainCounts, owners: Owners) -> OwnerDemand:
    """Ask the owners of all pods of a count."""
    scales: dict[tuple[str, str, str, str], int] = {}
    daemons: dict[tuple[str, str, str, str], ScaleOwner] = {}
    counted = 0
    unknown: list[Reference] = []
    for alive, counter in ((True, domain_counts.owners), (False, domain_counts.leaving)):
        for reference, count in counter.items():
            if reference is None:
                counted += count if alive else 0
                continue
            owner = owners.asking(reference)
            if owner is None:
                # Terminating pods outlive their owner; they request nothing.
                if alive:
                    unknown.append(reference)
                    counted += count
            elif owner.place[1] == DAEMON_SET:
                daemons[owner.place] = owner
            elif owner.replicas is None:
                counted += count if alive else 0
            else:
                scales[owner.place] = owner.replicas
    outdated: Counter[str] = Counter()
    for (name, reference), count in domain_counts.revisions.items():
        if owners.outdated(reference):
            outdated[name] += count
    return OwnerDemand(
        replicas=counted + sum(scales.values()),
        daemons=tuple(daemons[place] for place in sorted(daemons)),
        unknown=min(unknown, default=None),
        outdated=outdated,
    )


def _reachable(
    budget: Budget, domain_counts: DomainCounts, daemons: Iterable[ScaleOwner]
) -> set[str]:
    """The domains of the nodes on which the pods could run."""
    if not budget.grouping.keys:
        return set() if budget.grouping.nothing else {WHOLE}
    needs: set[PodPlacement | None] = set(domain_counts.needs)
    needs |= {need_of(owner.template.spec) for owner in daemons if owner.template is not None}
    domains: set[str] = set()
    for need in needs or {None}:
        domains.update(domain_counts.reachable(need))
    return domains - {ELSEWHERE}


def _eligible(domain_counts: DomainCounts, daemons: Iterable[ScaleOwner]) -> Counter[str]:
    """How many pods DaemonSets should have in each domain."""
    nodes: Counter[str] = Counter()
    for owner in daemons:
        template = owner.template
        nodes.update(domain_counts.reachable(None if template is None else need_of(template.spec)))
    return nodes


def _unknown(budget: Budget, reference: Reference) -> Reason:
    _, kind, namespace, name = reference.place
    return Reason(
        code=UNKNOWN_SCALE,
        message=f"how many pods {kind} {name} wants is not known: it, or who controls it, is not"
        " there, or may not be read",
        object=f"{kind}/{namespace}/{name}",
        fix=f"Until it is, the budget {budget.name} allows no disruption.",
    )


class SharedCount:
    """One count for all budgets that select the same pods and group them by the same domains.

    Which domains a budget guards, and how much it allows, is no part of a count. What is derived
    from it alone (what owners request, which revisions are old, which owners have to be read) is
    derived once for each state.
    """

    def __init__(self, selector: Selector, domain_counts: DomainCounts) -> None:
        self.selector = selector
        self.domain_counts = domain_counts
        self.budgets: set[BudgetKey] = set()
        self._unseen: list[str] | None = None
        self._demand: tuple[object, OwnerDemand] | None = None
        self._requested: tuple[object, frozenset[Place]] | None = None

    def look_again(self) -> None:
        """Nodes have changed: every pod may be in another domain."""
        self.domain_counts.nodes_changed()
        self._unseen = None

    @property
    def all_unseen(self) -> bool:
        """Whether every pod will be looked at anyway."""
        return self._unseen is None

    def unseen(self, pods: Iterable[str], count: int) -> list[str]:
        """The next pods to look at; none when all were."""
        if self._unseen is None:
            self._unseen = list(pods)
        taken = self._unseen[-count:]
        del self._unseen[-count:]
        return taken

    def demand(self, owners: Owners) -> OwnerDemand:
        """What the owners of the pods request."""
        seen = (self.domain_counts.version, owners.version)
        if self._demand is None or self._demand[0] != seen:
            self._demand = (seen, demand_of(self.domain_counts, owners))
        return self._demand[1]

    def requested(self, owners: Owners, watched: frozenset[tuple[str, str]]) -> frozenset[Place]:
        """Owners of pods whose group and kind are not watched."""
        seen = (self.domain_counts.owners_version, owners.version, watched)
        if self._requested is None or self._requested[0] != seen:
            places = frozenset(
                place
                for reference in self.domain_counts.owners
                if reference is not None
                for place in owners.followed(reference)
                if place[:2] not in watched
            )
            self._requested = (seen, places)
        return self._requested[1]

    def missing(self, owners: Owners) -> frozenset[Place]:
        """Owners of pods that were not found."""
        return frozenset(
            place
            for reference in self.domain_counts.owners
            if reference is not None and (place := owners.missing(reference)) is not None
        )
