"""May this pod be disrupted now? One answer for evictions, controllers, the clamp and ``explain``.

All budgets that cover a pod must agree (AND); every one that does not is named. A pod costs a grant
only if it is healthy and a budget counts it, so what never served traffic is free:

*   Free: it waits for a node, has finished, or is terminating already.
*   Granted: it has a grant already; a repeated request is the same grant.
*   Unready: it serves no traffic. Evictions may take it if its budget says ``AlwaysAllow`` or its
    domain has enough healthy pods anyway; controllers always, because they repair it.
*   Uncovered: no budget in force covers it where it is.
*   Allowed, Blocked: what the numbers say.

A domain with ``maxUnavailable`` 0 is closed to updates (rule 7): a pod of an old revision, Ready or
not, may be disrupted only if the Ready ones of old revisions there are more than expected.
Otherwise a surge of new pods would make room for taking the old ones down, which is the very update
that was forbidden; and a scale-down still ends.

A budget that holds ``Updates`` leaves evictions of pods of the newest revision alone, so that nodes
can be drained under it. Workload controllers it holds as any other: what they delete is an update
or a scale-down, and they may see a new revision before this process does. Only the pods that a
StatefulSet is scaled down by are let go: the set cannot take others in their place.

Budgets beyond the limit of their namespace are not counted and refuse; one of them is named.

Plain PodDisruptionBudgets are judged by their status, as the API server does. Two of them on a pod
are refused, as there, unless a third one has a term.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import ready
from zonewise.api.reason import Reason
from zonewise.disruption import pdb
from zonewise.disruption.budget import POD_BUDGET, Budget, BudgetKey
from zonewise.disruption.domain_counts import DomainCounts, PodPlace, identity
from zonewise.disruption.grouping import WHOLE
from zonewise.disruption.ledger import Ledger
from zonewise.disruption.never import domain_advice, one_too_many, place_of, plain_advice
from zonewise.disruption.owners import Owners, reference_of
from zonewise.disruption.pdb import Asked
from zonewise.disruption.standing import NONE_GRANTED, BudgetStanding, Granted

FREE = "Free"
GRANTED = "Granted"
UNREADY = "Unready"
UNCOVERED = "Uncovered"
ALLOWED = "Allowed"
BLOCKED = "Blocked"

AT_ONCE = 8
"""So many budgets are counted before ``preparing`` pauses, a few milliseconds."""


@dataclass(frozen=True, slots=True, order=True)
class Blocker:
    """A budget that does not agree, where, and why."""

    budget: str
    kind: str
    domain: str
    why: str = field(compare=False)
    fix: str = field(compare=False, default="")
    """What has to be changed, if waiting does not help."""


@dataclass(frozen=True, slots=True)
class DisruptionVerdict:
    """The answer: ``charged`` if a grant has to be written before the pod may go."""

    allowed: bool
    charged: bool
    reason: Reason
    blockers: tuple[Blocker, ...] = ()
    judged: tuple[Budget, ...] = ()
    """The budgets that counted the pod and agree."""


class CountedBudgets(Protocol):
    """Where the numbers come from."""

    owners: Owners
    ledger: Ledger
    budgets: dict[BudgetKey, Budget]

    def covering(self, pod: Pod) -> Sequence[Budget]:
        """The budgets that select a pod, by name, without those that are not counted."""

    def counted(self, key: BudgetKey) -> tuple[BudgetStanding, DomainCounts]:
        """The state of a budget, without grants."""

    def beyond_limit(self, pod: Pod) -> Iterable[Budget]:
        """The budgets that select a pod and are not counted: its namespace has too many."""


class Round:
    """Verdicts of one moment, in sequence: each sees the grants of those before.

    ``strict`` is for real grants: a budget that was changed, or never counted, since its status was
    written allows nothing until it is counted. The same requests in another order may give the
    grant to another pod, never more grants.
    """

    def __init__(
        self, by_namespace: CountedBudgets, now: float, *, strict: bool = False, plain: bool = True
    ) -> None:
        self._counted_budgets = by_namespace
        self._plain = plain
        self._strict = strict
        self._now = now
        self.ledger = by_namespace.ledger
        """What verdicts are judged by, and what their grants have to be written on."""
        self._granted: set[str] = set()
        self._standings: dict[BudgetKey, tuple[BudgetStanding, DomainCounts]] = {}
        self._granted_in: dict[int, tuple[DomainCounts, dict[str, Granted]]] = {}
        """The grants of each count, by its id."""

    def preparing(self, pod: Pod) -> Iterator[None]:
        """Count the budgets of a pod before it is judged, with a pause after each slice.

        What changes in a pause does not change the standings that this round has.
        """
        covering = self._counted_budgets.covering(pod)
        left = [one.key for one in covering if one.plain is None and one.key not in self._standings]
        for start in range(0, len(left), AT_ONCE):
            for key in left[start : start + AT_ONCE]:
                if key in self._counted_budgets.budgets:
                    self._counted(key)
            yield

    def standing(self, key: BudgetKey) -> BudgetStanding:
        """The state of a budget, with the grants of the ledger and of this round."""
        return self._counted(key)[0]

    def judge(self, pod: Pod, *, evicting: bool = True) -> DisruptionVerdict:
        """Whether a pod may be disrupted; ``evicting`` unless its own controller deletes it."""
        if _goes_freely(pod):
            return DisruptionVerdict(
                True, False, _reason(FREE, pod, "is not running on a node, or leaves")
            )
        if not evicting and self._recreated(pod):
            return DisruptionVerdict(
                True, False, _reason(FREE, pod, "is given up by its Deployment")
            )
        covering = self._counted_budgets.covering(pod)
        if not (evicting and self._plain):
            # A server checks plain budgets for evictions only, and the embedded one does so itself.
            covering = [budget for budget in covering if budget.plain is None]
        blockers = plain_blockers(pod, covering)
        if not blockers and self._is_granted(pod):
            return DisruptionVerdict(True, False, _reason(GRANTED, pod, "was granted already"))
        answers = [
            answer
            for budget in covering
            if budget.plain is None and budget.enforced
            for answer in self._ask(budget, pod, evicting)
        ]
        answers += self._beyond_limit(pod, evicting)
        plain = [budget for budget in covering if budget.plain is not None]
        if not plain and not answers:
            why = "is not covered by any budget that is in force where it runs"
            return DisruptionVerdict(True, False, _reason(UNCOVERED, pod, why))
        blockers += [answer for answer in answers if isinstance(answer, Blocker)]
        judged = tuple(answer for answer in answers if isinstance(answer, Budget))
        if blockers:
            refusing = {(blocker.kind, blocker.budget) for blocker in blockers}
            agreeing = [one for one in plain if (one.kind, one.name) not in refusing]
            return blocked(pod, blockers, (*judged, *agreeing))
        if not ready(pod) and all(_free_of(budget) for budget in plain):
            return DisruptionVerdict(
                True, False, _reason(UNREADY, pod, "is not Ready"), judged=judged
            )
        charged = bool(judged) and ready(pod)
        return DisruptionVerdict(True, charged, _reason(ALLOWED, pod, "may go"), judged=judged)

    def charge(self, pod: Pod) -> None:
        """Count a pod as granted from here on."""
        key = identity(pod)
        self._granted.add(key)
        for domain_counts, granted in self._granted_in.values():
            if key in domain_counts.pods:
                self._take(granted, domain_counts.pods[key][1])

    def _recreated(self, pod: Pod) -> bool:
        reference = reference_of(pod)
        return reference is not None and self._counted_budgets.owners.recreated(reference)

    def _is_granted(self, pod: Pod) -> bool:
        return identity(pod) in self._granted or self.ledger.live(pod, self._now)

    def _counted(self, key: BudgetKey) -> tuple[BudgetStanding, DomainCounts]:
        known = self._standings.get(key)
        if known is None:
            base, domain_counts = self._counted_budgets.counted(key)
            standing = base.less(self._granted_of(domain_counts))
            known = self._standings[key] = (standing, domain_counts)
        return known

    def _granted_of(self, domain_counts: DomainCounts) -> dict[str, Granted]:
        """Granted pods by domain; those of later grants are added to it."""
        known = self._granted_in.get(id(domain_counts))
        if known is None:
            known = self._granted_in[id(domain_counts)] = (domain_counts, {})
            for uid in {*self.ledger.grants, *self._granted}:
                if uid in domain_counts.pods and self._is_granted(domain_counts.pods[uid][0]):
                    self._take(known[1], domain_counts.pods[uid][1])
        return known[1]

    def _take(self, granted: dict[str, Granted], place: PodPlace) -> None:
        if not place.ready:
            return
        old = granted.get(place.domain, NONE_GRANTED)
        granted[place.domain] = Granted(old.ready + 1, old.outdated + self._stale(place))

    def _stale(self, place: PodPlace) -> bool:
        return place.reference is not None and self._counted_budgets.owners.outdated(
            place.reference
        )

    def _ask(self, budget: Budget, pod: Pod, evicting: bool) -> Sequence[Budget | Blocker]:
        """Nothing if a budget does not guard the pod; itself if it agrees; else why not."""
        standing, domain_counts = self._counted(budget.key)
        budget = standing.budget
        place = domain_counts.place(pod)
        if place.domain not in standing.domains:
            return ()
        domain = standing.domains[place.domain]
        if not domain.guarded or (budget.updates_only and self._no_update(pod, place, evicting)):
            return ()
        assert budget.limit is not None or standing.trouble is not None
        why = ""
        if self.ledger.behind(budget):
            why = (
                "a newer state of it was granted from; it is not known here yet. If that lasts,"
                " delete the DisruptionLedger of the namespace: it is not of this cluster"
            )
        elif self._strict and self._uncounted(budget, standing):
            if ready(pod) or (evicting and not budget.always_allow):
                why = "it is still being processed"
        elif standing.trouble is not None:
            if ready(pod) or (evicting and not budget.always_allow):
                why = str(standing.trouble).rstrip(".")
        elif self._closed(budget, standing, place, evicting):
            why = (
                f"no pod of {place_of(place.domain)} may be unavailable, and this one is of an old"
                f" revision: {standing.outdated(place.domain)} such pods are Ready,"
                f" {domain.expected} expected"
            )
        elif ready(pod):
            why = _short_of(standing, place.domain)
        elif evicting and not budget.always_allow:
            healthy = standing.healthy(place.domain)
            if healthy < domain.desired:
                why = _lacks(domain.desired, healthy, place.domain)
        if why:
            fix = domain_advice(standing, place.domain)
            why = f"{budget.name}: {why}"
            return (Blocker(budget.name, budget.kind, place.domain, why, fix),)
        return (budget,)

    def _beyond_limit(self, pod: Pod, evicting: bool) -> list[Blocker]:
        """A budget beyond its namespace's limit that guards a pod.

        One is enough to refuse, and there may be thousands.
        """
        for budget in self._counted_budgets.beyond_limit(pod):
            if not budget.enforced:
                continue
            if not ready(pod) and (not evicting or budget.always_allow):
                continue
            standing, domain_counts = self._counted_budgets.counted(budget.key)
            place = domain_counts.place(pod)
            if not budget.grouping.guards(place.domain):
                continue
            if budget.updates_only and self._no_update(pod, place, evicting):
                continue
            why = f"{budget.name}: {str(standing.trouble).rstrip('.')}"
            return [Blocker(budget.name, budget.kind, place.domain, why)]
        return []

    def _no_update(self, pod: Pod, place: PodPlace, evicting: bool) -> bool:
        if self._counted_budgets.owners.dispensable(pod):
            return True
        return evicting and not self._stale(place)

    def _uncounted(self, budget: Budget, standing: BudgetStanding) -> bool:
        if budget.observed < budget.generation:
            return True
        return budget.baseline is None and standing.remembers and standing.trouble is None

    def _closed(
        self, budget: Budget, standing: BudgetStanding, place: PodPlace, evicting: bool
    ) -> bool:
        if budget.limit is None or not self._stale(place):
            return False
        expected = standing.domains[place.domain].expected
        # A percentage of nothing is nothing. It closes no domain to a controller: a broken old pod
        # would block its rollout forever.
        if not budget.limit.closes(expected if evicting else max(expected, 1)):
            return False
        return standing.outdated(place.domain) <= expected


def plain_blockers(pod: Pod, covering: Sequence[Budget]) -> list[Blocker]:
    """The plain budgets among these that would refuse an eviction of a pod."""
    plain = [budget for budget in covering if budget.plain is not None]
    termed = any(budget.kind == POD_BUDGET and budget.plain is None for budget in covering)
    if len(plain) > 1 and not termed:
        why = "this pod has more than one PodDisruptionBudget, which evictions do not support"
        fix = one_too_many(plain)
        return [plain_blocker(budget, f"{budget.name}: {why}", fix) for budget in plain]
    return [
        plain_blocker(budget, why, plain_advice(budget))
        for budget in plain
        if (why := plain_refusal(budget, is_ready=ready(pod)))
    ]


def plain_refusal(budget: Budget, *, is_ready: bool) -> str:
    """Why a plain budget does not let a pod go, "" if it does."""
    assert budget.plain is not None
    answer = pdb.asked(budget.plain, is_ready=is_ready)
    if answer in (Asked.FREE, Asked.COSTS):
        return ""
    if answer is Asked.EXHAUSTED:
        status = budget.plain.status
        needs, has = status.desired_healthy, status.current_healthy
        return f"{budget.name}: needs {needs} healthy pods and has {has}"
    return f"{budget.name}: {answer.value}"


def _free_of(budget: Budget) -> bool:
    assert budget.plain is not None
    return pdb.asked(budget.plain, is_ready=False) is Asked.FREE


def plain_blocker(budget: Budget, why: str, fix: str = "") -> Blocker:
    """A plain budget that does not agree: it is about all domains."""
    return Blocker(budget.name, budget.kind, WHOLE, why, fix)


def _goes_freely(pod: Pod) -> bool:
    return pdb.goes_freely(pod) or not pod.spec.node_name


def _short_of(standing: BudgetStanding, name: str) -> str:
    """Why a domain allows nothing, "" if it does."""
    if standing.allowed(name) != 0:
        return ""
    other = standing.disturbed_elsewhere(name)
    if other is not None:
        return f"one domain at a time, and {place_of(other)} lacks a healthy pod"
    desired, healthy = standing.domains[name].desired, standing.healthy(name)
    return _lacks(desired, healthy, name)


def _lacks(desired: int, healthy: int, name: str) -> str:
    return f"needs {desired} healthy pods in {place_of(name)} and has {healthy}"


def _reason(code: str, pod: Pod, what: str) -> Reason:
    meta = pod.metadata
    return Reason(
        code=code,
        message=f"pod {meta.name} {what}",
        object=f"Pod/{meta.namespace}/{meta.name}",
    )


def blocked(
    pod: Pod, blockers: Sequence[Blocker], judged: tuple[Budget, ...] = ()
) -> DisruptionVerdict:
    """The verdict if some do not agree."""
    blockers = tuple(sorted(blockers))
    meta = pod.metadata
    by_budget = Counter(blocker.budget for blocker in blockers)
    kinds = {*(blocker.kind for blocker in blockers), *(budget.kind for budget in judged)}
    reason = Reason(
        code=BLOCKED,
        message="; ".join(
            f"{'the budget' if len(kinds) == 1 else blocker.kind} {blocker.why}"
            for blocker in blockers
        ),
        object=f"Pod/{meta.namespace}/{meta.name}",
        numbers={"budgets": len(by_budget)},
        fix=" ".join(dict.fromkeys(one.fix for one in blockers if one.fix))
        or "It may go once enough pods are healthy again, or the budget allows more.",
    )
    return DisruptionVerdict(False, False, reason, blockers, judged)
