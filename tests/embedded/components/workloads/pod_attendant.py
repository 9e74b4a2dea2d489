"""A minimal scheduler and kubelet: pods get a node, become ready, and are removed."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress

import msgspec

from zonewise.api.errors import Conflict, NotFound
from zonewise.api.meta import Key
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_ready as is_ready
from zonewise.api.values import times
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.program.context import ControllerContext

NODES = 3


class Attendant:
    """Runs pods; ``ready`` decides which become ready, ``stopping`` how long they take to stop."""

    def __init__(
        self,
        context: ControllerContext,
        *,
        ready: Callable[[Pod], bool] = lambda pod: not _image(pod).endswith("bad"),
        stopping: float = 0.1,
    ) -> None:
        self._client = context.client
        self._clock = context.clock
        self._ready = ready
        self._stopping = stopping
        self._due: dict[str, float] = {}
        self.controller = Controller(
            "attendant", self._look, cache=context.cache, workers=32, rng=context.rng
        )
        self.pods = self.controller.watches(Pod, own_key)

    async def run(self) -> None:
        """Work until cancelled."""
        await self.controller.run()

    async def _look(self, key: Key) -> float | None:
        pod = self.pods.get(key)
        if pod is None:
            return None
        namespace, name = key
        with suppress(NotFound, Conflict):
            if pod.metadata.deletion_timestamp is not None:
                due = self._due.setdefault(pod.metadata.uid, self._clock() + self._stopping)
                if due > self._clock():
                    return due - self._clock()
                await self._client.delete(
                    Pod, name, namespace, uid=pod.metadata.uid, grace_period=0
                )
            elif pod.status.phase in ("Succeeded", "Failed"):
                return None
            elif not pod.spec.node_name:
                await self._bind(pod)
            elif (ready := self._ready(pod)) != is_ready(pod) or pod.status.phase != "Running":
                await self._report(pod, ready)
        return None

    async def _bind(self, pod: Pod) -> None:
        namespace, name = pod.key
        node = f"n{zlib.crc32(name.encode()) % NODES}"
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": node},
        }
        await self._client.raw(
            "POST",
            Pod.resource.path(namespace, name, "binding"),
            headers={"Content-Type": "application/json"},
            body=msgspec.json.encode(body),
        )

    async def _report(self, pod: Pod, ready: bool) -> None:
        namespace, name = pod.key
        condition = {
            "type": "Ready",
            "status": str(ready),
            "lastTransitionTime": times.format_time(times.from_epoch(self._clock())),
        }
        status = {"phase": "Running", "conditions": [condition]}
        await self._client.patch(
            Pod, name, namespace, {"status": status}, kind="strategic", subresource="status"
        )


def _image(pod: Pod) -> str:
    return (pod.spec.containers or ())[0].image
