"""Server-side apply: a manager states the fields it cares about, the server does the rest.

The configuration is merged into the live object. Fields this manager applied before and does not
mention any more are removed, unless another manager owns them. A field that another manager owns
and that would get another value is a conflict: all conflicts are named in one refusal, or with
``force`` the field changes its owner. Setting the present value is no conflict, and makes a
co-owner. A manager that owns nothing any more is removed.

An object without managers before its first apply counts as written by ``before-first-apply``. The
manager ``kubectl`` may take over fields that its client-side predecessor recorded in the
last-applied annotation, and keeps that annotation up to date.

The result is not defaulted, and has a null where the last field of an unowned container was
removed: the caller treats it like a request's body.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import msgspec

from zonewise.api.errors import ApiError, BadRequest, Status, StatusCause, StatusDetails
from zonewise.embedded.machinery.fields.comparison import (
    Mistyped,
    compare,
    fields_of,
    same,
    with_named,
)
from zonewise.embedded.machinery.fields.fieldset import (
    FieldsV1,
    Path,
    difference,
    has,
    intersection,
    paths,
    text,
    union,
)
from zonewise.embedded.machinery.fields.managed_fields import (
    APPLY,
    STRIPPED,
    UPDATE,
    Managed,
    ManagedFieldsEntry,
    Manager,
    Obj,
    Owned,
    Write,
    bare,
    decode,
    encode,
    entries_of,
    lost,
    reconcile,
    updated,
    yielded,
)
from zonewise.embedded.machinery.fields.merging import check, merge, remove
from zonewise.embedded.machinery.schema.types import Type

BEFORE_FIRST_APPLY = "before-first-apply"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
ANNOTATIONS_LIMIT = 256 * 1024


class Applied(NamedTuple):
    """An apply's outcome: the object without managedFields, its managers, whether it changed.

    The object and its metadata are the caller's to change; what is below may be the live object's.
    """

    object: Obj
    managers: list[ManagedFieldsEntry]
    changed: bool


class _Clash(NamedTuple):
    manager: Manager
    path: Path


def applied(write: Write, live: Obj | None, config: Obj, *, force: bool = False) -> Applied:
    """The object after ``write.manager`` applies ``config`` to ``live`` (None: it creates it).

    Raises ``Conflict`` with a cause per field, ``BadRequest`` for a configuration with
    managedFields or of another version, ``Mistyped`` for one that its type cannot describe.
    """
    if config.get("apiVersion") != write.api_version:
        raise _bad_request(
            "Incorrect version specified in apply patch. Specified patch version: "
            f"{config.get('apiVersion')}, expected: {write.api_version}"
        )
    if entries_of(config) is not None:
        raise _bad_request("metadata.managedFields must be nil")
    start = live if live is not None else {name: config[name] for name in ("apiVersion", "kind")}
    managed = decode(entries_of(start) or [])
    if live is not None and not managed:
        before = replace(write, manager=BEFORE_FIRST_APPLY)
        managed = decode(updated(before, None, _unmanaged(live)))
    start = bare(start)
    try:
        check(write.type, config)
    except Mistyped as error:
        raise Mistyped(f"failed to create typed patch object ({_named(config)}): {error}") from None
    try:
        result, managed = _apply(write, start, config, managed, force)
    except _Clashes as clashes:
        if write.manager != "kubectl" or not _excused(write, start, clashes.found):
            raise _refusal(clashes.found) from None
        result, managed = _apply(write, start, config, managed, True)
    equal = result == start and (not write.custom or same(result, start))
    changed = live is None or not equal
    if changed and (mine := managed.get(write.as_manager(APPLY))) is not None:
        managed[write.as_manager(APPLY)] = Owned(mine.fields, mine.api_version, write.time)
    if write.manager == "kubectl":
        result = _annotated(result, config)
    result = {**result, "metadata": dict(result.get("metadata") or {})}
    return Applied(result, encode(managed), changed)


class _Clashes(Exception):
    def __init__(self, found: list[_Clash]) -> None:
        self.found = found


def _apply(
    write: Write, live: Obj, config: Obj, managed: Managed, force: bool
) -> tuple[Obj, Managed]:
    if write.custom:
        managed = reconcile(write, managed)
    me = write.as_manager(APPLY)
    last = managed.get(me)
    mine = write.reset.kept(fields_of(write.type, config, duplicates=False))
    managed = {**managed, me: Owned(mine, write.api_version, last.time if last else None)}
    merged = merge(write.type, live, config)
    result = _without_abandoned(write, merged, managed, last) if last else merged
    changes = write.difference(live, result)
    objects = (live, result)
    if not force:
        clashes = [
            _Clash(manager, path)
            for manager, owned in sorted(managed.items(), key=lambda item: item[0])
            if manager != me
            for path in paths(lost(write, owned, changes, objects))
        ]
        if clashes:
            raise _Clashes(clashes)
    managed = yielded(write, managed, changes, me, objects)
    mine = difference(mine, STRIPPED)
    if not mine:
        del managed[me]
    elif last is not None and last.fields == mine and last.api_version == write.api_version:
        managed[me] = last
    else:
        managed[me] = Owned(mine, write.api_version, last.time if last else None)
    return result, managed


def _without_abandoned(write: Write, merged: Obj, managed: Managed, last: Owned) -> Obj:
    """The merged object less what its applier owned, no longer applies, and no other manager owns.

    What is below an abandoned field without an owner of its own stays. All this is computed in the
    version the applier last applied in; if that is no longer served, nothing is removed.
    """
    if not last.fields:
        return merged
    views = write.views
    if last.api_version == write.api_version or views is None:
        return _pruned(write, write.type, write.api_version, merged, managed, last.fields)
    view = views(last.api_version)
    back = views(write.api_version)
    if view is None or back is None:
        return merged
    there = view.convert(merged)
    return back.convert(_pruned(write, view.type, last.api_version, there, managed, last.fields))


def _pruned(
    write: Write, kind: Type, version: str, merged: Obj, managed: Managed, last: FieldsV1
) -> Obj:
    last = with_named(kind, last)
    pruned = remove(kind, merged, last) or {}
    for owned_at in dict.fromkeys([version, *(one.api_version for one in managed.values())]):
        pruned = _with_owned(write, kind, version, merged, pruned, managed, owned_at)
    everything = with_named(kind, fields_of(kind, merged))
    gone = difference(everything, with_named(kind, fields_of(kind, pruned)))
    result: Obj = remove(kind, merged, intersection(gone, last)) or {}
    return result


def _with_owned(
    write: Write,
    kind: Type,
    version: str,
    merged: Obj,
    pruned: Obj,
    managed: Managed,
    at: str,
) -> Obj:
    """``pruned`` with what managers own at one version, converted to ``version``."""
    claimed: FieldsV1 = {}
    for owned in managed.values():
        if owned.api_version == at:
            claimed = union(claimed, owned.fields)
    here = at == version or write.views is None
    view = None if here or write.views is None else write.views(at)
    back = None if here or write.views is None else write.views(version)
    if not here and (view is None or back is None):
        return pruned
    if view is not None:
        kind, merged, pruned = view.type, view.convert(merged), view.convert(pruned)
    everything = with_named(kind, fields_of(kind, merged))
    kept = union(with_named(kind, fields_of(kind, pruned)), with_named(kind, claimed))
    made: Obj = remove(kind, merged, difference(everything, kept)) or {}
    return back.convert(made) if back is not None else made


def _named(config: Obj) -> str:
    metadata = config.get("metadata") or {}
    group, _, version = str(config["apiVersion"]).rpartition("/")
    where = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return f"{where}; {group}/{version}, Kind={config.get('kind', '')}"


def _unmanaged(value: Obj) -> Obj:
    metadata = value.get("metadata")
    if not isinstance(metadata, dict):
        return value
    return {**value, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}


def _excused(write: Write, live: Obj, clashes: list[_Clash]) -> bool:
    """Whether every conflict is about a field that client-side apply recorded as its own.

    Those that are excused are taken out of ``clashes``, so that a refusal names only the rest.
    """
    annotations = (live.get("metadata") or {}).get("annotations") or {}
    try:
        recorded = msgspec.json.decode(annotations.get(LAST_APPLIED) or "null")
        if not isinstance(recorded, dict) or recorded.get("apiVersion") != write.api_version:
            return False
        check(write.type, recorded)
        mine = fields_of(write.type, recorded)
        changes = compare(write.type, recorded, live, strict=write.custom)
    except (msgspec.DecodeError, Mistyped):
        return False
    for changed in changes:
        mine = difference(mine, changed)
    clashes[:] = [clash for clash in clashes if not has(mine, clash.path)]
    return not clashes


def _annotated(value: Obj, config: Obj) -> Obj:
    metadata = value.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return value
    recorded = {**config, "metadata": dict(config.get("metadata") or {})}
    if "annotations" in recorded["metadata"]:
        stated = recorded["metadata"]["annotations"] or {}
        rest = {name: text for name, text in stated.items() if name != LAST_APPLIED}
        recorded["metadata"]["annotations"] = rest
        if not rest:
            del recorded["metadata"]["annotations"]
    line = msgspec.json.encode(recorded, order="sorted").decode() + "\n"
    annotations = {**annotations, LAST_APPLIED: line}
    if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > ANNOTATIONS_LIMIT:
        del annotations[LAST_APPLIED]
    return {**value, "metadata": {**metadata, "annotations": annotations}}


def _refusal(clashes: list[_Clash]) -> ApiError:
    causes = tuple(
        StatusCause(
            reason="FieldManagerConflict",
            message=f"conflict with {_shown(clash.manager)}",
            field=text(clash.path),
        )
        for clash in clashes
    )
    if len(clashes) == 1:
        message = (
            "Apply failed with 1 conflict: "
            f"conflict with {_shown(clashes[0].manager)}: {text(clashes[0].path)}"
        )
    else:
        lines: list[str] = []
        for manager in dict.fromkeys(clash.manager for clash in clashes):
            lines.append(f"conflicts with {_shown(manager)}:")
            lines += [f"- {text(clash.path)}" for clash in clashes if clash.manager == manager]
        message = f"Apply failed with {len(clashes)} conflicts: " + "\n".join(lines)
    status = Status(
        status="Failure",
        message=message,
        reason="Conflict",
        details=StatusDetails(causes=causes),
        code=409,
    )
    return ApiError.from_status(409, status)


def _shown(manager: Manager) -> str:
    words = _quoted(manager.name)
    if manager.subresource:
        words += f" with subresource {_quoted(manager.subresource)}"
    if manager.operation == UPDATE:
        words += f" using {manager.api_version}"
    return words


def _quoted(word: str) -> str:
    return msgspec.json.encode(word).decode()


def _bad_request(message: str) -> BadRequest:
    return BadRequest(Status(status="Failure", message=message, reason="BadRequest", code=400))
