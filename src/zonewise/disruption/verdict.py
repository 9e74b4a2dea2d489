"""Whether a pod may be disrupted now: for evictions, controllers, the clamp and ``explain``.

All budgets that cover a pod must agree (AND); every one that does not is named. A pod costs a grant
only if it is healthy and a budget counts it:

*   Free: it waits for a node, has finished, or is terminating already.
*   Granted: it has a grant already; a repeated request is the same grant.
*   Unready: it serves no traffic. Evictions may take it if its budget says ``AlwaysAllow`` or its
    domain has enough healthy pods anyway; controllers always, because they repair it.
*   Uncovered: no budget in force covers it where it is.
*   Allowed, Blocked: by the numbers.

A domain with ``maxUnavailable`` 0 is closed to updates (rule 7): a pod of an old revision, Ready or
not, may be disrupted only if the Ready ones of old revisions there are more than expected.
Otherwise a surge of new pods would allow the deletion of old ones, which is the update that was
forbidden; and a scale-down still ends.

A budget that holds ``Updates`` does not limit evictions of pods of the newest revision, so that
nodes can be drained. It limits workload controllers like any other budget: what they delete is an
update or a scale-down, and they may see a new revision before this process does. Only pods that a
StatefulSet is scaled down by may be deleted: the set cannot delete others instead.

Budgets beyond the limit of their namespace are not counted and refuse; one of them is named.

A plain budget is a PodDisruptionBudget without ``nodeSelectorTerm`` that Kubernetes counts; it is
judged by its status, as the API server does. Two of them on a pod refuse, as there, unless a third
one has a term. Where workloads evict, it is *undivided* instead: counted here, combined with any
other, and never closed to updates, because Kubernetes lets a surge of new pods replace old ones.
Numbered rules are those of ``budget_state``, the clamp is ``zonewise.webhook.clamp``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.api.reason import Reason
from zonewise.disruption import pdb
from zonewise.disruption.advice import (
    advise_on_domain,
    advise_on_plain_budget,
    advise_on_several_plain,
    describe_domain,
    format_pods,
)
from zonewise.disruption.budget import Budget, BudgetKey
from zonewise.disruption.budget_state import NO_GRANTS, BudgetState, DomainGrants
from zonewise.disruption.domain_counts import CountedPod, DomainCounts, identity
from zonewise.disruption.grouping import ALL_DOMAINS
from zonewise.disruption.ledger import Ledger
from zonewise.disruption.owners import Owners, reference_of
from zonewise.disruption.pdb import EvictionAnswer

FREE = "Free"
GRANTED = "Granted"
UNREADY = "Unready"
UNCOVERED = "Uncovered"
ALLOWED = "Allowed"
BLOCKED = "Blocked"

BUDGETS_PER_SLICE = 8
"""How many budgets are counted before ``prepare`` pauses: a few milliseconds."""


@dataclass(frozen=True, slots=True, order=True)
class Blocker:
    """A budget that refuses, in which domain, and why."""

    budget: str
    kind: str
    domain: str
    message: str = field(compare=False)
    fix: str = field(compare=False, default="")
    """What to change, if waiting does not help."""


@dataclass(frozen=True, slots=True)
class DisruptionVerdict:
    """The answer; ``charged`` if a grant has to be written before the pod is disrupted."""

    allowed: bool
    charged: bool
    reason: Reason
    blockers: tuple[Blocker, ...] = ()
    agreeing: tuple[Budget, ...] = ()
    """The budgets that counted the pod and agree."""

    @property
    def refusals(self) -> tuple[str, ...]:
        """A sentence for each budget that does not agree; the reason if it is none of them."""
        sentences = tuple(f"The disruption budget {blocker.message}" for blocker in self.blockers)
        return sentences or (self.reason.message,)


class CountedBudgets(Protocol):
    """What a round reads: the budgets, owners and grants of a namespace."""

    owners: Owners
    ledger: Ledger
    budgets: dict[BudgetKey, Budget]

    def budgets_covering(self, pod: Pod) -> Sequence[Budget]:
        """The budgets that select a pod, by name, without those that are not counted."""

    def state_and_counts(self, key: BudgetKey) -> tuple[BudgetState, DomainCounts]:
        """The state of a budget without grants, and its counts."""

    def budgets_beyond_limit(self, pod: Pod) -> Iterable[Budget]:
        """The budgets that select a pod and are not counted: its namespace has too many."""


class VerdictRound:
    """Verdicts of one moment, in sequence: each counts the grants of those before.

    ``strict`` is for real grants: a budget that was changed, or never counted, since its status was
    written allows nothing until it is counted. The same requests in another order may give the
    grant to another pod, never more grants.
    """

    def __init__(
        self, budgets: CountedBudgets, now: float, *, strict: bool = False, plain: bool = True
    ) -> None:
        self._budgets = budgets
        self._plain = plain
        self._strict = strict
        self._now = now
        self.ledger = budgets.ledger
        """The ledger that verdicts are judged by, and to which their grants have to be added."""
        self._granted: set[str] = set()
        self._states: dict[BudgetKey, tuple[BudgetState, DomainCounts]] = {}
        self._grants_by_count: dict[int, tuple[DomainCounts, dict[str, DomainGrants]]] = {}
        """Grants by domain for each count, by the count's id."""

    def prepare(self, pod: Pod) -> Iterator[None]:
        """Count the budgets of a pod before it is judged, with a pause after each slice.

        What changes in a pause does not change the states that this round has.
        """
        covering = self._budgets.budgets_covering(pod)
        remaining = [
            budget.key
            for budget in covering
            if budget.plain is None and budget.key not in self._states
        ]
        for start in range(0, len(remaining), BUDGETS_PER_SLICE):
            for key in remaining[start : start + BUDGETS_PER_SLICE]:
                if key in self._budgets.budgets:
                    self._state_and_counts(key)
            yield

    def state(self, key: BudgetKey) -> BudgetState:
        """The state of a budget, with the grants of the ledger and of this round."""
        return self._state_and_counts(key)[0]

    def judge(self, pod: Pod, *, evicting: bool = True) -> DisruptionVerdict:
        """Whether a pod may be disrupted; ``evicting`` unless its own controller deletes it."""
        if _needs_no_budget(pod):
            return DisruptionVerdict(
                True, False, _pod_reason(FREE, pod, "is not running on a node, or is terminating")
            )
        if not evicting and self._is_recreated(pod):
            return DisruptionVerdict(
                True, False, _pod_reason(FREE, pod, "is replaced by its Deployment (Recreate)")
            )
        covering = self._budgets.budgets_covering(pod)
        if not (evicting and self._plain):
            # A server checks plain budgets for evictions only, and the embedded one does so itself.
            covering = [budget for budget in covering if budget.plain is None]
        blockers = _find_plain_blockers(pod, covering)
        if not blockers and self._is_granted(pod):
            return DisruptionVerdict(True, False, _pod_reason(GRANTED, pod, "was granted already"))
        answers = [
            answer
            for budget in covering
            if budget.plain is None and budget.enforced
            for answer in self._judge_budget(budget, pod, evicting)
        ]
        answers += self._find_beyond_limit(pod, evicting)
        plain = [budget for budget in covering if budget.plain is not None]
        if not plain and not answers:
            text = "is not covered by any budget that is in force where it runs"
            return DisruptionVerdict(True, False, _pod_reason(UNCOVERED, pod, text))
        blockers += [answer for answer in answers if isinstance(answer, Blocker)]
        agreeing = tuple(answer for answer in answers if isinstance(answer, Budget))
        if blockers:
            refusing = {(blocker.kind, blocker.budget) for blocker in blockers}
            agreeing_plain = [item for item in plain if (item.kind, item.name) not in refusing]
            return _blocked_verdict(pod, blockers, (*agreeing, *agreeing_plain))
        if not is_pod_ready(pod) and all(_ignores_unready(budget) for budget in plain):
            return DisruptionVerdict(
                True, False, _pod_reason(UNREADY, pod, "is not Ready"), agreeing=agreeing
            )
        charged = bool(agreeing) and is_pod_ready(pod)
        return DisruptionVerdict(
            True, charged, _pod_reason(ALLOWED, pod, "may be disrupted"), agreeing=agreeing
        )

    def charge(self, pod: Pod) -> None:
        """Count a pod as granted from here on."""
        key = identity(pod)
        self._granted.add(key)
        for counts, granted in self._grants_by_count.values():
            if key in counts.pods:
                self._count_grant(granted, counts.pods[key][1])

    def _is_recreated(self, pod: Pod) -> bool:
        reference = reference_of(pod)
        return reference is not None and self._budgets.owners.is_recreated(reference)

    def _is_granted(self, pod: Pod) -> bool:
        return identity(pod) in self._granted or self.ledger.has_live_grant(pod, self._now)

    def _state_and_counts(self, key: BudgetKey) -> tuple[BudgetState, DomainCounts]:
        cached = self._states.get(key)
        if cached is None:
            base, counts = self._budgets.state_and_counts(key)
            state = base.with_grants(self._grants_of(counts))
            cached = self._states[key] = (state, counts)
        return cached

    def _grants_of(self, counts: DomainCounts) -> dict[str, DomainGrants]:
        """Granted pods by domain; those of later grants are added to it."""
        cached = self._grants_by_count.get(id(counts))
        if cached is None:
            cached = self._grants_by_count[id(counts)] = (counts, {})
            for uid in {*self.ledger.grants, *self._granted}:
                if uid in counts.pods and self._is_granted(counts.pods[uid][0]):
                    self._count_grant(cached[1], counts.pods[uid][1])
        return cached[1]

    def _count_grant(self, granted: dict[str, DomainGrants], counted: CountedPod) -> None:
        if not counted.ready:
            return
        old = granted.get(counted.domain, NO_GRANTS)
        outdated = old.outdated + self._is_outdated(counted)
        granted[counted.domain] = DomainGrants(old.ready + 1, outdated)

    def _is_outdated(self, counted: CountedPod) -> bool:
        return counted.reference is not None and self._budgets.owners.is_outdated(counted.reference)

    def _judge_budget(self, budget: Budget, pod: Pod, evicting: bool) -> Sequence[Budget | Blocker]:
        """Empty if a budget does not guard the pod; the budget if it agrees; else a blocker."""
        state, counts = self._state_and_counts(budget.key)
        budget = state.budget
        counted = counts.counted_pod(pod)
        if counted.domain not in state.domains:
            return ()
        domain = state.domains[counted.domain]
        if not domain.guarded or (
            budget.updates_only and self._is_no_update(pod, counted, evicting)
        ):
            return ()
        assert budget.limit is not None or state.blocking_reason is not None
        message = ""
        if self.ledger.is_ahead_of(budget):
            message = (
                "the last grant was judged by a newer version of it, which is not known here yet."
                " If that lasts, delete the DisruptionLedger of the namespace: it is not of this"
                " cluster"
            )
        elif self._strict and self._is_uncounted(budget, state):
            if is_pod_ready(pod) or (evicting and not budget.always_allow):
                message = "it is still being processed"
        elif state.blocking_reason is not None:
            if is_pod_ready(pod) or (evicting and not budget.always_allow):
                message = str(state.blocking_reason).rstrip(".")
        elif self._is_closed(budget, state, counted, evicting):
            message = _explain_closed(state, counted.domain)
        elif is_pod_ready(pod):
            message = _explain_shortage(state, counted.domain)
        elif evicting and not budget.always_allow:
            healthy = state.healthy(counted.domain)
            if healthy < domain.needed:
                message = _describe_shortage(state, counted.domain)
        if message:
            fix = advise_on_domain(state, counted.domain)
            message = f"{budget.name}: {message}"
            return (Blocker(budget.name, budget.kind, counted.domain, message, fix),)
        return (budget,)

    def _find_beyond_limit(self, pod: Pod, evicting: bool) -> list[Blocker]:
        """A blocker for a budget beyond its namespace's limit that guards a pod.

        One is enough to refuse, and there may be thousands.
        """
        for budget in self._budgets.budgets_beyond_limit(pod):
            if not budget.enforced:
                continue
            if not is_pod_ready(pod) and (not evicting or budget.always_allow):
                continue
            state, counts = self._budgets.state_and_counts(budget.key)
            counted = counts.counted_pod(pod)
            if not budget.grouping.guards(counted.domain):
                continue
            if budget.updates_only and self._is_no_update(pod, counted, evicting):
                continue
            message = f"{budget.name}: {str(state.blocking_reason).rstrip('.')}"
            return [Blocker(budget.name, budget.kind, counted.domain, message)]
        return []

    def _is_no_update(self, pod: Pod, counted: CountedPod, evicting: bool) -> bool:
        if self._budgets.owners.is_dispensable(pod):
            return True
        return evicting and not self._is_outdated(counted)

    def _is_uncounted(self, budget: Budget, state: BudgetState) -> bool:
        if budget.observed_generation < budget.generation:
            return True
        return budget.baseline is None and state.has_baseline and state.blocking_reason is None

    def _is_closed(
        self, budget: Budget, state: BudgetState, counted: CountedPod, evicting: bool
    ) -> bool:
        if budget.limit is None or budget.undivided or not self._is_outdated(counted):
            return False
        expected = state.domains[counted.domain].expected
        # A percentage of 0 pods is 0. It closes no domain to a controller: a broken old pod would
        # block its rollout forever.
        if not budget.limit.closes_domain(expected if evicting else max(expected, 1)):
            return False
        return state.outdated(counted.domain) <= expected


def _find_plain_blockers(pod: Pod, covering: Sequence[Budget]) -> list[Blocker]:
    """The plain budgets among these that would refuse an eviction of a pod."""
    plain = [budget for budget in covering if budget.plain is not None]
    if len(plain) > 1 and not any(budget.has_term for budget in covering):
        message = (
            f"this pod has {len(plain)} PodDisruptionBudgets"
            f" ({', '.join(budget.name for budget in plain)}), and Kubernetes evicts no pod that"
            " has more than one"
        )
        fix = advise_on_several_plain(plain)
        return [_plain_blocker(budget, f"{budget.name}: {message}", fix) for budget in plain]
    return [
        _plain_blocker(budget, message, advise_on_plain_budget(budget))
        for budget in plain
        if (message := _explain_plain_refusal(budget, is_ready=is_pod_ready(pod)))
    ]


def _explain_plain_refusal(budget: Budget, *, is_ready: bool) -> str:
    """Why a plain budget refuses an eviction; "" if it does not."""
    assert budget.plain is not None
    answer = pdb.judge_eviction(budget.plain, is_ready=is_ready)
    if answer in (EvictionAnswer.FREE, EvictionAnswer.COSTS):
        return ""
    if answer is EvictionAnswer.EXHAUSTED:
        status = budget.plain.status
        if failure := pdb.find_sync_failure(budget.plain):
            return f"{budget.name}: its pods cannot be counted: {failure}"
        if not status.expected_pods:
            return f"{budget.name}: expects no pods, and Kubernetes then allows no eviction"
        desired, healthy = status.desired_healthy, status.current_healthy
        return f"{budget.name}: needs {desired} healthy pods and has {healthy}"
    return f"{budget.name}: {answer.value}"


def _ignores_unready(budget: Budget) -> bool:
    assert budget.plain is not None
    return pdb.judge_eviction(budget.plain, is_ready=False) is EvictionAnswer.FREE


def _plain_blocker(budget: Budget, message: str, fix: str = "") -> Blocker:
    """A plain budget that refuses: it covers all domains."""
    return Blocker(budget.name, budget.kind, ALL_DOMAINS, message, fix)


def _needs_no_budget(pod: Pod) -> bool:
    return pdb.needs_no_budget(pod) or not pod.spec.node_name


def _explain_shortage(state: BudgetState, name: str) -> str:
    """Why a domain allows nothing; "" if it allows something."""
    if state.allowed(name) != 0:
        return ""
    other = state.find_disturbed_domain(name)
    if other is not None:
        return f"one domain at a time, and {describe_domain(other)} lacks a healthy pod"
    return _describe_shortage(state, name)


def _explain_closed(state: BudgetState, name: str) -> str:
    """Why a pod of an old revision may not go: its domain is closed to updates."""
    where = "" if name == ALL_DOMAINS else f" of {describe_domain(name)}"
    outdated = state.outdated(name)
    return (
        f"no pod{where} may be unavailable, and this one is of an old revision:"
        f" {format_pods(outdated)} of an old revision {'is' if outdated == 1 else 'are'} Ready,"
        f" {state.domains[name].expected} expected"
    )


def _describe_shortage(state: BudgetState, name: str) -> str:
    where = "" if state.budget.undivided else f" in {describe_domain(name)}"
    return f"needs {state.domains[name].desired} healthy pods{where} and has {state.healthy(name)}"


def _pod_reason(code: str, pod: Pod, text: str) -> Reason:
    meta = pod.metadata
    return Reason(
        code=code, message=f"pod {meta.name} {text}", object=f"Pod/{meta.namespace}/{meta.name}"
    )


def _blocked_verdict(
    pod: Pod, blockers: Sequence[Blocker], agreeing: tuple[Budget, ...] = ()
) -> DisruptionVerdict:
    """The verdict if some budgets refuse."""
    blockers = tuple(sorted(blockers))
    meta = pod.metadata
    by_budget = Counter(blocker.budget for blocker in blockers)
    kinds = {*(blocker.kind for blocker in blockers), *(budget.kind for budget in agreeing)}
    reason = Reason(
        code=BLOCKED,
        message="; ".join(
            f"{'the budget' if len(kinds) == 1 else blocker.kind} {blocker.message}"
            for blocker in blockers
        ),
        object=f"Pod/{meta.namespace}/{meta.name}",
        numbers={"budgets": len(by_budget)},
        fix=" ".join(dict.fromkeys(blocker.fix for blocker in blockers if blocker.fix))
        or "It may be disrupted once enough pods are healthy again, or the budget allows more.",
    )
    return DisruptionVerdict(False, False, reason, blockers, agreeing)
