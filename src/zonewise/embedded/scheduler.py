"""Gives pods their nodes: the shell around ``zonewise.scheduling``.

The cluster's nodes and pods are told to a ``scheduling.Cluster`` as the stores change, so a
decision asks memory only. Decisions are made one after the other, in the order of ``pending``: each
sees the ones before it, because a pod that was decided is *assumed* on its node at once. Bindings
are written concurrently, up to ``IN_FLIGHT``, so that the server commits many together. One that
fails takes back the assumption and the pod waits its turn again.

A pod that fits nowhere is told so once per reason (condition ``PodScheduled``, event
``FailedScheduling``). If less important pods can make room, they are marked and deleted, and the
node is kept free for it (``status.nominatedNodeName``) until it fits or another node turns up.

Nothing lives only here: a new scheduler finds pods without a node, and nominations in their status.
Pods of other schedulers, gated pods and pods that end are left alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from zonewise.api import times
from zonewise.api.core import Namespace, Node, Service
from zonewise.api.errors import Conflict, NotFound, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.pod import Pod, PodCondition
from zonewise.api.podstate import active, finished
from zonewise.api.policy import PodDisruptionBudget
from zonewise.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from zonewise.embedded.crew import Means
from zonewise.embedded.firstuse import FirstUse
from zonewise.embedded.pending import Pending
from zonewise.embedded.workloads.views import ReplicaSet, ReplicationController, StatefulSet
from zonewise.runtime.logs import logger
from zonewise.runtime.store import Store
from zonewise.scheduling.cluster import Cluster
from zonewise.scheduling.decision import Change, Decision, Preemption
from zonewise.scheduling.preemption import REASON

Workload: TypeAlias = ReplicaSet | StatefulSet

NAME = "default-scheduler"
IN_FLIGHT = 256
AT_ONCE = 32
"""So many decisions are made before others get a turn."""

_log = logger("scheduler")


class Scheduler:
    """A part: the scheduler of all pods that name no other."""

    def __init__(self, means: Means) -> None:
        self._client = means.client
        self._cache = means.cache
        self._recorder = means.recorder
        self._clock = means.clock
        self.cluster = Cluster(seed=means.rng.getrandbits(32))
        self.pending = Pending()
        self.attempts = 0
        """How many decisions were made."""
        self._assumed: dict[Key, str] = {}
        """Uids of pods that count as bound before the store shows them so."""
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: BaseException | None = None
        self._pods: Store[Pod] = means.cache.store(Pod)
        claims = means.cache.store(PersistentVolumeClaim)
        self._first_use = FirstUse(means.client, claims, self.cluster.shelf)
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

    # What the stores tell

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
        self._pods.on_change(self._pod)

    def _namespace(self, old: Namespace | None, new: Namespace | None) -> None:
        if new is not None:
            self.cluster.set_namespace(new)
            if old is not None and old.metadata.labels != new.metadata.labels:
                self._happened(Change.POD_CAME | Change.POD_WENT)

    def _service(self, old: Service | None, new: Service | None) -> None:
        if new is not None:
            if old is None or old.spec.selector != new.spec.selector:
                self.cluster.bonds.set_service(new.key, new.spec.selector)
        elif old is not None:
            self.cluster.bonds.remove_service(old.key)

    def _workload(self, old: Workload | None, new: Workload | None) -> None:
        if new is not None:
            self.cluster.bonds.set_owner(new.resource.kind, new.key, new.spec.selector)
        elif old is not None:
            self.cluster.bonds.remove_owner(old.resource.kind, old.key)

    def _budget(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> None:
        if new is not None:
            self.cluster.set_budget(new)
        elif old is not None:
            self.cluster.remove_budget(old.key)

    def _class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        if new is not None:
            self.cluster.shelf.set_class(new)
            self._happened(Change.VOLUME)
        elif old is not None:
            self.cluster.shelf.remove_class(old.metadata.name)

    def _volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        if new is not None:
            self.cluster.shelf.set_volume(new)
            self._happened(Change.VOLUME)
        elif old is not None:
            self.cluster.shelf.remove_volume(old.metadata.name)

    def _claim(self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None) -> None:
        if new is not None:
            self.cluster.shelf.set_claim(new)
            self._happened(Change.VOLUME)
            self._first_use.changed(new.key)
        elif old is not None:
            self.cluster.shelf.remove_claim(old.key)
            self._first_use.changed(old.key)

    def _node(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            self.cluster.remove_node(old.metadata.name)
            self._happened(Change.NODE)
        elif old is None or _shape(old) != _shape(new):
            self.cluster.set_node(new)
            self._happened(Change.NODE)

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
            self._happened(Change.POD_WENT)

    def _bound(self, old: Pod | None, new: Pod) -> None:
        key = new.key
        self._assumed.pop(key, None)
        if old is None or not old.spec.node_name:
            self.pending.remove(key)
            self.cluster.withdraw(key)
            self._happened(Change.POD_CAME)
        elif new.status.phase != old.status.phase and finished(new):
            self._happened(Change.POD_WENT)
        elif _asks(new) != _asks(old):
            self._happened(Change.POD_CAME | Change.POD_WENT)
        elif new.metadata.deletion_timestamp != old.metadata.deletion_timestamp:
            # A pod that ends counts no more where pods are spread.
            self._happened(Change.POD_WENT)
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
            self.pending.add(key, new.spec.priority or 0, self._clock())
            self._wake.set()

    def _happened(self, change: Change) -> None:
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
                key = self.pending.next(self._clock())
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
        pause = None if wakes is None else max(wakes - self._clock(), 0.001)
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
        self.pending.fail(pod.key, decision.helped_by, self._clock())
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

    async def _place(self, pod: Pod, decision: Decision) -> None:
        """Bind a pod to its node, its claims before it."""
        if decision.claims and not await self._first_use.prepare(decision.claims, decision.node):
            self._unassume(pod)
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
        """A binding failed; the store says what became of the pod, now or when it catches up."""
        key = pod.key
        if self._assumed.get(key) != pod.metadata.uid:
            return
        del self._assumed[key]
        self.cluster.remove_pod(key)
        now = self._pods.get(key)
        if now is not None and _ours(now):
            self.pending.add(key, now.spec.priority or 0, self._clock())
            self.pending.retry(key, self._clock())
            self._wake.set()

    def _refuse(self, pod: Pod, decision: Decision) -> None:
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
        same = ("False", "Unschedulable", decision.message)
        if said is None or (said.status, said.reason, said.message) != same:
            status["conditions"] = [self._condition(pod, said, decision.message)]
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

    def _condition(self, pod: Pod, said: PodCondition | None, message: str) -> dict[str, object]:
        since = said.last_transition_time if said and said.status == "False" else None
        return {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
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
            condition = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": REASON,
                "message": f"{NAME}: preempting to accommodate a higher priority pod",
                "lastProbeTime": None,
                "lastTransitionTime": self._now(),
                "observedGeneration": meta.generation,
            }
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
            _log.warning("not deleted", pod=f"{meta.namespace}/{meta.name}", error=str(error))

    async def _patch_status(self, pod: Pod, status: dict[str, object]) -> None:
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": status}
        try:
            async with self._room:
                await self._client.patch(
                    Pod, meta.name, meta.namespace, body, kind="strategic", subresource="status"
                )
        except (NotFound, Conflict):
            pass
        except ZonewiseError as error:
            _log.warning("not told", pod=f"{meta.namespace}/{meta.name}", error=str(error))

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
