"""Which pods of lower priority are preempted, on which node.

A node is considered if removing pods from it could help. All pods of lower priority than the one
that waits are removed; if it still does not fit, the node is out. Else they are put back one by one
as long as it fits: first those whose budget would be violated, then the others, the most important
first. A pod that cannot be put back is a victim.

Of several nodes the one is taken that violates the fewest budgets; then, in this order, whose most
important victim is least important, whose victims together are, which has fewer of them, whose most
important victims started last. Remaining ties are broken by the node's ``tie``. As many nodes are
tried as Kubernetes' scheduler tries: a tenth, or a hundred if that is more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from zonewise.api.meta import Key
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

LEAST_TRIED = 100
LOWEST = -(2**31)
REASON = "PreemptionByScheduler"


def preempt(
    cluster: SchedulerCluster, pod: Pod, ranking: Ranking, refusals: Mapping[str, NodeRefusal]
) -> tuple[Preemption | None, str, bool]:
    """The victims, or the message; and whether an earlier nomination stays."""
    unfit = _ineligible(cluster, pod, refusals)
    if unfit:
        return None, unfit, True
    node_infos = [
        cluster.node_infos[name] for name, refusal in refusals.items() if refusal.resolvable
    ]
    node_infos.sort(key=lambda node_info: node_info.tie)
    limit = max(len(node_infos) // 10, LEAST_TRIED)
    found: list[tuple[tuple[object, ...], Preemption]] = []
    tried: dict[str, NodeRefusal] = {}
    harmless = False
    for node_info in node_infos:
        outcome = _victims(cluster, pod, ranking, node_info)
        if isinstance(outcome, NodeRefusal):
            tried[node_info.name] = outcome
            continue
        victims, violations = outcome
        found.append(
            (
                (violations, *_weight(victims), node_info.tie, node_info.name),
                Preemption(node_info.name, tuple(one.key for one in victims)),
            )
        )
        harmless = harmless or not violations
        if harmless and len(found) >= limit:
            break
    if not found:
        return None, decision.not_helpful(len(cluster.node_infos), tried), False
    return min(found, key=lambda one: one[0])[1], "", False


def _ineligible(cluster: SchedulerCluster, pod: Pod, refusals: Mapping[str, NodeRefusal]) -> str:
    if pod.spec.preemption_policy == "Never":
        return "not eligible due to preemptionPolicy=Never."
    nominated = pod.status.nominated_node_name
    node_info = cluster.node_infos.get(nominated)
    refusal = refusals.get(nominated)
    if node_info is None or (refusal is not None and not refusal.resolvable):
        return ""
    if any(_making_room(pod_info) for pod_info in _lesser(node_info, pod)):
        return "not eligible due to a terminating pod on the nominated node."
    return ""


def _making_room(pod_info: PodInfo) -> bool:
    return pod_info.ending and any(
        one.type == DISRUPTION_TARGET and one.status == "True" and one.reason == REASON
        for one in pod_info.pod.status.conditions
    )


def _lesser(node_info: NodeInfo, pod: Pod) -> list[PodInfo]:
    """Pods that may be taken off for another, the most important first."""
    priority = pod.spec.priority or 0
    lesser = [pod_info for pod_info in node_info.pod_infos.values() if pod_info.priority < priority]
    return sorted(lesser, key=_importance)


def _importance(pod_info: PodInfo) -> tuple[int, str, Key]:
    return -pod_info.priority, _since(pod_info), pod_info.key


def _since(pod_info: PodInfo) -> str:
    """When a pod started; one that has not yet did so last. Times of equal form sort as text."""
    return pod_info.pod.status.start_time or "9999"


def _victims(
    cluster: SchedulerCluster, pod: Pod, ranking: Ranking, node_info: NodeInfo
) -> tuple[list[PodInfo], int] | NodeRefusal:
    lesser = _lesser(node_info, pod)
    if not lesser:
        return decision.NO_VICTIMS
    off = list(lesser)
    for pod_info in lesser:
        cluster.simulate_remove(pod_info)
    try:
        refusal = cluster.refusal(pod, ranking, node_info.name)
        if refusal is not None:
            return refusal
        breaking, others = _by_budget(lesser, cluster.budgets)
        violations = 0
        for pod_info in (*breaking, *others):
            cluster.simulate_add(pod_info)
            if cluster.refusal(pod, ranking, node_info.name) is None:
                off.remove(pod_info)
            else:
                cluster.simulate_remove(pod_info)
                violations += pod_info in breaking
        return list(off), violations
    finally:
        for pod_info in off:
            cluster.simulate_add(pod_info)


def _by_budget(
    pod_infos: Iterable[PodInfo], budgets: Mapping[Key, tuple[PodDisruptionBudget, Selector]]
) -> tuple[list[PodInfo], list[PodInfo]]:
    """Pods whose budget would be violated if all before them were removed; and the others."""
    allowed = {key: budget.status.disruptions_allowed for key, (budget, _) in budgets.items()}
    breaking: list[PodInfo] = []
    others: list[PodInfo] = []
    for pod_info in pod_infos:
        meta = pod_info.pod.metadata
        broken = False
        for key, (budget, selects) in budgets.items():
            if (
                key[0] == meta.namespace
                and selects.requirements
                and selects.matches(meta.labels)
                and meta.name not in budget.status.disrupted_pods
            ):
                allowed[key] -= 1
                broken = broken or allowed[key] < 0
        (breaking if broken else others).append(pod_info)
    return breaking, others


def _weight(victims: Sequence[PodInfo]) -> tuple[int, int, int, tuple[int, ...]]:
    """How much is lost; less is better."""
    highest = max((one.priority for one in victims), default=LOWEST)
    earliest = min((_since(one) for one in victims if one.priority == highest), default="")
    return (
        highest,
        sum(one.priority - LOWEST for one in victims),
        len(victims),
        tuple(-ord(letter) for letter in earliest),
    )
