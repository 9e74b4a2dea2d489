"""Releases the pods that admission holds during a rollout, each for its domain.

Only the leader does this, one pass of a rollout at a time, and a pass waits until the store shows
what the last one wrote: so no place is given twice. A pod is released on the very version that was
judged; if it has changed, or another manager has released it, the next pass sees that.

A pod whose room is gone before it has a node, because a zone fails or another pod was faster, is
*stranded*: its affinity cannot be changed. After ``STRANDED_SECONDS`` it is evicted, which costs no
budget, and the pod that its workload creates instead is held again. Since when it has no room is
known in memory only: after a restart it waits a little longer.

Pods that no rollout holds any more are released for any domain, also those that a killed leader or
a deleted rollout left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter

from zonewise.api.errors import Conflict, NotFound, ParseError, TooManyRequests
from zonewise.api.meta import Key
from zonewise.api.objects.budgets import DomainRollout, WorkloadReference
from zonewise.api.objects.pod import Pod
from zonewise.api.reason import Reason
from zonewise.api.values import times
from zonewise.controllers.rollouts.room import DomainRoom, Reservations
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.rollouts.plan import DomainPlan, RolloutView
from zonewise.disruption.rollouts.replacements import (
    holds_replacement,
    is_held,
    labels_of,
    place_replacements,
    release_patch,
    sent_to,
    with_even_budgets,
    workload_reference,
)
from zonewise.runtime.controller.expectations import Expectations

if TYPE_CHECKING:
    from zonewise.runtime.program.context import ControllerContext

WAITING = "rollouts:held"
NEW_SECONDS = 60.0
"""How long ago a pod that is seen for the first time may have been created to be a new one."""

STRANDED_SECONDS = 60.0
NO_ROOM = 10.0
"""After how many seconds room is looked for again, if nothing of the namespace changes."""

FindRollouts = Callable[[str, WorkloadReference], Iterable[DomainRollout]]
"""The rollouts of a workload of a namespace."""


class Replacements:
    """The pods that are held, and those that should have been."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        budgets_cache: BudgetsCache,
        find_rollouts: FindRollouts,
    ) -> None:
        self._client = context.client
        self._clock = context.clock
        self._budgets_cache = budgets_cache
        self._find_rollouts = find_rollouts
        self._room = DomainRoom(context.cache)
        self._pods = context.cache.store(Pod, indexes={WAITING: _held_in})
        self._wrote: Expectations[Key, Pod] = Expectations(self._pods)
        self._stranded: dict[Key, dict[str, float]] = {}
        """Since when pods of a rollout have no room in the domain they were sent to, by uid."""
        self._metrics = ReplacementMetrics(context.metrics.registry) if context.metrics else None

    def settled(self, key: Key) -> bool:
        """Whether the store shows all pods that were released for a key."""
        return self._wrote.settled(key)

    def forget(self, key: Key) -> None:
        """The rollout is deleted."""
        self._wrote.forget(key)
        self._stranded.pop(key, None)

    def held_in(self, namespace: str) -> tuple[Pod, ...]:
        """The pods of a namespace that are held."""
        return self._pods.by(WAITING, namespace)

    async def release(
        self, view: RolloutView, plan: DomainPlan
    ) -> tuple[Reason | None, float | None]:
        """Release the pods of a rollout that have a place; returns why others have none, and when
        to look again.
        """
        unscheduled = [rolled.pod for rolled in view.unscheduled]
        sent = [pod for pod in unscheduled if sent_to(pod) is not None]
        if not sent and not any(map(is_held, unscheduled)):
            if not self._pods.index_values(WAITING):
                self._room.close()
            self._stranded.pop(view.rollout.key, None)
            return None, None
        nodes = self._budgets_cache.nodes
        labels = labels_of(view.rollout, nodes.values())
        budgets = self._budgets_cache.get_or_create(view.rollout.metadata.namespace)
        view = with_even_budgets(view, budgets)
        with Reservations(await self._room.open(), labels, sent, nodes) as reservations:
            placements = place_replacements(view, plan, nodes, reservations.find_obstacle)
        for pod, domain in placements.released:
            await self._release(view.rollout.key, pod, labels, domain)
        await self._evict_stranded(view.rollout.key, reservations.stranded)
        waits = placements.reason is not None or bool(reservations.stranded)
        return placements.reason, NO_ROOM if waits else None

    async def _evict_stranded(self, key: Key, stranded: Sequence[Pod]) -> None:
        """Evict pods that have had no room for a while in the domain they were sent to."""
        now = self._clock()
        before = self._stranded.get(key, {})
        since = {pod.metadata.uid: before.get(pod.metadata.uid, now) for pod in stranded}
        self._stranded[key] = since
        for pod in stranded:
            uid = pod.metadata.uid
            if now - since[uid] >= STRANDED_SECONDS:
                with suppress(Conflict, NotFound, TooManyRequests):
                    await self._client.evict(pod.metadata.name, pod.metadata.namespace, uid=uid)

    async def release_uncovered(self, key: Key) -> None:
        """Release the pods of a namespace that belong to no rollout."""
        namespace = key[0]
        owners = self._budgets_cache.get_or_create(namespace).owners
        for pod in self.held_in(namespace):
            workload = workload_reference(pod, owners)
            if workload is None or not any(self._find_rollouts(namespace, workload)):
                await self._release(key, pod, (), None)

    async def _release(
        self, key: Key, pod: Pod, labels: tuple[str, ...], domain: str | None
    ) -> None:
        meta = pod.metadata
        body = release_patch(pod, labels, domain)
        try:
            released = await self._client.patch(Pod, meta.name, meta.namespace, body)
        except (Conflict, NotFound):
            return  # It has changed, and with it the store soon.
        self._wrote.wrote(key, released)
        if self._metrics is not None:
            self._metrics.released.labels("any" if domain is None else "one").inc()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Count a new pod that admission let through although it should have been held."""
        if old is not None or new is None or self._metrics is None or is_held(new):
            return
        namespace = new.metadata.namespace
        budgets = self._budgets_cache.find(namespace)
        if budgets is None or not self._is_new(new):
            return
        workload = workload_reference(new, budgets.owners)
        if workload is not None and holds_replacement(
            new, self._find_rollouts(namespace, workload), budgets
        ):
            self._metrics.not_held.inc()

    def _is_new(self, pod: Pod) -> bool:
        try:
            created = times.parse(pod.metadata.creation_timestamp or "").timestamp()
        except ParseError:
            return False
        return self._clock() - created < NEW_SECONDS


class ReplacementMetrics:
    """What became of new pods of workloads that are rolled out by domain."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.released = Counter(
            "zonewise_rollout_pods_released",
            "New pods that waited for their domain, by whether they were sent to one or any.",
            ["domain"],
            registry=registry,
        )
        self.not_held = Counter(
            "zonewise_rollout_pods_not_held",
            "New pods that may start in any domain, because admission let them through.",
            registry=registry,
        )


def _held_in(pod: Pod) -> tuple[str, ...]:
    return (pod.metadata.namespace,) if is_held(pod) else ()
