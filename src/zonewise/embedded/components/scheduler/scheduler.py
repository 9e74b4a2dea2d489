"""Binds pods to nodes: the shell around ``zonewise.scheduling``.

A ``scheduling.Cluster`` is updated with nodes and pods as the stores change, so a decision reads
memory only. Decisions are made one after the other, in the order of ``queue``: each sees the ones
before it, because a pod that was decided is *assumed* on its node at once. Bindings are written
concurrently, up to ``IN_FLIGHT``, so that the server commits many together. One that fails reverts
the assumption and the pod is queued again.

For a pod that fits nowhere that is reported once per reason (condition ``PodScheduled``, event
``FailedScheduling``). If pods of lower priority can make room, they are marked and deleted, and the
node is kept free for it (``status.nominatedNodeName``) until it fits or another node becomes
feasible.

No state is only here: a new scheduler finds pods without a node, and nominations in their status.
Pods of other schedulers, gated pods and terminating pods are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from zonewise.api.errors import Conflict, NotFound, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.apps import ReplicaSet, ReplicationController, StatefulSet
from zonewise.api.objects.core import Namespace, Node, Service
from zonewise.api.objects.pod import Pod, PodCondition
from zonewise.api.objects.pod_state import active, finished
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
from zonewise.disruption import disruption_target
from zonewise.embedded.components.scheduler.queue import SchedulingQueue
from zonewise.embedded.components.scheduler.volume_binding import VolumeBinding
from zonewise.runtime.cache.store import Store
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.process.clock import elapsed
from zonewise.runtime.process.logs import logger
from zonewise.scheduling.cluster import SchedulerCluster
from zonewise.scheduling.decision import ClusterEvent, Preemption, SchedulingDecision
from zonewise.scheduling.preemption import REASON

Workload: TypeAlias = ReplicaSet | StatefulSet

NAME = "default-scheduler"
IN_FLIGHT = 256
AT_ONCE = 32
"""So many decisions are made before others get a turn."""

_log = logger("scheduler")


class Scheduler:
    """A part: the scheduler of all pods that name no other."""

    def __init__(self, context: ComponentContext) -> None:
        self._client = context.client
        self._cache = context.cache
        self._recorder = context.recorder
        self._clock = context.clock
        self.cluster = SchedulerCluster(seed=context.rng.getrandbits(32))
        self.pending = SchedulingQueue()
        self.attempts = 0
        """How many decisions were made."""
        self._assumed: dict[Key, str] = {}
        """Uids of pods that count as bound before the store shows them so."""
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None
        self._pods: Store[Pod] = context.cache.store(Pod)
        cache = context.cache
        self._first_use = VolumeBinding(
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
            while self._failed is None:
                await self._some()
                await self._rest()
            raise self._failed
        finally:
            for task in self._tasks:
                task.cancel()

    # Changes of the stores

    def _watch(self) -> None:
        cache = self._cache
        cache.store(Namespace).on_change(self._namespace)
        cache.store(Node).on_change(self._node)
        cache.store(Service).on_change(self._service)
        cache.store(ReplicaSet).on_change(self._workload)
        cache.store(ReplicationController).on_change(self._workload)
        cache.store(StatefulSet).on_change(self._workload)
        cache.store(PodDisruptionBudget).on_change(self._budget)
        cache.store(StorageClass).on_change(self._class)
        cache.store(PersistentVolume).on_change(self._volume)
        cache.store(PersistentVolumeClaim).on_change(self._claim)
        cache.store(CSIDriver).on_change(self._driver)
        cache.store(CSIStorageCapacity).on_change(self._capacity)
        cache.store(CSINode).on_change(self._csi_node)
        cache.store(VolumeAttachment).on_change(self._attachment)
        self._pods.on_change(self._pod)

    def _namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None:
            self.cluster.set_namespace(new)
            if old is not None and old.metadata.labels != new.metadata.labels:
                self._happened(ClusterEvent.POD_CAME | ClusterEvent.POD_WENT)

    def _service(self, old: Service | None, new: Service | None) -> None:
        if new is not None:
            if old is None or old.spec.selector != new.spec.selector:
                self.cluster.default_spread.set_service(new.key, new.spec.selector)
        elif old is not None:
            self.cluster.default_spread.remove_service(old.key)

    def _workload(self, old: Workload | None, new: Workload | None) -> None:
        if new is not None:
            self.cluster.default_spread.set_owner(new.resource.kind, new.key, new.spec.selector)
        elif old is not None:
            self.cluster.default_spread.remove_owner(old.resource.kind, old.key)

    def _budget(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        if new is not None:
            self.cluster.set_budget(new)
        elif old is not None:
            self.cluster.remove_budget(old.key)

    def _class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        if new is not None:
            self.cluster.volume_cache.set_class(new)
            self._happened(ClusterEvent.VOLUME)
        elif old is not None:
            self.cluster.volume_cache.remove_class(old.metadata.name)

    def _volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if new is not None:
            self.cluster.volume_cache.set_volume(new)
            self._happened(ClusterEvent.VOLUME)
            ref = new.spec.claim_ref
            if ref is not None:
                self._first_use.changed((ref.namespace, ref.name))
        elif old is not None:
            self.cluster.volume_cache.remove_volume(old.metadata.name)

    def _claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        if new is not None:
            self.cluster.volume_cache.set_claim(new)
            self._happened(ClusterEvent.VOLUME)
            self._first_use.changed(new.key)
        elif old is not None:
            self.cluster.volume_cache.remove_claim(old.key)
            self._first_use.changed(old.key)

    def _driver(self, old: CSIDriver | None, new: CSIDriver | None) -> None:
        if new is not None:
            self.cluster.volume_cache.set_driver(new)
        elif old is not None:
            self.cluster.volume_cache.remove_driver(old.metadata.name)
        self._happened(ClusterEvent.VOLUME)

    def _capacity(self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None) -> None:
        if new is not None:
            self.cluster.volume_cache.set_capacity(new)
            self._happened(ClusterEvent.VOLUME)
        elif old is not None:
            self.cluster.volume_cache.remove_capacity(old.key)

    def _csi_node(self, old: CSINode | None, new: CSINode | None) -> None:
        if new is not None:
            self.cluster.set_csi_node(new)
        elif old is not None:
            self.cluster.remove_csi_node(old.metadata.name)
        self._happened(ClusterEvent.VOLUME)

    def _attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        if new is not None:
            self.cluster.set_attachment(new)
        elif old is not None:
            self.cluster.remove_attachment(old)
            self._happened(ClusterEvent.VOLUME)

    def _node(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self.cluster.remove_node(old.metadata.name)
            self._happened(ClusterEvent.NODE)
            self._first_use.node_changed()
        elif old is None or _shape(old) != _shape(new):
            self.cluster.set_node(new)
            self._happened(ClusterEvent.NODE)
            if old is not None and old.metadata.labels != new.metadata.labels:
                self._first_use.node_changed()

    def _pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            assert old is not None
            self._gone(old)
        elif new.spec.node_name:
            self._bound(old, new)
        elif new.key not in self._assumed:
            self._unbound(old, new)

    def _gone(self, pod: Pod) -> None:
        key = pod.key
        self.pending.remove(key)
        self.cluster.withdraw(key)
        if pod.spec.node_name or self._assumed.pop(key, ""):
            self.cluster.remove_pod(key)
            self._happened(ClusterEvent.POD_WENT)

    def _bound(self, old: Pod | None, new: Pod) -> None:
        key = new.key
        self._assumed.pop(key, None)
        if old is None or not old.spec.node_name:
            self.pending.remove(key)
            self.cluster.withdraw(key)
            self._happened(ClusterEvent.POD_CAME)
        elif new.status.phase != old.status.phase and finished(new):
            self._happened(ClusterEvent.POD_WENT)
        elif _asks(new) != _asks(old):
            self._happened(ClusterEvent.POD_CAME | ClusterEvent.POD_WENT)
        elif new.metadata.deletion_timestamp != old.metadata.deletion_timestamp:
            # A pod that ends counts no more where pods are spread.
            self._happened(ClusterEvent.POD_WENT)
        self.cluster.set_pod(new)

    def _unbound(self, old: Pod | None, new: Pod) -> None:
        key = new.key
        if not _ours(new):
            self.pending.remove(key)
            self.cluster.withdraw(key)
            return
        nominated = new.status.nominated_node_name
        if nominated:
            self.cluster.nominate(new, nominated)
        elif old is not None and old.status.nominated_node_name:
            self.cluster.withdraw(key)
        if key not in self.pending or old is None or _asks(old) != _asks(new):
            self.pending.add(key, new.spec.priority or 0, elapsed())
            self._wake.set()

    def _happened(self, change: ClusterEvent) -> None:
        self.pending.note(change)
        self._wake.set()

    # What follows

    async def _some(self) -> None:
        """Decide for as many pods as are ready."""
        while True:
            for _ in range(AT_ONCE):
                if self._room.locked():
                    async with self._room:
                        pass
                key = self.pending.next(elapsed())
                if key is None:
                    return
                pod = self._pods.get(key)
                if pod is None or not _ours(pod):
                    self.pending.remove(key)
                else:
                    self._decide(pod)
            await asyncio.sleep(0)

    async def _rest(self) -> None:
        """Wait until something happens, or a pause is over."""
        wakes = self.pending.wakes()
        pause = None if wakes is None else max(wakes - elapsed(), 0.001)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._wake.wait()
        self._wake.clear()

    def _decide(self, pod: Pod) -> None:
        self.attempts += 1
        decision = self.cluster.decide(pod)
        if decision.node:
            self.pending.remove(pod.key)
            self.cluster.assume(pod, decision.node)
            self._assumed[pod.key] = pod.metadata.uid
            self._first_use.reserve(decision.claims)
            self._start(self._place(pod, decision))
            return
        self.pending.fail(pod.key, decision.helped_by, elapsed())
        preemption = decision.preemption
        if preemption is not None:
            for key in self.cluster.outranked(pod, preemption.node):
                self._denominate(key)
            self.cluster.nominate(pod, preemption.node)
            self._start(self._preempt(pod, preemption))
        elif not decision.waits:
            self.cluster.withdraw(pod.key)
        self._refuse(pod, decision)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed = error
            self._wake.set()

    async def _place(self, pod: Pod, decision: SchedulingDecision) -> None:
        """Bind a pod to its node, its claims before it."""
        if decision.claims:
            why = await self._first_use.prepare(decision.claims, decision.node)
            if why:
                self._unassume(pod)
                said = f'running PreBind plugin "VolumeBinding": binding volumes: {why}'
                self._refuse(pod, SchedulingDecision(message=said), "SchedulerError")
                return
        async with self._room:
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
        self._recorder.event(
            pod,
            reason="Scheduled",
            action="Binding",
            note=f"Successfully assigned {meta.namespace}/{meta.name} to {node}",
        )

    def _unassume(self, pod: Pod) -> None:
        """A binding failed; the store has the pod's state, now or when it catches up."""
        key = pod.key
        if self._assumed.get(key) != pod.metadata.uid:
            return
        del self._assumed[key]
        self.cluster.remove_pod(key)
        now = self._pods.get(key)
        if now is not None and _ours(now):
            self.pending.add(key, now.spec.priority or 0, elapsed())
            self.pending.retry(key, elapsed())
            self._wake.set()

    def _refuse(
        self, pod: Pod, decision: SchedulingDecision, reason: str = "Unschedulable"
    ) -> None:
        """Say why there is no node, and which node is kept free."""
        self._recorder.event(
            pod,
            reason="FailedScheduling",
            action="Scheduling",
            note=decision.message,
            type="Warning",
        )
        said = next((one for one in pod.status.conditions if one.type == "PodScheduled"), None)
        status: dict[str, object] = {}
        if said is None or (said.status, said.reason, said.message) != (
            "False",
            reason,
            decision.message,
        ):
            status["conditions"] = [self._condition(pod, said, reason, decision.message)]
        nominated = decision.preemption.node if decision.preemption else ""
        if nominated != pod.status.nominated_node_name and (nominated or not decision.waits):
            status["nominatedNodeName"] = nominated or None
        if status:
            self._start(self._patch_status(pod, status))

    def _denominate(self, key: Key) -> None:
        """A node is no longer kept free for a pod, because a more important one needs it."""
        self.cluster.withdraw(key)
        pod = self._pods.get(key)
        if pod is not None and pod.status.nominated_node_name:
            self._start(self._patch_status(pod, {"nominatedNodeName": None}))

    def _condition(
        self, pod: Pod, said: PodCondition | None, reason: str, message: str
    ) -> dict[str, object]:
        since = said.last_transition_time if said and said.status == "False" else None
        return {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": since or self._now(),
            "observedGeneration": pod.metadata.generation,
        }

    async def _preempt(self, pod: Pod, preemption: Preemption) -> None:
        """Take the victims off their node."""
        victims = [self._pods.get(key) for key in preemption.victims]
        await asyncio.gather(
            *(self._remove(victim, pod, preemption.node) for victim in victims if victim)
        )

    async def _remove(self, victim: Pod, pod: Pod, node: str) -> None:
        meta = victim.metadata
        if meta.deletion_timestamp is None:
            condition = disruption_target(
                REASON,
                f"{NAME}: preempting to accommodate a higher priority pod",
                now=self._now(),
                generation=meta.generation,
            ) | {"lastProbeTime": None}
            await self._patch_status(victim, {"conditions": [condition]})
            await self._delete(victim)
        self._recorder.event(
            victim,
            related=pod,
            reason="Preempted",
            action="Preempting",
            note=f"Preempted by pod {pod.metadata.uid} on node {node}",
        )

    async def _delete(self, pod: Pod) -> None:
        """What cannot be deleted now is a victim again when its successor is tried again."""
        meta = pod.metadata
        try:
            async with self._room:
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
            async with self._room:
                await self._client.patch_status(pod, status, kind="strategic")
        except (NotFound, Conflict):
            pass
        except ZonewiseError as error:
            _log.warning(
                "status patch failed", pod=f"{meta.namespace}/{meta.name}", error=str(error)
            )

    def _now(self) -> str:
        return times.format_time(times.from_epoch(self._clock()))


def _shape(node: Node) -> tuple[object, ...]:
    """What of a node matters for decisions; heartbeats do not."""
    spec = node.spec
    return node.metadata.labels, spec.taints, spec.unschedulable, node.status.allocatable


def _ours(pod: Pod) -> bool:
    """Whether a pod waits for this scheduler."""
    spec = pod.spec
    return (
        not spec.node_name
        and spec.scheduler_name in ("", NAME)
        and not spec.scheduling_gates
        and active(pod)
    )


def _asks(pod: Pod) -> tuple[object, ...]:
    """What of a pod may change and is worth new attempts if it does."""
    return pod.metadata.generation, pod.metadata.labels, pod.spec.scheduling_gates
