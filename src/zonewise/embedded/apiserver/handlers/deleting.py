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
from zonewise.embedded.apiserver.conversion.versions import settled
from zonewise.embedded.apiserver.handlers.update_checks import released
from zonewise.embedded.apiserver.handlers.writing import TRIES, OvertakenWrite, Writer
from zonewise.embedded.apiserver.registry import Served
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
"""Kinds whose deletion is marked by rules of their own: no grace period, no new generation."""
UNCOLLECTED = frozenset({NAMESPACES, "/events"})
"""Kinds whose dependents the garbage collector never waits for."""
_LONGEST = 100 * 365 * 24 * 3600
"""The longest grace period; a date has four digits for its year."""
POLICIES = ("Foreground", "Background", "Orphan")


SHAPES = {
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
class Deleted:
    """``entry`` as it was last; ``gone`` says whether it no longer exists."""

    entry: Entry
    gone: bool


def read_options(call: Call) -> DeleteOptions:
    """Options of the body or, where there is no body, of the URL; never of both."""
    return options_of(bodies.read_options(call) if call.body.strip() else _asked(call))


def options_of(raw: Obj) -> DeleteOptions:
    """Options in a form that can be worked with; impossible ones are refused."""
    for key, shape in SHAPES.items():
        if raw.get(key) is not None and type(raw[key]) is not shape:
            raise status_errors.bad_request(
                f"DeleteOptions.{key} is of type {shape.__name__}, not {type(raw[key]).__name__}"
            )
    grace = raw.get("gracePeriodSeconds")
    policy = raw.get("propagationPolicy") or ""
    orphan = raw.get("orphanDependents")
    found = []
    if policy and orphan is not None:
        text = "orphanDependents and deletionPropagation cannot be both set"
        found.append(field_errors.invalid("propagationPolicy", policy, text))
    if policy and policy not in POLICIES:
        found.append(field_errors.unsupported("propagationPolicy", policy, (*POLICIES, "nil")))
    dry = raw.get("dryRun") or []
    if any(one != "All" for one in dry):
        found.append(field_errors.unsupported("dryRun", dry, ("All",)))
    if found:
        raise status_errors.invalid_options("DeleteOptions", found)
    if orphan is not None:
        policy = "Orphan" if orphan else "Background"
    conditions = raw.get("preconditions") or {}
    return DeleteOptions(
        grace=grace,
        policy=policy,
        uid=conditions.get("uid") or "",
        version=conditions.get("resourceVersion") or "",
        dry_run=bool(dry),
        raw=raw,
    )


def _asked(call: Call) -> Obj:
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
        served: Served,
        namespace: str,
        name: str,
        options: DeleteOptions,
        *,
        named: bool = True,
        admitted: bool = False,
    ) -> Deleted:
        """Delete one object, or mark it.

        ``named``: the request names it, rather than being about many. ``admitted``: admission
        already ran, for the request that led to this deletion.
        """
        entry = self._state.latest(served.storage, namespace, name)
        if entry is None:
            raise status_errors.not_found(served.kind.resource, name)
        old = await self._read(served, entry)
        self.check(served, name, old, options)
        attributes = Attributes(
            operation="DELETE",
            served=served,
            namespace=namespace,
            name=name if named else "",
            obj=None,
            old=old,
            user=call.user,
            dry_run=options.dry_run,
            options=options.raw,
            warnings=call.warnings,
        )
        if not admitted:
            await self._admission.mutate(attributes)
            await self._admission.validate(attributes)
        for attempt in range(TRIES):
            entry = self._state.latest(served.storage, namespace, name)
            if entry is None:
                raise status_errors.not_found(served.kind.resource, name)
            old = await self._read(served, entry)
            self.check(served, name, old, options)
            try:
                return await self._delete(call, served, entry, old, options)
            except OvertakenWrite:
                if attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    async def _read(self, served: Served, entry: Entry) -> Obj:
        return await settled(lambda: bodies.read_stored(served, entry))

    def candidates(self, served: Served, namespace: str, matches: Matches | None) -> list[Entry]:
        """What a deletion of many is about."""
        return self._state.list(served.storage, namespace, matches=matches).entries

    async def _delete(
        self, call: Call, served: Served, entry: Entry, old: Obj, options: DeleteOptions
    ) -> Deleted:
        context = self._writer.context(call)
        obj = bodies.copied(old)
        meta = obj["metadata"]
        graceful = served.rules.graceful
        grace = served.rules.grace(obj, options.grace, context) if graceful else 0
        if not meta.get("deletionTimestamp"):
            served.rules.on_mark(obj, context)
        self._finalizers(served, meta, options)
        if not graceful and not meta.get("finalizers") and not served.rules.held(obj):
            return Deleted(await self._write(served, entry, obj, "DELETED", options), True)
        marked = meta.get("deletionTimestamp")
        if not marked or (graceful and grace < (meta.get("deletionGracePeriodSeconds") or 0)):
            end = times.parse(context.now) + dt.timedelta(seconds=min(grace, _LONGEST))
            meta["deletionTimestamp"] = times.format_time(end)
            if served.storage not in SELF_MARKED:
                meta["deletionGracePeriodSeconds"] = grace
                if not marked and "generation" in meta:
                    meta["generation"] += 1
        if obj != old:
            entry = await self._write(served, entry, obj, "MODIFIED", options)
        if not released(served, obj):
            return Deleted(entry, False)
        return Deleted(await self._write(served, entry, obj, "DELETED", options), True)

    async def _write(
        self, served: Served, entry: Entry, obj: Obj, kind: WatchEventType, options: DeleteOptions
    ) -> Entry:
        return await self._writer.commit(served, entry, kind, obj, dry_run=options.dry_run)

    def _finalizers(self, served: Served, meta: Obj, options: DeleteOptions) -> None:
        if served.storage in UNCOLLECTED:
            return
        policy = options.policy or served.rules.default_policy
        wanted = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(policy, "")
        have = meta.get("finalizers") or []
        if not options.policy and (ORPHAN in have or FOREGROUND in have):
            return  # an earlier request holds until another is made
        new = [name for name in have if name not in {ORPHAN, FOREGROUND} or name == wanted]
        if wanted and wanted not in new:
            new.append(wanted)
        if new:
            meta["finalizers"] = new
        else:
            meta.pop("finalizers", None)

    def check(self, served: Served, name: str, old: Obj, options: DeleteOptions) -> None:
        """Refuse where the object is not the one that was meant."""
        meta = old["metadata"]
        for what, wanted, have in (
            ("UID", options.uid, meta["uid"]),
            ("ResourceVersion", options.version, meta["resourceVersion"]),
        ):
            if not wanted or wanted == have:
                continue
            if served.storage in SELF_MARKED:
                raise status_errors.conflict(
                    served.kind.resource,
                    name,
                    f"Precondition failed: {what} in precondition: {wanted},"
                    f" {what} in object meta: {have}",
                )
            raise status_errors.not_meant(served.kind.resource, name, what, wanted, have)
