"""Releases the pods that admission holds during a rollout, each for its domain.

Only the leader does this, one pass of a rollout at a time, and a pass waits until the store shows
what the last one wrote: so no place is given twice. A pod is released on the very version that was
judged; if it has changed, or another manager has released it, the next pass sees that.

A pod whose room is gone before it has a node, because a zone fails or another pod was faster, is
*stranded*: its affinity cannot be changed. After ``STRANDED_SECONDS`` it is evicted, which costs no
budget, and the pod that its workload creates instead is held again. Since when it has no room is
known in memory only: after a restart it waits a little longer.

What the API server refuses for one pod, by an admission webhook for example, holds no other: the
rollout says so, others take the place first, and it is tried again after ``REFUSED_SECONDS``.

Pods that no rollout holds any more are released for any domain, also those that a killed leader or
a deleted rollout left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter

from zonewise.api.errors import ApiError, Conflict, NotFound, ParseError, TooManyRequests
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
    refusal_reason,
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
REFUSED_SECONDS = 60.0
NO_ROOM = 10.0
"""After how many seconds room is looked for again, if nothing of the namespace changes."""

FindRollouts = Callable[[str, WorkloadReference], Iterable[DomainRollout]]
"""The rollouts of a workload of a namespace."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A pod that the API server did not let be released."""

    pod: Pod
    domain: str | None
    message: str
    until: float
    """When it is tried again."""


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
        self._recorder = context.recorder
        self._budgets_cache = budgets_cache
        self._find_rollouts = find_rollouts
        self._room = DomainRoom(context.cache)
        self._pods = context.cache.store(Pod, indexes={WAITING: _held_in})
        self._wrote: Expectations[Key, Pod] = Expectations(self._pods)
        self._stranded: dict[Key, dict[str, float]] = {}
        """Since when pods of a rollout have no room in the domain they were sent to, by uid."""
        self._refused: dict[Key, dict[str, _Refusal]] = {}
        """What was refused for pods that are still held, by uid."""
        self._metrics = ReplacementMetrics(context.metrics.registry) if context.metrics else None

    def settled(self, key: Key) -> bool:
        """Whether the store shows all pods that were released for a key."""
        return self._wrote.settled(key)

    def forget(self, key: Key) -> None:
        """The rollout is deleted."""
        self._wrote.forget(key)
        self._stranded.pop(key, None)
        self._refused.pop(key, None)

    def held_in(self, namespace: str) -> tuple[Pod, ...]:
        """The pods of a namespace that are held."""
        return self._pods.by(WAITING, namespace)

    async def release(
        self, view: RolloutView, plan: DomainPlan
    ) -> tuple[Reason | None, float | None]:
        """Release the pods of a rollout that have a place; returns why others have none, and when
        to look again.
        """
        key = view.rollout.key
        unscheduled = [rolled.pod for rolled in view.unscheduled]
        sent = [pod for pod in unscheduled if sent_to(pod) is not None]
        if not sent and not any(map(is_held, unscheduled)):
            if not self._pods.index_values(WAITING):
                self._room.close()
            self._stranded.pop(key, None)
            self._refused.pop(key, None)
            return None, None
        nodes = self._budgets_cache.nodes
        labels = labels_of(view.rollout, nodes.values())
        budgets = self._budgets_cache.get_or_create(view.rollout.metadata.namespace)
        view = with_even_budgets(view, budgets)
        with Reservations(await self._room.open(), labels, sent, nodes) as reservations:
            placements = place_replacements(
                view,
                plan,
                nodes,
                reservations.find_obstacle,
                refused=self._refused.get(key, ()),
            )
        refusals = await self._release(
            key,
            [
                (pod, domain, release_patch(pod, labels, domain, spelling=spelling))
                for pod, domain in placements.released
                for spelling in [reservations.spellings.get(pod.key, 0)]
            ],
        )
        await self._evict_stranded(key, reservations.stranded)
        reason = placements.reason
        if refusals:
            reference = view.rollout.spec.workload_ref
            reason = _explain(f"{reference.kind} {reference.name}", refusals)
        waits = placements.reason is not None or bool(reservations.stranded)
        again = [refusal.until - self._clock() for refusal in refusals]
        return reason, min((*again, *([NO_ROOM] if waits else [])), default=None)

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

    async def release_uncovered(self, key: Key) -> float | None:
        """Release the pods of a namespace that belong to no rollout; returns when to try again."""
        namespace = key[0]
        owners = self._budgets_cache.get_or_create(namespace).owners
        uncovered = []
        for pod in self.held_in(namespace):
            workload = workload_reference(pod, owners)
            if workload is None or not any(self._find_rollouts(namespace, workload)):
                uncovered.append((pod, None, release_patch(pod, (), None)))
        refusals = await self._release(key, uncovered)
        for refusal in refusals:
            reason = _explain("no DomainRollout holds it", [refusal])
            note = str(reason)
            self._recorder.event(refusal.pod, reason.code, "Release", note, type="Warning")
        return min((refusal.until - self._clock() for refusal in refusals), default=None)

    async def _release(
        self, key: Key, releases: Sequence[tuple[Pod, str | None, Any]]
    ) -> list[_Refusal]:
        """Release pods by their patches; returns those that were refused, now or a moment ago."""
        before = self._refused.pop(key, {})
        held_uids = {pod.metadata.uid for pod in self.held_in(key[0])} if before else set()
        known = {uid: refusal for uid, refusal in before.items() if uid in held_uids}
        refused: dict[str, _Refusal] = {}
        for pod, domain, body in releases:
            meta = pod.metadata
            refusal = known.pop(meta.uid, None)
            if refusal is not None and self._clock() < refusal.until:
                refused[meta.uid] = refusal
                continue
            try:
                released = await self._client.patch(Pod, meta.name, meta.namespace, body)
            except (Conflict, NotFound):
                continue  # It has changed, and with it the store soon.
            except ApiError as error:
                until = self._clock() + REFUSED_SECONDS
                refused[meta.uid] = _Refusal(pod, domain, str(error), until)
                continue
            self._wrote.wrote(key, released)
            if self._metrics is not None:
                self._metrics.released.labels("any" if domain is None else "one").inc()
        if known or refused:
            self._refused[key] = known | refused
        return list(refused.values())

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


def _explain(subject: str, refusals: Sequence[_Refusal]) -> Reason:
    """Why pods are not released: the first by name, so that the same ones have the same words."""
    first = min(refusals, key=lambda refusal: refusal.pod.metadata.name)
    return refusal_reason(subject, first.pod, first.domain, first.message, count=len(refusals))


def _held_in(pod: Pod) -> tuple[str, ...]:
    return (pod.metadata.namespace,) if is_held(pod) else ()
