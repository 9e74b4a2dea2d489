"""Deleting objects: at once, after a grace period, or when the last finalizer is removed.

A deletion is a request. It marks the object (deletionTimestamp) where another component has to
finish first: a kubelet during the grace period, an owner of a finalizer, the garbage collector
where dependents are deleted first or orphaned. Otherwise the object is deleted at once. Grace can
be shortened by another request, never lengthened.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from zonewise.api import field_errors
from zonewise.api.values import times
from zonewise.embedded.apiserver.admission.admission import Admission, Attributes
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.conversion.versions import with_conversions
from zonewise.embedded.apiserver.handlers.update_checks import is_released, set_or_remove
from zonewise.embedded.apiserver.handlers.writing import ATTEMPTS, ConcurrentWrite, Writer
from zonewise.embedded.apiserver.registry import ServedKind
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import Call
from zonewise.embedded.apiserver.store.collection import Matches
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.state import State

Obj = dict[str, Any]

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
NAMESPACES = "/namespaces"
SELF_MARKED = frozenset({NAMESPACES, "apiextensions.k8s.io/customresourcedefinitions"})
"""Kinds whose strategies mark deletion: no grace period, no new generation."""
NOT_COLLECTED = frozenset({NAMESPACES, "/events"})
"""Kinds whose dependents the garbage collector never waits for."""
_MAX_GRACE_SECONDS = 100 * 365 * 24 * 3600
"""The longest grace period; the year of a date has four digits."""
POLICIES = ("Foreground", "Background", "Orphan")


OPTION_CLASSES = {
    "gracePeriodSeconds": int,
    "propagationPolicy": str,
    "orphanDependents": bool,
    "preconditions": dict,
    "dryRun": list,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """A client's options for a deletion."""

    grace: int | None = None
    policy: str = ""
    uid: str = ""
    version: str = ""
    dry_run: bool = False
    raw: Obj


@dataclass(frozen=True, slots=True)
class DeleteOutcome:
    """The object's last entry; ``is_deleted`` is False if it is only marked."""

    entry: Entry
    is_deleted: bool


def read_options(call: Call) -> DeleteOptions:
    """The options in the body or, if that is empty, in the URL; never both."""
    return parse_options(bodies.read_options(call) if call.body.strip() else _query_options(call))


def parse_options(raw: Obj) -> DeleteOptions:
    """Parsed options; invalid ones are refused."""
    for key, option_class in OPTION_CLASSES.items():
        if raw.get(key) is not None and type(raw[key]) is not option_class:
            raise status_errors.bad_request(
                f"DeleteOptions.{key} is of type {option_class.__name__},"
                f" not {type(raw[key]).__name__}"
            )
    grace = raw.get("gracePeriodSeconds")
    policy = raw.get("propagationPolicy") or ""
    orphan = raw.get("orphanDependents")
    errors = []
    if policy and orphan is not None:
        text = "orphanDependents and deletionPropagation cannot be both set"
        errors.append(field_errors.invalid("propagationPolicy", policy, text))
    if policy and policy not in POLICIES:
        errors.append(field_errors.unsupported("propagationPolicy", policy, (*POLICIES, "nil")))
    dry_run = raw.get("dryRun") or []
    if any(value != "All" for value in dry_run):
        errors.append(field_errors.unsupported("dryRun", dry_run, ("All",)))
    if errors:
        raise status_errors.invalid_options("DeleteOptions", errors)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    conditions = raw.get("preconditions") or {}
    return DeleteOptions(
        grace=grace,
        policy=policy,
        uid=conditions.get("uid") or "",
        version=conditions.get("resourceVersion") or "",
        dry_run=bool(dry_run),
        raw=raw,
    )


def _query_options(call: Call) -> Obj:
    raw: Obj = {}
    if "gracePeriodSeconds" in call.query:
        raw["gracePeriodSeconds"] = call.number("gracePeriodSeconds")
    if "propagationPolicy" in call.query:
        raw["propagationPolicy"] = call.query["propagationPolicy"]
    if "orphanDependents" in call.query:
        raw["orphanDependents"] = call.flag("orphanDependents")
    if call.dry_run:
        raw["dryRun"] = ["All"]
    return raw


class Deleter:
    """Deletes objects of any kind."""

    def __init__(self, *, state: State, admission: Admission, writer: Writer) -> None:
        self._state = state
        self._admission = admission
        self._writer = writer

    async def delete(
        self,
        call: Call,
        served: ServedKind,
        namespace: str,
        name: str,
        options: DeleteOptions,
        *,
        is_named: bool = True,
        is_admitted: bool = False,
    ) -> DeleteOutcome:
        """Delete one object, or mark it.

        ``is_named``: the request names the object, rather than deleting many. ``is_admitted``:
        admission already ran, for the request that led to this deletion.
        """
        entry = self._state.latest(served.storage, namespace, name)
        if entry is None:
            raise status_errors.not_found(served.kind.resource, name)
        old = await self._read(served, entry)
        self.check_preconditions(served, name, old, options)
        attributes = Attributes(
            operation="DELETE",
            served=served,
            namespace=namespace,
            name=name if is_named else "",
            obj=None,
            old=old,
            user=call.user,
            dry_run=options.dry_run,
            options=options.raw,
            warnings=call.warnings,
        )
        if not is_admitted:
            await self._admission.mutate(attributes)
            await self._admission.validate(attributes)
        for attempt in range(ATTEMPTS):
            entry = self._state.latest(served.storage, namespace, name)
            if entry is None:
                raise status_errors.not_found(served.kind.resource, name)
            old = await self._read(served, entry)
            self.check_preconditions(served, name, old, options)
            try:
                return await self._delete(call, served, entry, old, options)
            except ConcurrentWrite:
                if attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _read(self, served: ServedKind, entry: Entry) -> Obj:
        return await with_conversions(lambda: bodies.read_stored(served, entry))

    def candidates(
        self, served: ServedKind, namespace: str, matches: Matches | None
    ) -> list[Entry]:
        """The objects that a deletion of many selects."""
        return self._state.list(served.storage, namespace, matches=matches).entries

    async def _delete(
        self, call: Call, served: ServedKind, entry: Entry, old: Obj, options: DeleteOptions
    ) -> DeleteOutcome:
        context = self._writer.context(call)
        obj = bodies.copy(old)
        meta = obj["metadata"]
        graceful = served.rules.graceful
        grace = served.rules.grace(obj, options.grace, context) if graceful else 0
        if not meta.get("deletionTimestamp"):
            served.rules.on_mark(obj, context)
        self._set_finalizers(served, meta, options)
        if not graceful and not meta.get("finalizers") and not served.rules.is_retained(obj):
            return DeleteOutcome(await self._write(served, entry, obj, "DELETED", options), True)
        deletion_time = meta.get("deletionTimestamp")
        if not deletion_time or (
            graceful and grace < (meta.get("deletionGracePeriodSeconds") or 0)
        ):
            end = times.parse(context.now) + dt.timedelta(seconds=min(grace, _MAX_GRACE_SECONDS))
            meta["deletionTimestamp"] = times.format_time(end)
            if served.storage not in SELF_MARKED:
                meta["deletionGracePeriodSeconds"] = grace
                if not deletion_time and "generation" in meta:
                    meta["generation"] += 1
        if obj != old:
            entry = await self._write(served, entry, obj, "MODIFIED", options)
        if not is_released(served, obj):
            return DeleteOutcome(entry, False)
        return DeleteOutcome(await self._write(served, entry, obj, "DELETED", options), True)

    async def _write(
        self,
        served: ServedKind,
        entry: Entry,
        obj: Obj,
        event_type: WatchEventType,
        options: DeleteOptions,
    ) -> Entry:
        return await self._writer.commit(served, entry, event_type, obj, dry_run=options.dry_run)

    def _set_finalizers(self, served: ServedKind, meta: Obj, options: DeleteOptions) -> None:
        if served.storage in NOT_COLLECTED:
            return
        policy = options.policy or served.rules.default_policy
        finalizer = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(policy, "")
        current = meta.get("finalizers") or []
        if not options.policy and (ORPHAN in current or FOREGROUND in current):
            return  # the policy of an earlier request stays
        updated = [
            name for name in current if name not in {ORPHAN, FOREGROUND} or name == finalizer
        ]
        if finalizer and finalizer not in updated:
            updated.append(finalizer)
        set_or_remove(meta, "finalizers", updated)

    def check_preconditions(
        self, served: ServedKind, name: str, old: Obj, options: DeleteOptions
    ) -> None:
        """Refuse if the object does not meet the preconditions."""
        meta = old["metadata"]
        for field, expected, actual in (
            ("UID", options.uid, meta["uid"]),
            ("ResourceVersion", options.version, meta["resourceVersion"]),
        ):
            if not expected or expected == actual:
                continue
            if served.storage in SELF_MARKED:
                raise status_errors.conflict(
                    served.kind.resource,
                    name,
                    f"Precondition failed: {field} in precondition: {expected},"
                    f" {field} in object meta: {actual}",
                )
            raise status_errors.precondition_failed(
                served.kind.resource, name, field, expected, actual
            )
