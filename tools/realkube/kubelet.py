"""Kubelets without containers: one object plays the kubelet of any number of nodes.

It registers its nodes, keeps their leases fresh, and does to pods what an API client can see of a
kubelet: a bound pod gets an address and becomes Running and Ready, a deleted one goes away, and a
test can flip readiness. Nothing runs.

It is an ordinary controller over `zonewise.runtime`. A pod's key says that something may have
changed; the reconciler compares what should be reported with what is, and writes only a
difference, so a restart over a living cluster changes nothing and keeps every address. Pods are
independent of each other; one pod is never worked on twice at a time. Writes carry the pod's uid:
what was meant for a pod never reaches its successor of the same name.

Leaving takes the nodes, their leases and the pods bound to them out of the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from zonewise.api.coordination import Lease
from zonewise.api.core import Node, NodeSpec, Taint
from zonewise.api.errors import AlreadyExists, Conflict, NotFound, ZonewiseError
from zonewise.api.meta import Key, ObjectMeta
from zonewise.api.pod import Pod, PodCondition
from zonewise.api.times import format_micro, format_time, from_epoch
from zonewise.runtime.cache import Cache
from zonewise.runtime.client import Client
from zonewise.runtime.controller import Controller, own_key

LEASES = "kube-node-lease"
LEASE_SECONDS = 40
HEARTBEAT = 10.0
WORKERS = 16
FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class FakeNode:
    """A node to register. `address` is made up when it is not given."""

    name: str
    zone: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cpu: str = "8"
    memory: str = "32Gi"
    pods: str = "250"
    address: str = ""

    def all_labels(self) -> dict[str, str]:
        """The labels every kubelet sets, the zone, and those that were asked for."""
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        if self.zone is not None:
            labels["topology.kubernetes.io/zone"] = self.zone
        return labels | dict(self.labels)


def nodes_in(*zones: str, each: int = 1, prefix: str = "node", cpu: str = "8") -> list[FakeNode]:
    """Some nodes in each zone, named `node-ZONE-0` and so on."""
    return [
        FakeNode(name=f"{prefix}-{zone}-{number}", zone=zone, cpu=cpu)
        for zone in zones
        for number in range(each)
    ]


class Addresses:
    """Hands out addresses of a network; one that was given back is used again last."""

    def __init__(self, network: str) -> None:
        self._network = ipaddress.ip_network(network)
        self._fresh: Iterator[ipaddress.IPv4Address | ipaddress.IPv6Address]
        self._fresh = self._network.hosts()
        self._held: dict[str, str] = {}
        self._taken: set[str] = set()

    def hold(self, owner: str, address: str = "") -> str:
        """The owner's address; `address` if it has none yet and that one is given."""
        if owner in self._held:
            return self._held[owner]
        chosen = address or next(one for one in self._cycle() if one not in self._taken)
        self._held[owner] = chosen
        self._taken.add(chosen)
        return chosen

    def release(self, owner: str) -> None:
        """Give the owner's address back, if it has one."""
        self._taken.discard(self._held.pop(owner, ""))

    def _cycle(self) -> Iterator[str]:
        for _ in range(2):
            yield from map(str, self._fresh)
            self._fresh = self._network.hosts()
        raise RuntimeError(f"every address of {self._network} is taken")


class FakeKubelet:
    """The kubelets of some nodes, from `async with` until its end.

    `ready` says whether a pod becomes ready by itself, `set_ready` overrides it for one pod.
    Pods take `starting` seconds to run and `stopping` seconds to go once they are deleted.
    """

    def __init__(
        self,
        client: Client,
        nodes: Sequence[FakeNode],
        *,
        network: str = "10.244.0.0/16",
        node_network: str = "172.30.0.0/16",
        ready: Callable[[Pod], bool] = lambda _: True,
        starting: float = 0.0,
        stopping: float = 0.0,
        heartbeat: float = HEARTBEAT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._nodes = {node.name: node for node in nodes}
        self._addresses = Addresses(network)
        self._node_addresses = Addresses(node_network)
        self._ready = ready
        self._overrides: dict[Key, bool] = {}
        self._starting = starting
        self._stopping = stopping
        self._heartbeat = heartbeat
        self._clock = clock
        self._uids: dict[Key, str] = {}
        self._due: dict[tuple[str, str], float] = {}
        self._cache = Cache(client)
        self._controller: Controller[Key] = Controller(
            "fake kubelet", self._reconcile, cache=self._cache, workers=WORKERS
        )
        self._pods = self._controller.watches(
            Pod, own_key, field_selector="spec.nodeName!=", indexes={"node": node_of}
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*map(self._register, self._nodes.values()))
            loops = (self._cache.run(), self._controller.run(), self._beat())
            self._tasks = [asyncio.create_task(loop) for loop in loops]
            barrier = asyncio.create_task(self._cache.synced())
            await asyncio.wait([barrier, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
            barrier.cancel()
            for task in self._tasks:
                if task.done():
                    task.result()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._leave()

    def set_ready(self, namespace: str, name: str, ready: bool | None) -> None:
        """Make a pod ready or not from now on; None gives it back to the rule of all pods."""
        if ready is None:
            self._overrides.pop((namespace, name), None)
        else:
            self._overrides[namespace, name] = ready
        self._controller.enqueue((namespace, name))

    async def _leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*map(self._unregister, self._nodes))
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome

    async def _register(self, node: FakeNode) -> None:
        metadata = ObjectMeta(name=node.name, labels=node.all_labels())
        with contextlib.suppress(AlreadyExists):
            await self._client.create(Node(metadata=metadata, spec=NodeSpec(taints=node.taints)))
        now = self._now()
        resources = {"cpu": node.cpu, "memory": node.memory, "pods": node.pods}
        address = self._node_addresses.hold(node.name, node.address)
        healthy = {
            "Ready": ("True", "KubeletReady"),
            "MemoryPressure": ("False", "KubeletHasSufficientMemory"),
            "DiskPressure": ("False", "KubeletHasNoDiskPressure"),
            "PIDPressure": ("False", "KubeletHasSufficientPID"),
        }
        status = {
            "capacity": resources,
            "allocatable": resources,
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": node.name},
            ],
            "conditions": [
                {
                    "type": kind,
                    "status": status,
                    "reason": reason,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": now,
                }
                for kind, (status, reason) in healthy.items()
            ],
        }
        await self._client.patch(
            Node, node.name, None, {"status": status}, kind="strategic", subresource="status"
        )
        await self._renew(node.name)

    async def _unregister(self, name: str) -> None:
        for pod in self._pods.by("node", name):
            await self._remove(pod)
        with contextlib.suppress(NotFound):
            await self._client.delete(Node, name)
        with contextlib.suppress(NotFound):
            await self._client.delete(Lease, name, LEASES)

    async def _renew(self, name: str) -> None:
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": format_micro(from_epoch(self._clock())),
        }
        await self._client.apply(Lease, name, LEASES, {"spec": spec}, force=True)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat)
            for name in self._nodes:
                # A lease outlives several missed renewals; the next one is soon enough.
                with contextlib.suppress(ZonewiseError):
                    await self._renew(name)

    async def _reconcile(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        uid = "" if pod is None else pod.metadata.uid
        if (known := self._uids.get(key, uid)) != uid:
            self._forget(known)
            del self._uids[key]
        if pod is None or pod.spec.node_name not in self._nodes:
            return None
        self._uids[key] = uid
        if pod.metadata.deletion_timestamp is not None:
            wait = self._wait(uid, "stopping", self._stopping)
            if wait <= 0:
                await self._remove(pod)
            return wait if wait > 0 else None
        if pod.status.phase in FINISHED:
            return None
        wait = self._wait(uid, "starting", self._starting)
        if wait > 0 and pod.status.phase != "Running":
            return wait
        await self._report(pod)
        return None

    async def _remove(self, pod: Pod) -> None:
        """Finish a deletion; what finalizers hold back is their owners' business."""
        if pod.metadata.deletion_timestamp and pod.metadata.deletion_grace_period_seconds == 0:
            return
        namespace, name = pod.key
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(Pod, name, namespace, uid=pod.metadata.uid, grace_period=0)

    async def _report(self, pod: Pod) -> None:
        namespace, name = pod.key
        ready = self._overrides.get(pod.key)
        if ready is None:
            ready = self._ready(pod)
        gates = {gate.condition_type for gate in pod.spec.readiness_gates}
        passed = {one.type for one in pod.status.conditions if one.status == "True"}
        states = {
            "PodReadyToStartContainers": True,
            "Initialized": True,
            "ContainersReady": ready,
            "Ready": ready and gates <= passed,
        }
        if reported(pod, states):
            return
        host = self._node_addresses.hold(pod.spec.node_name)
        address = host
        if not pod.spec.host_network:
            address = self._addresses.hold(pod.metadata.uid, pod.status.pod_ip)
        started = pod.status.start_time or self._now()
        generation = pod.metadata.generation
        status = {
            "phase": "Running",
            "observedGeneration": generation,
            "startTime": started,
            "hostIP": host,
            "hostIPs": [{"ip": host}],
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [
                condition(pod, kind, value, now=self._now()) for kind, value in states.items()
            ],
            "containerStatuses": [
                {
                    "name": container.name,
                    "image": container.image,
                    "imageID": f"fake://{container.image}",
                    "containerID": f"fake://{pod.metadata.uid}/{container.name}",
                    "ready": ready,
                    "started": True,
                    "restartCount": 0,
                    "state": {"running": {"startedAt": started}},
                }
                for container in pod.spec.containers or ()
            ],
        }
        body = {"metadata": {"uid": pod.metadata.uid}, "status": status}
        # The pod may be gone or replaced by now; its deletion is on its way to us.
        with contextlib.suppress(NotFound, Conflict):
            await self._client.patch(
                Pod, name, namespace, body, kind="strategic", subresource="status"
            )

    def _wait(self, uid: str, what: str, seconds: float) -> float:
        """How long a pod must still wait since it was first seen starting or stopping."""
        if not seconds:
            return 0.0
        now = asyncio.get_running_loop().time()
        return self._due.setdefault((uid, what), now + seconds) - now

    def _forget(self, uid: str) -> None:
        self._addresses.release(uid)
        for what in ("starting", "stopping"):
            self._due.pop((uid, what), None)

    def _now(self) -> str:
        return format_time(from_epoch(self._clock()))


def node_of(pod: Pod) -> tuple[str]:
    return (pod.spec.node_name,)


def reported(pod: Pod, states: Mapping[str, bool]) -> bool:
    """Whether a pod's status already says all of this."""
    status = pod.status
    have = {one.type: (one.status, one.observed_generation) for one in status.conditions}
    want = {kind: (str(value), pod.metadata.generation) for kind, value in states.items()}
    return (
        status.phase == "Running"
        and bool(status.pod_ip)
        and status.observed_generation == pod.metadata.generation
        and all(have.get(kind) == value for kind, value in want.items())
    )


def condition(pod: Pod, kind: str, value: bool, *, now: str) -> dict[str, object]:
    """A condition whose transition time changes only when its status does."""
    known = next((one for one in pod.status.conditions if one.type == kind), PodCondition())
    same = known.status == str(value) and known.last_transition_time
    return {
        "type": kind,
        "status": str(value),
        "observedGeneration": pod.metadata.generation,
        "lastTransitionTime": known.last_transition_time if same else now,
        "reason": None if value else "ContainersNotReady",
    }
