"""Creating and changing objects.

Every write runs the same way: what the client means (a whole object, a patch, an applied
configuration) becomes a new object; defaults, mutating admission, the server's own fields,
validation and validating admission follow; then field ownership is brought up to date and the
result is committed if it differs from what is stored.

Nothing between reading the latest version and handing the new one to the state awaits, unless a
webhook has to be called. Only then can another write come between; so after webhooks the latest
version is compared again. A patch or an apply without a resourceVersion then starts over, a PUT is
refused as a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import ApiError, Conflict
from zonewise.api.gates import FeatureGates
from zonewise.api.values.numbers import natural
from zonewise.embedded.apiserver.admission.admission import (
    BODY,
    Admission,
    Attributes,
    SubresourceView,
)
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.conversion.versions import settled
from zonewise.embedded.apiserver.handlers import ownership, update_checks
from zonewise.embedded.apiserver.registry import Registry, Served
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import Call
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.committer import Overloaded
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.log import WriteFailed
from zonewise.embedded.apiserver.store.state import Overtaken, State
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import StrategyContext
from zonewise.embedded.machinery.fields.managed_fields import with_times_kept

Obj = dict[str, Any]
Change = Callable[[Obj], Obj]
"""From the object as it is (a copy of its own) to the object as it shall be."""

TRIES = 5
UNHURRIED = frozenset({"coordination.k8s.io/leases"})
"""Kinds whose updates, made inside this process, may be seen before they are on the disk."""
GENERATED_NAME_TRIES = 8


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a write: an entry (not stored, if it was a dry run) and whether it is new."""

    entry: Entry
    created: bool = False


class Writer:
    """Creates and changes objects of any kind."""

    def __init__(
        self,
        *,
        registry: Registry,
        state: State,
        admission: Admission,
        gates: FeatureGates,
        now: Callable[[], str],
        new_uid: Callable[[], str],
        choose: Callable[[str], str],
    ) -> None:
        self._registry = registry
        self._state = state
        self._admission = admission
        self._gates = gates
        self._now = now
        self._new_uid = new_uid
        self._choose = choose

    def context(self, call: Call, subresource: str = "") -> StrategyContext:
        """The context of this call for the rules."""
        return StrategyContext(
            user=call.user,
            now=self._now(),
            gates=self._gates,
            subresource=subresource,
            look=self.look,
            dry_run=call.dry_run,
            inside=call.inside,
            warnings=call.warnings,
        )

    def look(self, storage: str, namespace: str, name: str) -> Obj | None:
        """An object as it is now, for reading only."""
        entry = self._state.latest(storage, namespace, name)
        return bodies.decode_stored(entry.raw) if entry else None

    async def create(
        self, call: Call, served: Served, target: Target, obj: Obj, *, own: bool = True
    ) -> Written:
        """Store a new object; ``own`` as in ``change``."""
        meta = obj.setdefault("metadata", {})
        update_checks.check_namespace(served, target, meta)
        _take_owners_once(call, meta)
        context = self.context(call)
        base = meta.get("generateName", "")
        generated = bool(base) and not meta.get("name")
        for attempt in range(GENERATED_NAME_TRIES):
            if generated:
                meta.pop("name", None)  # webhooks see it without one; so does the next attempt
            try:
                return await self._create(call, served, target.namespace, obj, context, own)
            except ApiError as error:
                if not generated or error.reason != "AlreadyExists":
                    raise
                if attempt == GENERATED_NAME_TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    async def _create(
        self,
        call: Call,
        served: Served,
        namespace: str,
        obj: Obj,
        context: StrategyContext,
        own: bool,
    ) -> Written:
        bodies.fill_defaults(served, obj)
        meta = obj["metadata"]
        if own:
            fresh = obj
            await settled(
                lambda: ownership.updated(
                    served, fresh, None, manager=bodies.manager(call), now=context.now
                )
            )
        attributes = Attributes(
            operation="CREATE",
            served=served,
            namespace=namespace,
            name=meta.get("name", ""),
            obj=obj,
            old=None,
            user=call.user,
            dry_run=context.dry_run,
            options=call.query,
            warnings=call.warnings,
        )
        if await self._admission.mutate(attributes):
            assert attributes.obj is not None
            obj = attributes.obj
            bodies.fill_defaults(served, obj)
            meta = obj["metadata"]
            if served.kind.resource.namespaced and meta.get("namespace") != namespace:
                raise status_errors.elsewhere()
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = metadata.generated_name(meta["generateName"], self._choose)
        attributes.name = meta.get("name", "")
        if "status" in served.kind.subresources and not served.rules.takes_status:
            obj.pop("status", None)
        claimed = str(meta.get("resourceVersion") or "")
        metadata.begin(
            obj,
            namespace=namespace if served.kind.resource.namespaced else "",
            uid=self._new_uid(),
            now=context.now,
            generation=served.rules.generation,
        )
        served.rules.prepare_create(obj, context)
        bodies.fill_defaults(served, obj)
        found = metadata.object_faults(
            obj,
            namespaced=served.kind.resource.namespaced,
            check_name=served.rules.name_faults,
            custom=served.custom,
        )
        found += bodies.schema_faults(served, obj, None)
        found += served.rules.validate_create(obj, context)
        if found:
            raise field_errors.refusal(served.kind.resource, meta.get("name", ""), found)
        served.rules.warn(obj, None, context)
        await self._admission.validate(attributes)
        name = meta["name"]
        if context.dry_run and claimed:
            meta["resourceVersion"] = claimed  # it is neither read nor removed
        elif natural(claimed):
            raise status_errors.plain_failure(status_errors.VERSION_OF_NEW)
        if self._state.latest(served.storage, namespace, name) is not None:
            raise status_errors.already_exists(served.kind.resource, name)
        self._allocate(served, obj, None, context)
        try:
            return Written(await self._add(served, namespace, name, obj, context.dry_run), True)
        except ApiError:
            served.rules.settled(namespace, name, None)
            raise

    async def change(
        self,
        call: Call,
        served: Served,
        target: Target,
        change: Change | Obj,
        *,
        subresource: str = "",
        again: bool = True,
        own: bool = True,
        view: SubresourceView | None = None,
        admitted: bool = False,
    ) -> Written:
        """Change an existing object, or replace it.

        ``again``: start over when another writer was faster. ``own``: the change did not already
        set the field owners. ``view``: what admission gets instead of the object. ``admitted``:
        admission already ran, for the request that led to this change.
        """
        for attempt in range(TRIES):
            try:
                return await self._change(
                    call, served, target, change, subresource, own, view, admitted
                )
            except OvertakenWrite:
                if not again or attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    async def _change(
        self,
        call: Call,
        served: Served,
        target: Target,
        change: Change | Obj,
        subresource: str,
        own: bool,
        view: SubresourceView | None,
        admitted: bool,
    ) -> Written:
        namespace, name = target.namespace, target.name
        entry = self._state.latest(served.storage, namespace, name)
        if entry is None:
            raise status_errors.not_found(served.kind.resource, name)
        context = self.context(call, subresource)
        old = await settled(lambda: bodies.read_stored(served, entry))
        if isinstance(change, dict):
            obj = change
        else:
            obj = await settled(lambda: change(bodies.read_stored(served, entry)))
        meta = obj["metadata"]
        update_checks.check_identity(served, target, meta)
        update_checks.check_version(served, name, meta, old["metadata"], call.method == "PUT")
        _take_owners_once(call, meta)
        bodies.fill_defaults(served, obj, old)
        if own:
            await settled(
                lambda: ownership.updated(
                    served,
                    obj,
                    old,
                    manager=bodies.manager(call),
                    now=context.now,
                    subresource=subresource,
                )
            )
        attributes = Attributes(
            operation="UPDATE",
            served=served,
            namespace=namespace,
            name=name,
            subresource=subresource,
            obj=obj,
            old=old,
            user=call.user,
            dry_run=context.dry_run,
            options=call.query,
            warnings=call.warnings,
            view=view,
        )
        if not admitted and await self._admission.mutate(attributes):
            assert attributes.obj is not None
            obj = attributes.obj
            bodies.fill_defaults(served, obj)
            update_checks.check_namespace(served, target, obj["metadata"])
            update_checks.check_version(served, name, obj["metadata"], old["metadata"], False)
        update_checks.prepare(served, obj, old, context)
        found = update_checks.update_faults(served, obj, old, context)
        if found:
            raise field_errors.refusal(served.kind.resource, name, found)
        if not subresource:
            served.rules.warn(obj, old, context)
        if not admitted:
            await self._admission.validate(attributes)
        if self._state.latest(served.storage, namespace, name) is not entry:
            raise OvertakenWrite(status_errors.conflict(served.kind.resource, name).status)
        obj = with_times_kept(old, obj)
        if await self._unchanged(served, entry, obj, old):
            return Written(entry)
        kind: WatchEventType = "DELETED" if update_checks.released(served, obj) else "MODIFIED"
        self._allocate(served, obj, old, context)
        try:
            written = await self.commit(
                served,
                entry,
                kind,
                obj,
                dry_run=context.dry_run,
                durable=not (context.inside and served.storage in UNHURRIED),
            )
        except ApiError:
            served.rules.settled(namespace, name, old)
            raise
        if kind == "DELETED" and not context.dry_run:
            # The client that removed the last finalizer gets the object's last state and version.
            obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            if served.versions is None:
                obj = await bodies.to_storage(served, obj)
            return Written(Entry.of(bodies.encode(obj), entry.rv))
        return Written(written)

    async def _unchanged(self, served: Served, entry: Entry, obj: Obj, old: Obj) -> bool:
        """Whether a write would store what is stored: in the version of today, not an older one.

        Only where a webhook converts may equal objects of one version differ in the stored one.
        """
        versions = served.versions
        if versions is None:
            return obj == old
        if versions.asks and not served.stored:
            stored = await bodies.to_storage(served, obj)
            return stored == bodies.decode_stored(entry.raw)
        return obj == old and versions.is_current(entry)

    async def admit(self, call: Call, served: Served, target: Target, body: Obj) -> Obj:
        """Run admission on what is posted to a subresource; it may change it."""
        meta = dict(body.get("metadata") or {})
        meta.setdefault("namespace", target.namespace)
        below = served.kind.subresources[target.subresource]
        version = f"{below.group}/{below.version}" if below.group else below.version
        attributes = Attributes(
            operation="CREATE",
            served=served,
            namespace=target.namespace,
            name=target.name,
            subresource=target.subresource,
            obj={"kind": below.kind, "apiVersion": version} | body | {"metadata": meta},
            old=None,
            user=call.user,
            dry_run=call.dry_run,
            options=call.query,
            warnings=call.warnings,
            view=BODY,
        )
        await self._admission.mutate(attributes)
        await self._admission.validate(attributes)
        assert attributes.obj is not None
        return attributes.obj

    def _allocate(
        self, served: Served, obj: Obj, old: Obj | None, context: StrategyContext
    ) -> None:
        found = served.rules.allocate(obj, old, context)
        if found:
            raise field_errors.refusal(served.kind.resource, obj["metadata"]["name"], found)

    async def commit(
        self,
        served: Served,
        entry: Entry,
        kind: WatchEventType,
        obj: Obj,
        *,
        dry_run: bool = False,
        durable: bool = True,
    ) -> Entry:
        """Store what became of ``entry``."""
        if kind == "DELETED" and served.versions is not None and served.versions.asks:
            stored = bodies.decode_stored(entry.raw)  # a deletion calls no conversion webhook
        else:
            stored = await bodies.to_storage(served, obj)
        if dry_run:
            return Entry.of(bodies.encode(stored), entry.rv)
        return await self._write(
            served, entry.namespace, entry.name, kind, stored, entry, durable=durable
        )

    async def _add(
        self, served: Served, namespace: str, name: str, obj: Obj, dry_run: bool
    ) -> Entry:
        stored = await bodies.to_storage(served, obj)
        if dry_run:
            return Entry.of(bodies.encode(stored), 0)
        return await self._write(served, namespace, name, "ADDED", stored, None)

    async def _write(
        self,
        served: Served,
        namespace: str,
        name: str,
        kind: WatchEventType,
        stored: Obj,
        expect: Entry | None,
        *,
        durable: bool = True,
    ) -> Entry:
        def build(version: int) -> bytes:
            stored["metadata"]["resourceVersion"] = str(version)
            return bodies.encode(stored)

        try:
            return await self._state.write(
                served.storage,
                namespace,
                name,
                kind,
                build,
                expect=expect,
                durable=durable,
            )
        except Overtaken:
            if expect is None:
                raise status_errors.already_exists(served.kind.resource, name) from None
            raise OvertakenWrite(
                status_errors.conflict(served.kind.resource, name).status
            ) from None
        except Overloaded as error:
            raise status_errors.too_many_requests(str(error)) from None
        except WriteFailed as error:
            raise status_errors.unavailable(str(error)) from None


class OvertakenWrite(Conflict):
    """Another writer changed the object while this one waited for a webhook."""


def _take_owners_once(call: Call, meta: Obj) -> None:
    """Take out owner references that are there twice, with a warning."""
    twice = metadata.owners_once(meta)
    if twice:
        when = " after mutating admission happens" if call.method == "PATCH" else ""
        call.warnings.append(
            f".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner"
            " references in 1.20+, and may reject such requests as early as 1.24; please fix your"
            f" requests; duplicate UID(s) observed: {', '.join(twice)}"
        )
