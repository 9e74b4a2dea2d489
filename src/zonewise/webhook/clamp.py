"""The clamp: a ReplicaSet is scaled down only as far as its pods may be deleted.

A Deployment counts the ``spec.replicas`` of its ReplicaSets. One that was scaled down while its
pods may not be deleted looks done, and the rollout runs away: the pods that stay are replaced all
the same (record 005). So a decrease by the Deployment's controller is let through only as far as
pods may be deleted now. The rest is requested by the annotation ``zonewise.io/reduce-to`` on the
same object; the leader marks victims, and scales the ReplicaSet down itself.

What may be deleted: pods that are missing, pods that are not Ready and not held (a ReplicaSet
deletes those first), and marked pods that all budgets would grant now. A fresh mark does not count:
if a ReplicaSet is scaled down before its controller has seen the mark, that would delete another
pod and be refused. Nothing is granted here; the deletion that follows is. Where no budget in force
covers the pods, and for Deployments that recreate theirs, nothing is clamped: those make no new pod
before the last old one is deleted. While the clock is off, as for the gate, a decrease is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active, is_pod_ready
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.owner_views import ReplicaSetScale
from zonewise.disruption.owners import Owners, owner_key, owner_of
from zonewise.disruption.steering import MARK_SEEN_SECONDS, REDUCE_TO, is_marked
from zonewise.disruption.verdict import VerdictRound
from zonewise.runtime.client.server_clock import ClockOff
from zonewise.runtime.process.turns import FairTurns
from zonewise.runtime.webhook.admission import AdmissionAnswer, AdmissionRequest, Allowed
from zonewise.webhook.disruption_reviews import clock_off

REMEMBERED = 5000
"""More marks than this are dropped, which delays and does no harm."""


class Clamp:
    """Answers for ReplicaSets that a Deployment makes smaller."""

    def __init__(
        self, budgets_cache: BudgetsCache, clock: Callable[[], float], turns: FairTurns
    ) -> None:
        self._budgets_cache = budgets_cache
        self._turns = turns
        self._clock = clock
        self._marked: dict[str, float] = {}
        """When a mark was first found here, by uid."""

    async def __call__(self, request: AdmissionRequest) -> AdmissionAnswer:
        """UPDATE of a ReplicaSet with fewer replicas."""
        new, old = request.new(ReplicaSetScale), request.old(ReplicaSetScale)
        if new is None or old is None:
            return Allowed()
        target, had = new.spec.replicas or 0, old.spec.replicas or 0
        if target >= had:
            return Allowed()
        try:
            size = await self.size(new, had, target)
        except ClockOff as error:
            return clock_off(error)
        return Allowed(patch=_patch(new, size, target))

    async def size(self, item: ReplicaSetScale, had: int, target: int) -> int:
        """How small a ReplicaSet may become now."""
        namespace = item.metadata.namespace
        budgets = self._budgets_cache.find(namespace)
        if budgets is None:
            return target
        await self._turns.slices(namespace, budgets.count_changes())
        if _recreated(budgets.owners, item):
            return target
        pods = [pod for pod in budgets.pods_owned_by(item.metadata.uid) if is_pod_active(pod)]
        guarded = any(
            budget.plain is None and budget.enforced
            for pod in pods
            for budget in (*budgets.budgets_covering(pod), *budgets.budgets_beyond_limit(pod))
        )
        if not guarded:
            return target
        now = self._clock()
        verdicts = VerdictRound(budgets, now, strict=True, plain=False)
        go = 0
        for pod in sorted(pods, key=lambda pod: (is_pod_ready(pod), pod.metadata.name)):
            seen = self._is_seen(pod, now)
            if is_pod_ready(pod) and not seen:
                continue
            await self._turns.slices(namespace, verdicts.prepare(pod))
            verdict = verdicts.judge(pod, evicting=False)
            if verdict.charged:
                verdicts.charge(pod)
            go += verdict.allowed
        return max(target, min(had, len(pods) - go))

    def _is_seen(self, pod: Pod, now: float) -> bool:
        """Whether a pod is marked, and has been for a while."""
        if not is_marked(pod):
            self._marked.pop(pod.metadata.uid, None)
            return False
        if len(self._marked) > REMEMBERED:
            self._marked.clear()
        return now - self._marked.setdefault(pod.metadata.uid, now) >= MARK_SEEN_SECONDS


def _recreated(owners: Owners, item: ReplicaSetScale) -> bool:
    above = owner_of(item).controller
    if above is None:
        return False
    owner = owners.get(owner_key(above, item.metadata.namespace), above.uid)
    return owner is not None and owner.recreates


def _patch(item: ReplicaSetScale, size: int, target: int) -> list[dict[str, Any]]:
    annotations = item.metadata.annotations
    operations: list[dict[str, Any]] = []
    path = "/metadata/annotations"
    name = f"{path}/{REDUCE_TO.replace('~', '~0').replace('/', '~1')}"
    if size == target:
        return [{"op": "remove", "path": name}] if REDUCE_TO in annotations else []
    if not annotations:
        operations.append({"op": "add", "path": path, "value": {}})
    operations.append({"op": "add", "path": name, "value": str(target)})
    operations.append({"op": "replace", "path": "/spec/replicas", "value": size})
    return operations
