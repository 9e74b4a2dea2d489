"""Binds pods to nodes: the shell around ``zonewise.scheduling``.

A ``scheduling.Cluster`` is updated with nodes and pods as the stores change, so a decision reads
memory only. Decisions are made one after the other, in the order of ``queue``: each sees the ones
before it, because a pod that was decided is *assumed* on its node at once. Bindings are written
concurrently, up to ``MAX_IN_FLIGHT``, so that the server commits many together. One that fails
reverts the assumption and the pod is queued again.

A pod that fits nowhere is reported once per reason (condition ``PodScheduled``, event
``FailedScheduling``). If pods of lower priority can make room, they are marked and deleted, and the
pod is nominated for the node (``status.nominatedNodeName``) until it fits or another node becomes
feasible.

No state is only here: a new scheduler finds pods without a node, and nominations in their status.
Pods of other schedulers, gated pods and terminating pods are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import msgspec

from zonewise.api.errors import Conflict, NotFound, ZonewiseError
from zonewise.api.meta import Key, Object, find_condition
from zonewise.api.objects.apps import ReplicaSet, ReplicationController, StatefulSet
from zonewise.api.objects.core import Namespace, Node, Service
from zonewise.api.objects.pod import Pod, PodCondition
from zonewise.api.objects.pod_state import is_pod_active, is_pod_finished
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.objects.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from zonewise.api.values import times
from zonewise.disruption.pdb import disruption_target_condition
from zonewise.embedded.components.scheduler.queue import SchedulingQueue
from zonewise.embedded.components.scheduler.volume_binding import VolumeBinding
from zonewise.runtime.cache.store import Store
from zonewise.runtime.process.clock import elapsed
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.scheduling.cluster import SchedulerCluster
from zonewise.scheduling.decision import ClusterEvent, Preemption, SchedulingDecision
from zonewise.scheduling.preemption import REASON

Workload: TypeAlias = ReplicaSet | StatefulSet
T = TypeVar("T", bound=Object)

SCHEDULER_NAME = "default-scheduler"
MAX_IN_FLIGHT = 256
BATCH = 32
"""How many decisions are made before other tasks of the event loop get a turn."""

_log = logger("scheduler")


class Scheduler:
    """The scheduler of all pods that name no other one."""

    def __init__(self, context: ControllerContext) -> None:
        self._client = context.client
        self._cache = context.cache
        self._recorder = context.recorder
        self._clock = context.clock
        self.cluster = SchedulerCluster(seed=context.rng.getrandbits(32))
        self.queue = SchedulingQueue()
        self.attempts = 0
        """How many decisions were made."""
        self._assumed: dict[Key, str] = {}
        """Uids of pods that count as bound before the store shows it."""
        self._wake = asyncio.Event()
        self._write_slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._pods: Store[Pod] = context.cache.store(Pod)
        cache = context.cache
        self._volume_binding = VolumeBinding(
            context.client,
            cache.store(PersistentVolumeClaim),
            cache.store(PersistentVolume),
            cache.store(Node),
            self.cluster.volume_cache,
        )
        self._watch()

    async def run(self) -> None:
        """Schedule until cancelled."""
        await self._cache.synced()
        try:
            while self._error is None:
                await self._schedule_active()
                await self._wait()
            raise self._error
        finally:
            for task in self._tasks:
                task.cancel()

    # Changes of the stores

    def _watch(self) -> None:
        cache, cluster, volumes = self._cache, self.cluster, self.cluster.volume_cache
        event = ClusterEvent.VOLUME
        cache.store(Namespace).on_change(self._namespace_changed)
        cache.store(Node).on_change(self._node_changed)
        cache.store(Service).on_change(self._service_changed)
        cache.store(ReplicaSet).on_change(self._workload_changed)
        cache.store(ReplicationController).on_change(self._workload_changed)
        cache.store(StatefulSet).on_change(self._workload_changed)
        cache.store(PersistentVolume).on_change(self._volume_changed)
        cache.store(PersistentVolumeClaim).on_change(self._claim_changed)
        self._follow(PodDisruptionBudget, cluster.set_budget, cluster.remove_budget)
        self._follow(StorageClass, volumes.set_class, volumes.remove_class, on_set=event)
        self._follow(
            CSIStorageCapacity, volumes.set_capacity, volumes.remove_capacity, on_set=event
        )
        self._follow(CSIDriver, volumes.set_driver, volumes.remove_driver, event, event)
        self._follow(CSINode, cluster.set_csi_node, cluster.remove_csi_node, event, event)
        self._follow(
            VolumeAttachment, cluster.set_attachment, cluster.remove_attachment, on_remove=event
        )
        self._pods.on_change(self._pod_changed)

    def _follow(
        self,
        cls: type[T],
        set: Callable[[T], None],
        remove: Callable[[T], None],
        on_set: ClusterEvent | None = None,
        on_remove: ClusterEvent | None = None,
    ) -> None:
        """Keep the objects of a kind in the cluster; the events may help pods that wait."""

        def apply_change(old: T | None, new: T | None) -> None:
            if new is not None:
                set(new)
            elif old is not None:
                remove(old)
            event = on_set if new is not None else on_remove
            if event is not None:
                self._record_event(event)

        self._cache.store(cls).on_change(apply_change)

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None:
            self.cluster.set_namespace(new)
            if old is not None and old.metadata.labels != new.metadata.labels:
                self._record_event(ClusterEvent.POD_ADDED | ClusterEvent.POD_DELETED)

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        if new is not None:
            if old is None or old.spec.selector != new.spec.selector:
                self.cluster.default_spread.set_service(new.key, new.spec.selector)
        elif old is not None:
            self.cluster.default_spread.remove_service(old.key)

    def _workload_changed(self, old: Workload | None, new: Workload | None) -> None:
        if new is not None:
            self.cluster.default_spread.set_owner(new.resource.kind, new.key, new.spec.selector)
        elif old is not None:
            self.cluster.default_spread.remove_owner(old.resource.kind, old.key)

    def _volume_changed(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if new is not None:
            self.cluster.volume_cache.set_volume(new)
            self._record_event(ClusterEvent.VOLUME)
            ref = new.spec.claim_ref
            if ref is not None:
                self._volume_binding.claim_changed((ref.namespace, ref.name))
        elif old is not None:
            self.cluster.volume_cache.remove_volume(old.metadata.name)

    def _claim_changed(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> None:
        if new is not None:
            self.cluster.volume_cache.set_claim(new)
            self._record_event(ClusterEvent.VOLUME)
            self._volume_binding.claim_changed(new.key)
        elif old is not None:
            self.cluster.volume_cache.remove_claim(old.key)
            self._volume_binding.claim_changed(old.key)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self.cluster.remove_node(old.metadata.name)
            self._record_event(ClusterEvent.NODE)
            self._volume_binding.node_changed()
        elif old is None or _scheduling_fields(old) != _scheduling_fields(new):
            self.cluster.set_node(new)
            self._record_event(ClusterEvent.NODE)
            if old is not None and old.metadata.labels != new.metadata.labels:
                self._volume_binding.node_changed()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._pod_deleted(old)
        elif new.spec.node_name:
            self._bound_pod_changed(old, new)
        elif new.key not in self._assumed:
            self._unbound_pod_changed(old, new)

    def _pod_deleted(self, pod: Pod) -> None:
        key = pod.key
        self.queue.remove(key)
        self.cluster.remove_nomination(key)
        if pod.spec.node_name or self._assumed.pop(key, ""):
            self.cluster.remove_pod(key)
            self._record_event(ClusterEvent.POD_DELETED)

    def _bound_pod_changed(self, old: Pod | None, new: Pod) -> None:
        key = new.key
        self._assumed.pop(key, None)
        if old is None or not old.spec.node_name:
            self.queue.remove(key)
            self.cluster.remove_nomination(key)
            self._record_event(ClusterEvent.POD_ADDED)
        elif new.status.phase != old.status.phase and is_pod_finished(new):
            self._record_event(ClusterEvent.POD_DELETED)
        elif _requirements(new) != _requirements(old):
            self._record_event(ClusterEvent.POD_ADDED | ClusterEvent.POD_DELETED)
        elif new.metadata.deletion_timestamp != old.metadata.deletion_timestamp:
            # A terminating pod no longer counts for topology spread.
            self._record_event(ClusterEvent.POD_DELETED)
        self.cluster.set_pod(new)

    def _unbound_pod_changed(self, old: Pod | None, new: Pod) -> None:
        key = new.key
        if not _awaits_scheduling(new):
            self.queue.remove(key)
            self.cluster.remove_nomination(key)
            return
        nominated = new.status.nominated_node_name
        if nominated:
            self.cluster.nominate(new, nominated)
        elif old is not None and old.status.nominated_node_name:
            self.cluster.remove_nomination(key)
        if key not in self.queue or old is None or _requirements(old) != _requirements(new):
            self.queue.add(key, new.spec.priority or 0, elapsed())
            self._wake.set()

    def _record_event(self, event: ClusterEvent) -> None:
        self.queue.record(event)
        self._wake.set()

    # Decisions and writes

    async def _schedule_active(self) -> None:
        """Decide for all active pods."""
        while True:
            for _ in range(BATCH):
                if self._write_slots.locked():
                    async with self._write_slots:
                        pass
                key = self.queue.pop(elapsed())
                if key is None:
                    return
                pod = self._pods.get(key)
                if pod is None or not _awaits_scheduling(pod):
                    self.queue.remove(key)
                else:
                    self._decide(pod)
            await asyncio.sleep(0)

    async def _wait(self) -> None:
        """Wait for an event, or until the next pod is due."""
        due = self.queue.next_due()
        pause = None if due is None else max(due - elapsed(), 0.001)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        self._wake.clear()

    def _decide(self, pod: Pod) -> None:
        self.attempts += 1
        decision = self.cluster.decide(pod)
        if decision.node:
            self.queue.remove(pod.key)
            self.cluster.assume(pod, decision.node)
            self._assumed[pod.key] = pod.metadata.uid
            self._volume_binding.reserve(decision.claims)
            self._start_task(self._bind_with_volumes(pod, decision))
            return
        self.queue.add_unschedulable(pod.key, decision.helped_by, elapsed())
        preemption = decision.preemption
        if preemption is not None:
            for key in self.cluster.find_outranked(pod, preemption.node):
                self._clear_nomination(key)
            self.cluster.nominate(pod, preemption.node)
            self._start_task(self._preempt(pod, preemption))
        elif not decision.keeps_nomination:
            self.cluster.remove_nomination(pod.key)
        self._report_failure(pod, decision)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = error
            self._wake.set()

    async def _bind_with_volumes(self, pod: Pod, decision: SchedulingDecision) -> None:
        """Bind the claims of a pod, then the pod to its node."""
        if decision.claims:
            reason = await self._volume_binding.bind_claims(decision.claims, decision.node)
            if reason:
                self._unassume(pod)
                message = f'running PreBind plugin "VolumeBinding": binding volumes: {reason}'
                self._report_failure(pod, SchedulingDecision(message=message), "SchedulerError")
                return
        async with self._write_slots:
            await self._bind(pod, decision.node)

    async def _bind(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = Pod.resource.path(meta.namespace, meta.name, "binding")
        try:
            await self._client.raw("POST", path, body=msgspec.json.encode(binding))
        except ZonewiseError as error:
            self._unassume(pod)
            level = _log.debug if isinstance(error, Conflict | NotFound) else _log.warning
            level("not bound", pod=f"{meta.namespace}/{meta.name}", error=str(error))
            return
        note = f"Successfully assigned {meta.namespace}/{meta.name} to {node}"
        self._recorder.event(pod, "Scheduled", "Binding", note)

    def _unassume(self, pod: Pod) -> None:
        """A binding failed; the store has the pod's state, now or when it catches up."""
        key = pod.key
        if self._assumed.get(key) != pod.metadata.uid:
            return
        del self._assumed[key]
        self.cluster.remove_pod(key)
        current = self._pods.get(key)
        if current is not None and _awaits_scheduling(current):
            self.queue.add(key, current.spec.priority or 0, elapsed())
            self.queue.back_off(key, elapsed())
            self._wake.set()

    def _report_failure(
        self, pod: Pod, decision: SchedulingDecision, reason: str = "Unschedulable"
    ) -> None:
        """Report why no node fits, and which node is nominated."""
        self._recorder.event(
            pod, "FailedScheduling", "Scheduling", decision.message, type="Warning"
        )
        condition = find_condition(pod.status.conditions, "PodScheduled")
        status: dict[str, object] = {}
        if condition is None or (condition.status, condition.reason, condition.message) != (
            "False",
            reason,
            decision.message,
        ):
            condition_patch = self._unscheduled_condition(pod, condition, reason, decision.message)
            status["conditions"] = [condition_patch]
        nominated = decision.preemption.node if decision.preemption else ""
        if nominated != pod.status.nominated_node_name and (
            nominated or not decision.keeps_nomination
        ):
            status["nominatedNodeName"] = nominated or None
        if status:
            self._start_task(self._patch_status(pod, status))

    def _clear_nomination(self, key: Key) -> None:
        """A pod is no longer nominated for a node, because one of higher priority needs it."""
        self.cluster.remove_nomination(key)
        pod = self._pods.get(key)
        if pod is not None and pod.status.nominated_node_name:
            self._start_task(self._patch_status(pod, {"nominatedNodeName": None}))

    def _unscheduled_condition(
        self, pod: Pod, condition: PodCondition | None, reason: str, message: str
    ) -> dict[str, object]:
        unchanged = condition and condition.status == "False"
        since = condition.last_transition_time if condition and unchanged else None
        return {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": since or self._timestamp(),
            "observedGeneration": pod.metadata.generation,
        }

    async def _preempt(self, pod: Pod, preemption: Preemption) -> None:
        """Delete the victims of a preemption."""
        victims = [self._pods.get(key) for key in preemption.victims]
        await asyncio.gather(
            *(self._preempt_victim(victim, pod, preemption.node) for victim in victims if victim)
        )

    async def _preempt_victim(self, victim: Pod, pod: Pod, node: str) -> None:
        meta = victim.metadata
        if meta.deletion_timestamp is None:
            condition = disruption_target_condition(
                REASON,
                f"{SCHEDULER_NAME}: preempting to accommodate a higher priority pod",
                now=self._timestamp(),
                generation=meta.generation,
            ) | {"lastProbeTime": None}
            await self._patch_status(victim, {"conditions": [condition]})
            await self._delete(victim)
        self._recorder.event(
            victim,
            "Preempted",
            "Preempting",
            f"Preempted by pod {pod.metadata.uid} on node {node}",
            related=pod,
        )

    async def _delete(self, pod: Pod) -> None:
        """Delete a victim; one that cannot be deleted is chosen again at the next attempt."""
        meta = pod.metadata
        try:
            async with self._write_slots:
                await self._client.delete(Pod, meta.name, meta.namespace, uid=meta.uid)
        except (NotFound, Conflict):
            pass
        except ZonewiseError as error:
            _log.warning(
                "pod could not be deleted", pod=f"{meta.namespace}/{meta.name}", error=str(error)
            )

    async def _patch_status(self, pod: Pod, status: dict[str, object]) -> None:
        meta = pod.metadata
        try:
            async with self._write_slots:
                await self._client.patch_status(pod, status, kind="strategic")
        except (NotFound, Conflict):
            pass
        except ZonewiseError as error:
            _log.warning(
                "status patch failed", pod=f"{meta.namespace}/{meta.name}", error=str(error)
            )

    def _timestamp(self) -> str:
        return times.format_time(times.from_epoch(self._clock()))


def _scheduling_fields(node: Node) -> tuple[object, ...]:
    """The fields of a node that decisions read; heartbeats are not among them."""
    spec = node.spec
    return node.metadata.labels, spec.taints, spec.unschedulable, node.status.allocatable


def _awaits_scheduling(pod: Pod) -> bool:
    """Whether a pod waits for this scheduler."""
    spec = pod.spec
    return (
        not spec.node_name
        and spec.scheduler_name in ("", SCHEDULER_NAME)
        and not spec.scheduling_gates
        and is_pod_active(pod)
    )


def _requirements(pod: Pod) -> tuple[object, ...]:
    """The fields of an unbound pod that may change, and are worth a new attempt if they do."""
    return pod.metadata.generation, pod.metadata.labels, pod.spec.scheduling_gates
