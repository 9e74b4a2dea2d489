"""ResourceQuotas: a namespace cannot exceed its limits, and the status says how much it uses.

Admission checks quotas after plugins and webhooks, when it can refuse nothing more. Checking and
charging are one step without an await, so of two writes for the last free pod only one is admitted:
its usage is *reserved* under the new object's uid until the object exists. A write that is refused
after that, because its name or an address is taken, frees what it reserved within seconds. Usage is
recounted from the objects shortly after any of them changed, later if there are many, so that
counting takes a bounded part of a processor; where ``embedded.apiserver.controllers.quota_status``
runs, the status then follows. A namespace without a quota costs one dictionary lookup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zonewise.api.values import quantity
from zonewise.api.values.quantity import Quantity
from zonewise.embedded.apiserver.admission import quota_usage
from zonewise.embedded.apiserver.admission.admission import Attributes
from zonewise.embedded.apiserver.admission.quota_usage import UsedAmounts
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.registry import Registry, ServedKind
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.embedded.apiserver.store.state import State
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

STORAGE = "/resourcequotas"
RESERVATION_SECONDS = 5.0
COUNT_DELAY_SECONDS = 0.1
COUNT_DELAY_PER_OBJECT = 3e-4

_log = logger("quotas")


@dataclass(slots=True)
class Quota:
    """A ResourceQuota: its spec, its limits, and the usage that was counted last."""

    spec: Mapping[str, Any]
    hard: Mapping[str, Quantity]
    used: UsedAmounts = field(default_factory=dict)


class Quotas:
    """Counts the usage of quotas and refuses what exceeds them."""

    def __init__(self, *, state: State, registry: Registry, clock: Callable[[], float]) -> None:
        self._state = state
        self._registry = registry
        self._clock = clock
        self._quotas: dict[str, dict[str, Quota]] = {}
        self._reservations: dict[str, dict[str, tuple[float, ServedKind, Obj]]] = {}
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._objects_counted = 0
        self.on_counted: Callable[[str, Mapping[str, Quota]], None] = lambda _, __: None
        """Called with a namespace and its quotas after they were counted."""

    def start(self) -> asyncio.Task[None]:
        """Read the existing quotas, then follow changes."""
        for entry in self._state.list(STORAGE).entries:
            self._update_quota(entry.namespace, entry.name, bodies.decode_stored(entry.raw))
        self._state.listen(self._observe)
        return asyncio.create_task(self._run(), name="quotas")

    def admit(self, attributes: Attributes) -> None:
        """Refuse an object that exceeds a quota."""
        quotas = self._quotas.get(attributes.namespace)
        obj = attributes.obj
        if not quotas or obj is None or attributes.subresource:
            return
        if attributes.operation not in {"CREATE", "UPDATE"}:
            return
        resource, now = attributes.served.kind.resource, self._clock()
        usage = quota_usage.usage_of(resource, obj, now=now)
        previous_usage: UsedAmounts = {}
        if attributes.operation == "UPDATE" and attributes.old is not None:
            previous_usage = quota_usage.usage_of(resource, attributes.old, now=now)
        charges: list[tuple[Quota, UsedAmounts]] = []
        for name, quota in sorted(quotas.items()):
            if not quota_usage.applies_to(quota.spec, resource, obj):
                continue
            if (
                resource.plural == "pods"
                and not resource.group
                and attributes.operation == "CREATE"
            ):
                self._require_specified(
                    attributes, name, quota_usage.missing_amounts(quota.hard, obj)
                )
            delta = _increase_of(usage, previous_usage, quota.hard)
            exceeded = quota_usage.exceeded_names(quota.hard, quota.used, delta)
            if exceeded:
                requested, used, limited = (
                    quota_usage.format_amounts(amounts, exceeded)
                    for amounts in (delta, quota.used, quota.hard)
                )
                raise attributes.forbidden(
                    f"exceeded quota: {name}, requested: {requested}, used: {used},"
                    f" limited: {limited}"
                )
            if delta:
                charges.append((quota, delta))
        if charges and not attributes.dry_run:
            for quota, delta in charges:
                quota_usage.add(quota.used, delta, delta)
            if attributes.operation == "CREATE":
                reservations = self._reservations.setdefault(attributes.namespace, {})
                until = now + RESERVATION_SECONDS
                reservations[obj["metadata"]["uid"]] = (until, attributes.served, obj)
            self._schedule_count(attributes.namespace)

    def _require_specified(self, attributes: Attributes, quota: str, problem: str) -> None:
        if problem:
            raise attributes.forbidden(f"failed quota: {quota}: {problem}")

    def _observe(self, storage: str, event: StoreEvent) -> None:
        entry = event.entry
        if storage == STORAGE:
            deleted = event.type == "DELETED"
            self._update_quota(
                entry.namespace, entry.name, None if deleted else bodies.decode_stored(entry.raw)
            )
        if entry.namespace in self._quotas and storage != "/events":
            self._reservations.get(entry.namespace, {}).pop(entry.uid, None)
            self._schedule_count(entry.namespace)

    def _update_quota(self, namespace: str, name: str, obj: Obj | None) -> None:
        quotas = self._quotas.setdefault(namespace, {})
        if obj is None:
            quotas.pop(name, None)
        else:
            spec = obj.get("spec") or {}
            quota = quotas.get(name)
            if quota is None or quota.spec != spec:
                hard = {key: quantity.parse(text) for key, text in (spec.get("hard") or {}).items()}
                quotas[name] = Quota(spec, hard)
                self._count(namespace)
            self._schedule_count(namespace)
        if not quotas:
            del self._quotas[namespace]
            self._reservations.pop(namespace, None)

    def _schedule_count(self, namespace: str) -> None:
        self._due.add(namespace)
        self._wake.set()

    def _count(self, namespace: str) -> None:
        """Count the usage of all quotas of a namespace, reservations included."""
        quotas = self._quotas.get(namespace, {})
        now = self._clock()
        totals: dict[str, UsedAmounts] = {
            name: dict.fromkeys(quota.hard, quota_usage.NOTHING) for name, quota in quotas.items()
        }
        reservations = self._reservations.get(namespace, {})
        names = {key for quota in quotas.values() for key in quota.hard}
        for storage, served in self._registry.storages().items():
            resource = served.kind.resource
            if not resource.namespaced or not _is_counted(
                resource.plural, resource.qualified, names
            ):
                continue
            entries = self._state.list(storage, namespace).entries
            self._objects_counted += len(entries)
            for entry in entries:
                obj = bodies.decode_stored(entry.raw)
                self._add_usage(totals, quotas, served, obj, now)
        for uid, (until, served, obj) in list(reservations.items()):
            if until < now:
                del reservations[uid]
            else:
                self._add_usage(totals, quotas, served, obj, now)
        for name, quota in quotas.items():
            quota.used = totals[name]

    def _add_usage(
        self,
        totals: dict[str, UsedAmounts],
        quotas: Mapping[str, Quota],
        served: ServedKind,
        obj: Obj,
        now: float,
    ) -> None:
        resource = served.kind.resource
        usage = quota_usage.usage_of(resource, obj, now=now)
        for name, quota in quotas.items():
            if quota_usage.applies_to(quota.spec, resource, obj):
                quota_usage.add(totals[name], usage, quota.hard)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(
                COUNT_DELAY_SECONDS + COUNT_DELAY_PER_OBJECT * self._objects_counted
            )
            self._wake.clear()
            self._objects_counted = 0
            due, self._due = self._due, set()
            for namespace in sorted(due):
                try:
                    self._count(namespace)
                except Exception:
                    _log.exception("a namespace could not be counted", namespace=namespace)
                    continue
                self.on_counted(namespace, self._quotas.get(namespace, {}))
                if self._reservations.get(namespace):
                    asyncio.get_running_loop().call_later(
                        RESERVATION_SECONDS, self._schedule_count, namespace
                    )

    def recount(self) -> None:
        """Recount every namespace."""
        for namespace in self._quotas:
            self._schedule_count(namespace)


def _increase_of(
    usage: UsedAmounts, previous: UsedAmounts, hard: Mapping[str, Quantity]
) -> UsedAmounts:
    """How much more is used than before, of the resources that a quota limits."""
    increase: UsedAmounts = {}
    for name in hard:
        if name in usage:
            difference = usage[name].value - previous.get(name, quota_usage.NOTHING).value
            if difference > 0:
                increase[name] = Quantity(difference, usage[name].family)
    return increase


def _is_counted(plural: str, qualified: str, names: set[str]) -> bool:
    """Whether any of the names counts objects of a kind."""
    if f"count/{qualified}" in names:
        return True
    if plural != qualified:
        return False
    match plural:
        case "pods":
            return any(
                name == "pods"
                or name.split(".")[0] in {"requests", "limits"}
                or name in quota_usage.COMPUTE
                or name.startswith("hugepages-")
                for name in names
            )
        case "services":
            return any(name.partition(".")[0] == "services" for name in names)
        case "persistentvolumeclaims":
            return any("storage" in name or plural in name for name in names)
    return plural in names
