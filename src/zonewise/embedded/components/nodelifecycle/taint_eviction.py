"""Deletes pods from nodes whose taints they do not tolerate, or no longer.

A key is a pod. When it is deleted follows from objects alone (``deletion_time``), so a restart
neither shortens nor lengthens any pod's time; only a taint without a time counts since it was
noticed. Pods are enqueued when they are bound to a tainted node, when their tolerations change and
when their node's taints do; a change of a pod on a healthy node costs one lookup of its node.

Before a pod is deleted, a condition says why. Both writes carry its uid. These are deletions, not
evictions: budgets do not apply, as on a real cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from zonewise.api.errors import Conflict, NotFound
from zonewise.api.meta import Key, find_condition
from zonewise.api.objects.core import Node, Taint
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.taints import tolerates_taint
from zonewise.api.values import times
from zonewise.disruption.pdb import disruption_target_condition
from zonewise.runtime.cache.indexes import BY_NODE
from zonewise.runtime.program.context import ControllerContext

WORKERS = 16
SLACK = 0.001


def no_execute_taints(node: Node) -> tuple[Taint, ...]:
    """The taints of a node that evict pods."""
    return tuple(taint for taint in node.spec.taints if taint.effect == "NoExecute")


def deletion_time(pod: Pod, taints: Iterable[Taint], *, now: float, noticed: float) -> float:
    """When the pod has to be deleted, in seconds since the epoch; infinite if it may stay.

    A taint that it does not tolerate applies now. Of several limited tolerations of a taint the
    shortest counts. Time runs since the taint was added or the pod was bound, whichever was later;
    a taint without a time, or with one in the future (a clock was set back), counts since it was
    noticed.
    """
    bound_at = _bound_time(pod)
    end = inf
    for taint in taints:
        tolerations = [t for t in pod.spec.tolerations if tolerates_taint(t, taint)]
        if not tolerations:
            return now
        seconds = [t.toleration_seconds for t in tolerations]
        limits = [limit for limit in seconds if limit is not None]
        if limits:
            added = times.parse(taint.time_added).timestamp() if taint.time_added else noticed
            since = max(added, bound_at)
            end = min(end, (since if since <= now else noticed) + max(0, min(limits)))
    return end


def _bound_time(pod: Pod) -> float:
    scheduled = find_condition(pod.status.conditions, "PodScheduled")
    text = (scheduled and scheduled.last_transition_time) or pod.metadata.creation_timestamp
    return times.parse(text).timestamp() if text else 0.0


class TaintEvictionController:
    """Deletes pods that do not tolerate the taints of their node."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._noticed: dict[str, float] = {}
        self._controller = context.controller("taint eviction", self._sync, workers=WORKERS)
        self.run = self._controller.run
        self._nodes = context.cache.store(Node)
        self._pods = self._controller.watches(
            Pod, lambda pod: (pod.key,), indexes=BY_NODE, when=self._is_on_tainted_node
        )
        self._controller.watches(
            Node,
            lambda node: self._pods.keys_by("node", node.metadata.name),
            when=_no_execute_taints_changed,
        )

    def _is_on_tainted_node(self, old: Pod | None, new: Pod | None) -> bool:
        if new is None:
            assert old is not None
            self._noticed.pop(old.metadata.uid, None)
            return False
        node = self._nodes.get(("", new.spec.node_name))
        return node is not None and bool(node.spec.taints) and bool(no_execute_taints(node))

    async def _sync(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        if pod is None:
            return None
        uid, now = pod.metadata.uid, self._context.clock()
        node = self._nodes.get(("", pod.spec.node_name))
        noticed = self._noticed.pop(uid, None)
        if pod.metadata.deletion_timestamp is not None:
            return None
        since = now if noticed is None else min(noticed, now)
        taints = () if node is None else no_execute_taints(node)
        end = deletion_time(pod, taints, now=now, noticed=since)
        if end == inf:
            if noticed is not None:
                self._record_event(pod, "Cancelling deletion of Pod")
            return None
        if end > now + SLACK:
            self._noticed[uid] = since
            return end - now
        self._record_event(pod, "Marking for deletion Pod")
        await self._delete(pod, now)
        return None

    async def _delete(self, pod: Pod, now: float) -> None:
        name, namespace, uid = pod.metadata.name, pod.metadata.namespace, pod.metadata.uid
        condition = disruption_target_condition(
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
            now=times.format_time(times.from_epoch(now)),
            generation=pod.metadata.generation,
        )
        client = self._context.client
        try:
            await client.patch_status(pod, {"conditions": [condition]}, kind="strategic")
            await client.delete(Pod, name, namespace, uid=uid)
        except (NotFound, Conflict):
            return

    def _record_event(self, pod: Pod, action: str) -> None:
        self._context.recorder.event(
            pod,
            "TaintManagerEviction",
            "Evicting",
            f"{action} {pod.metadata.namespace}/{pod.metadata.name}",
        )


def _no_execute_taints_changed(old: Node | None, new: Node | None) -> bool:
    return (() if old is None else no_execute_taints(old)) != (
        () if new is None else no_execute_taints(new)
    )
