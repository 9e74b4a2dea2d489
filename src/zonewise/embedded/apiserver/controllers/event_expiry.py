"""Events expire an hour after they were last seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from zonewise.api.errors import ApiError
from zonewise.api.values import times
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.controllers.garbage_collector import GraphNode
from zonewise.embedded.apiserver.controllers.internal_writes import InternalWrites
from zonewise.embedded.apiserver.handlers.deleting import DeleteOptions

Obj = dict[str, Any]

SECONDS = 3600.0
PAUSE = 60.0
EVENTS = "/events"


class EventExpiry:
    """Deletes old events."""

    def __init__(self, writes: InternalWrites, *, clock: Callable[[], float]) -> None:
        self._writes = writes
        self._clock = clock

    async def run(self) -> None:
        """Delete what is too old, once a minute, until cancelled."""
        while True:
            limit = self._clock() - SECONDS
            for entry in self._writes.state.list(EVENTS).entries:
                obj = bodies.decode_stored(entry.raw)
                last = _last_seen(obj)
                if last is not None and last < limit:
                    node = GraphNode(EVENTS, entry.namespace, entry.name)
                    try:
                        await self._writes.delete(node, DeleteOptions(uid=entry.uid, raw={}))
                    except ApiError:
                        continue
            await asyncio.sleep(PAUSE)


def _last_seen(obj: Obj) -> float | None:
    series = obj.get("series") or {}
    meta = obj["metadata"]
    moment = (
        series.get("lastObservedTime")
        or obj.get("lastTimestamp")
        or obj.get("eventTime")
        or meta.get("creationTimestamp")
    )
    return times.parse(moment).timestamp() if moment else None
