"""The Job controller: pods that run until enough of them have succeeded.

``plan`` decides; here its steps are carried out in order, because each pod must be counted exactly
once: pods, status, finalizers, status again. A write that fails ends the pass, and the next one
continues from the state of the objects.

*Batched*: changes of pods enqueue their Job after a moment, so that a hundred pods that end
together are one pass. *Waited for*: a pass begins only when the stores show what the one before
wrote. *Expired*: a finished Job with ``ttlSecondsAfterFinished`` is deleted when its time is over.

Pods whose Job is deleted, or which are no longer controlled by it, lose the tracking finalizer;
nothing else would remove it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import msgspec

from zonewise.api.errors import ApiError, Conflict, NotFound
from zonewise.api.meta import Condition, Key
from zonewise.api.objects.apps import opened
from zonewise.api.objects.pod import Pod
from zonewise.api.values import selector, times
from zonewise.embedded.components.workloads.adoption import OWNED, claimed, indexed
from zonewise.embedded.components.workloads.creation import Draft, draft, in_batches, namespace_ends
from zonewise.embedded.components.workloads.jobs.completion_indexes import INDEX
from zonewise.embedded.components.workloads.jobs.plan import Birth, JobPlan, finished, plan, settled
from zonewise.embedded.components.workloads.jobs.pods import TRACKING, Backoff, tracked
from zonewise.embedded.components.workloads.jobs.views import Job, JobStatus, UncountedPods
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.controller.expectations import GLANCE, Expectations

BY_JOB = "jobs/owner"
JOBS = "jobs/namespace"
GATHER_SECONDS = 0.1
WORKERS = 4
SELF = "kubernetes.io/job-controller"
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
LONGEST_PREFIX = 58
"""A generated name has five more characters, and all of it must be a label."""


class Jobs:
    """Runs Jobs."""

    def __init__(self, context: ComponentContext) -> None:
        self._context = context
        self._client = context.client
        self._backoff: dict[Key, tuple[str, Backoff]] = {}
        self._controller = Controller(
            "jobs", self._sync, cache=context.cache, workers=WORKERS, rng=context.rng
        )
        self._jobs = self._controller.watches(Job, own_key, indexes={JOBS: _namespace})
        self._pods = indexed(self._controller.reads(Pod, indexes={BY_JOB: _job_of}))
        self._pods.on_change(self._pod_changed)
        self._wrote_jobs: Expectations[Key, Job] = Expectations(self._jobs)
        self._wrote_pods: Expectations[Key, Pod] = Expectations(self._pods)
        self._strays = Controller("job-strays", self._stray, cache=context.cache, rng=context.rng)
        self._strays.watches(Pod, own_key, when=_untracked)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run())
            tasks.create_task(self._strays.run())

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for pod in (old, new):
            if pod is not None:
                for key in _job_of(pod):
                    self._controller.enqueue(key, after=GATHER_SECONDS)
        if new is not None and new.metadata.controller is None and _relabelled(old, new):
            for job in self._jobs.by(JOBS, new.metadata.namespace):
                if _selects(job, new):
                    self._controller.enqueue(job.key, after=GATHER_SECONDS)

    async def _sync(self, key: Key) -> float | None:
        if not (self._wrote_jobs.settled(key) and self._wrote_pods.settled(key)):
            return GLANCE
        job = self._jobs.get(key)
        uid = "" if job is None else job.metadata.uid
        await self._release(
            key,
            [pod for pod in self._pods.by(BY_JOB, key) if tracked(pod) and _owner(pod) != uid],
        )
        if job is None:
            self._forget(key)
            return None
        if job.spec.managed_by not in {None, SELF}:
            return None
        end = finished(job)
        if end is not None:
            self._forget(key)
            await self._release(key, [p for p in self._pods.by(OWNED, uid) if tracked(p)])
            return await self._expire(job, end)
        return await self._work(key, job)

    async def _work(self, key: Key, job: Job) -> float | None:
        pods = await self._mine(key, job)
        known = self._backoff.get(key)
        now = self._context.clock()
        backoff = known[1] if known and known[0] == job.metadata.uid else Backoff()
        steps = plan(job, pods, backoff=backoff, now=now)
        await self._take_down(key, job, steps)
        missing, failure = await self._make(key, job, steps.create)
        status = msgspec.structs.replace(steps.status, active=steps.status.active - missing)
        for event in steps.events:
            self._context.recorder.event(
                job, type=event.type, reason=event.reason, action="Sync", note=event.note
            )
        version = job.metadata.resource_version
        if status != job.status:
            version = await self._write(key, job, version, status)
        self._backoff[key] = (job.metadata.uid, steps.backoff)
        await self._release(key, steps.release)
        released = {pod.metadata.uid for pod in steps.release}
        held = [pod for pod in pods if tracked(pod) and pod.metadata.uid not in released]
        text = times.format_time(times.from_epoch(now))
        last = settled(steps, status, held, now=text)
        if last != status:
            await self._write(key, job, version, last)
            self._tell_end(job, last)
        if failure is not None:
            raise failure
        return steps.again

    async def _mine(self, key: Key, job: Job) -> tuple[Pod, ...]:
        """The Job's pods; adopted ones are tracked from now on."""
        pods = await claimed(self._client, job, selector.from_object(job.spec.selector), self._pods)
        mine: list[Pod] = []
        for pod in pods:
            if _owner(pod) == job.metadata.uid or tracked(pod):
                mine.append(pod)
                continue
            body = {"metadata": {"uid": pod.metadata.uid, "finalizers": [TRACKING]}}
            changed = await self._client.patch(Pod, *_place(pod), body, kind="strategic")
            self._wrote_pods.wrote(key, changed)
            mine.append(changed)
        return tuple(mine)

    async def _take_down(self, key: Key, job: Job, steps: JobPlan) -> None:
        await self._release(key, steps.shed)

        async def delete(pod: Pod) -> None:
            meta = pod.metadata
            try:
                await self._client.delete(Pod, meta.name, meta.namespace, uid=meta.uid)
            except (NotFound, Conflict):
                return
            self._wrote_pods.removed(key, pod)
            self._tell(job, "SuccessfulDelete", f"Deleted pod: {meta.name}")

        await asyncio.gather(*map(delete, (*steps.doom, *steps.shed)))

    async def _make(
        self, key: Key, job: Job, births: Sequence[Birth]
    ) -> tuple[int, BaseException | None]:
        """Make pods; gives how many of them there are not, and why."""
        drafts = [_draft(job, birth) for birth in births]
        results = await in_batches(drafts, self._client.create)
        failure: BaseException | None = None
        missing = len(births) - len(results)
        for result in results:
            if not isinstance(result, BaseException):
                self._wrote_pods.wrote(key, result)
                self._tell(job, "SuccessfulCreate", f"Created pod: {result.metadata.name}")
                continue
            missing += 1
            if not isinstance(result, ApiError):
                raise result
            if not namespace_ends(result):
                failure = result
                note = f"Error creating: {result}"
                self._context.recorder.event(
                    job, type="Warning", reason="FailedCreate", action="Create", note=note
                )
        return missing, failure

    async def _release(self, key: Key, pods: Iterable[Pod]) -> None:
        """Remove the tracking finalizer from pods; a deleted one has none."""

        async def release(pod: Pod) -> None:
            changed = await _untrack(self._context, pod)
            if changed is not None:
                self._wrote_pods.wrote(key, changed)

        await asyncio.gather(*map(release, pods))

    async def _write(self, key: Key, job: Job, version: str, status: JobStatus) -> str:
        written = await self._client.patch_status(job, _body(status), resource_version=version)
        self._wrote_jobs.wrote(key, written)
        return written.metadata.resource_version

    async def _expire(self, job: Job, end: Condition) -> float | None:
        ttl = job.spec.ttl_seconds_after_finished
        meta = job.metadata
        if ttl is None or meta.deletion_timestamp is not None or not end.last_transition_time:
            return None
        left = times.parse(end.last_transition_time).timestamp() + ttl - self._context.clock()
        if left > 0:
            return left
        await self._client.delete(
            Job,
            meta.name,
            meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            propagation="Foreground",
        )
        return None

    async def _stray(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None or not _untracked(None, pod):
            return None
        if not any(_selects(job, pod) for job in self._jobs.by(JOBS, key[0])):
            await _untrack(self._context, pod)
        return None

    def _tell_end(self, job: Job, status: JobStatus) -> None:
        for one in status.conditions:
            if one.type == "Complete":
                self._tell(job, "Completed", "Job completed")
            elif one.type == "Failed":
                self._context.recorder.event(
                    job, type="Warning", reason=one.reason, action="Sync", note=one.message
                )

    def _tell(self, job: Job, reason: str, note: str) -> None:
        self._context.recorder.event(job, reason=reason, action="Sync", note=note)

    def _forget(self, key: Key) -> None:
        self._backoff.pop(key, None)


async def _untrack(context: ComponentContext, pod: Pod) -> Pod | None:
    """Remove the tracking finalizer from a pod; returns the pod, or None if it is deleted."""
    body = {
        "metadata": {
            "uid": pod.metadata.uid,
            "$deleteFromPrimitiveList/finalizers": [TRACKING],
        }
    }
    try:
        return await context.client.patch(Pod, *_place(pod), body, kind="strategic")
    except (NotFound, Conflict):
        return None


def _place(pod: Pod) -> tuple[str, str]:
    return pod.metadata.name, pod.metadata.namespace


def _draft(job: Job, birth: Birth) -> Draft:
    """A pod of a Job; an index is in its label, annotation, variable and name."""
    if birth.index is None:
        return draft(job.spec.template, job, finalizers=(TRACKING,))
    number = str(birth.index)
    spec = msgspec.json.decode(opened(job.spec.template).spec)
    spec["hostname"] = f"{job.metadata.name}-{number}"
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        variables = container.get("env") or []
        if all(one.get("name") != INDEX_VARIABLE for one in variables):
            container["env"] = [*variables, {"name": INDEX_VARIABLE, "valueFrom": source}]
    made = draft(
        job.spec.template,
        job,
        labels={INDEX: number},
        annotations={INDEX: number, **birth.annotations},
        finalizers=(TRACKING,),
        spec=msgspec.Raw(msgspec.json.encode(spec)),
    )
    end = f"-{number}-"
    prefix = job.metadata.name[: LONGEST_PREFIX - len(end)] + end
    metadata = msgspec.structs.replace(made.metadata, generate_name=prefix)
    return msgspec.structs.replace(made, metadata=metadata)


def _body(status: JobStatus) -> dict[str, object]:
    """A status as a merge patch: what is absent is removed."""
    noted = status.uncounted_terminated_pods or UncountedPods()
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
            "succeeded": noted.succeeded or None,
            "failed": noted.failed or None,
        },
        "conditions": [
            {**msgspec.to_builtins(one), "lastProbeTime": one.last_transition_time}
            for one in status.conditions
        ]
        or None,
    }


def _namespace(job: Job) -> tuple[str]:
    return (job.metadata.namespace,)


def _owner(pod: Pod) -> str:
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


def _relabelled(old: Pod | None, new: Pod) -> bool:
    return (
        old is None
        or old.metadata.labels != new.metadata.labels
        or old.metadata.controller is not None
    )


def _untracked(_: Pod | None, new: Pod | None) -> bool:
    """A pod that a Job tracked once and that has no controller any more."""
    return new is not None and tracked(new) and new.metadata.controller is None
