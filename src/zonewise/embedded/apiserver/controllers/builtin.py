"""The controllers that an API server needs: garbage, namespaces, events, roles.

The two small ones are here: events expire an hour after they were last seen, and ClusterRoles with
an aggregation rule get the rules of the roles it selects. All work from the state's events and from
the objects at the start, so a restart at any line is safe. Each is a task of its own; one that
fails starts again after a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from zonewise.api.errors import ApiError
from zonewise.api.meta import LabelSelector
from zonewise.api.values import selector, times
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.controllers.garbage_collector import GarbageCollector, ObjectKey
from zonewise.embedded.apiserver.controllers.internal_writes import InternalWrites
from zonewise.embedded.apiserver.controllers.namespaces import NamespaceController
from zonewise.embedded.apiserver.handlers.deleting import DeleteOptions
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

EVENTS = "/events"
EVENT_SECONDS = 3600.0
EVENT_CHECK_SECONDS = 60.0
CLUSTER_ROLES = "rbac.authorization.k8s.io/clusterroles"
RETRY_SECONDS = 1.0

_log = logger("housekeeping")


def start_controllers(
    writes: InternalWrites, *, authority: str, clock: Callable[[], float]
) -> list[asyncio.Task[None]]:
    """Start the controllers for existing objects and changes; ``authority`` is the CA's PEM."""
    state = writes.state
    collector = GarbageCollector(writes.registry, writes.garbage_actions())
    for storage, _, _ in list(state.kinds()):
        for entry in state.list(storage).entries:
            collector.observe(ObjectKey(storage, entry.namespace, entry.name), entry.uid, entry.raw)
    namespaces = NamespaceController(writes, authority=authority)
    events = EventExpiry(writes, clock=clock)
    roles = RoleAggregation(writes)

    def observe(storage: str, event: StoreEvent) -> None:
        entry = event.entry
        if storage != EVENTS:
            node = ObjectKey(storage, entry.namespace, entry.name)
            collector.observe(node, entry.uid, None if event.type == "DELETED" else entry.raw)
        namespaces.observe(storage, event)
        roles.observe(storage, event)

    state.listen(observe)
    return [
        asyncio.create_task(_run_forever(work), name=name)
        for name, work in (
            ("garbage", collector.run),
            ("namespaces", namespaces.run),
            ("events", events.run),
            ("roles", roles.run),
        )
    ]


async def _run_forever(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await work()
        except Exception:
            _log.exception("housekeeping failed, trying again")
            await asyncio.sleep(RETRY_SECONDS)


class EventExpiry:
    """Deletes events that were last seen an hour ago."""

    def __init__(self, writes: InternalWrites, *, clock: Callable[[], float]) -> None:
        self._writes = writes
        self._clock = clock

    async def run(self) -> None:
        """Delete old events once a minute, until cancelled."""
        while True:
            limit = self._clock() - EVENT_SECONDS
            for entry in self._writes.state.list(EVENTS).entries:
                obj = bodies.decode_stored(entry.raw)
                last_seen = _last_seen_at(obj)
                if last_seen is not None and last_seen < limit:
                    node = ObjectKey(EVENTS, entry.namespace, entry.name)
                    try:
                        await self._writes.delete(node, DeleteOptions(uid=entry.uid, raw={}))
                    except ApiError:
                        continue
            await asyncio.sleep(EVENT_CHECK_SECONDS)


def _last_seen_at(obj: Obj) -> float | None:
    series = obj.get("series") or {}
    meta = obj["metadata"]
    time = (
        series.get("lastObservedTime")
        or obj.get("lastTimestamp")
        or obj.get("eventTime")
        or meta.get("creationTimestamp")
    )
    return times.parse(time).timestamp() if time else None


class RoleAggregation:
    """Writes the rules of aggregated ClusterRoles."""

    def __init__(self, writes: InternalWrites) -> None:
        self._writes = writes
        self._wake = asyncio.Event()
        self._wake.set()

    def observe(self, storage: str, _: StoreEvent) -> None:
        """Note a change."""
        if storage == CLUSTER_ROLES:
            self._wake.set()

    async def run(self) -> None:
        """Aggregate whenever a role changes, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            roles = [
                bodies.decode_stored(entry.raw)
                for entry in self._writes.state.list(CLUSTER_ROLES).entries
            ]
            for role in roles:
                rule = role.get("aggregationRule")
                if not rule:
                    continue
                rules = _aggregate(role, rule, roles)
                if rules != (role.get("rules") or []):
                    await self._write_rules(role["metadata"]["name"], rules)

    async def _write_rules(self, name: str, rules: list[Obj]) -> None:
        node = ObjectKey(CLUSTER_ROLES, "", name)
        await self._writes.change(node, lambda obj: {**obj, "rules": rules})


def _aggregate(role: Obj, rule: Obj, roles: list[Obj]) -> list[Obj]:
    rules: list[Obj] = []
    for label_selector in rule.get("clusterRoleSelectors") or ():
        role_selector = selector.from_object(msgspec.convert(label_selector, LabelSelector))
        for other in roles:
            meta = other["metadata"]
            if meta["name"] != role["metadata"]["name"] and role_selector.matches(
                meta.get("labels") or {}
            ):
                rules += [
                    other_rule for other_rule in other.get("rules") or () if other_rule not in rules
                ]
    return rules
