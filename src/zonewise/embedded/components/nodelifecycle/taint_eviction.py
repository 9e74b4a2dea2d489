"""Deletes pods from nodes whose taints they do not tolerate, or no longer.

A key is a pod. When it is deleted follows from objects alone (``tolerance``), so a restart neither
shortens nor lengthens any pod's time; only a taint without a date counts since it was noticed. Pods
are enqueued when they are bound to a tainted node, when their tolerations change and when their
node's taints do; a change of a pod on a healthy node costs one lookup of its node.

Before a pod is deleted, a condition says why. Both writes carry its uid. These are deletions, not
evictions: budgets do not apply, as on a real cluster.
"""

from __future__ import annotations

from math import inf

from zonewise.api.errors import Conflict, NotFound
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.values.times import format_time, from_epoch
from zonewise.disruption import disruption_target
from zonewise.embedded.components.nodelifecycle.tolerance import driving, until
from zonewise.runtime.cache.indexes import BY_NODE
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller

WORKERS = 16
SLACK = 0.001


class TaintEviction:
    """Deletes pods that do not tolerate their node until it is cancelled."""

    def __init__(self, context: ComponentContext) -> None:
        self._context = context
        self._waiting: dict[str, float] = {}
        self._controller: Controller[Key] = Controller(
            "taint eviction", self._pod, cache=context.cache, workers=WORKERS, rng=context.rng
        )
        self._nodes = context.cache.store(Node)
        self._pods = self._controller.watches(
            Pod, lambda pod: (pod.key,), indexes=BY_NODE, when=self._matters
        )
        self._controller.watches(
            Node,
            lambda node: self._pods.keys_by("node", node.metadata.name),
            when=_driving_changed,
        )

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    def _matters(self, old: Pod | None, new: Pod | None) -> bool:
        if new is None:
            assert old is not None
            self._waiting.pop(old.metadata.uid, None)
            return False
        node = self._nodes.get(("", new.spec.node_name))
        return node is not None and bool(node.spec.taints) and bool(driving(node))

    async def _pod(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None:
            return None
        uid, now = pod.metadata.uid, self._context.clock()
        node = self._nodes.get(("", pod.spec.node_name))
        noticed = self._waiting.pop(uid, None)
        if pod.metadata.deletion_timestamp is not None:
            return None
        since = now if noticed is None else min(noticed, now)
        end = inf if node is None else until(pod, driving(node), now=now, noticed=since)
        if end == inf:
            if noticed is not None:
                self._tell(pod, "Cancelling deletion of Pod")
            return None
        if end > now + SLACK:
            self._waiting[uid] = since
            return end - now
        self._tell(pod, "Marking for deletion Pod")
        await self._delete(pod, now)
        return None

    async def _delete(self, pod: Pod, now: float) -> None:
        name, namespace, uid = pod.metadata.name, pod.metadata.namespace, pod.metadata.uid
        condition = disruption_target(
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
            now=format_time(from_epoch(now)),
            generation=pod.metadata.generation,
        )
        client = self._context.client
        try:
            await client.patch_status(pod, {"conditions": [condition]}, kind="strategic")
            await client.delete(Pod, name, namespace, uid=uid)
        except (NotFound, Conflict):
            return

    def _tell(self, pod: Pod, what: str) -> None:
        self._context.recorder.event(
            pod,
            reason="TaintManagerEviction",
            action="Evicting",
            note=f"{what} {pod.metadata.namespace}/{pod.metadata.name}",
        )


def _driving_changed(old: Node | None, new: Node | None) -> bool:
    return (() if old is None else driving(old)) != (() if new is None else driving(new))
