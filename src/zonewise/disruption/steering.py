"""Which pods of a workload are deleted, if some have to be and budgets forbid others.

Unready pods are deleted first, as everywhere. Of the others those of the fullest domain come first,
so that a scale-down leaves the workload spread as evenly as possible; within a domain the order is
the caller's. Pods that budgets protect are left out: their deletion would only be refused.
PodDisruptionBudgets that Kubernetes counts do not limit deletions.

A controller that is not ours is steered by marks. A ReplicaSet deletes the pods with the lowest
deletion cost first, among those that are Ready. There are no permanent costs: a pod is marked only
when it is about to be deleted, and the mark is removed if it stays after all. A cost that another
client set is left unchanged. The desired size of a ReplicaSet is in an annotation.

A Deployment whose ReplicaSet may not shrink is *held*; the message is here, because the embedded
workload controllers and the controller that steers Kubernetes' own report the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.disruption.grouping import NO_DOMAIN
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owners import REPLICA_SET, reference_of
from zonewise.disruption.verdict import DisruptionVerdict, VerdictRound

REDUCE_TO = "zonewise.io/reduce-to"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
MARK_COST = "-1000000"
MARK_SEEN_SECONDS = 1.2
"""After this time a mark is in every cache."""
HELD_BY_BUDGET = "HeldByBudget"
"""The reason code: pods should be deleted, and a disruption budget does not allow it."""


@dataclass(frozen=True, slots=True)
class PodChoice:
    """The pods to delete, in order, and the first pod that must stay with its verdict."""

    pods: tuple[Pod, ...]
    first_refusal: tuple[Pod, DisruptionVerdict] | None


def choose_pods(
    budgets: NamespaceBudgets,
    pods: Sequence[Pod],
    count: int,
    now: float,
    *,
    spread: bool = True,
    in_order: bool = False,
) -> PodChoice:
    """Choose up to ``count`` of the pods, in the order of deletion.

    Of pods that go ``in_order`` the first ones that may go are chosen, Ready or not.
    """
    work = choose_pods_in_slices(budgets, pods, count, now, spread=spread, in_order=in_order)
    while True:
        try:
            next(work)
        except StopIteration as done:
            choice: PodChoice = done.value
            return choice


def choose_pods_in_slices(
    budgets: NamespaceBudgets,
    pods: Sequence[Pod],
    count: int,
    now: float,
    *,
    spread: bool = True,
    in_order: bool = False,
) -> Generator[None, None, PodChoice]:
    """``choose_pods`` with a pause after each pod."""
    verdict_round = VerdictRound(budgets, now, strict=True, plain=False)
    chosen_pods: list[Pod] = []
    first_refusal: tuple[Pod, DisruptionVerdict] | None = None
    pods_by_domain: dict[str, list[Pod]] = {}
    for pod in pods if in_order else sorted(pods, key=is_pod_ready):
        pods_by_domain.setdefault(
            _spread_domain(budgets, pod) if spread and is_pod_ready(pod) else "", []
        ).append(pod)
        yield
    pod_counts = _count_by_domain(budgets, pods) if spread else Counter()
    for domain_pods in pods_by_domain.values():
        domain_pods.reverse()
    while len(chosen_pods) < count and pods_by_domain:
        name = min(pods_by_domain, key=lambda domain: (domain != "", -pod_counts[domain], domain))
        domain_pods = pods_by_domain[name]
        pod = domain_pods.pop()
        if not domain_pods:
            del pods_by_domain[name]
        yield from verdict_round.prepare(pod)
        verdict = verdict_round.judge(pod, evicting=False)
        if not verdict.allowed:
            first_refusal = first_refusal or (pod, verdict)
            yield
            continue
        if verdict.charged:
            verdict_round.charge(pod)
        chosen_pods.append(pod)
        pod_counts[name] -= 1
        yield
    return PodChoice(tuple(chosen_pods), first_refusal)


def _spread_domain(budgets: NamespaceBudgets, pod: Pod) -> str:
    """The domain of a pod by the first budget that groups; "" without one."""
    for budget in budgets.budgets_covering(pod):
        if budget.plain is None and budget.grouping.keys:
            return budgets.state_and_counts(budget.key)[1].counted_pod(pod).domain or NO_DOMAIN
    return ""


def _count_by_domain(budgets: NamespaceBudgets, pods: Sequence[Pod]) -> Counter[str]:
    """How many of all pods of the budget each domain has."""
    for pod in pods:
        for budget in budgets.budgets_covering(pod):
            if budget.plain is None and budget.grouping.keys:
                counts = budgets.state_and_counts(budget.key)[1]
                return counts.present + counts.daemons
    return Counter()


def is_marked(pod: Pod) -> bool:
    """Whether a pod was marked to be deleted first."""
    return pod.metadata.annotations.get(DELETION_COST) == MARK_COST


def is_foreign(pod: Pod) -> bool:
    """Whether another client set the pod's deletion cost."""
    return pod.metadata.annotations.get(DELETION_COST, MARK_COST) != MARK_COST


def count_marked_before(budgets: NamespaceBudgets, pod: Pod) -> int:
    """How many marked pods of a pod's ReplicaSet are deleted before it.

    0 for a pod that is marked itself, that is not Ready, or whose cost another client set.
    """
    owner = reference_of(pod)
    if owner is None or owner.key[1] != REPLICA_SET:
        return 0
    if not is_pod_ready(pod) or is_marked(pod) or is_foreign(pod):
        return 0
    siblings = budgets.pods_owned_by(owner.uid)
    return sum(is_marked(sibling) and is_pod_active(sibling) for sibling in siblings)


def format_held_message(replica_set: str, pods: int, size: int, reason: str) -> str:
    """The message of a Deployment whose ReplicaSet may not shrink because of a budget."""
    return f'ReplicaSet "{replica_set}" has {pods} pods and should have {size}: {reason}'


def parse_reduce_to(annotations: dict[str, str]) -> int | None:
    """The size that an annotation requests; None without a valid number."""
    text = annotations.get(REDUCE_TO, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
