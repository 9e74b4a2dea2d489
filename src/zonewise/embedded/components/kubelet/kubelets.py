"""The kubelets of all nodes, as one component.

Two controllers share the work: one makes Nodes Ready and keeps them so, one writes to pods what an
API client can see of a kubelet. No container runs. Nodes are independent of each other, and so are
pods; one pod is never worked on twice at a time. There is no task per pod or node: what has to
happen later waits in the controllers' queues, which have one timer each.

*State* is in the objects. Kept in memory are addresses in use, which are read back from pods'
statuses, and each pod's ``PodProgress`` at full precision, since times on the wire are truncated to
whole seconds. The store may lag behind our writes: a pod older than our last write is skipped until
the newer version arrives, so nothing happens twice.

*A failed node* (annotation) is silent: no heartbeats and no status of its pods, not even that they
ended. When it heals, it continues with what the objects say by then.

Writes carry the pod's uid: what was meant for a pod never reaches another one of the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol

from zonewise.api.errors import Conflict, NotFound, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import FINISHED_PHASES
from zonewise.embedded.components.kubelet import node_status
from zonewise.embedded.components.kubelet.heartbeats import Heartbeats
from zonewise.embedded.components.kubelet.ipam import AddressPool, NodeCidrAllocator
from zonewise.embedded.components.kubelet.pod_lifecycle import (
    LifecycleStep,
    PodProgress,
    advance,
    read_progress,
)
from zonewise.embedded.components.kubelet.pod_status import PodAddresses, generate_pod_status
from zonewise.embedded.components.kubelet.stages import Stages, default_stages
from zonewise.runtime.cache.indexes import BY_NODE
from zonewise.runtime.cache.store import IndexFunction
from zonewise.runtime.client.versions import older
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext

NODE_WORKERS = 16
NO_ADDRESS_RETRY_SECONDS = 5.0
MOUNT_RETRY_SECONDS = 1.0
POD_NETWORK_V4 = "10.128.0.0/9"
POD_NETWORK_V6 = "fd00:10:128::/48"

_log = logger("kubelets")


@dataclass(slots=True)
class _PodRecord:
    """What is kept in memory of a pod: its progress, and the version of our last write."""

    progress: PodProgress
    version: str = ""


@dataclass(frozen=True, slots=True)
class _NodeAllocation:
    """What a node was assigned: CIDRs for its pods, addresses of its own."""

    uid: str
    pod_cidrs: tuple[str, ...]
    internal_ips: tuple[str, ...]


class PodVolumes(Protocol):
    """Mounts volumes at the paths of pods. Every call may be repeated."""

    async def mount(self, pod: Pod) -> str:
        """Mount the volumes of a pod on its node; returns why not yet, empty if they are."""

    async def unmount(self, node: str, uid: str) -> None:
        """Unmount the volumes of a pod; raises if that is not possible yet."""

    async def run(self) -> None:
        """Follow pods that end or are deleted, until cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """Times are in seconds. Networks are those of pods and of nodes, of one family or of both.

    Every node gets a CIDR of each pod network, of the size in ``node_cidr_mask_sizes``. A pod whose
    start takes longer than ``coalesce`` is shown as Pending with its containers being created;
    quicker ones are written once, when they run. ``resources`` are for nodes that do not specify
    theirs.
    """

    stages: Stages = field(default_factory=default_stages)
    pod_networks: tuple[str, ...] = (POD_NETWORK_V4,)
    node_cidr_mask_sizes: tuple[int, ...] = (24,)
    node_networks: tuple[str, ...] = ("172.16.0.0/12",)
    heartbeat: float = 30.0
    lease_duration: int = 40
    refresh: float = 300.0
    coalesce: float = 2.0
    workers: int = 64
    resources: Mapping[str, str] = field(
        default_factory=lambda: {
            "cpu": "8",
            "memory": "32Gi",
            "ephemeral-storage": "100Gi",
            "pods": "110",
        }
    )


DUAL_STACK = KubeletSettings(
    pod_networks=(POD_NETWORK_V4, POD_NETWORK_V6),
    node_cidr_mask_sizes=(24, 64),
    node_networks=("172.16.0.0/12", "fd00:172:16::/64"),
)


class Kubelets:
    """The kubelets of all nodes."""

    def __init__(
        self,
        context: ControllerContext,
        settings: KubeletSettings | None = None,
        *,
        volumes: Callable[[ControllerContext], PodVolumes] | None = None,
    ) -> None:
        self._context = context
        self._volumes = volumes(context) if volumes is not None else None
        self._settings = settings = settings or KubeletSettings()
        self._seed = context.rng.getrandbits(64)
        self._kubelet_version = ""
        self._cidr_allocator = NodeCidrAllocator(
            settings.pod_networks, mask_sizes=settings.node_cidr_mask_sizes
        )
        self._node_pools = [AddressPool(network) for network in settings.node_networks]
        self._allocations: dict[str, _NodeAllocation] = {}
        self._pod_pools: dict[str, tuple[str, tuple[AddressPool, ...]]] = {}
        self._pod_addresses: dict[str, tuple[str, ...]] = {}
        self._records: dict[str, _PodRecord] = {}
        self._heartbeats = Heartbeats(
            context.client,
            clock=context.clock,
            period=settings.heartbeat,
            duration=settings.lease_duration,
        )
        self._pod_controller = context.controller(
            "pods of kubelets", self._sync_pod, workers=settings.workers
        )
        self._node_controller = context.controller(
            "kubelets", self._sync_node, workers=NODE_WORKERS
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
        self._kubelet_version = (await self._context.client.server_version()).git_version
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node_controller.run(), name="kubelets")
            tasks.create_task(self._pod_controller.run(), name="pods of kubelets")
            tasks.create_task(self._heartbeats.run(), name="heartbeats")
            if self._volumes is not None:
                tasks.create_task(self._volumes.run(), name="volumes of pods")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._cidr_allocator.mark_used(new.spec.pod_cidrs)
            for pool, address in zip(self._node_pools, node_status.internal_ips(new), strict=False):
                pool.mark_used(address)
            if _can_run_pods(new) and not (old is not None and _can_run_pods(old)):
                for key in self._pods.keys_by("node", new.metadata.name):
                    self._pod_controller.enqueue(key)
        elif old is not None:
            allocation = self._allocations.pop(old.metadata.name, None)
            self._cidr_allocator.release(allocation.pod_cidrs if allocation else old.spec.pod_cidrs)
            internal_ips = allocation.internal_ips if allocation else node_status.internal_ips(old)
            for pool, address in zip(self._node_pools, internal_ips, strict=False):
                pool.release(address)
            self._pod_pools.pop(old.metadata.name, None)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is None:
            return
        uid = old.metadata.uid
        if new is None:
            self._records.pop(uid, None)
        # Addresses are released once: later they may be another pod's.
        ended = new is None or new.status.phase in FINISHED_PHASES
        if ended and old.status.phase not in FINISHED_PHASES:
            addresses = self._pod_addresses.pop(uid, None) or _pod_ips(old)
            pools = self._pod_pools.get(old.spec.node_name)
            if pools is not None:
                for pool, address in zip(pools[1], addresses, strict=False):
                    pool.release(address)

    async def _sync_node(self, key: Key) -> float | None:
        node = self._nodes.get(key)
        name = key[1]
        if node is None or not node_status.has_working_kubelet(node):
            self._heartbeats.remove(name)
            return None
        try:
            await self._update_node(node)
        except NotFound:
            return None
        return self._settings.refresh * self._context.rng.uniform(1.0, 1.1)

    async def _update_node(self, node: Node) -> None:
        name, client = node.metadata.name, self._context.client
        patch: dict[str, Any] = {}
        if labels := node_status.missing_labels(node):
            patch["metadata"] = {"labels": labels}
        allocation = self._allocate_for_node(node)
        if allocation is None:
            _log.error("every CIDR of the pod networks is in use", node=name)
            return
        if not node.spec.pod_cidrs:
            patch["spec"] = {"podCIDR": allocation.pod_cidrs[0], "podCIDRs": allocation.pod_cidrs}
        if patch:
            patch.setdefault("metadata", {})["uid"] = node.metadata.uid
            await client.patch(Node, name, None, patch)
        status = node_status.generate_node_status(
            node,
            allocation.internal_ips,
            self._settings.resources,
            version=self._kubelet_version,
            now=self._context.clock(),
            refresh=self._settings.refresh,
        )
        if status is not None:
            await client.patch_status(node, status, kind="strategic")
        await self._heartbeats.add(name, node.metadata.uid)

    def _allocate_for_node(self, node: Node) -> _NodeAllocation | None:
        """The CIDRs and addresses of a node, allocated once: the store may not show them yet."""
        name, uid = node.metadata.name, node.metadata.uid
        allocation = self._allocations.get(name)
        if allocation is None or allocation.uid != uid:
            pod_cidrs = node.spec.pod_cidrs or self._cidr_allocator.allocate()
            if pod_cidrs is None:
                return None
            internal_ips = node_status.internal_ips(node) or tuple(
                address for pool in self._node_pools if (address := pool.allocate()) is not None
            )
            allocation = self._allocations[name] = _NodeAllocation(uid, pod_cidrs, internal_ips)
        return allocation

    async def _sync_pod(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None:
            return None
        if pod.status.phase in FINISHED_PHASES and pod.metadata.deletion_timestamp is None:
            return None
        node = self._nodes.get(("", pod.spec.node_name))
        if node is None or not _can_run_pods(node):
            return None
        uid, now = pod.metadata.uid, self._context.clock()
        record = self._records.get(uid)
        if record is not None and older(pod.metadata.resource_version, record.version):
            return None
        progress = read_progress(pod, now)
        if record is None:
            record = self._records[uid] = _PodRecord(progress)
        elif (record.progress.state, record.progress.restarts) == (
            progress.state,
            progress.restarts,
        ):
            progress = record.progress
        if progress.state == "bound" and not await self._mount_volumes(pod):
            return MOUNT_RETRY_SECONDS
        step = advance(pod, progress, self._settings.stages, now=now, seed=self._seed)
        if step.remove:
            return await self._remove(pod, node, step.progress, now)
        if not await self._report_status(pod, node, record, step, now):
            return NO_ADDRESS_RETRY_SECONDS
        record.progress = step.progress
        return None if step.next_at == inf else max(0.0, step.next_at - now)

    async def _mount_volumes(self, pod: Pod) -> bool:
        """Mount the volumes of a pod that is about to start; False if that is not done yet."""
        if self._volumes is None or not pod.spec.volumes:
            return True
        message = await self._volumes.mount(pod)
        if message:
            self._context.recorder.event(pod, "FailedMount", "StartingPod", message, type="Warning")
        return not message

    async def _report_status(
        self, pod: Pod, node: Node, record: _PodRecord, step: LifecycleStep, now: float
    ) -> bool:
        """Write the status of a pod; False if there is no address for it."""
        progress = step.progress
        if progress.state == "bound" and step.next_at - now <= self._settings.coalesce:
            return True
        addresses = self._assign_addresses(pod, node, progress)
        if addresses is None:
            self._context.recorder.event(
                pod,
                "FailedCreatePodSandBox",
                "StartingPod",
                f"every address of {', '.join(node.spec.pod_cidrs)} is in use",
                type="Warning",
            )
            return False
        status = generate_pod_status(pod, progress, addresses, now)
        if status is not None:
            written = await self._patch(pod, status)
            record.version = "" if written is None else written.metadata.resource_version
            if progress.state == "ended":
                self._record_back_off(pod)
        return True

    def _record_back_off(self, pod: Pod) -> None:
        meta = pod.metadata
        for container in pod.spec.containers or ():
            self._context.recorder.event(
                pod,
                "BackOff",
                "StartingPod",
                f"Back-off restarting failed container {container.name} in pod"
                f" {meta.name}_{meta.namespace}({meta.uid})",
                type="Warning",
            )

    async def _unmount_volumes(self, pod: Pod, node: Node) -> bool:
        """Unmount the volumes of a pod that has ended; False if that is not done yet."""
        if self._volumes is None or not pod.spec.volumes:
            return True
        try:
            await self._volumes.unmount(node.metadata.name, pod.metadata.uid)
        except (ZonewiseError, OSError) as error:
            self._context.recorder.event(
                pod,
                "FailedUnMount",
                "StoppingPod",
                f"a volume cannot be unmounted yet: {error}",
                type="Warning",
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
        pod_ips = self._pod_addresses.get(meta.uid, ())
        addresses = PodAddresses(node_status.internal_ips(node), pod_ips)
        status = generate_pod_status(pod, progress, addresses, now)
        if status is not None:
            await self._patch(pod, status)
        if not await self._unmount_volumes(pod, node):
            return MOUNT_RETRY_SECONDS
        # An API server that was killed in the middle of a deletion has only marked the pod.
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

    def _assign_addresses(self, pod: Pod, node: Node, progress: PodProgress) -> PodAddresses | None:
        internal_ips = node_status.internal_ips(node)
        if pod.spec.host_network:
            return PodAddresses(internal_ips, internal_ips)
        uid = pod.metadata.uid
        addresses = self._pod_addresses.get(uid)
        if addresses is None:
            addresses = _pod_ips(pod)
            if not addresses and progress.state == "bound":
                return PodAddresses(internal_ips)
            pools = self._get_pod_pools(node)
            if not addresses:
                addresses = tuple(filter(None, map(self._allocate_unused, pools)))
                if len(addresses) < len(pools):
                    for pool, address in zip(pools, addresses, strict=False):
                        pool.release(address)
                    return None
            self._pod_addresses[uid] = addresses
        return PodAddresses(internal_ips, addresses)

    def _allocate_unused(self, pool: AddressPool) -> str | None:
        """An address that no pod of any node has.

        Pods outlive their Node if it is recreated at once; it may then get another CIDR, and
        another node the CIDR of those pods.
        """
        while (address := pool.allocate()) is not None and self._pods.keys_by("address", address):
            pass
        return address

    def _get_pod_pools(self, node: Node) -> tuple[AddressPool, ...]:
        """The address pools of a node, without the addresses its pods have already."""
        uid, name = node.metadata.uid, node.metadata.name
        cached = self._pod_pools.get(name)
        if cached is None or cached[0] != uid:
            pools = tuple(map(AddressPool, node.spec.pod_cidrs))
            for pod in self._pods.by("node", name):
                if pod.status.phase not in FINISHED_PHASES:
                    for address in _pod_ips(pod):
                        for pool in pools:
                            pool.mark_used(address)
            cached = self._pod_pools[name] = (uid, pools)
        return cached[1]


def _pod_ips(pod: Pod) -> tuple[str, ...]:
    return tuple(pod_ip.ip for pod_ip in pod.status.pod_ips)


def _addresses_in_use(pod: Pod) -> tuple[str, ...]:
    return () if pod.status.phase in FINISHED_PHASES else _pod_ips(pod)


BY_ADDRESS: Mapping[str, IndexFunction[Pod]] = {"address": _addresses_in_use}


def _can_run_pods(node: Node) -> bool:
    """Whether a node has all that its pods need to run."""
    return (
        node_status.has_working_kubelet(node)
        and bool(node.spec.pod_cidrs)
        and bool(node_status.internal_ips(node))
    )
