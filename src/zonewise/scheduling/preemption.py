"""Which less important pods make room, on which node.

A node is considered if taking pods off it could help. All pods less important than the one that
waits are taken off; if it still does not fit, the node is out. Else they are put back one by one as
long as it fits: first those whose budget would be broken, then the others, the most important
first. Who cannot be put back is a victim.

Of several nodes the one is taken that breaks the fewest budgets; then, in this order, whose most
important victim is least important, whose victims together are, who has fewer of them, whose most
important victims started last. What is left is decided by the node's ``tie``. As many nodes are
tried as Kubernetes' scheduler tries: a tenth, or a hundred if that is more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from zonewise.api.meta import Key
from zonewise.api.pod import Pod
from zonewise.api.policy import PodDisruptionBudget
from zonewise.api.selector import Selector
from zonewise.scheduling import decision
from zonewise.scheduling.decision import Preemption, Refusal
from zonewise.scheduling.place import Place, Tenant
from zonewise.scheduling.ranking import Ranking

if TYPE_CHECKING:
    from zonewise.scheduling.cluster import Cluster

LEAST_TRIED = 100
LOWEST = -(2**31)
REASON = "PreemptionByScheduler"


def preempt(
    cluster: Cluster, pod: Pod, ranking: Ranking, refusals: Mapping[str, Refusal]
) -> tuple[Preemption | None, str, bool]:
    """Whom to take off, or what to say; and whether an earlier nomination stays."""
    unfit = _ineligible(cluster, pod, refusals)
    if unfit:
        return None, unfit, True
    places = [cluster.places[name] for name, refusal in refusals.items() if refusal.resolvable]
    places.sort(key=lambda place: place.tie)
    limit = max(len(places) // 10, LEAST_TRIED)
    found: list[tuple[tuple[object, ...], Preemption]] = []
    tried: dict[str, Refusal] = {}
    harmless = False
    for place in places:
        outcome = _victims(cluster, pod, ranking, place)
        if isinstance(outcome, Refusal):
            tried[place.name] = outcome
            continue
        victims, violations = outcome
        found.append(
            (
                (violations, *_weight(victims), place.tie, place.name),
                Preemption(place.name, tuple(one.key for one in victims), violations),
            )
        )
        harmless = harmless or not violations
        if harmless and len(found) >= limit:
            break
    if not found:
        return None, decision.not_helpful(len(cluster.places), tried), False
    return min(found, key=lambda one: one[0])[1], "", False


def _ineligible(cluster: Cluster, pod: Pod, refusals: Mapping[str, Refusal]) -> str:
    if pod.spec.preemption_policy == "Never":
        return "not eligible due to preemptionPolicy=Never."
    nominated = pod.status.nominated_node_name
    place = cluster.places.get(nominated)
    refusal = refusals.get(nominated)
    if place is None or (refusal is not None and not refusal.resolvable):
        return ""
    if any(_making_room(tenant) for tenant in _lesser(place, pod)):
        return "not eligible due to a terminating pod on the nominated node."
    return ""


def _making_room(tenant: Tenant) -> bool:
    return tenant.ending and any(
        one.type == "DisruptionTarget" and one.status == "True" and one.reason == REASON
        for one in tenant.pod.status.conditions
    )


def _lesser(place: Place, pod: Pod) -> list[Tenant]:
    """Pods that may be taken off for another, the most important first."""
    priority = pod.spec.priority or 0
    lesser = [tenant for tenant in place.tenants.values() if tenant.priority < priority]
    return sorted(lesser, key=_importance)


def _importance(tenant: Tenant) -> tuple[int, str, Key]:
    return -tenant.priority, _since(tenant), tenant.key


def _since(tenant: Tenant) -> str:
    """When a pod started; one that has not yet did so last. Times of equal form sort as text."""
    return tenant.pod.status.start_time or "9999"


def _victims(
    cluster: Cluster, pod: Pod, ranking: Ranking, place: Place
) -> tuple[list[Tenant], int] | Refusal:
    lesser = _lesser(place, pod)
    if not lesser:
        return decision.NO_VICTIMS
    off = list(lesser)
    for tenant in lesser:
        cluster.displace(tenant)
    try:
        refusal = cluster.refusal(pod, ranking, place.name)
        if refusal is not None:
            return refusal
        breaking, others = _by_budget(lesser, cluster.budgets)
        violations = 0
        for tenant in (*breaking, *others):
            cluster.place(tenant)
            if cluster.refusal(pod, ranking, place.name) is None:
                off.remove(tenant)
            else:
                cluster.displace(tenant)
                violations += tenant in breaking
        return list(off), violations
    finally:
        for tenant in off:
            cluster.place(tenant)


def _by_budget(
    tenants: Iterable[Tenant], budgets: Mapping[Key, tuple[PodDisruptionBudget, Selector]]
) -> tuple[list[Tenant], list[Tenant]]:
    """Pods whose budget would be broken, were all before them in the list taken; and the others."""
    allowed = {key: budget.status.disruptions_allowed for key, (budget, _) in budgets.items()}
    breaking: list[Tenant] = []
    others: list[Tenant] = []
    for tenant in tenants:
        meta = tenant.pod.metadata
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
        (breaking if broken else others).append(tenant)
    return breaking, others


def _weight(victims: Sequence[Tenant]) -> tuple[int, int, int, tuple[int, ...]]:
    """How much is lost; less is better."""
    highest = max((one.priority for one in victims), default=LOWEST)
    earliest = min((_since(one) for one in victims if one.priority == highest), default="")
    return (
        highest,
        sum(one.priority - LOWEST for one in victims),
        len(victims),
        tuple(-ord(letter) for letter in earliest),
    )
