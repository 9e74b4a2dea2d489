"""The Job controller: pods that run until enough of them have succeeded.

``plan`` decides; here its steps are carried out in order, because each pod must be counted exactly
once: pods, status, finalizers, status again. A write that fails ends the sync, and the next one
continues from the state of the objects.

*Batched*: changes of pods enqueue their Job after a moment, so that a hundred pods that end
together are one sync. *Expectations*: a sync begins only when the stores show what the one before
wrote. *Expired*: a finished Job with ``ttlSecondsAfterFinished`` is deleted after that time.

*Evicted*: what ``parallelism`` is lowered by goes as pods of other workloads do (``removal``), and
what budgets hold stays active, tracked and counted. A pod loses its finalizer only after it was
evicted, because one that stays must be counted when it ends; a crash in between counts one failure.
A Job that is suspended, has ended or has an index twice should not run these pods at all: they are
deleted. Kubernetes' own controller deletes all of them, and releases them before.

Pods whose Job is deleted, or which are no longer controlled by it, lose the tracking finalizer;
nothing else would remove it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from zonewise.api.errors import ApiError, Conflict, NotFound
from zonewise.api.meta import Condition, Key
from zonewise.api.objects.apps import decode_pod_template
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.api.values import selector, times
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.embedded.components.workloads.adoption import (
    BY_CONTROLLER,
    claim_objects,
    index_by_controller,
)
from zonewise.embedded.components.workloads.creation import (
    PodDraft,
    draft_pod,
    is_namespace_terminating,
    run_in_batches,
)
from zonewise.embedded.components.workloads.jobs.objects import Job, JobStatus, UncountedPods
from zonewise.embedded.components.workloads.jobs.plan import (
    JobPlan,
    PodCreation,
    finished_condition,
    plan_job,
    settle_status,
)
from zonewise.embedded.components.workloads.jobs.pods import (
    COMPLETION_INDEX,
    TRACKING_FINALIZER,
    Backoff,
    is_tracked,
)
from zonewise.embedded.components.workloads.removal import (
    EVICTION_REFUSED,
    Removal,
    RemovalMode,
    RemovalResult,
)
from zonewise.embedded.components.workloads.triggers import watch_budgets
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations
from zonewise.runtime.program.context import ControllerContext

PODS_BY_JOB = "jobs/owner"
JOBS_BY_NAMESPACE = "jobs/namespace"
BATCH_SECONDS = 0.1
WORKERS = 4
CONTROLLER_NAME = "kubernetes.io/job-controller"
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
MAX_PREFIX = 58
"""A generated name has five more characters, and it has to be valid as a label."""


@dataclass(frozen=True, slots=True)
class StayingPods:
    """How many pods should go and stay, because budgets hold them."""

    active: int = 0
    ready: int = 0


class JobController:
    """Creates, counts and deletes the pods of Jobs."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        removal: RemovalMode = "evict",
        budgets_cache: BudgetsCache | None = None,
    ) -> None:
        self._context = context
        self._client = context.client
        self._backoff: dict[Key, tuple[str, Backoff]] = {}
        self._controller = context.controller("jobs", self._sync, workers=WORKERS)
        self._jobs = self._controller.watches(Job, own_key, indexes={JOBS_BY_NAMESPACE: _namespace})
        pods = self._controller.reads(Pod, indexes={PODS_BY_JOB: _job_of})
        self._pods = index_by_controller(pods)
        self._pods.on_change(self._pod_changed)
        self._job_expectations: Expectations[Key, Job] = Expectations(self._jobs)
        self._pod_expectations: Expectations[Key, Pod] = Expectations(self._pods)
        self._removal: Removal[Key] = Removal(
            context.client, mode=removal, budgets_cache=budgets_cache, now=context.clock
        )
        watch_budgets(self._controller, self._removal, budgets_cache)
        self._orphan_controller = context.controller("job-strays", self._sync_orphan)
        self._orphan_controller.watches(Pod, own_key, when=_is_orphan)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run())
            tasks.create_task(self._orphan_controller.run())

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None:
                for key in _job_of(pod):
                    self._controller.enqueue(key, after=BATCH_SECONDS)
        if new is not None and new.metadata.controller is None and _may_be_adopted(old, new):
            for job in self._jobs.by(JOBS_BY_NAMESPACE, new.metadata.namespace):
                if _selects(job, new):
                    self._controller.enqueue(job.key, after=BATCH_SECONDS)

    async def _sync(self, key: Key) -> float | None:
        if not (self._job_expectations.settled(key) and self._pod_expectations.settled(key)):
            return GLANCE
        job = self._jobs.get(key)
        uid = "" if job is None else job.metadata.uid
        await self._release(
            key,
            [
                pod
                for pod in self._pods.by(PODS_BY_JOB, key)
                if is_tracked(pod) and _controller_uid(pod) != uid
            ],
        )
        if job is None:
            self._forget_backoff(key)
            self._removal.forget(key)
            return None
        if job.spec.managed_by not in {None, CONTROLLER_NAME}:
            return None
        condition = finished_condition(job)
        if condition is not None:
            self._forget_backoff(key)
            self._removal.forget(key)
            pods = self._pods.by(BY_CONTROLLER, uid)
            await self._release(key, [pod for pod in pods if is_tracked(pod)])
            return await self._expire(job, condition)
        return await self._sync_job(key, job)

    async def _sync_job(self, key: Key, job: Job) -> float | None:
        pods = await self._claim_pods(key, job)
        remembered = self._backoff.get(key)
        now = self._context.clock()
        backoff = remembered[1] if remembered and remembered[0] == job.metadata.uid else Backoff()
        job_plan = plan_job(job, pods, backoff=backoff, now=now)
        staying, again = await self._remove_pods(key, job, job_plan)
        missing, failure = await self._create_pods(key, job, job_plan.create)
        planned = job_plan.status
        status = msgspec.structs.replace(
            planned,
            active=planned.active - missing + staying.active,
            ready=(planned.ready or 0) + staying.ready,
            terminating=(planned.terminating or 0) - staying.active,
        )
        for event in job_plan.events:
            self._context.recorder.event(job, event.reason, "Sync", event.message, type=event.type)
        version = job.metadata.resource_version
        if status != job.status:
            version = await self._write(key, job, version, status)
        self._backoff[key] = (job.metadata.uid, job_plan.backoff)
        await self._release(key, job_plan.release)
        released = {pod.metadata.uid for pod in job_plan.release}
        tracked_pods = [pod for pod in pods if is_tracked(pod) and pod.metadata.uid not in released]
        timestamp = times.format_time(times.from_epoch(now))
        settled_status = settle_status(job_plan, status, tracked_pods, now=timestamp)
        if settled_status != status:
            await self._write(key, job, version, settled_status)
            self._record_finish(job, settled_status)
        if failure is not None:
            raise failure
        return min(filter(None, (job_plan.requeue_after, again)), default=None)

    async def _claim_pods(self, key: Key, job: Job) -> tuple[Pod, ...]:
        """The Job's pods; adopted ones get the tracking finalizer."""
        pod_selector = selector.from_object(job.spec.selector)
        pods = await claim_objects(self._client, job, pod_selector, self._pods)
        own: list[Pod] = []
        for pod in pods:
            if _controller_uid(pod) == job.metadata.uid or is_tracked(pod):
                own.append(pod)
                continue
            body = {"metadata": {"uid": pod.metadata.uid, "finalizers": [TRACKING_FINALIZER]}}
            written = await self._client.patch(
                Pod, *_name_and_namespace(pod), body, kind="strategic"
            )
            self._pod_expectations.wrote(key, written)
            own.append(written)
        return tuple(own)

    async def _remove_pods(
        self, key: Key, job: Job, job_plan: JobPlan
    ) -> tuple[StayingPods, float | None]:
        """Delete or evict pods; returns how many stay that should go, and when to try again."""
        surplus, staying, again = job_plan.surplus, StayingPods(), None
        if self._removal.mode == "evict" and job_plan.evictable:
            uids = {pod.metadata.uid for pod in job_plan.evictable}
            going = [pod for pod in surplus if pod.metadata.uid in uids]
            surplus = tuple(pod for pod in surplus if pod.metadata.uid not in uids)
            result = await self._evict(key, job, job_plan.evictable, len(going))
            again = result.retry_after
            staying = StayingPods(
                active=len(going) - len(result.granted),
                ready=sum(map(is_pod_ready, going)) - sum(map(is_pod_ready, result.granted)),
            )
        await self._delete(key, job, job_plan.delete, surplus)
        return staying, again

    async def _evict(self, key: Key, job: Job, pods: Sequence[Pod], count: int) -> RemovalResult:
        result = await self._removal.remove(key, pods, count)
        for pod in result.granted:
            self._pod_expectations.removed(key, pod)
            self._record_event(job, "SuccessfulDelete", f"Deleted pod: {pod.metadata.name}")
        await self._release(key, result.granted)
        for refusal in result.refused:
            if not isinstance(refusal.error, Conflict):
                note = f"A pod is not removed yet: {refusal.message}"
                recorder = self._context.recorder
                recorder.event(job, EVICTION_REFUSED, "Sync", note, type="Warning")
        return result

    async def _delete(
        self, key: Key, job: Job, ended: Sequence[Pod], surplus: Sequence[Pod]
    ) -> None:
        await self._release(key, surplus)

        async def delete(pod: Pod) -> None:
            meta = pod.metadata
            try:
                await self._client.delete(Pod, meta.name, meta.namespace, uid=meta.uid)
            except (NotFound, Conflict):
                return
            self._pod_expectations.removed(key, pod)
            self._record_event(job, "SuccessfulDelete", f"Deleted pod: {meta.name}")

        await asyncio.gather(*map(delete, (*ended, *surplus)))

    async def _create_pods(
        self, key: Key, job: Job, creations: Sequence[PodCreation]
    ) -> tuple[int, BaseException | None]:
        """Create pods; returns how many could not be created, and why."""
        drafts = [_draft_pod(job, creation) for creation in creations]
        results = await run_in_batches(drafts, self._client.create)
        failure: BaseException | None = None
        missing = len(creations) - len(results)
        for result in results:
            if not isinstance(result, BaseException):
                self._pod_expectations.wrote(key, result)
                self._record_event(job, "SuccessfulCreate", f"Created pod: {result.metadata.name}")
                continue
            missing += 1
            if not isinstance(result, ApiError):
                raise result
            if not is_namespace_terminating(result):
                failure = result
                note = f"Error creating: {result}"
                self._context.recorder.event(job, "FailedCreate", "Create", note, type="Warning")
        return missing, failure

    async def _release(self, key: Key, pods: Iterable[Pod]) -> None:
        """Remove the tracking finalizer from pods; deleted ones are skipped."""

        async def release(pod: Pod) -> None:
            written = await _remove_finalizer(self._context, pod)
            if written is not None:
                self._pod_expectations.wrote(key, written)

        await asyncio.gather(*map(release, pods))

    async def _write(self, key: Key, job: Job, version: str, status: JobStatus) -> str:
        patch = _status_patch(status)
        written = await self._client.patch_status(job, patch, resource_version=version)
        self._job_expectations.wrote(key, written)
        return written.metadata.resource_version

    async def _expire(self, job: Job, condition: Condition) -> float | None:
        ttl = job.spec.ttl_seconds_after_finished
        meta = job.metadata
        if ttl is None or meta.deletion_timestamp is not None or not condition.last_transition_time:
            return None
        finished = times.parse(condition.last_transition_time).timestamp()
        remaining = finished + ttl - self._context.clock()
        if remaining > 0:
            return remaining
        await self._client.delete(
            Job,
            meta.name,
            meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            propagation="Foreground",
        )
        return None

    async def _sync_orphan(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None or not _is_orphan(None, pod):
            return None
        if not any(_selects(job, pod) for job in self._jobs.by(JOBS_BY_NAMESPACE, key[0])):
            await _remove_finalizer(self._context, pod)
        return None

    def _record_finish(self, job: Job, status: JobStatus) -> None:
        for condition in status.conditions:
            if condition.type == "Complete":
                self._record_event(job, "Completed", "Job completed")
            elif condition.type == "Failed":
                self._context.recorder.event(
                    job, condition.reason, "Sync", condition.message, type="Warning"
                )

    def _record_event(self, job: Job, reason: str, note: str) -> None:
        self._context.recorder.event(job, reason, "Sync", note)

    def _forget_backoff(self, key: Key) -> None:
        self._backoff.pop(key, None)


async def _remove_finalizer(context: ControllerContext, pod: Pod) -> Pod | None:
    """Remove the tracking finalizer from a pod; returns the pod, or None if it is deleted."""
    removal = {"$deleteFromPrimitiveList/finalizers": [TRACKING_FINALIZER]}
    body = {"metadata": {"uid": pod.metadata.uid, **removal}}
    try:
        return await context.client.patch(Pod, *_name_and_namespace(pod), body, kind="strategic")
    except (NotFound, Conflict):
        return None


def _name_and_namespace(pod: Pod) -> tuple[str, str]:
    return pod.metadata.name, pod.metadata.namespace


def _draft_pod(job: Job, creation: PodCreation) -> PodDraft:
    """Draft a pod of a Job; its index is a label, an annotation, a variable and in its name."""
    if creation.index is None:
        return draft_pod(job.spec.template, job, finalizers=(TRACKING_FINALIZER,))
    index = str(creation.index)
    spec = msgspec.json.decode(decode_pod_template(job.spec.template).spec)
    spec["hostname"] = f"{job.metadata.name}-{index}"
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        variables = container.get("env") or []
        if all(variable.get("name") != INDEX_VARIABLE for variable in variables):
            container["env"] = [*variables, {"name": INDEX_VARIABLE, "valueFrom": source}]
    pod = draft_pod(
        job.spec.template,
        job,
        labels={COMPLETION_INDEX: index},
        annotations={COMPLETION_INDEX: index, **creation.annotations},
        finalizers=(TRACKING_FINALIZER,),
        spec=msgspec.Raw(msgspec.json.encode(spec)),
    )
    suffix = f"-{index}-"
    prefix = job.metadata.name[: MAX_PREFIX - len(suffix)] + suffix
    metadata = msgspec.structs.replace(pod.metadata, generate_name=prefix)
    return msgspec.structs.replace(pod, metadata=metadata)


def _status_patch(status: JobStatus) -> dict[str, object]:
    """The merge patch that writes a status; absent members are removed."""
    uncounted = status.uncounted_terminated_pods or UncountedPods()
    return {
        "active": status.active or None,
        "ready": status.ready,
        "terminating": status.terminating,
        "succeeded": status.succeeded or None,
        "failed": status.failed or None,
        "startTime": status.start_time,
        "completionTime": status.completion_time,
        "completedIndexes": status.completed_indexes or None,
        "failedIndexes": status.failed_indexes,
        "uncountedTerminatedPods": {
            "succeeded": uncounted.succeeded or None,
            "failed": uncounted.failed or None,
        },
        "conditions": [
            {**msgspec.to_builtins(condition), "lastProbeTime": condition.last_transition_time}
            for condition in status.conditions
        ]
        or None,
    }


def _namespace(job: Job) -> tuple[str]:
    return (job.metadata.namespace,)


def _controller_uid(pod: Pod) -> str:
    owner = pod.metadata.controller
    return "" if owner is None else owner.uid


def _job_of(pod: Pod) -> tuple[Key, ...]:
    """The Job that controls a pod."""
    owner = pod.metadata.controller
    if owner is None or owner.kind != "Job" or not owner.api_version.startswith("batch/"):
        return ()
    return ((pod.metadata.namespace, owner.name),)


def _selects(job: Job, pod: Pod) -> bool:
    return selector.from_object(job.spec.selector).matches(pod.metadata.labels)


def _may_be_adopted(old: Pod | None, new: Pod) -> bool:
    return (
        old is None
        or old.metadata.labels != new.metadata.labels
        or old.metadata.controller is not None
    )


def _is_orphan(_: Pod | None, new: Pod | None) -> bool:
    """Whether a pod has the tracking finalizer and no controller."""
    return new is not None and is_tracked(new) and new.metadata.controller is None
