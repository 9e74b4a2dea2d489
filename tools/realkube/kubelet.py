"""Nodes for a real control plane: registers some, with the simulated kubelets of `zonewise`.

The kubelets are ordinary clients, the same that an embedded cluster has; here they speak HTTPS.
They serve every Node of the cluster, whoever created it. At the end the registered nodes, their
leases and the pods bound to them are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.coordination import Lease
from zonewise.api.objects.core import Node, NodeSpec, NodeStatus, Taint
from zonewise.api.objects.pod import Pod
from zonewise.embedded.components.kubelet.kubelets import Kubelets, KubeletSettings
from zonewise.embedded.components.kubelet.stages import default_stages, with_delays
from zonewise.runtime.client.client import Client
from zonewise.runtime.program.program import Program

LEASES = "kube-node-lease"
HEARTBEAT = 10.0


@dataclass(frozen=True, kw_only=True)
class FakeNode:
    """A node to register."""

    name: str
    zone: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cpu: str = "8"
    memory: str = "32Gi"
    pods: str = "250"

    def object(self) -> Node:
        """The Node."""
        labels = dict(self.labels)
        if self.zone is not None:
            labels["topology.kubernetes.io/zone"] = self.zone
        size = {"cpu": self.cpu, "memory": self.memory, "pods": self.pods}
        return Node(
            metadata=ObjectMeta(name=self.name, labels=labels),
            spec=NodeSpec(taints=self.taints),
            status=NodeStatus(capacity={**size}, allocatable={**size}),
        )


def nodes_in(*zones: str, each: int = 1, prefix: str = "node", cpu: str = "8") -> list[FakeNode]:
    """Some nodes in each zone, named `node-ZONE-0` and so on."""
    return [
        FakeNode(name=f"{prefix}-{zone}-{number}", zone=zone, cpu=cpu)
        for zone in zones
        for number in range(each)
    ]


class FakeKubelet:
    """Some nodes and their kubelets, from `async with` until its end.

    Pods need `starting` until they run and `stopping` until they end; both are times as in stages,
    such as `500ms` or `1s..3s`.
    """

    def __init__(
        self,
        client: Client,
        nodes: Sequence[FakeNode],
        *,
        starting: str = "0s",
        stopping: str = "0s",
        heartbeat: float = HEARTBEAT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._nodes = nodes
        stages = with_delays(default_stages(), start=starting, stop=stopping)
        settings = KubeletSettings(stages=stages, heartbeat=heartbeat)
        self._components = Program(self._connect, clock=clock, rng=random.Random())
        self._components.add("kubelets", lambda context: Kubelets(context, settings))
        self._missing = {node.name for node in nodes}
        self._alive = asyncio.Event()
        if not nodes:
            self._alive.set()
        self._components.cache.store(Node).on_change(self._changed)
        self._work: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*map(self._register, self._nodes))
            self._work = asyncio.create_task(self._components.run())
            alive = asyncio.create_task(self._alive.wait())
            await asyncio.wait([alive, self._work], return_when=asyncio.FIRST_COMPLETED)
            alive.cancel()
            if self._work.done():
                self._work.result()
        except BaseException:
            await self._leave()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._leave()

    async def set_ready(self, namespace: str, name: str, ready: bool) -> None:
        """Make a pod ready or not from now on."""
        annotations = {"zonewise.io/unready": None if ready else "true"}
        await self._client.patch(Pod, name, namespace, {"metadata": {"annotations": annotations}})

    def _connect(self, name: str) -> Client:
        return Client(self._client.transport, field_manager=name)

    async def _register(self, node: FakeNode) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._client.create(node.object())

    def _changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None and any(
            condition.type == "Ready" and condition.status == "True"
            for condition in new.status.conditions
        ):
            self._missing.discard(new.metadata.name)
        if not self._missing:
            self._alive.set()

    async def _leave(self) -> None:
        ended: Sequence[object] = ()
        if self._work is not None:
            self._work.cancel()
            ended = await asyncio.gather(self._work, return_exceptions=True)
        ours = {node.name for node in self._nodes}
        for pod in await self._client.list(Pod):
            if pod.spec.node_name in ours:
                uid, (namespace, name) = pod.metadata.uid, pod.key
                await _gone(self._client.delete(Pod, name, namespace, uid=uid, grace_period=0))
        for name in ours:
            await _gone(self._client.delete(Node, name))
            await _gone(self._client.delete(Lease, name, LEASES))
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome


async def _gone(deletion: Awaitable[object]) -> None:
    with contextlib.suppress(NotFound):
        await deletion
