"""Pod garbage collection: deletes pods whose Node is deleted, and finished ones beyond a number.

A key is a node's name. A pod of a missing Node waits some seconds first, in case the Node is
recreated; before its pods are deleted, the Node is read once more. They are marked as Failed with
the reason, then deleted without grace, since no kubelet is left to finish. The same is done to
terminating pods of a node that is declared out of service and is not ready.

Finished pods are counted from time to time; the oldest beyond the limit are deleted. Unbound pods
need no garbage collection: the API server deletes them at once.
"""

from __future__ import annotations

import asyncio

from zonewise.api.errors import Conflict, NotFound, ZonewiseError
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished
from zonewise.api.values.times import format_time, from_epoch
from zonewise.disruption.pdb import disruption_target_condition
from zonewise.embedded.components.nodelifecycle import health
from zonewise.embedded.components.nodelifecycle.health import NodeLifecycleSettings
from zonewise.runtime.cache.indexes import BY_END, BY_NODE, node_of
from zonewise.runtime.process.clock import elapsed
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.topology.nodes import is_out_of_service

FINISHED_PERIOD = 20.0

_log = logger("pod collector")


class PodGCController:
    """Deletes orphaned pods and surplus finished ones."""

    def __init__(
        self, context: ControllerContext, settings: NodeLifecycleSettings | None = None
    ) -> None:
        self._context = context
        self._settings = settings or NodeLifecycleSettings()
        self._missing_since: dict[str, float] = {}
        self._controller = context.controller("pod collector", self._sync_node, workers=4)
        self._nodes = self._controller.watches(
            Node, lambda node: (node.metadata.name,), when=_may_orphan_pods
        )
        self._pods = self._controller.watches(
            Pod, node_of, indexes={**BY_NODE, **BY_END}, when=self._is_orphaned
        )

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run(), name="pod collector")
            tasks.create_task(self._delete_finished(), name="finished pods")

    def _is_orphaned(self, old: Pod | None, new: Pod | None) -> bool:
        if new is None or not new.spec.node_name:
            return False
        node = self._nodes.get(("", new.spec.node_name))
        if node is None:
            return True
        return new.metadata.deletion_timestamp is not None and _out_of_service(node)

    async def _sync_node(self, name: str) -> float | None:
        node = self._nodes.get(("", name))
        if node is not None:
            self._missing_since.pop(name, None)
            if _out_of_service(node):
                for pod in self._pods.by("node", name):
                    if pod.metadata.deletion_timestamp is not None:
                        await self._remove(pod, message="")
            return None
        pods = self._pods.by("node", name)
        if not pods:
            self._missing_since.pop(name, None)
            return None
        now = elapsed()
        remaining = self._missing_since.setdefault(name, now) + self._settings.orphan_after - now
        if remaining > 0:
            return remaining
        try:
            await self._context.client.get(Node, name)
        except NotFound:
            for pod in pods:
                await self._remove(pod, message="PodGC: node no longer exists")
        return None

    async def _remove(self, pod: Pod, *, message: str) -> None:
        meta = pod.metadata
        status: dict[str, object] = {}
        if not is_pod_finished(pod):
            status["phase"] = "Failed"
        if message:
            now = format_time(from_epoch(self._context.clock()))
            condition = disruption_target_condition(
                "DeletionByPodGC", message, now=now, generation=meta.generation
            )
            status["conditions"] = [condition]
        client = self._context.client
        try:
            if "phase" in status:
                await client.patch_status(pod, status, kind="strategic")
            await client.delete(Pod, meta.name, meta.namespace, uid=meta.uid, grace_period=0)
        except (NotFound, Conflict):
            return

    async def _delete_finished(self) -> None:
        while True:
            await asyncio.sleep(FINISHED_PERIOD)
            finished = self._pods.by("end", "finished")
            surplus = len(finished) - self._settings.finished_pods
            if surplus > 0:
                oldest = sorted(
                    finished, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.key)
                )
                try:
                    for pod in oldest[:surplus]:
                        await self._remove(pod, message="")
                except ZonewiseError as error:
                    _log.warning("finished pods could not be deleted", error=str(error))


def _may_orphan_pods(old: Node | None, new: Node | None) -> bool:
    return new is None or old is None or _out_of_service(new)


def _out_of_service(node: Node) -> bool:
    return health.ready_status(node) != "True" and is_out_of_service(node)
