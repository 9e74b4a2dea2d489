"""Creating and changing objects.

Every write has the same steps: the request (an object, a patch, an applied configuration) becomes a
new object with defaults; field ownership is updated; mutating admission, the server's own fields,
validation and validating admission follow; addresses and ports are allocated; then the result is
committed if it differs from what is stored.

Nothing between reading the latest version and committing the new one awaits, unless a webhook has
to be called. Only then can another write come between; so after webhooks the latest version is
compared again. A patch or an apply without a resourceVersion then starts over, a PUT is refused as
a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import ApiError, Conflict
from zonewise.api.field_cursor import Field, FieldErrors
from zonewise.api.gates import FeatureGates
from zonewise.api.values.numbers import parse_natural
from zonewise.embedded.apiserver.admission.admission import (
    BODY_VIEW,
    Admission,
    Attributes,
    SubresourceView,
)
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.conversion.versions import with_conversions
from zonewise.embedded.apiserver.handlers import ownership, update_checks
from zonewise.embedded.apiserver.registry import Registry, ServedKind
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import Call
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.committer import Overloaded
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.log import WriteFailed
from zonewise.embedded.apiserver.store.state import State, WriteConflict
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import StrategyContext
from zonewise.embedded.machinery.fields.managed_fields import keep_unchanged_times

Obj = dict[str, Any]
Change = Callable[[Obj], Obj]
"""From a copy of the present object to the changed object."""

ATTEMPTS = 5
RELAXED_DURABILITY = frozenset({"coordination.k8s.io/leases"})
"""Kinds whose updates from this process may be visible before they are on the disk."""
GENERATED_NAME_ATTEMPTS = 8


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """The result of a write: an entry (not stored if it is a dry run) and whether it is new."""

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
        """The context of this call for strategies."""
        return StrategyContext(
            user=call.user,
            now=self._now(),
            gates=self._gates,
            subresource=subresource,
            get_object=self.get_object,
            dry_run=call.dry_run,
            inside=call.in_process,
            warnings=call.warnings,
        )

    def get_object(self, storage: str, namespace: str, name: str) -> Obj | None:
        """The present object, read-only."""
        entry = self._state.latest(storage, namespace, name)
        return bodies.decode_stored(entry.raw) if entry else None

    async def create(
        self, call: Call, served: ServedKind, target: Target, obj: Obj, *, set_owners: bool = True
    ) -> WriteOutcome:
        """Store a new object; ``set_owners`` as in ``change``."""
        meta = obj.setdefault("metadata", {})
        update_checks.check_namespace(served, target, meta)
        _drop_duplicate_owners(call, meta)
        context = self.context(call)
        base = meta.get("generateName", "")
        generated = bool(base) and not meta.get("name")
        for attempt in range(GENERATED_NAME_ATTEMPTS):
            if generated:
                meta.pop("name", None)  # webhooks get it without one, and so does the next attempt
            try:
                return await self._create(call, served, target.namespace, obj, context, set_owners)
            except ApiError as error:
                if not generated or error.reason != "AlreadyExists":
                    raise
                if attempt == GENERATED_NAME_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _create(
        self,
        call: Call,
        served: ServedKind,
        namespace: str,
        obj: Obj,
        context: StrategyContext,
        set_owners: bool,
    ) -> WriteOutcome:
        bodies.fill_defaults(served, obj)
        meta = obj["metadata"]
        if set_owners:
            fresh = obj
            await with_conversions(
                lambda: ownership.update_owners(
                    served, fresh, None, manager=bodies.field_manager(call), now=context.now
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
                raise status_errors.namespace_mismatch()
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = metadata.generated_name(meta["generateName"], self._choose)
        attributes.name = meta.get("name", "")
        if "status" in served.kind.subresources and not served.rules.takes_status:
            obj.pop("status", None)
        stated_version = str(meta.get("resourceVersion") or "")
        metadata.begin(
            obj,
            namespace=namespace if served.kind.resource.namespaced else "",
            uid=self._new_uid(),
            now=context.now,
            generation=served.rules.generation,
        )
        served.rules.prepare_create(obj, context)
        bodies.fill_defaults(served, obj)
        errors: FieldErrors = []
        root = Field(obj, errors)
        metadata.validate_object_meta(
            root["metadata"],
            namespaced=served.kind.resource.namespaced,
            find_name_errors=served.rules.name_errors,
            custom=served.custom,
        )
        errors += bodies.validate_custom(served, obj, None)
        served.rules.validate_create(root, context)
        if errors:
            raise field_errors.new_invalid(served.kind.resource, meta.get("name", ""), errors)
        served.rules.warn(obj, None, context)
        await self._admission.validate(attributes)
        name = meta["name"]
        if context.dry_run and stated_version:
            meta["resourceVersion"] = stated_version  # a real server neither checks nor removes it
        elif parse_natural(stated_version):
            raise status_errors.server_error(status_errors.VERSION_ON_CREATE)
        if self._state.latest(served.storage, namespace, name) is not None:
            raise status_errors.already_exists(served.kind.resource, name)
        self._allocate(served, obj, None, context)
        try:
            return WriteOutcome(
                await self._add(served, namespace, name, obj, context.dry_run), True
            )
        except ApiError:
            served.rules.settled(namespace, name, None)
            raise

    async def change(
        self,
        call: Call,
        served: ServedKind,
        target: Target,
        change: Change | Obj,
        *,
        subresource: str = "",
        retry: bool = True,
        set_owners: bool = True,
        view: SubresourceView | None = None,
        admitted: bool = False,
    ) -> WriteOutcome:
        """Change an existing object, or replace it.

        ``retry``: start over if another write came first. ``set_owners``: the change did not
        already set the field owners. ``view``: what admission gets instead of the object.
        ``admitted``: admission already ran, for the request that led to this change.
        """
        for attempt in range(ATTEMPTS):
            try:
                return await self._change(
                    call, served, target, change, subresource, set_owners, view, admitted
                )
            except ConcurrentWrite:
                if not retry or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _change(
        self,
        call: Call,
        served: ServedKind,
        target: Target,
        change: Change | Obj,
        subresource: str,
        set_owners: bool,
        view: SubresourceView | None,
        admitted: bool,
    ) -> WriteOutcome:
        namespace, name = target.namespace, target.name
        entry = self._state.latest(served.storage, namespace, name)
        if entry is None:
            raise status_errors.not_found(served.kind.resource, name)
        context = self.context(call, subresource)
        old = await with_conversions(lambda: bodies.read_stored(served, entry))
        if isinstance(change, dict):
            obj = change
        else:
            obj = await with_conversions(lambda: change(bodies.read_stored(served, entry)))
        meta = obj["metadata"]
        update_checks.check_identity(served, target, meta)
        update_checks.check_version(served, name, meta, old["metadata"], call.method == "PUT")
        _drop_duplicate_owners(call, meta)
        bodies.fill_defaults(served, obj, old)
        if set_owners:
            await with_conversions(
                lambda: ownership.update_owners(
                    served,
                    obj,
                    old,
                    manager=bodies.field_manager(call),
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
        update_checks.prepare_update(served, obj, old, context)
        errors = update_checks.validate_update(served, obj, old, context)
        if errors:
            raise field_errors.new_invalid(served.kind.resource, name, errors)
        if not subresource:
            served.rules.warn(obj, old, context)
        if not admitted:
            await self._admission.validate(attributes)
        if self._state.latest(served.storage, namespace, name) is not entry:
            raise ConcurrentWrite(status_errors.conflict(served.kind.resource, name).status)
        obj = keep_unchanged_times(old, obj)
        if await self._is_unchanged(served, entry, obj, old):
            return WriteOutcome(entry)
        event_type: WatchEventType = (
            "DELETED" if update_checks.is_released(served, obj) else "MODIFIED"
        )
        self._allocate(served, obj, old, context)
        try:
            written = await self.commit(
                served,
                entry,
                event_type,
                obj,
                dry_run=context.dry_run,
                durable=not (context.inside and served.storage in RELAXED_DURABILITY),
            )
        except ApiError:
            served.rules.settled(namespace, name, old)
            raise
        if event_type == "DELETED" and not context.dry_run:
            # The client that removed the last finalizer gets the object's last content and version.
            obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            if served.versions is None:
                obj = await bodies.to_storage(served, obj)
            return WriteOutcome(Entry.decode(bodies.encode(obj), entry.rv))
        return WriteOutcome(written)

    async def _is_unchanged(self, served: ServedKind, entry: Entry, obj: Obj, old: Obj) -> bool:
        """Whether a write would store what is stored already, in the present storage version.

        Only if a webhook converts may equal objects of one version differ in the stored one.
        """
        versions = served.versions
        if versions is None:
            return obj == old
        if versions.uses_webhook and not served.is_storage_version:
            stored = await bodies.to_storage(served, obj)
            return stored == bodies.decode_stored(entry.raw)
        return obj == old and versions.is_current(entry)

    async def admit(self, call: Call, served: ServedKind, target: Target, body: Obj) -> Obj:
        """Run admission on the body of a subresource; it may change it."""
        meta = dict(body.get("metadata") or {})
        meta.setdefault("namespace", target.namespace)
        subresource = served.kind.subresources[target.subresource]
        version = (
            f"{subresource.group}/{subresource.version}"
            if subresource.group
            else subresource.version
        )
        attributes = Attributes(
            operation="CREATE",
            served=served,
            namespace=target.namespace,
            name=target.name,
            subresource=target.subresource,
            obj={"kind": subresource.kind, "apiVersion": version} | body | {"metadata": meta},
            old=None,
            user=call.user,
            dry_run=call.dry_run,
            options=call.query,
            warnings=call.warnings,
            view=BODY_VIEW,
        )
        await self._admission.mutate(attributes)
        await self._admission.validate(attributes)
        assert attributes.obj is not None
        return attributes.obj

    def _allocate(
        self, served: ServedKind, obj: Obj, old: Obj | None, context: StrategyContext
    ) -> None:
        errors: FieldErrors = []
        served.rules.allocate(Field(obj, errors), old, context)
        if errors:
            raise field_errors.new_invalid(served.kind.resource, obj["metadata"]["name"], errors)

    async def commit(
        self,
        served: ServedKind,
        entry: Entry,
        event_type: WatchEventType,
        obj: Obj,
        *,
        dry_run: bool = False,
        durable: bool = True,
    ) -> Entry:
        """Store the new content of ``entry``, or its deletion."""
        if event_type == "DELETED" and served.versions is not None and served.versions.uses_webhook:
            stored = bodies.decode_stored(
                entry.raw
            )  # a deletion does not call the conversion webhook
        else:
            stored = await bodies.to_storage(served, obj)
        if dry_run:
            return Entry.decode(bodies.encode(stored), entry.rv)
        return await self._write_stored(
            served, entry.namespace, entry.name, event_type, stored, entry, durable=durable
        )

    async def _add(
        self, served: ServedKind, namespace: str, name: str, obj: Obj, dry_run: bool
    ) -> Entry:
        stored = await bodies.to_storage(served, obj)
        if dry_run:
            return Entry.decode(bodies.encode(stored), 0)
        return await self._write_stored(served, namespace, name, "ADDED", stored, None)

    async def _write_stored(
        self,
        served: ServedKind,
        namespace: str,
        name: str,
        event_type: WatchEventType,
        stored: Obj,
        expected: Entry | None,
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
                event_type,
                build,
                expected=expected,
                durable=durable,
                completed_by=bodies.completing_schema(served, stored),
            )
        except WriteConflict:
            if expected is None:
                raise status_errors.already_exists(served.kind.resource, name) from None
            raise ConcurrentWrite(
                status_errors.conflict(served.kind.resource, name).status
            ) from None
        except Overloaded as error:
            raise status_errors.too_many_requests(str(error)) from None
        except WriteFailed as error:
            raise status_errors.unavailable(str(error)) from None


class ConcurrentWrite(Conflict):
    """Another write came between, while this one waited for a webhook."""


def _drop_duplicate_owners(call: Call, meta: Obj) -> None:
    """Drop duplicate owner references, with a warning."""
    duplicates = metadata.owners_once(meta)
    if duplicates:
        suffix = " after mutating admission happens" if call.method == "PATCH" else ""
        call.warnings.append(
            f".metadata.ownerReferences contains duplicate entries{suffix}; API server dedups owner"
            " references in 1.20+, and may reject such requests as early as 1.24; please fix your"
            f" requests; duplicate UID(s) observed: {', '.join(duplicates)}"
        )
