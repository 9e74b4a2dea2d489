"""Field ownership: the upkeep of ``metadata.managedFields`` for ordinary writes.

A create, update or patch makes its manager the owner of what it added or changed, and takes the
same fields from all other managers; what it removed has no owner. An entry is identified by
manager, operation, apiVersion (updates only) and subresource. Entries are in a fixed order (applies
first, then by time and name), at most ten are of updates: beyond that the oldest are united.

Every write pays for this, so entries that a write does not touch are passed on as the very dicts
they were read as: the cost is that of comparing two objects
(``embedded.machinery.fields.comparison``) and of a few small sets, not of the number of fields that
are owned.

What a client sends as managedFields is accepted only where the real server accepts it: through the
main resource, when it is well-formed. An empty list or ``[{}]`` removes all managers; an object
without managers gets none by ordinary writes, only by apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec

from zonewise.api.errors import ParseError
from zonewise.embedded.machinery.fields.comparison import (
    Comparison,
    Mistyped,
    compare,
    reconciled,
    same,
)
from zonewise.embedded.machinery.fields.fieldset import (
    FieldsV1,
    canonical,
    difference,
    intersection,
    of_paths,
    ordered,
    union,
)
from zonewise.embedded.machinery.fields.reset_fields import NOTHING, Reset
from zonewise.embedded.machinery.schema.types import UNSET, Type

REMEMBERED = 64
REMEMBERED_SIZE = 16 * 1024
MANAGER_LIMIT = 10
MANAGER_NAME_LIMIT = 128
ANCIENT = "ancient-changes"
UPDATE, APPLY = "Update", "Apply"

Obj: TypeAlias = dict[str, Any]
ManagedFieldsEntry: TypeAlias = dict[str, Any]

STRIPPED = of_paths(
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


class Owned(NamedTuple):
    """What an entry says; ``entry`` is the dict it was read from, while nothing of it changed."""

    fields: FieldsV1
    api_version: str
    time: str | None
    entry: ManagedFieldsEntry | None = None


class VersionView(NamedTuple):
    """How an object reads at another version."""

    type: Type
    convert: Callable[[Obj], Obj]


Managed: TypeAlias = dict[Manager, Owned]
Views: TypeAlias = Callable[[str], VersionView | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write: its manager, operation and time.

    ``views`` gives the object at another apiVersion that some entry was made at, or None if that
    version is no longer served (such entries are dropped); without it all versions read the same.
    """

    type: Type
    api_version: str
    manager: str
    time: str
    subresource: str = ""
    reset: Reset = NOTHING
    views: Views | None = None
    custom: bool = False

    def as_manager(self, operation: str) -> Manager:
        """This writer as an entry's identity."""
        version = self.api_version if operation == UPDATE else ""
        return Manager(self.manager or "unknown", operation, version, self.subresource)

    def difference(self, old: Obj, new: Obj) -> Comparison:
        """What the write changes within its reach."""
        return self.reset.kept_of(compare(self.type, bare(old), bare(new), strict=self.custom))


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


def updated(write: Write, live: Obj | None, new: Obj) -> list[ManagedFieldsEntry]:
    """The managedFields of ``new`` after it replaces ``live`` (None on create).

    ``new`` is the object before admission and before the fields that the write cannot reach are
    put back. What its type cannot describe has no owners.
    """
    managed = _believed(write, live, new)
    if live is not None and not managed:
        return []
    base = live if live is not None else {} if write.custom else blank(write.type)
    try:
        if write.custom:
            managed = reconcile(write, managed)
        if live is None and not write.custom:
            changes = _of_new(write, base, new)
        else:
            changes = write.difference(base, new)
        managed = yielded(write, managed, changes, None, (base, new))
    except Mistyped:
        return []
    mine = difference(union(changes.modified, changes.added), STRIPPED)
    if mine:
        manager = write.as_manager(UPDATE)
        before = managed.get(manager)
        fields = union(before.fields, mine) if before is not None else mine
        # The real server translates owners between an object and its scale, and loses the time.
        time = None if write.subresource == "scale" else write.time
        managed[manager] = Owned(fields, write.api_version, time)
    return encode(capped(managed))


def _of_new(write: Write, base: Obj, new: Obj) -> Comparison:
    """What a new object adds to nothing at all.

    Objects of one template are the same but for their metadata, so what the rest adds is cached by
    its text; the trees are shared, which is safe, as they are never changed.
    """
    rest = {name: value for name, value in new.items() if name != "metadata"}
    text = _encode(rest)
    if len(text) > REMEMBERED_SIZE:
        return write.difference(base, new)
    known: dict[bytes, Comparison] = write.type.memo.setdefault("new", {})
    found = known.get(text)
    if found is None:
        empty = {name: value for name, value in base.items() if name != "metadata"}
        found = compare(write.type, empty, rest)
        if len(known) >= REMEMBERED:
            known.clear()
        known[text] = found
    about = [
        {"metadata": value["metadata"]} if "metadata" in value else {}
        for value in map(bare, (base, new))
    ]
    levels = zip(found, compare(write.type, *about), strict=True)
    return write.reset.kept_of(Comparison(*[ordered({**mine, **meta}) for mine, meta in levels]))


def blank(kind: Type) -> Obj:
    """An object of a built-in kind with nothing set, as the real server's own types print it.

    What is in there is not added by the creator of an object.
    """
    made: Obj | None = kind.memo.get("blank")
    if made is None:
        made = kind.memo["blank"] = {
            name: blank(child) if child.printed == {} else child.printed
            for name, child in kind.fields.items()
            if child.printed is not UNSET
        }
    return made


def bare(value: Obj) -> Obj:
    """The object without its managedFields, which have no owner."""
    metadata = value.get("metadata")
    if not isinstance(metadata, dict) or "managedFields" not in metadata:
        return value
    rest = {name: sub for name, sub in metadata.items() if name != "managedFields"}
    return {**value, "metadata": rest}


def entries_of(value: Mapping[str, Any] | None) -> Any:
    """An object's managedFields, None where there are none."""
    metadata = value.get("metadata") if value is not None else None
    return metadata.get("managedFields") if isinstance(metadata, dict) else None


def _believed(write: Write, live: Obj | None, new: Obj) -> Managed:
    stored = entries_of(live)
    sent = entries_of(new)
    if not write.subresource and sent is not None and sent is not stored:
        if sent in ([], [{}]):
            return {}
        if sent != stored:
            try:
                if claimed := decode(sent, trusted=False):
                    return claimed
            except ParseError:
                pass
    try:
        return decode(stored or [])
    except ParseError:
        return {}


def decode(entries: Any, *, trusted: bool = True) -> Managed:
    """Entries by manager. Those of a client (``trusted=False``) are checked and put in order."""
    managed: Managed = {}
    if not isinstance(entries, list):
        raise ParseError("managedFields must be a list")
    for at, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ParseError(f"managed fields entry {at} must be an object")
        operation = entry.get("operation")
        if operation not in (UPDATE, APPLY):
            raise ParseError("operation must be `Apply` or `Update`")
        version = entry.get("apiVersion") or ""
        if not version:
            raise ParseError("apiVersion must not be empty")
        if entry.get("fieldsType") != "FieldsV1":
            what = "invalid" if entry.get("fieldsType") else "missing"
            raise ParseError(f"{what} fieldsType in managed fields entry {at}")
        fields = entry.get("fieldsV1") or {}
        if not trusted:
            fields = canonical(fields)
            words = [entry.get(name) for name in ("manager", "apiVersion", "time", "subresource")]
            if not all(word is None or isinstance(word, str) for word in words):
                raise ParseError(f"managed fields entry {at} must consist of text")
        manager = Manager(
            entry.get("manager") or "",
            operation,
            version if operation == UPDATE else "",
            entry.get("subresource") or "",
        )
        managed[manager] = Owned(fields, version, entry.get("time"), entry if trusted else None)
    return managed


def encode(managed: Managed) -> list[ManagedFieldsEntry]:
    """Entries in the order they are stored in."""
    order = sorted(managed.items(), key=_rank)
    return [owned.entry or _entry(manager, owned) for manager, owned in order]


def _rank(item: tuple[Manager, Owned]) -> tuple[str, str, str, str, str]:
    manager, owned = item
    return (
        manager.operation,
        owned.time or "",
        manager.name,
        owned.api_version,
        manager.subresource,
    )


def _entry(manager: Manager, owned: Owned) -> ManagedFieldsEntry:
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


def yielded(
    write: Write,
    managed: Managed,
    changes: Comparison,
    keep: Manager | None,
    objects: tuple[Obj, Obj],
) -> Managed:
    """The entries after a write took what it changed from all managers but ``keep``."""
    out: Managed = {}
    for manager, owned in managed.items():
        if manager == keep:
            out[manager] = owned
            continue
        seen = changes_at(write, owned.api_version, changes, objects)
        if seen is None:
            continue
        fields = difference(owned.fields, seen.modified)
        fields = difference(fields, seen.added)
        fields = difference(fields, seen.removed)
        if fields is owned.fields:
            out[manager] = owned
        elif fields:
            out[manager] = Owned(fields, owned.api_version, owned.time)
    return out


def lost(write: Write, owned: Owned, changes: Comparison, objects: tuple[Obj, Obj]) -> FieldsV1:
    """The fields of an entry that a write gives another value."""
    seen = changes_at(write, owned.api_version, changes, objects)
    if seen is None:
        return {}
    return intersection(owned.fields, union(seen.modified, seen.added))


def changes_at(
    write: Write, version: str, changes: Comparison, objects: tuple[Obj, Obj]
) -> Comparison | None:
    """The changes as an entry made at ``version`` sees them; None if it is not served."""
    if version == write.api_version or write.views is None:
        return changes
    view = write.views(version)
    if view is None:
        return None
    old, new = map(view.convert, objects)
    return write.reset.kept_of(compare(view.type, bare(old), bare(new), strict=write.custom))


def reconcile(write: Write, managed: Managed) -> Managed:
    """Entries as they read at the present schema of a custom resource."""
    out: Managed = {}
    for manager, owned in managed.items():
        kind: Type | None = write.type
        if owned.api_version != write.api_version and write.views is not None:
            view = write.views(owned.api_version)
            kind = view.type if view is not None else None
        fields = owned.fields if kind is None else reconciled(kind, owned.fields)
        if fields is owned.fields:
            out[manager] = owned
        else:
            out[manager] = Owned(fields, owned.api_version, owned.time)
    return out


def capped(managed: Managed) -> Managed:
    """At most ten entries of updates: the oldest of one version become one."""
    updaters = [item for item in managed.items() if item[0].operation == UPDATE]
    surplus = len(updaters) - MANAGER_LIMIT
    if surplus <= 0:
        return managed
    updaters.sort(key=lambda item: (item[1].time or "", item[0]))
    out = dict(managed)
    first: dict[str, Manager] = {}
    for manager, owned in updaters:
        if surplus <= 0:
            break
        version = owned.api_version
        if version not in first:
            first[version] = manager
            continue
        bucket = Manager(ANCIENT, UPDATE, version, "")
        if bucket not in out:
            out[bucket] = out.pop(first[version])
        fields = union(owned.fields, out[bucket].fields)
        out.pop(manager, None)
        out[bucket] = Owned(fields, version, owned.time)
        surplus -= 1
    return out


def with_times_kept(old: Obj, new: Obj) -> Obj:
    """``new``, with the times of ``old``'s entries if nothing but times differs."""
    before, after = entries_of(old), entries_of(new)
    if not before or not after or len(before) != len(after) or before == after:
        return new
    if any(_timeless(a) != _timeless(b) for a, b in zip(before, after, strict=True)):
        return new
    if not same(bare(old), bare(new)):
        return new
    return {**new, "metadata": {**new["metadata"], "managedFields": before}}


def _timeless(entry: ManagedFieldsEntry) -> ManagedFieldsEntry:
    return {name: value for name, value in entry.items() if name != "time"}
