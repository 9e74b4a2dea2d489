"""Which pods are deleted, if some of a workload have to be and budgets forbid others.

Unready pods go first, as everywhere. Among the others those of the fullest domain go first, so that
a scale-down leaves the workload spread as evenly as it can; within a domain the order is the
caller's. Pods that budgets do not allow are left out: their deletion would only be refused.
Evictions are refused by plain PodDisruptionBudgets, too (``evicting``); their status says how many
they allow.

A controller that is not ours is steered by marks. A ReplicaSet deletes the pods with the lowest
deletion cost first, among those that are Ready. There are no permanent costs: a pod is marked only
when it is about to be deleted, and the mark is removed if it stays after all. A cost that another
client set is left unchanged. What a ReplicaSet is to be reduced to is in an annotation.

A Deployment whose ReplicaSet is kept from shrinking is *held*; the words for it are here, because
our own workload controllers and the one that steers Kubernetes' report the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import active, ready
from zonewise.disruption.budget import BudgetKey
from zonewise.disruption.grouping import ELSEWHERE
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owners import REPLICA_SET, reference_of
from zonewise.disruption.verdict import (
    DisruptionVerdict,
    Round,
    blocked,
    plain_blocker,
    plain_blockers,
)

REDUCE_TO = "zonewise.io/reduce-to"
COST = "controller.kubernetes.io/pod-deletion-cost"
MARK = "-1000000"
SEEN_SECONDS = 1.2
"""After this long a mark is in every cache."""
HELD = "HeldByBudget"
"""Pods should go, and a disruption budget does not let them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The pods to delete, in order; and the first verdict against one that must stay."""

    pods: tuple[Pod, ...]
    against: tuple[Pod, DisruptionVerdict] | None


def chosen(
    namespace_budgets: NamespaceBudgets,
    pods: Sequence[Pod],
    count: int,
    now: float,
    *,
    spread: bool = True,
    evicting: bool = False,
) -> Choice:
    """Choose up to ``count`` of the pods, the most dispensable first."""
    work = choosing(namespace_budgets, pods, count, now, spread=spread, evicting=evicting)
    while True:
        try:
            next(work)
        except StopIteration as done:
            choice: Choice = done.value
            return choice


def choosing(
    namespace_budgets: NamespaceBudgets,
    pods: Sequence[Pod],
    count: int,
    now: float,
    *,
    spread: bool = True,
    evicting: bool = False,
) -> Generator[None, None, Choice]:
    """The same with a pause after each pod."""
    asked = Round(namespace_budgets, now, strict=True, plain=False)
    left: dict[BudgetKey, int] = {}
    taken: list[Pod] = []
    against: tuple[Pod, DisruptionVerdict] | None = None
    waiting: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=ready):
        waiting.setdefault(
            _domain(namespace_budgets, pod) if spread and ready(pod) else "", []
        ).append(pod)
        yield
    full = _fullness(namespace_budgets, pods) if spread else Counter()
    for several in waiting.values():
        several.reverse()
    while len(taken) < count and waiting:
        name = min(waiting, key=lambda one: (one != "", -full[one], one))
        several = waiting[name]
        pod = several.pop()
        if not several:
            del waiting[name]
        yield from asked.preparing(pod)
        verdict = asked.judge(pod, evicting=False)
        if verdict.allowed and evicting and ready(pod):
            verdict = _by_plain(namespace_budgets, pod, left) or verdict
        if not verdict.allowed:
            against = against or (pod, verdict)
            yield
            continue
        if verdict.charged:
            asked.charge(pod)
        taken.append(pod)
        full[name] -= 1
        yield
    return Choice(tuple(taken), against)


def _by_plain(
    namespace_budgets: NamespaceBudgets, pod: Pod, left: dict[BudgetKey, int]
) -> DisruptionVerdict | None:
    """What plain budgets have against an eviction, if anything; else it is spent in ``left``."""
    covering = namespace_budgets.covering(pod)
    blockers = plain_blockers(pod, covering)
    plain = [budget for budget in covering if budget.plain is not None]
    for budget in plain:
        assert budget.plain is not None
        if not left.setdefault(budget.key, budget.plain.status.disruptions_allowed):
            blockers.append(plain_blocker(budget, f"{budget.name}: others go first"))
    if blockers:
        return blocked(pod, list(dict.fromkeys(blockers)))
    for budget in plain:
        left[budget.key] -= 1
    return None


def _domain(namespace_budgets: NamespaceBudgets, pod: Pod) -> str:
    """The domain a pod counts in, of the first budget that groups; "" without one."""
    for budget in namespace_budgets.covering(pod):
        if budget.plain is None and budget.grouping.keys:
            return namespace_budgets.counted(budget.key)[1].place(pod).domain or ELSEWHERE
    return ""


def _fullness(namespace_budgets: NamespaceBudgets, pods: Sequence[Pod]) -> Counter[str]:
    """How many pods each domain has, of all that share the budget."""
    for pod in pods:
        for budget in namespace_budgets.covering(pod):
            if budget.plain is None and budget.grouping.keys:
                domain_counts = namespace_budgets.counted(budget.key)[1]
                return domain_counts.present + domain_counts.daemons
    return Counter()


def is_marked(pod: Pod) -> bool:
    """Whether a pod was chosen to go first."""
    return pod.metadata.annotations.get(COST) == MARK


def is_foreign(pod: Pod) -> bool:
    """Whether another client set the pod's deletion cost."""
    return pod.metadata.annotations.get(COST, MARK) != MARK


def marked_before(namespace_budgets: NamespaceBudgets, pod: Pod) -> int:
    """How many marked pods of a pod's ReplicaSet are to go before it.

    None before one that is marked itself, that is not Ready, or whose cost another client set.
    """
    owner = reference_of(pod)
    if owner is None or owner.place[1] != REPLICA_SET:
        return 0
    if not ready(pod) or is_marked(pod) or is_foreign(pod):
        return 0
    return sum(is_marked(one) and active(one) for one in namespace_budgets.owned(owner.uid))


def held_message(replica_set: str, pods: int, size: int, why: str) -> str:
    """What a Deployment is told of a ReplicaSet that a budget keeps from shrinking."""
    return f'ReplicaSet "{replica_set}" has {pods} pods and should have {size}: {why}'


def reduce_to(annotations: dict[str, str]) -> int | None:
    """How many replicas are requested; None without a valid number."""
    text = annotations.get(REDUCE_TO, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
