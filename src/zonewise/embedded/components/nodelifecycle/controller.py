"""Notices lost nodes, writes that as conditions and taints, and reverts it when they return.

A node is lost when neither its lease nor its status was renewed for a grace period, as this process
saw it: clocks of nodes are not compared with ours, and time in which this process slept or was
behind does not count. What was seen is in memory only; a process that restarts gives every node a
whole grace period, which is safe.

*Per node*, whenever it changes or its grace period may be over: conditions, then pods (a lost
node's are not ready any more), then taints. Each write is level-triggered, so a crash in between is
finished by the next run. Nodes are written under the version that was judged: a node that reports
at the last moment causes a conflict, which is retried on the new state.

*Per zone*, at a limited rate: the taint that evicts pods. ``zones`` says how fast. Nodes that wait
for it are checked every few seconds while there are any; it is removed at once, by the node's own
run. When all zones are lost it is removed from all nodes, and when one comes back all nodes get a
new grace period.

Idle nodes cost one check per grace period, and renewals one entry in a table.
"""

from __future__ import annotations

import asyncio

from zonewise.api.errors import Conflict, NotFound
from zonewise.api.meta import Key
from zonewise.api.objects.coordination import Lease
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import readiness
from zonewise.api.values.times import format_time, from_epoch
from zonewise.embedded.components.nodelifecycle import health, zones
from zonewise.embedded.components.nodelifecycle.settings import NodeLifecycleSettings
from zonewise.embedded.components.nodelifecycle.zones import Zone
from zonewise.runtime.cache.indexes import BY_NODE
from zonewise.runtime.client.client import Client
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.process.clock import elapsed

LEASES = "kube-node-lease"
SLACK = 0.001
"""Timers are not exact: what is due within this time is due now."""


class NodeLifecycle:
    """Watches over nodes until it is cancelled."""

    def __init__(
        self, context: ComponentContext, settings: NodeLifecycleSettings | None = None
    ) -> None:
        self._context = context
        self._settings = settings = settings or NodeLifecycleSettings()
        self._seen: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._granted: set[str] = set()
        self._next: dict[Zone, float] = {}
        self._wake = asyncio.Event()
        self._all_lost = False
        self._awake = 0.0
        self._controller: Controller[Key] = Controller(
            "node lifecycle",
            self._node,
            cache=context.cache,
            workers=settings.workers,
            rng=context.rng,
        )
        self._nodes = self._controller.watches(Node, own_key)
        self._pods = context.cache.store(Pod, indexes=BY_NODE)
        self._nodes.on_change(self._node_changed)
        context.cache.store(Lease, namespace=LEASES).on_change(self._lease_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run(), name="node lifecycle")
            tasks.create_task(self._pace(), name="eviction pace")
            tasks.create_task(self._stay_awake(), name="own delays")

    async def _stay_awake(self) -> None:
        """Notice when this process itself was late, and count that against no node."""
        while True:
            self._awake = elapsed()
            await asyncio.sleep(self._settings.grace / 4)
            late = self._late()
            if late > 0:
                for name in self._seen:
                    self._seen[name] += late

    def _late(self) -> float:
        """How long this process did nothing, if it was more than a moment."""
        late = elapsed() - self._awake - self._settings.grace / 4
        return late if late > self._settings.period else 0.0

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            for known in (self._waiting, self._granted):
                known.discard(old.metadata.name)
            self._seen.pop(old.metadata.name, None)
            self._tell(old, "RemovingNode", "Removing Node {} from Controller")
            return
        if old is None or _beat(old) != _beat(new):
            self._seen[new.metadata.name] = elapsed()
        if old is None:
            self._tell(new, "RegisteredNode", "Registered Node {} in Controller")
        elif health.verdict(old) == "True" and health.verdict(new) != "True":
            self._context.recorder.event(
                new,
                reason="NodeNotReady",
                action="Monitoring",
                note=f"Node {new.metadata.name} status is now: NodeNotReady",
            )

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is not None and (old is None or old.spec.renew_time != new.spec.renew_time):
            self._seen[new.metadata.name] = elapsed()

    async def _node(self, key: Key) -> float | None:
        node = self._nodes.get(key)
        try:
            return None if node is None else await self._look(node)
        except NotFound:
            return None  # it was deleted meanwhile

    async def _look(self, node: Node) -> float | None:
        name = node.metadata.name
        settings, now, moment = self._settings, elapsed(), self._context.clock()
        spoke = health.verdict(node) is not None
        seen = self._seen.get(name, now)
        rest = seen + (settings.grace if spoke else settings.startup_grace) - now
        if rest <= SLACK and self._late():
            return settings.period
        if rest <= SLACK:
            conditions = health.silenced(node, self._text(moment))
            if conditions:
                node = await self._client.patch_status(
                    node,
                    {"conditions": conditions},
                    kind="strategic",
                    resource_version=node.metadata.resource_version,
                )
        await self._judge(node, moment)
        return rest if rest > SLACK else None

    async def _judge(self, node: Node, now: float) -> None:
        """Repeat in pods and taints what the node's conditions say."""
        name = node.metadata.name
        lost = health.verdict(node) in ("False", "Unknown")
        if lost:
            await self._unready(node, now)
        evict = lost and (bool(health.evicting(node)) or name in self._granted)
        evict = evict and not self._all_lost
        taints = health.tainted(node, evict=evict, now=self._text(now))
        if taints != node.spec.taints:
            meta = node.metadata
            same = {"uid": meta.uid, "resourceVersion": meta.resource_version}
            body = {"metadata": same, "spec": {"taints": health.plain(taints)}}
            node = await self._client.patch(Node, name, None, body)
        if not lost or health.evicting(node):
            self._granted.discard(name)
        if lost and not health.evicting(node):
            self._waiting.add(name)
            self._wake.set()
        else:
            self._waiting.discard(name)

    async def _unready(self, node: Node, now: float) -> None:
        """Mark the pods of a lost node as not ready."""
        for pod in self._pods.by("node", node.metadata.name):
            ready = readiness(pod)
            if ready is None or ready.status == "False":
                continue
            change = {"type": "Ready", "status": "False", "lastTransitionTime": self._text(now)}
            try:
                await self._client.patch_status(pod, {"conditions": [change]}, kind="strategic")
            except (NotFound, Conflict):
                continue
            self._context.recorder.event(
                pod,
                reason="NodeNotReady",
                action="Monitoring",
                note="Node is not ready",
                type="Warning",
            )

    async def _pace(self) -> None:
        """Let zones evict as fast as their state allows."""
        while True:
            await self._wake.wait()
            self._admit(elapsed())
            if not (self._waiting or self._all_lost):
                self._wake.clear()
                continue
            await asyncio.sleep(self._settings.period)

    def _admit(self, now: float) -> None:
        nodes = self._nodes.values()
        found = zones.survey(nodes, self._settings)
        if found.all_lost != self._all_lost:
            self._all_lost = found.all_lost
            self._next.clear()
            for node in nodes:
                if not found.all_lost:
                    self._seen[node.metadata.name] = now
                self._controller.enqueue(node.key)
        for key in sorted(("", name) for name in self._waiting):
            lost = self._nodes.get(key)
            zone = ("", "") if lost is None else zones.zone_of(lost)
            rate = found.rates.get(zone, 0.0)
            if lost is not None and rate > 0 and self._next.get(zone, now) <= now:
                self._next[zone] = now + 1 / rate
                self._granted.add(lost.metadata.name)
                self._controller.enqueue(key)

    def _tell(self, node: Node, reason: str, what: str) -> None:
        name = node.metadata.name
        note = f"Node {name} event: {what.format(name)}"
        self._context.recorder.event(node, reason=reason, action="Monitoring", note=note)

    @property
    def _client(self) -> Client:
        return self._context.client

    @staticmethod
    def _text(now: float) -> str:
        return format_time(from_epoch(now))


def _beat(node: Node) -> str | None:
    ready = health.condition(node, "Ready")
    return None if ready is None else ready.last_heartbeat_time
