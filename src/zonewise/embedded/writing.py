"""Creating and changing objects.

Every write runs the same way: what the client means (a whole object, a patch, an applied
configuration) becomes a new object; defaults, mutating admission, the server's own fields,
validation and validating admission follow; then field ownership is brought up to date and the
result is committed if it differs from what is stored.

Nothing between reading the latest version and handing the new one to the state waits, unless a
webhook has to be asked. Only then can another writer come between; so after webhooks the latest
version is compared again. A patch or an apply without a resourceVersion then starts over, a PUT is
refused as a conflict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zonewise.api import faults
from zonewise.api.errors import ApiError, Conflict, StatusCause
from zonewise.api.gates import FeatureGates
from zonewise.api.managed import with_times_kept
from zonewise.embedded import bodies, metadata, ownership, refusals
from zonewise.embedded.admission import BODY, Admission, Attributes, Face
from zonewise.embedded.call import Call
from zonewise.embedded.committer import Overloaded
from zonewise.embedded.entry import Entry, EventType
from zonewise.embedded.log import WriteFailed
from zonewise.embedded.paths import Target
from zonewise.embedded.registry import Registry, Served
from zonewise.embedded.rules.base import Scene
from zonewise.embedded.state import Overtaken, State

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


STATUS_TOO = frozenset({"approval", "binding"})
"""Subresources besides ``status`` that change the status."""


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

    def scene(self, call: Call, subresource: str = "") -> Scene:
        """What rules may know during this call."""
        return Scene(
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
        """An object as it is now, for those who only look."""
        entry = self._state.latest(storage, namespace, name)
        return bodies.decode_stored(entry.raw) if entry else None

    async def create(
        self, call: Call, served: Served, target: Target, obj: Obj, *, own: bool = True
    ) -> Written:
        """Store a new object; ``own`` as in ``change``."""
        meta = obj.setdefault("metadata", {})
        self._check_place(served, target, meta)
        scene = self.scene(call)
        base = meta.get("generateName", "")
        generated = bool(base) and not meta.get("name")
        for attempt in range(GENERATED_NAME_TRIES):
            if generated:
                meta.pop("name", None)  # webhooks see it without one; so does the next attempt
            try:
                return await self._create(call, served, target.namespace, obj, scene, own)
            except ApiError as error:
                if not generated or error.reason != "AlreadyExists":
                    raise
                if attempt == GENERATED_NAME_TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    async def _create(
        self, call: Call, served: Served, namespace: str, obj: Obj, scene: Scene, own: bool
    ) -> Written:
        bodies.fill_defaults(served, obj)
        meta = obj["metadata"]
        if own:
            ownership.updated(served, obj, None, manager=bodies.manager(call), now=scene.now)
        attributes = Attributes(
            operation="CREATE",
            served=served,
            namespace=namespace,
            name=meta.get("name", ""),
            obj=obj,
            old=None,
            user=call.user,
            dry_run=scene.dry_run,
            options=call.query,
            warnings=call.warnings,
        )
        if await self._admission.mutate(attributes):
            assert attributes.obj is not None
            obj = attributes.obj
            bodies.fill_defaults(served, obj)
            meta = obj["metadata"]
            if served.kind.resource.namespaced and meta.get("namespace") != namespace:
                raise refusals.elsewhere()
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = metadata.generated_name(meta["generateName"], self._choose)
        attributes.name = meta.get("name", "")
        if "status" in served.kind.subresources and not served.rules.takes_status:
            obj.pop("status", None)
        versioned = bool(meta.get("resourceVersion"))
        metadata.begin(
            obj,
            namespace=namespace if served.kind.resource.namespaced else "",
            uid=self._new_uid(),
            now=scene.now,
            generation=served.rules.generation,
        )
        served.rules.prepare_create(obj, scene)
        bodies.fill_defaults(served, obj)
        found = metadata.object_faults(
            obj,
            namespaced=served.kind.resource.namespaced,
            check_name=served.rules.name_faults,
            custom=served.custom,
        )
        found += bodies.schema_faults(served, obj, None)
        found += served.rules.validate_create(obj, scene)
        if found:
            raise faults.refusal(served.kind.resource, meta.get("name", ""), found)
        served.rules.warn(obj, None, scene)
        await self._admission.validate(attributes)
        name = meta["name"]
        if versioned:
            raise refusals.plain_failure(refusals.VERSION_OF_NEW)
        if self._state.latest(served.storage, namespace, name) is not None:
            raise refusals.already_exists(served.kind.resource, name)
        self._allocate(served, obj, None, scene)
        try:
            return Written(await self._add(served, namespace, name, obj, scene.dry_run), True)
        except ApiError:
            served.rules.settled(namespace, name, None)
            raise

    async def change(
        self,
        call: Call,
        served: Served,
        target: Target,
        change: Change,
        *,
        subresource: str = "",
        again: bool = True,
        own: bool = True,
        face: Face | None = None,
        admitted: bool = False,
    ) -> Written:
        """Change an object that is there.

        ``again``: start over when another writer was quicker. ``own``: the change did not already
        say who owns which field. ``face``: what admission is to see instead of the object.
        ``admitted``: it was asked already, about what led to this change.
        """
        for attempt in range(TRIES):
            try:
                return await self._change(
                    call, served, target, change, subresource, own, face, admitted
                )
            except _Overtaken:
                if not again or attempt == TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    async def _change(
        self,
        call: Call,
        served: Served,
        target: Target,
        change: Change,
        subresource: str,
        own: bool,
        face: Face | None,
        admitted: bool,
    ) -> Written:
        namespace, name = target.namespace, target.name
        entry = self._state.latest(served.storage, namespace, name)
        if entry is None:
            raise refusals.not_found(served.kind.resource, name)
        scene = self.scene(call, subresource)
        old = bodies.read_stored(served, entry.raw)
        obj = change(bodies.read_stored(served, entry.raw))
        meta = obj["metadata"]
        self.check_identity(served, target, meta)
        self._check_version(served, name, meta, old["metadata"], call.method == "PUT")
        bodies.fill_defaults(served, obj, old)
        if own:
            ownership.updated(
                served,
                obj,
                old,
                manager=bodies.manager(call),
                now=scene.now,
                subresource=subresource,
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
            dry_run=scene.dry_run,
            options=call.query,
            warnings=call.warnings,
            face=face,
        )
        if not admitted and await self._admission.mutate(attributes):
            assert attributes.obj is not None
            obj = attributes.obj
            bodies.fill_defaults(served, obj)
            self._check_place(served, target, obj["metadata"])
            self._check_version(served, name, obj["metadata"], old["metadata"], False)
        self._prepare(served, obj, old, scene)
        found = self._faults(served, obj, old, scene)
        if found:
            raise faults.refusal(served.kind.resource, name, found)
        if not subresource:
            served.rules.warn(obj, old, scene)
        if not admitted:
            await self._admission.validate(attributes)
        if self._state.latest(served.storage, namespace, name) is not entry:
            raise _Overtaken(refusals.conflict(served.kind.resource, name).status)
        obj = with_times_kept(old, obj)
        if obj == old:
            return Written(entry)
        kind: EventType = "DELETED" if released(served, obj) else "MODIFIED"
        self._allocate(served, obj, old, scene)
        try:
            written = await self.commit(
                served,
                entry,
                kind,
                obj,
                dry_run=scene.dry_run,
                durable=not (scene.inside and served.storage in UNHURRIED),
            )
        except ApiError:
            served.rules.settled(namespace, name, old)
            raise
        if kind == "DELETED" and not scene.dry_run:
            # Who took the last finalizer away sees the object as it was last, at its last version.
            obj["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            return Written(Entry.of(bodies.encode(bodies.to_storage(served, obj)), entry.rv))
        return Written(written)

    async def admit(self, call: Call, served: Served, target: Target, body: Obj) -> Obj:
        """Ask admission about what is posted to a subresource; it may be another one then."""
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
            face=BODY,
        )
        await self._admission.mutate(attributes)
        await self._admission.validate(attributes)
        assert attributes.obj is not None
        return attributes.obj

    def _allocate(self, served: Served, obj: Obj, old: Obj | None, scene: Scene) -> None:
        found = served.rules.allocate(obj, old, scene)
        if found:
            raise faults.refusal(served.kind.resource, obj["metadata"]["name"], found)

    async def commit(
        self,
        served: Served,
        entry: Entry,
        kind: EventType,
        obj: Obj,
        *,
        dry_run: bool = False,
        durable: bool = True,
    ) -> Entry:
        """Store what became of ``entry``."""
        stored = bodies.to_storage(served, obj)
        if dry_run:
            return Entry.of(bodies.encode(stored), entry.rv)
        return await self._write(
            served, entry.namespace, entry.name, kind, stored, entry, durable=durable
        )

    async def _add(
        self, served: Served, namespace: str, name: str, obj: Obj, dry_run: bool
    ) -> Entry:
        stored = bodies.to_storage(served, obj)
        if dry_run:
            return Entry.of(bodies.encode(stored), 0)
        return await self._write(served, namespace, name, "ADDED", stored, None)

    async def _write(
        self,
        served: Served,
        namespace: str,
        name: str,
        kind: EventType,
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
                raise refusals.already_exists(served.kind.resource, name) from None
            raise _Overtaken(refusals.conflict(served.kind.resource, name).status) from None
        except Overloaded as error:
            raise refusals.too_many_requests(str(error)) from None
        except WriteFailed as error:
            raise refusals.unavailable(str(error)) from None

    def _check_place(self, served: Served, target: Target, meta: Obj) -> None:
        if not served.kind.resource.namespaced:
            meta.pop("namespace", None)
            return
        if not target.namespace:
            raise refusals.method_not_allowed()
        if meta.setdefault("namespace", target.namespace) != target.namespace:
            raise refusals.elsewhere()

    def check_identity(self, served: Served, target: Target, meta: Obj) -> None:
        """Refuse an object that names itself otherwise than the path does."""
        name = meta.setdefault("name", target.name)
        if name != target.name:
            raise refusals.bad_request(
                f"the name of the object ({name}) does not match the name on the URL"
                f" ({target.name})"
            )
        self._check_place(served, target, meta)

    def _check_version(self, served: Served, name: str, meta: Obj, before: Obj, put: bool) -> None:
        resource = served.kind.resource
        if put and meta.get("uid") and meta["uid"] != before["uid"]:
            raise refusals.conflict(
                resource,
                name,
                f"Precondition failed: UID in precondition: {meta['uid']},"
                f" UID in object meta: {before['uid']}",
            )
        version = meta.get("resourceVersion", "")
        if version in {"", "0"}:
            if put and not served.rules.blind_update:
                raise refusals.unversioned(resource, name)
        elif not version.isdigit():
            text = f'strconv.ParseUint: parsing "{version}": invalid syntax'
            raise refusals.plain_failure(text)
        elif version != before["resourceVersion"]:
            raise refusals.conflict(resource, name)
        meta["resourceVersion"] = before["resourceVersion"]

    def _prepare(self, served: Served, obj: Obj, old: Obj, scene: Scene) -> None:
        rules = served.rules
        metadata.carry(obj, old)
        if scene.subresource == "status":
            for key in obj.keys() - old.keys() - {"status"}:
                del obj[key]
            for key in old.keys() - {"metadata", "status"}:
                obj[key] = old[key]
            if served.custom or rules.status_keeps_metadata:
                managed = obj["metadata"].get("managedFields")
                obj["metadata"] = dict(old["metadata"])
                if managed is not None:
                    obj["metadata"]["managedFields"] = managed
            rules.prepare_status(obj, old, scene)
        else:
            if "status" in served.kind.subresources and scene.subresource not in STATUS_TOO:
                if "status" in old:
                    obj["status"] = old["status"]
                else:
                    obj.pop("status", None)
            rules.prepare_update(obj, old, scene)
        if (
            rules.generation
            and scene.subresource not in {"status", "binding"}
            and rules.changed(obj, old)
        ):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def _faults(self, served: Served, obj: Obj, old: Obj, scene: Scene) -> list[StatusCause]:
        found = metadata.update_faults(obj, old)
        found += metadata.object_faults(
            obj,
            namespaced=served.kind.resource.namespaced,
            check_name=_any_name,
            custom=served.custom,
        )
        found += bodies.schema_faults(served, obj, old)
        if scene.subresource == "status":
            return found + served.rules.validate_status(obj, old, scene)
        return found + served.rules.validate_update(obj, old, scene)


def _any_name(_: str) -> list[str]:
    """A name that was once good stays good."""
    return []


def released(served: Served, obj: Obj) -> bool:
    """Whether an object that is marked for deletion has nothing left to wait for."""
    meta = obj["metadata"]
    return (
        bool(meta.get("deletionTimestamp"))
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and not served.rules.held(obj)
    )


class _Overtaken(Conflict):
    """Another writer changed the object while this one waited for a webhook."""
