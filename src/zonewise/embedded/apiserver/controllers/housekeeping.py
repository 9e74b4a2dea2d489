"""The few controllers that an API server needs: garbage, namespaces, events, roles.

All work from the state's events and from the objects at the start, so a restart at any line is
safe. Each is a task of its own; one that fails starts again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from zonewise.embedded.apiserver.controllers.event_expiry import EVENTS, EventExpiry
from zonewise.embedded.apiserver.controllers.garbage_collector import Collector, GraphNode
from zonewise.embedded.apiserver.controllers.internal_writes import InternalWrites
from zonewise.embedded.apiserver.controllers.namespaces import NamespaceController
from zonewise.embedded.apiserver.controllers.role_aggregation import RoleAggregation
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.runtime.process.logs import logger

RETRY = 1.0

_log = logger("housekeeping")


def keep_house(
    writes: InternalWrites, *, authority: str, clock: Callable[[], float]
) -> list[asyncio.Task[None]]:
    """Process the existing objects, then follow changes; ``authority`` is the CA's PEM."""
    state = writes.state
    collector = Collector(writes.registry, writes.garbage_actions())
    for storage, _, _ in list(state.kinds()):
        for entry in state.list(storage).entries:
            collector.observe(GraphNode(storage, entry.namespace, entry.name), entry.uid, entry.raw)
    namespaces = NamespaceController(writes, authority=authority)
    events = EventExpiry(writes, clock=clock)
    roles = RoleAggregation(writes)

    def observe(storage: str, event: StoreEvent) -> None:
        entry = event.entry
        if storage != EVENTS:
            node = GraphNode(storage, entry.namespace, entry.name)
            collector.observe(node, entry.uid, None if event.type == "DELETED" else entry.raw)
        namespaces.observe(storage, event)
        roles.observe(storage, event)

    state.listen(observe)
    return [
        asyncio.create_task(_forever(work), name=name)
        for name, work in (
            ("garbage", collector.run),
            ("namespaces", namespaces.run),
            ("events", events.run),
            ("roles", roles.run),
        )
    ]


async def _forever(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except Exception:
            _log.exception("housekeeping failed, trying again")
            await asyncio.sleep(RETRY)
