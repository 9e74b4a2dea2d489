"""Removing pods, with or without regard to their disruption budgets.

``delete`` is what Kubernetes' own controllers do: budgets do not hold them back. ``evict`` is what
KEP-8 asks for: an update or a scale-down is a planned disruption like any other, so running pods
are evicted. Three rules keep that from doing harm:

- A pod that is not Ready is deleted, never evicted. It serves no traffic, and a budget that is
  unmet because of it would otherwise block the very update that repairs it. The deletion carries
  the version at which the pod was seen unready; one that became ready meanwhile is left alone.
- A refusal is an answer, not an error: the caller gets what was *granted* and continues with that.
- No hot loop. After a refusal the workload pauses, first for ``FIRST_PAUSE`` seconds, then twice as
  long each time up to ``LONGEST_PAUSE``; a grant ends that, and so does a change of a budget
  (``reconsider``). An hour of refusals without a change costs less than a hundred requests per
  workload, however many pods it has. Each time another pod is tried, the least refused one first:
  budgets may cover the pods differently, and the preferred victim may be the one that is stuck.

Where budgets are counted (``library``), their verdict is known before any request: pods they hold
are left out, others are removed in their place, and a ReplicaSet starts with its fullest domain. If
all are held the workload pauses as if it had been refused, until a pod of its namespace becomes
Ready: a status that is written once a second may never show a domain that was closed for less.
Plain budgets are known by their status, which may be a moment old: only then is an eviction
refused.

*Concurrent* are deletions, and evictions in batches that grow while all are granted; the batch in
which one is refused is the last. *In memory* are only the pauses: after a restart they start again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeAlias, TypeVar

from zonewise.api.errors import ApiError, Conflict, NotFound, Status, TooManyRequests, ZonewiseError
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import ready
from zonewise.disruption import BudgetsCache, DisruptionVerdict
from zonewise.disruption.steering import chosen
from zonewise.embedded.components.workloads.creation import in_batches
from zonewise.runtime.client.client import Client
from zonewise.runtime.process.clock import elapsed

K = TypeVar("K", bound=Hashable)

RemovalMode: TypeAlias = Literal["evict", "delete"]

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class RemovalRefusal:
    """A pod that stays for now, and why."""

    pod: Pod
    error: ZonewiseError

    @property
    def why(self) -> str:
        """The server's sentence, and what it says about the budget."""
        details = self.error.details if isinstance(self.error, ApiError) else None
        causes = [cause.message for cause in (details and details.causes) or ()]
        return " ".join((str(self.error), *causes))


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of a request to remove pods; ``again`` is when to retry, in seconds."""

    granted: tuple[Pod, ...] = ()
    refused: tuple[RemovalRefusal, ...] = ()
    again: float | None = None


@dataclass(slots=True)
class _Rest:
    failures: int = 0
    until: float = 0.0
    judged: bool = False
    """Whether no request was made: another verdict ends it."""
    refused: dict[str, int] = field(default_factory=dict)


class Removal(Generic[K]):
    """Takes pods of workloads down; ``K`` names a workload."""

    def __init__(
        self,
        client: Client,
        *,
        mode: RemovalMode,
        clock: Callable[[], float] = elapsed,
        budgets_cache: BudgetsCache | None = None,
        now: Callable[[], float] = elapsed,
    ) -> None:
        self.mode = mode
        self._budgets_cache = budgets_cache
        self._now = now
        self._client = client
        self._clock = clock
        self._resting: dict[K, _Rest] = {}

    async def take(
        self,
        key: K,
        pods: Sequence[Pod],
        count: int,
        *,
        spread: bool = False,
        held: bool = True,
    ) -> Taken:
        """Remove ``count`` of the pods, the first ones if no budget objects.

        With ``spread`` those of the fullest domain are the first. What is not ``held`` is deleted.
        """
        if self.mode == "delete" or not held:
            return await self._delete(pods[:count])
        if self._budgets_cache is not None and pods and count > 0:
            namespace_budgets = self._budgets_cache.of(pods[0].metadata.namespace)
            choice = chosen(
                namespace_budgets, pods, count, self._now(), spread=spread, evicting=True
            )
            if not choice.pods and choice.against is not None:
                return self._rest_by_verdict(key, *choice.against)
            self._allowed(key)
            pods, count = choice.pods, min(count, len(choice.pods))
        unready = [pod for pod in pods if not ready(pod)][:count]
        deleted = await self._delete(unready, as_seen=True)
        running = [pod for pod in pods if ready(pod)]
        evicted = await self._evict(key, running, count - len(unready))
        again = evicted.again
        if deleted.refused:
            again = FIRST_PAUSE if again is None else min(again, FIRST_PAUSE)
        return Taken(deleted.granted + evicted.granted, deleted.refused + evicted.refused, again)

    def _rest_by_verdict(self, key: K, pod: Pod, verdict: DisruptionVerdict) -> Taken:
        """Pause without a request; a budget that allows more ends it."""
        now = self._clock()
        rest = self._resting.get(key) or _Rest()
        if rest.until > now:
            return Taken(again=rest.until - now)
        rest.until, rest.judged = now + LONGEST_PAUSE, True
        self._resting[key] = rest
        error = TooManyRequests(Status(message=verdict.reason.message, code=429))
        return Taken(refused=(RemovalRefusal(pod, error),), again=LONGEST_PAUSE)

    def _allowed(self, key: K) -> None:
        """A verdict that holds no pod any more ends a pause that was for a verdict."""
        rest = self._resting.get(key)
        if rest is not None and rest.judged:
            rest.until, rest.judged = 0.0, False

    def reconsider(self, key: K) -> bool:
        """Let a workload retry at once; False if it is not paused."""
        rest = self._resting.get(key)
        if rest is None:
            return False
        rest.until = 0.0
        return True

    def resting(self) -> tuple[K, ...]:
        """The workloads that were refused something and wait."""
        return tuple(self._resting)

    def judged(self) -> tuple[K, ...]:
        """Those of them that made no request, because the verdict is known."""
        return tuple(key for key, rest in self._resting.items() if rest.judged)

    def forget(self, key: K) -> None:
        """The workload has no more pods to take down."""
        self._resting.pop(key, None)

    async def _delete(self, pods: Sequence[Pod], *, as_seen: bool = False) -> Taken:
        results = await asyncio.gather(
            *(self._delete_one(pod, as_seen=as_seen) for pod in pods), return_exceptions=True
        )
        return _sorted(pods, results)

    async def _delete_one(self, pod: Pod, *, as_seen: bool) -> None:
        meta = pod.metadata
        version = meta.resource_version if as_seen else None
        try:
            await self._client.delete(
                Pod, meta.name, meta.namespace, uid=meta.uid, resource_version=version
            )
        except NotFound:
            pass
        except Conflict:
            # Another pod has the name by now: the one meant is deleted. Or it merely changed.
            if as_seen:
                raise

    async def _evict(self, key: K, pods: Sequence[Pod], count: int) -> Taken:
        if count <= 0 or not pods:
            return Taken()
        rest = self._resting.get(key) or _Rest()
        now = self._clock()
        if rest.until > now:
            return Taken(again=rest.until - now)
        tried = sorted(pods, key=lambda pod: rest.refused.get(pod.metadata.uid, 0))[:count]
        taken = _sorted(tried, await in_batches(tried, self._evict_one))
        if not taken.refused:
            self._resting.pop(key, None)
            return taken
        living = {pod.metadata.uid for pod in pods}
        rest.refused = {uid: n for uid, n in rest.refused.items() if uid in living}
        for refusal in taken.refused:
            uid = refusal.pod.metadata.uid
            rest.refused[uid] = rest.refused.get(uid, 0) + 1
        rest.failures = 1 if taken.granted else rest.failures + 1
        asked = [getattr(refusal.error, "retry_after", None) or 0.0 for refusal in taken.refused]
        pause = max(min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(rest.failures - 1, 10)), *asked)
        rest.until, rest.judged = self._clock() + pause, False
        self._resting[key] = rest
        return Taken(taken.granted, taken.refused, pause)

    async def _evict_one(self, pod: Pod) -> None:
        meta = pod.metadata
        with suppress(NotFound):
            await self._client.evict(meta.name, meta.namespace, uid=meta.uid)


def _sorted(pods: Sequence[Pod], results: Sequence[BaseException | None]) -> Taken:
    """Which were granted and which refused; what is no refusal is raised."""
    granted: list[Pod] = []
    refused: list[RemovalRefusal] = []
    for pod, result in zip(pods, results, strict=False):
        if result is None:
            granted.append(pod)
        elif isinstance(result, ZonewiseError):
            refused.append(RemovalRefusal(pod, result))
        else:
            raise result
    return Taken(tuple(granted), tuple(refused))
