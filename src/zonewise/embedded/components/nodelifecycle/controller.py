"""Detects lost nodes, marks them with conditions and taints, and reverts that when they return.

A node is lost when neither its lease nor its status was renewed for a grace period, as this process
saw it: clocks of nodes are not compared with ours, and time in which this process was suspended or
late does not count. When a node was last seen is in memory only; a process that restarts gives
every node a whole grace period, which is safe.

*Per node*, whenever it changes or its grace period may be over: conditions, then pods (those of a
lost node are no longer ready), then taints. Each write is level-triggered, so a crash in between is
completed by the next sync. Nodes are written under the version that was read: a node that reports
at the last moment causes a conflict, which is retried on the new state.

*Per zone*, at a limited rate (``health.decide_evictions``): the taint that evicts pods. Nodes that
wait for it are checked every few seconds while there are any; it is removed at once, by the node's
own sync. When all zones are lost it is removed from all nodes, and when one comes back all nodes
get a new grace period.

Idle nodes cost one check per grace period, and a renewal one dict entry.
"""

from __future__ import annotations

import asyncio

import msgspec

from zonewise.api.errors import Conflict, NotFound
from zonewise.api.meta import Key, find_condition
from zonewise.api.objects.coordination import Lease
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import ready_condition
from zonewise.api.values.times import format_time, from_epoch
from zonewise.embedded.components.nodelifecycle import health
from zonewise.embedded.components.nodelifecycle.health import NodeLifecycleSettings, Zone
from zonewise.runtime.cache.indexes import BY_NODE
from zonewise.runtime.client.client import Client
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.process.clock import elapsed
from zonewise.runtime.program.context import ControllerContext

LEASES = "kube-node-lease"
SLACK = 0.001
"""Timers are not exact: what is due within this time is due now."""


class NodeLifecycleController:
    """Marks lost nodes, and evicts their pods at the rate each zone allows."""

    def __init__(
        self, context: ControllerContext, settings: NodeLifecycleSettings | None = None
    ) -> None:
        self._context = context
        self._settings = settings = settings or NodeLifecycleSettings()
        self._last_seen: dict[str, float] = {}
        self._awaiting_eviction: set[str] = set()
        self._eviction_allowed: set[str] = set()
        self._next_eviction: dict[Zone, float] = {}
        self._wake = asyncio.Event()
        self._all_lost = False
        self._awake_at = 0.0
        self._controller = context.controller(
            "node lifecycle", self._sync_node, workers=settings.workers
        )
        self._nodes = self._controller.watches(Node, own_key)
        self._pods = context.cache.store(Pod, indexes=BY_NODE)
        self._nodes.on_change(self._node_changed)
        context.cache.store(Lease, namespace=LEASES).on_change(self._lease_changed)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run(), name="node lifecycle")
            tasks.create_task(self._pace_evictions(), name="eviction pace")
            tasks.create_task(self._detect_own_delay(), name="own delays")

    async def _detect_own_delay(self) -> None:
        """Detect when this process itself was late, and count that against no node."""
        while True:
            self._awake_at = elapsed()
            await asyncio.sleep(self._settings.grace / 4)
            delay = self._own_delay()
            if delay > 0:
                for name in self._last_seen:
                    self._last_seen[name] += delay

    def _own_delay(self) -> float:
        """How late this process is, if by more than ``period``."""
        delay = elapsed() - self._awake_at - self._settings.grace / 4
        return delay if delay > self._settings.period else 0.0

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            assert old is not None
            for names in (self._awaiting_eviction, self._eviction_allowed):
                names.discard(old.metadata.name)
            self._last_seen.pop(old.metadata.name, None)
            self._record_event(old, "RemovingNode", "Removing Node {} from Controller")
            return
        if old is None or _heartbeat(old) != _heartbeat(new):
            self._last_seen[new.metadata.name] = elapsed()
        if old is None:
            self._record_event(new, "RegisteredNode", "Registered Node {} in Controller")
        elif health.ready_status(old) == "True" and health.ready_status(new) != "True":
            note = f"Node {new.metadata.name} status is now: NodeNotReady"
            self._context.recorder.event(new, "NodeNotReady", "Monitoring", note, transition=True)

    def _lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        if new is not None and (old is None or old.spec.renew_time != new.spec.renew_time):
            self._last_seen[new.metadata.name] = elapsed()

    async def _sync_node(self, key: Key) -> float | None:
        node = self._nodes.get(key)
        try:
            return None if node is None else await self._monitor(node)
        except NotFound:
            return None  # it was deleted meanwhile

    async def _monitor(self, node: Node) -> float | None:
        name = node.metadata.name
        settings, now, now_epoch = self._settings, elapsed(), self._context.clock()
        has_reported = health.ready_status(node) is not None
        last_seen = self._last_seen.get(name, now)
        remaining = last_seen + (settings.grace if has_reported else settings.startup_grace) - now
        if remaining <= SLACK and self._own_delay():
            return settings.period
        if remaining <= SLACK:
            conditions = health.unknown_conditions(node, self._format(now_epoch))
            if conditions:
                node = await self._client.patch_status(
                    node,
                    {"conditions": conditions},
                    kind="strategic",
                    resource_version=node.metadata.resource_version,
                )
        await self._update_pods_and_taints(node, now_epoch)
        return remaining if remaining > SLACK else None

    async def _update_pods_and_taints(self, node: Node, now: float) -> None:
        """Bring the node's pods and taints in line with its conditions."""
        name = node.metadata.name
        lost = health.ready_status(node) in ("False", "Unknown")
        if lost:
            await self._mark_pods_not_ready(node, now)
        evict = lost and (bool(health.eviction_taints(node)) or name in self._eviction_allowed)
        evict = evict and not self._all_lost
        taints = health.desired_taints(node, evict=evict, now=self._format(now))
        if taints != node.spec.taints:
            meta = node.metadata
            preconditions = {"uid": meta.uid, "resourceVersion": meta.resource_version}
            body = {"metadata": preconditions, "spec": {"taints": msgspec.to_builtins(taints)}}
            node = await self._client.patch(Node, name, None, body)
        if not lost or health.eviction_taints(node):
            self._eviction_allowed.discard(name)
        if lost and not health.eviction_taints(node):
            self._awaiting_eviction.add(name)
            self._wake.set()
        else:
            self._awaiting_eviction.discard(name)

    async def _mark_pods_not_ready(self, node: Node, now: float) -> None:
        """Mark the pods of a lost node as not ready."""
        for pod in self._pods.by("node", node.metadata.name):
            ready = ready_condition(pod)
            if ready is None or ready.status == "False":
                continue
            change = {"type": "Ready", "status": "False", "lastTransitionTime": self._format(now)}
            try:
                await self._client.patch_status(pod, {"conditions": [change]}, kind="strategic")
            except (NotFound, Conflict):
                continue
            self._context.recorder.event(
                pod, "NodeNotReady", "Monitoring", "Node is not ready", type="Warning"
            )

    async def _pace_evictions(self) -> None:
        """Allow evictions zone by zone, as fast as the zone's state permits."""
        while True:
            await self._wake.wait()
            self._allow_evictions(elapsed())
            if not (self._awaiting_eviction or self._all_lost):
                self._wake.clear()
                continue
            await asyncio.sleep(self._settings.period)

    def _allow_evictions(self, now: float) -> None:
        nodes = self._nodes.values()
        zone_evictions = health.decide_evictions(nodes, self._settings)
        if zone_evictions.all_lost != self._all_lost:
            self._all_lost = zone_evictions.all_lost
            self._next_eviction.clear()
            for node in nodes:
                if not zone_evictions.all_lost:
                    self._last_seen[node.metadata.name] = now
                self._controller.enqueue(node.key)
        for key in sorted(("", name) for name in self._awaiting_eviction):
            lost = self._nodes.get(key)
            zone = ("", "") if lost is None else health.zone_of(lost)
            rate = zone_evictions.rates.get(zone, 0.0)
            if lost is not None and rate > 0 and self._next_eviction.get(zone, now) <= now:
                self._next_eviction[zone] = now + 1 / rate
                self._eviction_allowed.add(lost.metadata.name)
                self._controller.enqueue(key)

    def _record_event(self, node: Node, reason: str, event: str) -> None:
        name = node.metadata.name
        note = f"Node {name} event: {event.format(name)}"
        self._context.recorder.event(node, reason, "Monitoring", note)

    @property
    def _client(self) -> Client:
        return self._context.client

    @staticmethod
    def _format(now: float) -> str:
        return format_time(from_epoch(now))


def _heartbeat(node: Node) -> str | None:
    ready = find_condition(node.status.conditions, "Ready")
    return None if ready is None else ready.last_heartbeat_time
