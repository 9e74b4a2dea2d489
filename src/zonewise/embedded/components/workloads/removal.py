"""Removing pods, with or without regard to their disruption budgets.

``delete`` is what Kubernetes' own controllers do: budgets do not apply to them. ``evict`` is what
KEP-8 requests: an update or a scale-down is a planned disruption like any other, so running pods
are evicted. Three rules keep that from doing harm:

- A pod that is not Ready is deleted, never evicted. It serves no traffic, and a budget that is
  unmet because of it would otherwise block the very update that repairs it. The deletion carries
  the version at which the pod was not ready; one that became ready meanwhile stays.
- A refusal is an answer, not an error: the caller gets what was *granted* and continues with that.
- No hot loop. After a refusal the workload pauses, first for ``INITIAL_PAUSE`` seconds, then twice
  as long each time up to ``MAX_PAUSE``; a grant ends that, and so does a change of a budget
  (``end_pause``). An hour of refusals without a change costs less than a hundred requests per
  workload, however many pods it has. Each time another pod is tried, the least refused one first:
  budgets may cover the pods differently, and the preferred victim may be the one that is refused.

With a ``budgets_cache`` the verdict of the budgets is known before any request: pods that may not
be disrupted are left out, others are removed in their place, and a ReplicaSet starts with its
fullest domain. If none may be disrupted the workload pauses as after a refusal, until a pod of its
namespace becomes Ready: a status that is written once a second may never show a domain that was
closed for less. An eviction is refused only if another client's was granted in that moment.

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
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.steering import choose_pods
from zonewise.disruption.verdict import DisruptionVerdict
from zonewise.embedded.components.workloads.creation import run_in_batches
from zonewise.runtime.client.client import Client
from zonewise.runtime.process.clock import elapsed

K = TypeVar("K", bound=Hashable)

RemovalMode: TypeAlias = Literal["evict", "delete"]

INITIAL_PAUSE = 1.0
MAX_PAUSE = 60.0
EVICTION_REFUSED = "EvictionRefused"
"""The reason of events about pods that are not removed yet."""


@dataclass(frozen=True, slots=True)
class RemovalRefusal:
    """A pod that was not removed, and why."""

    pod: Pod
    error: ZonewiseError

    @property
    def message(self) -> str:
        """The server's message, with the causes that name the budget if it does not."""
        message = str(self.error)
        details = self.error.details if isinstance(self.error, ApiError) else None
        causes = [cause.message for cause in (details and details.causes) or ()]
        return " ".join((message, *(cause for cause in causes if cause not in message)))


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """The result of a request to remove pods; ``retry_after`` is in seconds."""

    granted: tuple[Pod, ...] = ()
    refused: tuple[RemovalRefusal, ...] = ()
    retry_after: float | None = None


@dataclass(slots=True)
class _Pause:
    failures: int = 0
    until: float = 0.0
    by_verdict: bool = False
    """Whether no request was made; another verdict ends the pause."""
    refusals: dict[str, int] = field(default_factory=dict)


class Removal(Generic[K]):
    """Removes pods of workloads; ``K`` is the key of a workload."""

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
        self._pauses: dict[K, _Pause] = {}

    async def remove(
        self,
        key: K,
        pods: Sequence[Pod],
        count: int,
        *,
        spread: bool = False,
        in_order: bool = False,
        respect_budgets: bool = True,
    ) -> RemovalResult:
        """Remove ``count`` of the pods, the first ones if no budget objects.

        Pods that are not Ready are the first, unless they are to go ``in_order``. With ``spread``
        those of the fullest domain come next. Without ``respect_budgets`` they are deleted.
        """
        if self.mode == "delete" or not respect_budgets:
            return await self._delete(pods[:count])
        pods = self._least_refused_first(key, pods)
        if self._budgets_cache is not None and pods and count > 0:
            budgets = self._budgets_cache.get_or_create(pods[0].metadata.namespace)
            choice = choose_pods(
                budgets, pods, count, self._now(), spread=spread, in_order=in_order
            )
            if not choice.pods and choice.first_refusal is not None:
                return self._pause_by_verdict(key, *choice.first_refusal)
            self._end_verdict_pause(key)
            pods, count = choice.pods, min(count, len(choice.pods))
        elif in_order:
            pods = pods[:count]
        unready = [pod for pod in pods if not is_pod_ready(pod)][:count]
        deleted = await self._delete(unready, same_version=True)
        running = [pod for pod in pods if is_pod_ready(pod)]
        evicted = await self._evict(key, running, count - len(unready))
        retry_after = evicted.retry_after
        if deleted.refused:
            retry_after = INITIAL_PAUSE if retry_after is None else min(retry_after, INITIAL_PAUSE)
        return RemovalResult(
            deleted.granted + evicted.granted, deleted.refused + evicted.refused, retry_after
        )

    def _least_refused_first(self, key: K, pods: Sequence[Pod]) -> Sequence[Pod]:
        pause = self._pauses.get(key)
        if pause is None or not pause.refusals:
            return pods
        refusals = pause.refusals
        return sorted(pods, key=lambda pod: refusals.get(pod.metadata.uid, 0))

    def _pause_by_verdict(self, key: K, pod: Pod, verdict: DisruptionVerdict) -> RemovalResult:
        """Pause without a request; a budget that allows more ends the pause."""
        now = self._clock()
        pause = self._pauses.get(key) or _Pause()
        if pause.until > now:
            return RemovalResult(retry_after=pause.until - now)
        pause.until, pause.by_verdict = now + MAX_PAUSE, True
        self._pauses[key] = pause
        error = TooManyRequests(Status(message=verdict.reason.message, code=429))
        return RemovalResult(refused=(RemovalRefusal(pod, error),), retry_after=MAX_PAUSE)

    def _end_verdict_pause(self, key: K) -> None:
        """End a pause without a request, because the verdict now allows a pod."""
        pause = self._pauses.get(key)
        if pause is not None and pause.by_verdict:
            pause.until, pause.by_verdict = 0.0, False

    def end_pause(self, key: K) -> bool:
        """Let a workload retry at once; False if it is not paused."""
        pause = self._pauses.get(key)
        if pause is None:
            return False
        pause.until = 0.0
        return True

    def paused(self) -> tuple[K, ...]:
        """The workloads that wait after a refusal."""
        return tuple(self._pauses)

    def paused_by_verdict(self) -> tuple[K, ...]:
        """Those of them that made no request, because the verdict was known."""
        return tuple(key for key, pause in self._pauses.items() if pause.by_verdict)

    def forget(self, key: K) -> None:
        """The workload has no more pods to remove."""
        self._pauses.pop(key, None)

    async def _delete(self, pods: Sequence[Pod], *, same_version: bool = False) -> RemovalResult:
        deletions = (self._delete_pod(pod, same_version=same_version) for pod in pods)
        results = await asyncio.gather(*deletions, return_exceptions=True)
        return _collect_results(pods, results)

    async def _delete_pod(self, pod: Pod, *, same_version: bool) -> None:
        meta = pod.metadata
        version = meta.resource_version if same_version else None
        try:
            await self._client.delete(
                Pod, meta.name, meta.namespace, uid=meta.uid, resource_version=version
            )
        except NotFound:
            pass
        except Conflict:
            # Either another pod has the name by now and this one is deleted, or it merely changed.
            if same_version:
                raise

    async def _evict(self, key: K, pods: Sequence[Pod], count: int) -> RemovalResult:
        if count <= 0 or not pods:
            return RemovalResult()
        pause = self._pauses.get(key) or _Pause()
        now = self._clock()
        if pause.until > now:
            return RemovalResult(retry_after=pause.until - now)
        candidates = pods[:count]
        result = _collect_results(candidates, await run_in_batches(candidates, self._evict_pod))
        if not result.refused:
            self._pauses.pop(key, None)
            return result
        uids = {pod.metadata.uid for pod in pods}
        pause.refusals = {uid: n for uid, n in pause.refusals.items() if uid in uids}
        for refusal in result.refused:
            uid = refusal.pod.metadata.uid
            pause.refusals[uid] = pause.refusals.get(uid, 0) + 1
        pause.failures = 1 if result.granted else pause.failures + 1
        seconds = max(
            min(MAX_PAUSE, INITIAL_PAUSE * 2 ** min(pause.failures - 1, 10)),
            *(getattr(refusal.error, "retry_after", None) or 0.0 for refusal in result.refused),
        )
        pause.until, pause.by_verdict = self._clock() + seconds, False
        self._pauses[key] = pause
        return RemovalResult(result.granted, result.refused, seconds)

    async def _evict_pod(self, pod: Pod) -> None:
        meta = pod.metadata
        with suppress(NotFound):
            await self._client.evict(meta.name, meta.namespace, uid=meta.uid)


def _collect_results(pods: Sequence[Pod], results: Sequence[BaseException | None]) -> RemovalResult:
    """Split pods into granted and refused; an exception that is not a refusal is raised."""
    granted: list[Pod] = []
    refused: list[RemovalRefusal] = []
    for pod, result in zip(pods, results, strict=False):
        if result is None:
            granted.append(pod)
        elif isinstance(result, ZonewiseError):
            refused.append(RemovalRefusal(pod, result))
        else:
            raise result
    return RemovalResult(tuple(granted), tuple(refused))
