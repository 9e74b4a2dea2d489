"""The kubelets of all nodes, as one component.

Two controllers share the work: one brings Nodes to life and keeps them so, one does to pods what
an API client can see of a kubelet. Nothing runs. Nodes are independent of each other, and so are
pods; one pod is never worked on twice at a time. There is no task per pod or node: what has to
happen later waits in the controllers' queues, which have one timer each.

*Memory.* What counts is in the objects. Remembered are addresses in use, which are read back from
pods' statuses; and each pod's ``PodProgress`` at full precision, since times on the wire are cut to
whole seconds. A store may lag behind a write of ours: a pod that is older than what we wrote last
is left until its newer self arrives, so nothing happens twice.

*A failed node* (annotation) is silent: no heartbeats, nothing about its pods, not even their end.
When it heals, it continues with what the objects say by then.

Writes carry the pod's uid: what was meant for a pod never reaches its successor of the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from zonewise.api.errors import Conflict, NotFound, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import FINISHED
from zonewise.embedded.components.kubelet import node_status
from zonewise.embedded.components.kubelet.heartbeats import Heartbeats
from zonewise.embedded.components.kubelet.ipam import AddressPool, NodeRanges
from zonewise.embedded.components.kubelet.pod_lifecycle import (
    LifecycleStep,
    PodProgress,
    advance,
    read,
)
from zonewise.embedded.components.kubelet.pod_status import PodAddresses, report
from zonewise.embedded.components.kubelet.pod_volumes import PodVolumes
from zonewise.embedded.components.kubelet.settings import KubeletSettings
from zonewise.runtime.cache.indexes import BY_NODE
from zonewise.runtime.cache.store import IndexFunction
from zonewise.runtime.client.versions import older
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.process.logs import logger

NODE_WORKERS = 16
NO_ADDRESS_PAUSE = 5.0
MOUNT_PAUSE = 1.0

_log = logger("kubelets")


@dataclass(slots=True)
class _Known:
    """What is remembered of a pod: its life, and the version of our last write."""

    progress: PodProgress
    version: str = ""


@dataclass(frozen=True, slots=True)
class _Lot:
    """What a node was given: ranges for its pods, addresses of its own."""

    uid: str
    blocks: tuple[str, ...]
    hosts: tuple[str, ...]


class Kubelets:
    """Brings nodes and their pods to life until it is cancelled."""

    def __init__(
        self,
        context: ComponentContext,
        settings: KubeletSettings | None = None,
        volumes: Callable[[ComponentContext], PodVolumes] | None = None,
    ) -> None:
        self._context = context
        self._volumes = volumes(context) if volumes is not None else None
        self._settings = settings = settings or KubeletSettings()
        self._seed = context.rng.getrandbits(64)
        self._version = ""
        self._ranges = NodeRanges(settings.pod_networks, sizes=settings.blocks)
        self._hosts = [AddressPool(network) for network in settings.node_networks]
        self._lots: dict[str, _Lot] = {}
        self._homes: dict[str, tuple[str, tuple[AddressPool, ...]]] = {}
        self._held: dict[str, tuple[str, ...]] = {}
        self._known: dict[str, _Known] = {}
        self._heartbeats = Heartbeats(
            context.client,
            clock=context.clock,
            period=settings.heartbeat,
            duration=settings.lease_duration,
        )
        self._pod_controller: Controller[Key] = Controller(
            "pods of kubelets",
            self._pod,
            cache=context.cache,
            workers=settings.workers,
            rng=context.rng,
        )
        self._node_controller: Controller[Key] = Controller(
            "kubelets", self._node, cache=context.cache, workers=NODE_WORKERS, rng=context.rng
        )
        self._nodes = self._node_controller.watches(Node, own_key)
        self._pods = self._pod_controller.watches(
            Pod,
            lambda pod: (pod.key,) if pod.spec.node_name else (),
            indexes={**BY_NODE, **BY_ADDRESS},
        )
        self._nodes.on_change(self._node_changed)
        self._pods.on_change(self._pod_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        self._version = (await self._context.client.server_version()).git_version
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node_controller.run(), name="kubelets")
            tasks.create_task(self._pod_controller.run(), name="pods of kubelets")
            tasks.create_task(self._heartbeats.run(), name="heartbeats")
            if self._volumes is not None:
                tasks.create_task(self._volumes.run(), name="volumes of pods")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._ranges.note(new.spec.pod_cidrs)
            for network, address in zip(self._hosts, node_status.hosts(new), strict=False):
                network.note(address)
            if _lives(new) and not (old is not None and _lives(old)):
                for key in self._pods.keys_by("node", new.metadata.name):
                    self._pod_controller.enqueue(key)
        elif old is not None:
            lot = self._lots.pop(old.metadata.name, None)
            self._ranges.free(lot.blocks if lot else old.spec.pod_cidrs)
            hosts = lot.hosts if lot else node_status.hosts(old)
            for network, address in zip(self._hosts, hosts, strict=False):
                network.free(address)
            self._homes.pop(old.metadata.name, None)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is None:
            return
        uid = old.metadata.uid
        if new is None:
            self._known.pop(uid, None)
        # Addresses are freed once: later they may be another pod's.
        if old.status.phase not in FINISHED and (new is None or new.status.phase in FINISHED):
            held = self._held.pop(uid, None) or tuple(one.ip for one in old.status.pod_ips)
            home = self._homes.get(old.spec.node_name)
            if home is not None:
                for network, address in zip(home[1], held, strict=False):
                    network.free(address)

    async def _node(self, key: Key) -> float | None:
        node = self._nodes.get(key)
        name = key[1]
        if node is None or not node_status.working(node):
            self._heartbeats.drop(name)
            return None
        try:
            await self._enliven(node)
        except NotFound:
            return None
        return self._settings.refresh * self._context.rng.uniform(1.0, 1.1)

    async def _enliven(self, node: Node) -> None:
        name, client = node.metadata.name, self._context.client
        change: dict[str, Any] = {}
        if labels := node_status.labels(node):
            change["metadata"] = {"labels": labels}
        lot = self._lot(node)
        if lot is None:
            _log.error("every range of the pod networks is taken", node=name)
            return
        if not node.spec.pod_cidrs:
            change["spec"] = {"podCIDR": lot.blocks[0], "podCIDRs": lot.blocks}
        if change:
            change.setdefault("metadata", {})["uid"] = node.metadata.uid
            await client.patch(Node, name, None, change)
        status = node_status.status(
            node,
            lot.hosts,
            self._settings.resources,
            version=self._version,
            now=self._context.clock(),
            refresh=self._settings.refresh,
        )
        if status is not None:
            await client.patch_status(node, status, kind="strategic")
        await self._heartbeats.add(name, node.metadata.uid)

    def _lot(self, node: Node) -> _Lot | None:
        """What the node is to have. It is drawn once: the store may not show it yet."""
        name, uid = node.metadata.name, node.metadata.uid
        lot = self._lots.get(name)
        if lot is None or lot.uid != uid:
            blocks = node.spec.pod_cidrs or self._ranges.take()
            if blocks is None:
                return None
            hosts = node_status.hosts(node) or tuple(
                address for network in self._hosts if (address := network.take()) is not None
            )
            lot = self._lots[name] = _Lot(uid, blocks, hosts)
        return lot

    async def _pod(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None:
            return None
        if pod.status.phase in FINISHED and pod.metadata.deletion_timestamp is None:
            return None
        node = self._nodes.get(("", pod.spec.node_name))
        if node is None or not _lives(node):
            return None
        uid, now = pod.metadata.uid, self._context.clock()
        known = self._known.get(uid)
        if known is not None and older(pod.metadata.resource_version, known.version):
            return None
        progress = read(pod, now)
        if known is None:
            known = self._known[uid] = _Known(progress)
        elif (known.progress.state, known.progress.restarts) == (progress.state, progress.restarts):
            progress = known.progress
        if progress.state == "bound" and not await self._mounted(pod):
            return MOUNT_PAUSE
        step = advance(pod, progress, self._settings.stages, now=now, seed=self._seed)
        if step.remove:
            return await self._remove(pod, node, step.progress, now)
        if not await self._write(pod, node, known, step, now):
            return NO_ADDRESS_PAUSE
        known.progress = step.progress
        return None if step.again == inf else max(0.0, step.again - now)

    async def _mounted(self, pod: Pod) -> bool:
        """Whether the volumes of a pod that is about to start are where it expects them."""
        if self._volumes is None or not pod.spec.volumes:
            return True
        why = await self._volumes.mount(pod)
        if why:
            self._context.recorder.event(
                pod, type="Warning", reason="FailedMount", action="StartingPod", note=why
            )
        return not why

    async def _write(
        self, pod: Pod, node: Node, known: _Known, step: LifecycleStep, now: float
    ) -> bool:
        """Report how far the pod is; False if it has no address."""
        progress = step.progress
        if progress.state == "bound" and step.again - now <= self._settings.coalesce:
            return True
        place = self._place(pod, node, progress)
        if place is None:
            self._context.recorder.event(
                pod,
                reason="FailedCreatePodSandBox",
                action="StartingPod",
                note=f"every address of {', '.join(node.spec.pod_cidrs)} is taken",
                type="Warning",
            )
            return False
        status = report(pod, progress, place, now)
        if status is not None:
            written = await self._patch(pod, status)
            known.version = "" if written is None else written.metadata.resource_version
            if progress.state == "ended":
                self._tell_back_off(pod)
        return True

    def _tell_back_off(self, pod: Pod) -> None:
        meta = pod.metadata
        for container in pod.spec.containers or ():
            self._context.recorder.event(
                pod,
                reason="BackOff",
                action="StartingPod",
                note=f"Back-off restarting failed container {container.name} in pod"
                f" {meta.name}_{meta.namespace}({meta.uid})",
                type="Warning",
            )

    async def _unmounted(self, pod: Pod, node: Node) -> bool:
        """Whether the volumes of a pod that has ended are off its paths."""
        if self._volumes is None or not pod.spec.volumes:
            return True
        try:
            await self._volumes.unmount(node.metadata.name, pod.metadata.uid)
        except (ZonewiseError, OSError) as error:
            self._context.recorder.event(
                pod,
                type="Warning",
                reason="FailedUnMount",
                action="StoppingPod",
                note=f"a volume cannot be unmounted yet: {error}",
            )
            return False
        return True

    async def _remove(
        self, pod: Pod, node: Node, progress: PodProgress, now: float
    ) -> float | None:
        """Finish a deletion; finalizers are left to their owners.

        How a pod ended is written before it is deleted: watchers see that it is not ready and why,
        and controllers that count finished pods, such as Job, can count it.
        """
        meta = pod.metadata
        place = PodAddresses(node_status.hosts(node), self._held.get(meta.uid, ()))
        status = report(pod, progress, place, now)
        if status is not None:
            await self._patch(pod, status)
        if not await self._unmounted(pod, node):
            return MOUNT_PAUSE
        # A server that was killed in the middle of a removal has only marked the pod.
        if meta.deletion_grace_period_seconds == 0 and meta.finalizers:
            return None
        with suppress(NotFound, Conflict):
            await self._context.client.delete(
                Pod, meta.name, meta.namespace, uid=meta.uid, grace_period=0
            )
        return None

    async def _patch(self, pod: Pod, status: dict[str, Any]) -> Pod | None:
        try:
            return await self._context.client.patch_status(pod, status, kind="strategic")
        except (NotFound, Conflict):
            # It is deleted or replaced; the watch event is still to come.
            return None

    def _place(self, pod: Pod, node: Node, progress: PodProgress) -> PodAddresses | None:
        hosts = node_status.hosts(node)
        if pod.spec.host_network:
            return PodAddresses(hosts, hosts)
        uid = pod.metadata.uid
        held = self._held.get(uid)
        if held is None:
            held = tuple(one.ip for one in pod.status.pod_ips)
            if not held and progress.state == "bound":
                return PodAddresses(hosts)
            home = self._home(node)
            if not held:
                held = tuple(one for network in home if (one := self._take(network)) is not None)
                if len(held) < len(home):
                    for network, address in zip(home, held, strict=False):
                        network.free(address)
                    return None
            self._held[uid] = held
        return PodAddresses(hosts, held)

    def _take(self, network: AddressPool) -> str | None:
        """An address no pod has, of whatever node.

        Pods outlive their Node if it is recreated at once, and it may then get another range, and
        another node theirs.
        """
        while (address := network.take()) is not None and self._pods.keys_by("address", address):
            pass
        return address

    def _home(self, node: Node) -> tuple[AddressPool, ...]:
        """The node's ranges, less what its pods have already."""
        uid, name = node.metadata.uid, node.metadata.name
        known = self._homes.get(name)
        if known is None or known[0] != uid:
            networks = tuple(map(AddressPool, node.spec.pod_cidrs))
            for pod in self._pods.by("node", name):
                if pod.status.phase not in FINISHED:
                    for one in pod.status.pod_ips:
                        for network in networks:
                            network.note(one.ip)
            known = self._homes[name] = (uid, networks)
        return known[1]


def _addresses_of(pod: Pod) -> tuple[str, ...]:
    return () if pod.status.phase in FINISHED else tuple(one.ip for one in pod.status.pod_ips)


BY_ADDRESS: Mapping[str, IndexFunction[Pod]] = {"address": _addresses_of}


def _lives(node: Node) -> bool:
    """Whether pods can be brought to life on a node."""
    return node_status.working(node) and bool(node.spec.pod_cidrs) and bool(node_status.hosts(node))
