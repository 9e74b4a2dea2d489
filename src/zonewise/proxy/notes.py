"""Events about faults of a Service: an ignored slice, topology keys that are not valid.

Every node's proxy sees the same fault, so an event's name is made from what it says: the first
proxy creates it, the others find it, and a proxy that restarts does not send it again. ``zonewise
controller`` reports wrong keys too, under the same name. What happens on one node only (a port that
is taken) has the node in it. Events are sent by a task of their own from a bounded queue, and one
that cannot be sent now is dropped: nothing relies on them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from zonewise.api.errors import AlreadyExists, ZonewiseError
from zonewise.api.meta import Key, ObjectMeta, ObjectReference
from zonewise.api.objects.core import Service
from zonewise.api.objects.events import Event, event_name_suffix
from zonewise.api.reason import Reason
from zonewise.api.values.times import format_micro
from zonewise.proxy.observer import Observer
from zonewise.runtime.process.logs import logger
from zonewise.traffic.routes.table import ServiceRoutes

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

CONTROLLER = "zonewise-proxy"
_QUEUE = 200
_NOTE_LIMIT = 1024

_log = logger("notes")


class Notes(Observer):
    """Creates events about new faults of Services."""

    def __init__(
        self, client: Client, node: str, *, service: Callable[[Key], Service | None]
    ) -> None:
        self._client = client
        self._node = node
        self._service = service
        self._reported: dict[Key, tuple[Reason, ...]] = {}
        self._queue: deque[tuple[Service, str, str, str]] = deque(maxlen=_QUEUE)
        self._wake = asyncio.Event()

    def routed(self, key: Key, routes: ServiceRoutes | None) -> None:
        notes = routes.notes if routes is not None else ()
        before = self._reported.get(key, ())
        if notes == before:
            return
        if notes:
            self._reported[key] = notes
        else:
            del self._reported[key]
        for note in notes:
            if note not in before:
                self._add(key, note.code, str(note), "")

    def no_health_check(self, key: Key, port: int, why: str) -> None:
        """Report that a health check port cannot be bound on this node."""
        note = f"node {self._node} cannot listen on port {port} for health checks: {why}"
        self._add(key, "FailedToStartServiceHealthcheck", note, self._node)

    def refused(self, key: Key, error: Exception) -> None:
        note = f"node {self._node} keeps the rules this Service had: {error}"
        self._add(key, "RulesRefused", note, self._node)

    async def run(self) -> None:
        """Send events until cancelled."""
        while True:
            while self._queue:
                await self._send(*self._queue.popleft())
            self._wake.clear()
            await self._wake.wait()

    def _add(self, key: Key, reason: str, note: str, only: str) -> None:
        service = self._service(key)
        if service is not None:
            _log.info(note, service="/".join(key), reason=reason)
            self._queue.append((service, reason, note, only))
            self._wake.set()

    async def _send(self, service: Service, reason: str, note: str, only: str) -> None:
        meta = service.metadata
        suffix = event_name_suffix(meta.uid, reason, note, only=only)
        event = Event(
            metadata=ObjectMeta(name=f"{meta.name}.{suffix}", namespace=meta.namespace),
            event_time=format_micro(datetime.now(UTC)),
            reporting_controller=CONTROLLER,
            reporting_instance=self._node,
            action="Routing",
            reason=reason,
            regarding=ObjectReference(
                api_version="v1",
                kind="Service",
                namespace=meta.namespace,
                name=meta.name,
                uid=meta.uid,
                resource_version=meta.resource_version,
            ),
            note=note[:_NOTE_LIMIT],
            type="Warning",
        )
        try:
            await self._client.create(event)
        except AlreadyExists:
            pass
        except ZonewiseError as error:
            _log.debug("event could not be written", reason=reason, error=str(error))
