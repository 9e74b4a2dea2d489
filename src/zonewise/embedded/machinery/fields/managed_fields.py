"""Field ownership: ``metadata.managedFields`` after ordinary writes.

A create, update or patch makes its manager the owner of what it added or changed, and takes the
same fields from all other managers; what it removed has no owner. An entry is identified by
manager, operation, apiVersion (updates only) and subresource. Entries are in a fixed order (applies
first, then by time and name), at most ten are of updates: beyond that the oldest are united.

Every write does this, so entries that a write does not touch are passed on as the dicts they were
read as: the cost is that of comparing two objects (``embedded.machinery.fields.comparison``) and of
a few small sets, whatever the number of owned fields.

What a client sends as managedFields is accepted only where the real server accepts it: through the
main resource, when it is well-formed. An empty list or ``[{}]`` removes all managers; an object
without managers gets new ones only by apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec

from zonewise.api.errors import ParseError
from zonewise.embedded.machinery.fields.comparison import (
    Comparison,
    SchemaViolation,
    compare,
    equal_strictly,
    reconcile_with_schema,
)
from zonewise.embedded.machinery.fields.fieldset import (
    FieldsV1,
    canonicalize,
    difference,
    from_paths,
    intersection,
    sort_level,
    union,
)
from zonewise.embedded.machinery.fields.reset_fields import RESET_NOTHING, ResetFields
from zonewise.embedded.machinery.schema.schema import UNSET, Schema

CACHED_OBJECTS = 64
CACHED_OBJECT_SIZE = 16 * 1024
MANAGER_LIMIT = 10
MANAGER_NAME_LIMIT = 128
ANCIENT_CHANGES = "ancient-changes"
UPDATE, APPLY = "Update", "Apply"

Obj: TypeAlias = dict[str, Any]
ManagedFieldsEntry: TypeAlias = dict[str, Any]

STRIPPED_FIELDS = from_paths(
    [
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(
            ("f:metadata", f"f:{name}")
            for name in (
                "name",
                "namespace",
                "creationTimestamp",
                "selfLink",
                "uid",
                "clusterName",
                "generation",
                "managedFields",
                "resourceVersion",
            )
        ),
    ]
)


_encode = msgspec.json.Encoder().encode


class Manager(NamedTuple):
    """What distinguishes one entry from another."""

    name: str
    operation: str
    api_version: str  # empty for applies: an applier keeps its fields when it moves to a version
    subresource: str


class VersionedFields(NamedTuple):
    """The content of an entry; ``entry`` is the dict it was read from, None if it changed."""

    fields: FieldsV1
    api_version: str
    time: str | None
    entry: ManagedFieldsEntry | None = None


class VersionView(NamedTuple):
    """The schema of another version, and the conversion of objects to it."""

    schema: Schema
    convert: Callable[[Obj], Obj]


ManagedFields: TypeAlias = dict[Manager, VersionedFields]
ViewAtVersion: TypeAlias = Callable[[str], VersionView | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write: its manager, operation and time.

    ``view_at`` gives the view at the apiVersion of an entry, or None if that version is no longer
    served (such entries are dropped); without it all versions are the same.
    """

    schema: Schema
    api_version: str
    manager: str
    time: str
    subresource: str = ""
    reset: ResetFields = RESET_NOTHING
    view_at: ViewAtVersion | None = None
    custom: bool = False

    def as_manager(self, operation: str) -> Manager:
        """The identity of this writer's entry."""
        version = self.api_version if operation == UPDATE else ""
        return Manager(self.manager or "unknown", operation, version, self.subresource)

    def difference(self, old: Obj, new: Obj) -> Comparison:
        """What the write changes, without the fields it cannot change."""
        return self.reset.filter_comparison(
            compare(
                self.schema,
                without_managed_fields(old),
                without_managed_fields(new),
                strict=self.custom,
            )
        )


def manager_name(field_manager: str, user_agent: str) -> str:
    """The manager a request acts as: the one it names, else its User-Agent's first word."""
    if field_manager:
        return field_manager
    name = ""
    for character in user_agent.split("/", 1)[0]:
        if not character.isprintable():
            continue
        if len((name + character).encode()) > MANAGER_NAME_LIMIT:
            break
        name += character
    return name


def update_managed_fields(write: Write, live: Obj | None, new: Obj) -> list[ManagedFieldsEntry]:
    """The managedFields of ``new`` after it replaces ``live`` (None on create).

    ``new`` is the object before admission and before the fields that the write cannot change are
    reset. An object that violates its schema gets no owners.
    """
    managed = _initial_managers(write, live, new)
    if live is not None and not managed:
        return []
    base = live if live is not None else {} if write.custom else blank_object(write.schema)
    try:
        if write.custom:
            managed = reconcile_managers(write, managed)
        if live is None and not write.custom:
            changes = _compare_new(write, base, new)
        else:
            changes = write.difference(base, new)
        managed = remove_changed_fields(write, managed, changes, None, (base, new))
    except SchemaViolation:
        return []
    fields = difference(union(changes.modified, changes.added), STRIPPED_FIELDS)
    if fields:
        manager = write.as_manager(UPDATE)
        previous = managed.get(manager)
        all_fields = union(previous.fields, fields) if previous is not None else fields
        # The real server translates owners between an object and its scale, and loses the time.
        time = None if write.subresource == "scale" else write.time
        managed[manager] = VersionedFields(all_fields, write.api_version, time)
    return encode(cap_update_managers(managed))


def _compare_new(write: Write, base: Obj, new: Obj) -> Comparison:
    """What a new object adds.

    Objects of one template differ only in their metadata, so what the rest adds is cached by its
    JSON; the trees are shared, which is safe, as they are never changed.
    """
    without_metadata = {name: value for name, value in new.items() if name != "metadata"}
    text = _encode(without_metadata)
    if len(text) > CACHED_OBJECT_SIZE:
        return write.difference(base, new)
    cache: dict[bytes, Comparison] = write.schema.memo.setdefault("new", {})
    comparison = cache.get(text)
    if comparison is None:
        empty = {name: value for name, value in base.items() if name != "metadata"}
        comparison = compare(write.schema, empty, without_metadata)
        if len(cache) >= CACHED_OBJECTS:
            cache.clear()
        cache[text] = comparison
    metadata = [
        {"metadata": value["metadata"]} if "metadata" in value else {}
        for value in map(without_managed_fields, (base, new))
    ]
    levels = zip(comparison, compare(write.schema, *metadata), strict=True)
    return write.reset.filter_comparison(
        Comparison(
            *[sort_level({**fields, **metadata_fields}) for fields, metadata_fields in levels]
        )
    )


def blank_object(schema: Schema) -> Obj:
    """An object of a built-in kind with nothing set, as the real server's Go types print it.

    What it has is not added by the creator of an object.
    """
    result: Obj | None = schema.memo.get("blank")
    if result is None:
        result = schema.memo["blank"] = {
            name: blank_object(child) if child.absent_value == {} else child.absent_value
            for name, child in schema.fields.items()
            if child.absent_value is not UNSET
        }
    return result


def without_managed_fields(value: Obj) -> Obj:
    """The object without its managedFields, which have no owner."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return value
    remaining = {name: sub for name, sub in metadata.items() if name != "managedFields"}
    return {**value, "metadata": remaining}


def entries_of(value: Mapping[str, Any] | None) -> Any:
    """An object's managedFields, None if it has none."""
    metadata = value.get("metadata") if value is not None else None
    return metadata.get("managedFields") if isinstance(metadata, dict) else None


def _initial_managers(write: Write, live: Obj | None, new: Obj) -> ManagedFields:
    stored = entries_of(live)
    sent = entries_of(new)
    if not write.subresource and sent is not None and sent is not stored:
        if sent in ([], [{}]):
            return {}
        if sent != stored:
            try:
                if managers := decode(sent, trusted=False):
                    return managers
            except ParseError:
                pass
    try:
        return decode(stored or [])
    except ParseError:
        return {}


def decode(entries: Any, *, trusted: bool = True) -> ManagedFields:
    """Entries by manager. Those of a client (``trusted=False``) are checked and put in order."""
    managed: ManagedFields = {}
    if not isinstance(entries, list):
        raise ParseError("managedFields must be a list")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ParseError(f"managed fields entry {index} must be an object")
        operation = entry.get("operation")
        if operation not in (UPDATE, APPLY):
            raise ParseError("operation must be `Apply` or `Update`")
        version = entry.get("apiVersion") or ""
        if not version:
            raise ParseError("apiVersion must not be empty")
        if entry.get("fieldsType") != "FieldsV1":
            problem = "invalid" if entry.get("fieldsType") else "missing"
            raise ParseError(f"{problem} fieldsType in managed fields entry {index}")
        fields = entry.get("fieldsV1") or {}
        if not trusted:
            fields = canonicalize(fields)
            texts = [entry.get(name) for name in ("manager", "apiVersion", "time", "subresource")]
            if not all(word is None or isinstance(word, str) for word in texts):
                raise ParseError(f"managed fields entry {index} must consist of text")
        manager = Manager(
            entry.get("manager") or "",
            operation,
            version if operation == UPDATE else "",
            entry.get("subresource") or "",
        )
        known = entry if trusted else None
        managed[manager] = VersionedFields(fields, version, entry.get("time"), known)
    return managed


def encode(managed: ManagedFields) -> list[ManagedFieldsEntry]:
    """Entries in the order they are stored in."""
    order = sorted(managed.items(), key=_rank)
    return [owned.entry or _entry(manager, owned) for manager, owned in order]


def _rank(item: tuple[Manager, VersionedFields]) -> tuple[str, str, str, str, str]:
    manager, owned = item
    who = manager.name, owned.api_version, manager.subresource
    return manager.operation, owned.time or "", *who


def _entry(manager: Manager, owned: VersionedFields) -> ManagedFieldsEntry:
    entry: ManagedFieldsEntry = {
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": owned.api_version,
    }
    if owned.time is not None:
        entry["time"] = owned.time
    entry["fieldsType"] = "FieldsV1"
    entry["fieldsV1"] = owned.fields
    if manager.subresource:
        entry["subresource"] = manager.subresource
    return entry


def remove_changed_fields(
    write: Write,
    managed: ManagedFields,
    changes: Comparison,
    keep: Manager | None,
    objects: tuple[Obj, Obj],
) -> ManagedFields:
    """The entries without what a write changed, except that of ``keep``."""
    result: ManagedFields = {}
    for manager, owned in managed.items():
        if manager == keep:
            result[manager] = owned
            continue
        changes_seen = changes_at(write, owned.api_version, changes, objects)
        if changes_seen is None:
            continue
        fields = difference(owned.fields, changes_seen.modified)
        fields = difference(fields, changes_seen.added)
        fields = difference(fields, changes_seen.removed)
        if fields is owned.fields:
            result[manager] = owned
        elif fields:
            result[manager] = VersionedFields(fields, owned.api_version, owned.time)
    return result


def conflicting_fields(
    write: Write, owned: VersionedFields, changes: Comparison, objects: tuple[Obj, Obj]
) -> FieldsV1:
    """The fields of an entry that a write changes or adds."""
    changes_seen = changes_at(write, owned.api_version, changes, objects)
    if changes_seen is None:
        return {}
    return intersection(owned.fields, union(changes_seen.modified, changes_seen.added))


def changes_at(
    write: Write, version: str, changes: Comparison, objects: tuple[Obj, Obj]
) -> Comparison | None:
    """The changes at the version of an entry; None if it is not served."""
    if version == write.api_version or write.view_at is None:
        return changes
    view = write.view_at(version)
    if view is None:
        return None
    old, new = map(view.convert, objects)
    return write.reset.filter_comparison(
        compare(
            view.schema,
            without_managed_fields(old),
            without_managed_fields(new),
            strict=write.custom,
        )
    )


def reconcile_managers(write: Write, managed: ManagedFields) -> ManagedFields:
    """Entries adapted to the present schema of a custom resource."""
    result: ManagedFields = {}
    for manager, owned in managed.items():
        schema: Schema | None = write.schema
        if owned.api_version != write.api_version and write.view_at is not None:
            view = write.view_at(owned.api_version)
            schema = view.schema if view is not None else None
        fields = owned.fields if schema is None else reconcile_with_schema(schema, owned.fields)
        if fields is owned.fields:
            result[manager] = owned
        else:
            result[manager] = VersionedFields(fields, owned.api_version, owned.time)
    return result


def cap_update_managers(managed: ManagedFields) -> ManagedFields:
    """At most ten entries of updates: the oldest of one version become one."""
    updaters = [item for item in managed.items() if item[0].operation == UPDATE]
    surplus = len(updaters) - MANAGER_LIMIT
    if surplus <= 0:
        return managed
    updaters.sort(key=lambda item: (item[1].time or "", item[0]))
    result = dict(managed)
    first_by_version: dict[str, Manager] = {}
    for manager, owned in updaters:
        if surplus <= 0:
            break
        version = owned.api_version
        if version not in first_by_version:
            first_by_version[version] = manager
            continue
        bucket = Manager(ANCIENT_CHANGES, UPDATE, version, "")
        if bucket not in result:
            result[bucket] = result.pop(first_by_version[version])
        fields = union(owned.fields, result[bucket].fields)
        result.pop(manager, None)
        result[bucket] = VersionedFields(fields, version, owned.time)
        surplus -= 1
    return result


def keep_unchanged_times(old: Obj, new: Obj) -> Obj:
    """``new``, with the times of ``old``'s entries if nothing but times differs."""
    old_entries, new_entries = entries_of(old), entries_of(new)
    if (
        not old_entries
        or not new_entries
        or len(old_entries) != len(new_entries)
        or old_entries == new_entries
    ):
        return new
    pairs = zip(old_entries, new_entries, strict=True)
    if any(_without_time(a) != _without_time(b) for a, b in pairs):
        return new
    if not equal_strictly(without_managed_fields(old), without_managed_fields(new)):
        return new
    return {**new, "metadata": {**new["metadata"], "managedFields": old_entries}}


def _without_time(entry: ManagedFieldsEntry) -> ManagedFieldsEntry:
    return {name: value for name, value in entry.items() if name != "time"}
