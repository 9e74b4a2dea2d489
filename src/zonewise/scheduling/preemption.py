"""Which pods of lower priority are preempted, on which node.

A node is a candidate if removing pods from it could help. All pods of lower priority than the
waiting one are removed; if it still does not fit, the node is not a candidate. Else they are added
back one by one as long as it fits: first those whose budget would be violated, then the others, the
most important first. A pod that cannot be added back is a victim.

Of several candidates the one is taken that violates the fewest budgets; then, in this order, the
one whose most important victim has the lowest priority, whose victims have the lowest sum of
priorities, which has the fewest victims, whose most important victims started last. Remaining ties
are broken by the node's ``tie``. As many nodes are tried as Kubernetes' scheduler tries: a tenth,
or a hundred if that is more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from zonewise.api.meta import Key, find_condition
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import DISRUPTION_TARGET
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.values.selector import Selector
from zonewise.scheduling import decision
from zonewise.scheduling.decision import NodeRefusal, Preemption
from zonewise.scheduling.node_info import NodeInfo, PodInfo
from zonewise.scheduling.ranking import Ranking

if TYPE_CHECKING:
    from zonewise.scheduling.cluster import SchedulerCluster

MIN_CANDIDATES = 100
LOWEST_PRIORITY = -(2**31)
REASON = "PreemptionByScheduler"


def preempt(
    cluster: SchedulerCluster, pod: Pod, ranking: Ranking, refusals: Mapping[str, NodeRefusal]
) -> tuple[Preemption | None, str, bool]:
    """The victims or a message, and whether an earlier nomination stays."""
    ineligible = _explain_ineligible(cluster, pod, refusals)
    if ineligible:
        return None, ineligible, True
    names = (name for name, refusal in refusals.items() if refusal.resolvable)
    node_infos = [cluster.node_infos[name] for name in names]
    node_infos.sort(key=lambda node_info: node_info.tie)
    limit = max(len(node_infos) // 10, MIN_CANDIDATES)
    candidates: list[tuple[tuple[object, ...], Preemption]] = []
    tried: dict[str, NodeRefusal] = {}
    has_harmless = False
    for node_info in node_infos:
        result = _select_victims(cluster, pod, ranking, node_info)
        if isinstance(result, NodeRefusal):
            tried[node_info.name] = result
            continue
        victims, violations = result
        candidates.append(
            (
                (violations, *_victims_cost(victims), node_info.tie, node_info.name),
                Preemption(node_info.name, tuple(candidate.key for candidate in victims)),
            )
        )
        has_harmless = has_harmless or not violations
        if has_harmless and len(candidates) >= limit:
            break
    if not candidates:
        return None, decision.format_not_helpful(len(cluster.node_infos), tried), False
    return min(candidates, key=lambda candidate: candidate[0])[1], "", False


def _explain_ineligible(
    cluster: SchedulerCluster, pod: Pod, refusals: Mapping[str, NodeRefusal]
) -> str:
    if pod.spec.preemption_policy == "Never":
        return "not eligible due to preemptionPolicy=Never."
    nominated = pod.status.nominated_node_name
    node_info = cluster.node_infos.get(nominated)
    refusal = refusals.get(nominated)
    if node_info is None or (refusal is not None and not refusal.resolvable):
        return ""
    if any(_is_preempted(pod_info) for pod_info in _lower_priority_pods(node_info, pod)):
        return "not eligible due to a terminating pod on the nominated node."
    return ""


def _is_preempted(pod_info: PodInfo) -> bool:
    condition = find_condition(pod_info.pod.status.conditions, DISRUPTION_TARGET)
    is_target = condition is not None and condition.status == "True" and condition.reason == REASON
    return pod_info.terminating and is_target


def _lower_priority_pods(node_info: NodeInfo, pod: Pod) -> list[PodInfo]:
    """Pods of a node with lower priority than another, the most important first."""
    priority = pod.spec.priority or 0
    lower = [pod_info for pod_info in node_info.pod_infos.values() if pod_info.priority < priority]
    return sorted(lower, key=_importance_rank)


def _importance_rank(pod_info: PodInfo) -> tuple[int, str, Key]:
    return -pod_info.priority, _start_time(pod_info), pod_info.key


def _start_time(pod_info: PodInfo) -> str:
    """When a pod started; one that has not comes last. Times of one format sort as text."""
    return pod_info.pod.status.start_time or "9999"


def _select_victims(
    cluster: SchedulerCluster, pod: Pod, ranking: Ranking, node_info: NodeInfo
) -> tuple[list[PodInfo], int] | NodeRefusal:
    lower = _lower_priority_pods(node_info, pod)
    if not lower:
        return decision.NO_VICTIMS
    removed = list(lower)
    for pod_info in lower:
        cluster.simulate_remove(pod_info)
    try:
        refusal = cluster.find_refusal(pod, ranking, node_info.name)
        if refusal is not None:
            return refusal
        violating, others = _split_by_budget(lower, cluster.budgets)
        violations = 0
        for pod_info in (*violating, *others):
            cluster.simulate_add(pod_info)
            if cluster.find_refusal(pod, ranking, node_info.name) is None:
                removed.remove(pod_info)
            else:
                cluster.simulate_remove(pod_info)
                violations += pod_info in violating
        return list(removed), violations
    finally:
        for pod_info in removed:
            cluster.simulate_add(pod_info)


def _split_by_budget(
    pod_infos: Iterable[PodInfo], budgets: Mapping[Key, tuple[PodDisruptionBudget, Selector]]
) -> tuple[list[PodInfo], list[PodInfo]]:
    """Split into pods whose budget is violated if all before them are removed, and the others."""
    allowed = {key: budget.status.disruptions_allowed for key, (budget, _) in budgets.items()}
    violating: list[PodInfo] = []
    others: list[PodInfo] = []
    for pod_info in pod_infos:
        meta = pod_info.pod.metadata
        is_violating = False
        for key, (budget, budget_selector) in budgets.items():
            if (
                key[0] == meta.namespace
                and budget_selector.requirements
                and budget_selector.matches(meta.labels)
                and meta.name not in budget.status.disrupted_pods
            ):
                allowed[key] -= 1
                is_violating = is_violating or allowed[key] < 0
        (violating if is_violating else others).append(pod_info)
    return violating, others


def _victims_cost(victims: Sequence[PodInfo]) -> tuple[int, int, int, tuple[int, ...]]:
    """The cost of victims, in the order of comparison; less is better."""
    highest = max((victim.priority for victim in victims), default=LOWEST_PRIORITY)
    starts = (_start_time(victim) for victim in victims if victim.priority == highest)
    earliest = min(starts, default="")
    return (
        highest,
        sum(victim.priority - LOWEST_PRIORITY for victim in victims),
        len(victims),
        tuple(-ord(letter) for letter in earliest),
    )
