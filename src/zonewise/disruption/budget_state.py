"""The state of a budget: what is expected, healthy and allowed in each of its domains.

The rules, in the order they are applied; d is a domain, sums are over all domains, guarded or not,
and the pods in no domain are one more.

1.  R is what the owners of the pods request. E is the recorded baseline; if there is none it is
    what is present.
2.  Domains are those of the nodes on which the pods could run, those with present pods, and those
    with E > 0.
3.  E is fitted to R (``baseline.fit_baseline``).
4.  surplus = max(0, Σ present - R); expected_d = max(E_d, present_d - surplus). A surplus pod may
    be taken from any domain that has more than its baseline, but a domain that got pods of another
    one keeps them until the workload has settled.
5.  desired_d is expected_d less ``maxUnavailable``, or ``minAvailable``; percentages are of
    expected_d, rounded up. allowed_d = max(0, healthy_d - min(desired_d, expected_d)): no budget
    holds pods beyond those that are expected, or a workload that is scaled below ``minAvailable``
    would never get there.
6.  (The controller settles E: ``baseline.settle_baseline``.)
7.  A domain in which nothing may be unavailable is closed to updates, too: see ``verdict``.
8.  DaemonSets expect a pod on every eligible node, and have no baseline. Nor has a
    PodDisruptionBudget without a term: its only domain expects R.

A granted pod that still exists is not healthy. ``Exclusive`` budgets allow nothing in a domain
while another one lacks a healthy pod; with even shares (``ReplicasPerDomain``) still what a domain
and all of them have beyond what is expected. Grants are subtracted from the count
(``with_grants``), because they change with every decision and the count only with the cluster.
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
from zonewise.disruption.grouping import ALL_DOMAINS, NO_DOMAIN
from zonewise.disruption.owners import DAEMON_SET, ControllerReference, OwnerKey, Owners, ScaleOwner
from zonewise.topology.eligible_nodes import NodeConstraints, node_constraints_of

TOO_MANY_BUDGETS = "TooManyBudgets"
UNKNOWN_SCALE = "UnknownScale"
NO_PODS = "NoPods"
SUFFICIENT = "SufficientPods"
INSUFFICIENT = "InsufficientPods"


@dataclass(frozen=True, slots=True)
class DomainState:
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

    @property
    def needed(self) -> int:
        """How many healthy pods are held: what is desired, and never more than is expected."""
        return min(self.desired, self.expected)


@dataclass(frozen=True, slots=True)
class DomainGrants:
    """Granted pods of a domain that still exist."""

    ready: int = 0
    outdated: int = 0


NO_GRANTS = DomainGrants()


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetState:
    """A budget's numbers by domain; ``replicas`` is None if an owner's scale is not known."""

    budget: Budget
    replicas: int | None
    domains: Mapping[str, DomainState]
    blocking_reason: Reason | None = None
    """Why nothing is allowed, whatever the numbers are."""
    granted: Mapping[str, DomainGrants] = field(default_factory=dict)
    requested: int = 0
    """Pods that owners other than DaemonSets request, as far as they are known."""
    has_baseline: bool = True
    """Whether the baseline counts: DaemonSets have none, nor budgets without domains."""

    def with_grants(self, granted: Mapping[str, DomainGrants]) -> BudgetState:
        """The state with these grants, by domain."""
        return replace(self, granted=granted)

    def healthy(self, name: str) -> int:
        """How many present and Ready pods of a domain have no grant."""
        return self.domains[name].ready - self.granted.get(name, NO_GRANTS).ready

    def outdated(self, name: str) -> int:
        """How many of them are of an old revision."""
        return self.domains[name].outdated - self.granted.get(name, NO_GRANTS).outdated

    def allowed(self, name: str) -> int | None:
        """How many more healthy pods may be disrupted; None if the domain is not guarded."""
        domain = self.domains[name]
        if not domain.guarded:
            return None
        if self.blocking_reason is not None:
            return 0
        spare = self.healthy(name) - domain.needed
        if self.find_disturbed_domain(name) is not None:
            spare = min(spare, self._find_surplus(name))
        return max(0, spare)

    def _find_surplus(self, name: str) -> int:
        """How many pods of a domain may go whatever other domains lack.

        With even shares a domain may lack pods that nobody will ever create there; a workload that
        is scaled down then would keep all of its pods.
        """
        if not self.budget.per_domain or self.replicas is None:
            return 0
        healthy = sum(map(self.healthy, self.domains))
        return min(self.healthy(name) - self.domains[name].expected, healthy - self.replicas)

    def find_disturbed_domain(self, name: str) -> str | None:
        """Another domain that lacks a healthy pod, if the budget is exclusive."""
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

    def settle_baseline(self, counts: DomainCounts, owners: Owners) -> dict[str, int]:
        """The baseline that agrees with the existing pods (rule 6).

        Pods that a StatefulSet is scaled down by do not count where enough others exist: the set
        cannot delete others instead, and would wait for these forever.
        """
        baseline = self.budget.baseline or {}
        present = counts.present
        if sum(present.values()) > self.requested:
            indispensable = present - Counter(
                counted.domain
                for pod, counted in counts.pods.values()
                if counted.present and owners.is_dispensable(pod)
            )
            if sum(indispensable.values()) >= self.requested:
                present = indispensable
        return baselines.settle_baseline(self.requested, baseline, present, self.domains)

    @property
    def uncovered_pods(self) -> int:
        """How many present pods are in no domain."""
        return self.domains[NO_DOMAIN].present if NO_DOMAIN in self.domains else 0

    @property
    def named_domains(self) -> list[DomainState]:
        """The domains sorted by name, without NO_DOMAIN."""
        return [domain for name, domain in sorted(self.domains.items()) if name != NO_DOMAIN]

    def reason(self) -> Reason:
        """The state of the budget as a reason."""
        if self.blocking_reason is not None:
            return self.blocking_reason
        budget = self.budget
        guarded = [domain for domain in self.named_domains if domain.guarded]
        numbers = {domain.name: self.allowed(domain.name) or 0 for domain in guarded}
        if not any(domain.present for domain in self.domains.values()):
            return Reason(
                code=NO_PODS,
                message=f"the budget {budget.name} selects no existing pod",
                object=budget.object,
            )
        total = sum(numbers.values())
        texts = ", ".join(f"{name} {count}" for name, count in numbers.items())
        return Reason(
            code=SUFFICIENT if total or not guarded else INSUFFICIENT,
            message=f"pods that may be disrupted now: {texts or 'any, nothing is guarded'}",
            object=budget.object,
            numbers=dict(numbers),
        )


def uncounted_state(budget: Budget, limit: int) -> BudgetState:
    """The state of a budget beyond the limit: nothing is counted, and nothing allowed."""
    reason = Reason(
        code=TOO_MANY_BUDGETS,
        message=f"the namespace {budget.namespace} has more than {limit} budgets per failure"
        f" domain; the {limit} oldest are counted, and {budget.name} is not among them",
        object=budget.object,
        fix="Until budgets are deleted it allows no disruption of the pods it selects.",
    )
    return BudgetState(budget=budget, replicas=None, domains={}, blocking_reason=reason)


def count_budget(budget: Budget, counts: DomainCounts, demand: OwnerDemand) -> BudgetState:
    """Count a budget, without grants."""
    if budget.limit is None:
        domains = {
            name: DomainState(name, True, count, 0, 0, 0, counts.ready[name], 0)
            for name, count in (counts.present + counts.daemons).items()
        }
        return BudgetState(
            budget=budget, replicas=None, domains=domains, blocking_reason=budget.invalid_reason
        )
    eligible_nodes = _count_eligible_nodes(counts, demand.daemon_sets)
    present: dict[str, int] = dict(counts.present)
    baseline: Mapping[str, int] = present if budget.baseline is None else budget.baseline
    has_baseline = (
        bool(demand.replicas or present) or not demand.daemon_sets
    ) and not budget.undivided
    if not has_baseline:
        baseline = {}
    names = {
        *_find_domains(budget, counts, demand.daemon_sets),
        *(counts.present + counts.daemons),
        *(name for name, count in baseline.items() if count > 0),
        *eligible_nodes,
    }
    fitted = baselines.fit_baseline(demand.replicas, baseline, names)
    if budget.per_domain:
        fitted = baselines.split_evenly(demand.replicas, baseline, names)
    surplus = max(0, sum(present.values()) - demand.replicas)
    domains = {}
    for name in sorted(names):
        expected = fitted[name]
        if not budget.per_domain:
            expected = max(expected, present.get(name, 0) - surplus)
        expected += eligible_nodes[name]
        domains[name] = DomainState(
            name=name,
            guarded=budget.grouping.guards(name),
            present=present.get(name, 0) + counts.daemons[name],
            baseline=fitted[name],
            expected=expected,
            desired=budget.limit.desired_healthy(expected),
            ready=counts.ready[name],
            outdated=demand.outdated[name],
        )
    unknown_owner = demand.unknown_owner
    if budget.undivided and isinstance(budget.limit.value, int):
        # As in Kubernetes, a whole number of pods needs no scale: those that exist are expected.
        unknown_owner = None if not budget.limit.is_max_unavailable else unknown_owner
    return BudgetState(
        budget=budget,
        replicas=None
        if unknown_owner is not None
        else demand.replicas + sum(eligible_nodes.values()),
        requested=demand.replicas,
        domains=domains,
        blocking_reason=None if unknown_owner is None else _unknown_scale(budget, unknown_owner),
        has_baseline=has_baseline,
    )


@dataclass(frozen=True, slots=True)
class OwnerDemand:
    """What the owners of counted pods request, the same for every budget; DaemonSets separately."""

    replicas: int
    daemon_sets: tuple[ScaleOwner, ...]
    unknown_owner: ControllerReference | None
    """An owner that could not be found."""
    outdated: Counter[str]
    """Ready pods of old revisions, by domain."""


def demand_of(counts: DomainCounts, owners: Owners) -> OwnerDemand:
    """Sum up the owners of all pods of a count."""
    scales: dict[tuple[str, str, str, str], int] = {}
    daemon_sets: dict[tuple[str, str, str, str], ScaleOwner] = {}
    existing_pods = 0
    unknown_owners: list[ControllerReference] = []
    for active, counter in ((True, counts.active_by_owner), (False, counts.inactive_by_owner)):
        for reference, count in counter.items():
            if reference is None:
                existing_pods += count if active else 0
                continue
            owner = owners.find_scale_owner(reference)
            if owner is None:
                # Terminating pods outlive their owner; they request nothing.
                if active:
                    unknown_owners.append(reference)
                    existing_pods += count
            elif owner.key[1] == DAEMON_SET:
                daemon_sets[owner.key] = owner
            elif owner.replicas is None:
                existing_pods += count if active else 0
            else:
                scales[owner.key] = owner.replicas
    outdated: Counter[str] = Counter()
    for (name, reference), count in counts.ready_by_revision.items():
        if owners.is_outdated(reference):
            outdated[name] += count
    return OwnerDemand(
        replicas=existing_pods + sum(scales.values()),
        daemon_sets=tuple(daemon_sets[key] for key in sorted(daemon_sets)),
        unknown_owner=min(unknown_owners, default=None),
        outdated=outdated,
    )


def _find_domains(
    budget: Budget, counts: DomainCounts, daemon_sets: Iterable[ScaleOwner]
) -> set[str]:
    """The domains of the nodes on which the pods could run."""
    if not budget.grouping.keys:
        return set() if budget.grouping.selects_nothing else {ALL_DOMAINS}
    needs: set[NodeConstraints | None] = set(counts.needs)
    needs |= {node_constraints_of(owner.template.spec) for owner in daemon_sets if owner.template}
    domains: set[str] = set()
    for need in needs or {None}:
        domains.update(counts.count_eligible_nodes(need))
    return domains - {NO_DOMAIN}


def _count_eligible_nodes(counts: DomainCounts, daemon_sets: Iterable[ScaleOwner]) -> Counter[str]:
    """How many pods DaemonSets should have in each domain: one per eligible node."""
    nodes: Counter[str] = Counter()
    for owner in daemon_sets:
        template = owner.template
        nodes.update(
            counts.count_eligible_nodes(
                None if template is None else node_constraints_of(template.spec)
            )
        )
    return nodes


def _unknown_scale(budget: Budget, reference: ControllerReference) -> Reason:
    _, kind, namespace, name = reference.key
    return Reason(
        code=UNKNOWN_SCALE,
        message=f"how many pods {kind} {name} requests is not known: it, or its controller, does"
        " not exist or may not be read",
        object=f"{kind}/{namespace}/{name}",
        fix=f"Until it is, the budget {budget.name} allows no disruption.",
    )


class SharedCount:
    """One count for all budgets that select the same pods and group them by the same domains.

    Which domains a budget guards, and how much it allows, is not part of a count. What depends on
    the count alone (what owners request, which revisions are old, which owners have to be read) is
    derived once for each version.
    """

    def __init__(self, selector: Selector, counts: DomainCounts) -> None:
        self.selector = selector
        self.domain_counts = counts
        self.budgets: set[BudgetKey] = set()
        self._uncounted_pods: list[str] | None = None
        self._demand: tuple[object, OwnerDemand] | None = None
        self._owners_to_request: tuple[object, frozenset[OwnerKey]] | None = None

    def recount_all(self) -> None:
        """Nodes have changed: every pod may be in another domain."""
        self.domain_counts.nodes_changed()
        self._uncounted_pods = None

    @property
    def will_recount_all(self) -> bool:
        """Whether every pod will be counted anyway."""
        return self._uncounted_pods is None

    def take_uncounted(self, pods: Iterable[str], count: int) -> list[str]:
        """The next pods to count; empty when all were."""
        if self._uncounted_pods is None:
            self._uncounted_pods = list(pods)
        taken = self._uncounted_pods[-count:]
        del self._uncounted_pods[-count:]
        return taken

    def demand(self, owners: Owners) -> OwnerDemand:
        """What the owners of the pods request."""
        versions = (self.domain_counts.version, owners.version)
        if self._demand is None or self._demand[0] != versions:
            self._demand = (versions, demand_of(self.domain_counts, owners))
        return self._demand[1]

    def owners_to_request(
        self, owners: Owners, watched: frozenset[tuple[str, str]]
    ) -> frozenset[OwnerKey]:
        """Owners of pods whose group and kind are not watched."""
        versions = (self.domain_counts.owners_version, owners.version, watched)
        if self._owners_to_request is None or self._owners_to_request[0] != versions:
            keys = frozenset(
                key
                for reference in self.domain_counts.active_by_owner
                if reference is not None
                for key in owners.lookup_chain(reference)
                if key[:2] not in watched
            )
            self._owners_to_request = (versions, keys)
        return self._owners_to_request[1]

    def missing_owners(self, owners: Owners) -> frozenset[OwnerKey]:
        """Owners of pods that are not known."""
        return frozenset(
            key
            for reference in self.domain_counts.active_by_owner
            if reference is not None and (key := owners.find_missing(reference)) is not None
        )
