"""ResourceQuotas: a namespace cannot exceed its limits, and the status says how much it uses.

Admission checks quotas last, when nothing else can change an object any more. Checking and charging
are one step without an await, so of two writes that both see room for one more pod only one gets
it: what was granted is *pledged* under the new object's uid until the object exists, or for some
seconds if it is never stored. Usage is recounted from the objects a moment after any of them
changed, a longer one where there are many, so that counting takes a bounded part of a processor;
where ``embedded.apiserver.controllers.quota_status`` runs, the status then follows. A namespace
without a quota costs one dictionary lookup.
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
from zonewise.embedded.apiserver.registry import Registry, Served
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.embedded.apiserver.store.state import State
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

STORAGE = "/resourcequotas"
PLEDGE_SECONDS = 5.0
GATHER_SECONDS = 0.1
GATHER_PER_OBJECT = 3e-4

_log = logger("quotas")


@dataclass(slots=True)
class Quota:
    """A ResourceQuota as it is counted: its spec, its bounds, and what was last found in use."""

    spec: Mapping[str, Any]
    hard: Mapping[str, Quantity]
    used: UsedAmounts = field(default_factory=dict)


class Quotas:
    """Refuses what is too much, and counts."""

    def __init__(self, *, state: State, registry: Registry, clock: Callable[[], float]) -> None:
        self._state = state
        self._registry = registry
        self._clock = clock
        self._quotas: dict[str, dict[str, Quota]] = {}
        self._pledged: dict[str, dict[str, tuple[float, Served, Obj]]] = {}
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._counted = 0
        self.counted: Callable[[str, Mapping[str, Quota]], None] = lambda _, __: None
        """Called with a namespace and its quotas when they were counted."""

    def start(self) -> asyncio.Task[None]:
        """Look at the quotas there are, then follow what happens."""
        for entry in self._state.list(STORAGE).entries:
            self._learn(entry.namespace, entry.name, bodies.decode_stored(entry.raw))
        self._state.listen(self._observe)
        return asyncio.create_task(self._run(), name="quotas")

    def admit(self, attributes: Attributes) -> None:
        """Refuse an object that a quota has no room for; the last built-in plugin."""
        quotas = self._quotas.get(attributes.namespace)
        obj = attributes.obj
        if not quotas or obj is None or attributes.subresource:
            return
        if attributes.operation not in {"CREATE", "UPDATE"}:
            return
        resource, now = attributes.served.kind.resource, self._clock()
        wanted = quota_usage.used_by(resource, obj, now=now)
        before: UsedAmounts = {}
        if attributes.operation == "UPDATE" and attributes.old is not None:
            before = quota_usage.used_by(resource, attributes.old, now=now)
        charges: list[tuple[Quota, UsedAmounts]] = []
        for name, quota in sorted(quotas.items()):
            if not quota_usage.concerns(quota.spec, resource, obj):
                continue
            if (
                resource.plural == "pods"
                and not resource.group
                and attributes.operation == "CREATE"
            ):
                self._demand(attributes, name, quota_usage.unsaid(quota.hard, obj))
            delta = _more(wanted, before, quota.hard)
            over = quota_usage.exceeded(quota.hard, quota.used, delta)
            if over:
                raise status_errors.forbidden(
                    resource,
                    attributes.called,
                    f"exceeded quota: {name}, requested: {quota_usage.text_of(delta, over)}, used:"
                    f" {quota_usage.text_of(quota.used, over)}, limited:"
                    f" {quota_usage.text_of(quota.hard, over)}",
                )
            if delta:
                charges.append((quota, delta))
        if charges and not attributes.dry_run:
            for quota, delta in charges:
                quota_usage.add(quota.used, delta, delta)
            if attributes.operation == "CREATE":
                pledges = self._pledged.setdefault(attributes.namespace, {})
                until = now + PLEDGE_SECONDS
                pledges[obj["metadata"]["uid"]] = (until, attributes.served, obj)
            self._soon(attributes.namespace)

    def _demand(self, attributes: Attributes, quota: str, why: str) -> None:
        if why:
            resource = attributes.served.kind.resource
            raise status_errors.forbidden(
                resource, attributes.called, f"failed quota: {quota}: {why}"
            )

    def _observe(self, storage: str, event: StoreEvent) -> None:
        entry = event.entry
        if storage == STORAGE:
            gone = event.type == "DELETED"
            self._learn(
                entry.namespace, entry.name, None if gone else bodies.decode_stored(entry.raw)
            )
        if entry.namespace in self._quotas and storage != "/events":
            self._pledged.get(entry.namespace, {}).pop(entry.uid, None)
            self._soon(entry.namespace)

    def _learn(self, namespace: str, name: str, obj: Obj | None) -> None:
        quotas = self._quotas.setdefault(namespace, {})
        if obj is None:
            quotas.pop(name, None)
        else:
            spec = obj.get("spec") or {}
            known = quotas.get(name)
            if known is None or known.spec != spec:
                hard = {key: quantity.parse(text) for key, text in (spec.get("hard") or {}).items()}
                quotas[name] = Quota(spec, hard)
                self._count(namespace)
            self._soon(namespace)
        if not quotas:
            del self._quotas[namespace]
            self._pledged.pop(namespace, None)

    def _soon(self, namespace: str) -> None:
        self._due.add(namespace)
        self._wake.set()

    def _count(self, namespace: str) -> None:
        """Count what every quota of a namespace is about, pledges included."""
        quotas = self._quotas.get(namespace, {})
        now = self._clock()
        totals: dict[str, UsedAmounts] = {
            name: dict.fromkeys(quota.hard, quota_usage.NOTHING) for name, quota in quotas.items()
        }
        pledged = self._pledged.get(namespace, {})
        names = {key for quota in quotas.values() for key in quota.hard}
        for storage, served in self._registry.storages().items():
            resource = served.kind.resource
            if not resource.namespaced or not _counted(resource.plural, resource.qualified, names):
                continue
            entries = self._state.list(storage, namespace).entries
            self._counted += len(entries)
            for entry in entries:
                obj = bodies.decode_stored(entry.raw)
                self._charge(totals, quotas, served, obj, now)
        for uid, (until, served, obj) in list(pledged.items()):
            if until < now:
                del pledged[uid]
            else:
                self._charge(totals, quotas, served, obj, now)
        for name, quota in quotas.items():
            quota.used = totals[name]

    def _charge(
        self,
        totals: dict[str, UsedAmounts],
        quotas: Mapping[str, Quota],
        served: Served,
        obj: Obj,
        now: float,
    ) -> None:
        resource = served.kind.resource
        wanted = quota_usage.used_by(resource, obj, now=now)
        for name, quota in quotas.items():
            if quota_usage.concerns(quota.spec, resource, obj):
                quota_usage.add(totals[name], wanted, quota.hard)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_SECONDS + GATHER_PER_OBJECT * self._counted)
            self._wake.clear()
            self._counted = 0
            due, self._due = self._due, set()
            for namespace in sorted(due):
                try:
                    self._count(namespace)
                except Exception:
                    _log.exception("a namespace could not be counted", namespace=namespace)
                    continue
                self.counted(namespace, self._quotas.get(namespace, {}))
                if self._pledged.get(namespace):
                    asyncio.get_running_loop().call_later(PLEDGE_SECONDS, self._soon, namespace)

    def recount(self) -> None:
        """Recount every namespace."""
        for namespace in self._quotas:
            self._soon(namespace)


def _more(wanted: UsedAmounts, before: UsedAmounts, hard: Mapping[str, Quantity]) -> UsedAmounts:
    """What is used more than before, of what a quota counts."""
    found: UsedAmounts = {}
    for name in hard:
        if name in wanted:
            more = wanted[name].value - before.get(name, quota_usage.NOTHING).value
            if more > 0:
                found[name] = Quantity(more, wanted[name].family)
    return found


def _counted(plural: str, qualified: str, names: set[str]) -> bool:
    """Whether any of the names is about objects of a kind."""
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
