"""Server-side apply: a manager states the fields it wants to own, the server merges them.

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
    SchemaViolation,
    compare,
    equal_strictly,
    fields_of,
    with_named_members,
)
from zonewise.embedded.machinery.fields.fieldset import (
    FieldsV1,
    Path,
    contains,
    difference,
    format_path,
    intersection,
    paths,
    union,
)
from zonewise.embedded.machinery.fields.managed_fields import (
    APPLY,
    STRIPPED_FIELDS,
    UPDATE,
    ManagedFields,
    ManagedFieldsEntry,
    Manager,
    Obj,
    VersionedFields,
    Write,
    conflicting_fields,
    decode,
    encode,
    entries_of,
    reconcile_managers,
    remove_changed_fields,
    update_managed_fields,
    without_managed_fields,
)
from zonewise.embedded.machinery.fields.merging import merge, remove, validate
from zonewise.embedded.machinery.schema.schema import Schema

BEFORE_FIRST_APPLY = "before-first-apply"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
ANNOTATIONS_LIMIT = 256 * 1024


class ApplyResult(NamedTuple):
    """The object after an apply, without managedFields; its managers; whether it changed.

    The object and its metadata are the caller's to change; what is below may be the live object's.
    """

    object: Obj
    managers: list[ManagedFieldsEntry]
    changed: bool


class _Conflict(NamedTuple):
    manager: Manager
    path: Path


def apply(write: Write, live: Obj | None, config: Obj, *, force: bool = False) -> ApplyResult:
    """The object after ``write.manager`` applies ``config`` to ``live`` (None: it creates it).

    Raises ``Conflict`` with a cause per field, ``BadRequest`` for a configuration with
    managedFields or of another version, ``SchemaViolation`` for one that violates its schema.
    """
    if config.get("apiVersion") != write.api_version:
        raise _bad_request(
            "Incorrect version specified in apply patch. Specified patch version: "
            f"{config.get('apiVersion')}, expected: {write.api_version}"
        )
    if entries_of(config) is not None:
        raise _bad_request("metadata.managedFields must be nil")
    base = live if live is not None else {name: config[name] for name in ("apiVersion", "kind")}
    managed = decode(entries_of(base) or [])
    if live is not None and not managed:
        first_write = replace(write, manager=BEFORE_FIRST_APPLY)
        managed = decode(update_managed_fields(first_write, None, without_managed_fields(live)))
    base = without_managed_fields(base)
    try:
        validate(write.schema, config)
    except SchemaViolation as error:
        raise SchemaViolation(
            f"failed to create typed patch object ({_describe_object(config)}): {error}"
        ) from None
    try:
        result, managed = _apply(write, base, config, managed, force)
    except _Conflicts as raised:
        conflicts = raised.conflicts
        if write.manager == "kubectl":
            conflicts = _drop_client_side_conflicts(write, base, conflicts)
        if conflicts:
            raise _conflict_error(conflicts) from None
        result, managed = _apply(write, base, config, managed, True)
    equal = result == base and (not write.custom or equal_strictly(result, base))
    changed = live is None or not equal
    if changed and (owned := managed.get(write.as_manager(APPLY))) is not None:
        fields = VersionedFields(owned.fields, owned.api_version, write.time)
        managed[write.as_manager(APPLY)] = fields
    if write.manager == "kubectl":
        result = _update_last_applied(result, config)
    result = {**result, "metadata": dict(result.get("metadata") or {})}
    return ApplyResult(result, encode(managed), changed)


class _Conflicts(Exception):
    def __init__(self, conflicts: list[_Conflict]) -> None:
        self.conflicts = conflicts


def _apply(
    write: Write, live: Obj, config: Obj, managed: ManagedFields, force: bool
) -> tuple[Obj, ManagedFields]:
    if write.custom:
        managed = reconcile_managers(write, managed)
    manager = write.as_manager(APPLY)
    previous = managed.get(manager)
    fields = write.reset.filter(fields_of(write.schema, config, duplicates=False))
    managed = {
        **managed,
        manager: VersionedFields(fields, write.api_version, previous.time if previous else None),
    }
    merged = merge(write.schema, live, config)
    result = _prune_abandoned(write, merged, managed, previous) if previous else merged
    changes = write.difference(live, result)
    objects = (live, result)
    if not force:
        conflicts = [
            _Conflict(other, path)
            for other, owned in sorted(managed.items(), key=lambda item: item[0])
            if other != manager
            for path in paths(conflicting_fields(write, owned, changes, objects))
        ]
        if conflicts:
            raise _Conflicts(conflicts)
    managed = remove_changed_fields(write, managed, changes, manager, objects)
    fields = difference(fields, STRIPPED_FIELDS)
    if not fields:
        del managed[manager]
    elif (
        previous is not None
        and previous.fields == fields
        and previous.api_version == write.api_version
    ):
        managed[manager] = previous
    else:
        since = previous.time if previous else None
        managed[manager] = VersionedFields(fields, write.api_version, since)
    return result, managed


def _prune_abandoned(
    write: Write, merged: Obj, managed: ManagedFields, previous: VersionedFields
) -> Obj:
    """The merged object less what its applier owned, no longer applies, and no other manager owns.

    What is below an abandoned field without an owner of its own stays. All this is computed in the
    version the applier last applied in; if that is no longer served, nothing is removed.
    """
    if not previous.fields:
        return merged
    view_at = write.view_at
    if previous.api_version == write.api_version or view_at is None:
        version, owned = write.api_version, previous.fields
        return _prune_at_version(write, write.schema, version, merged, managed, owned)
    view = view_at(previous.api_version)
    back = view_at(write.api_version)
    if view is None or back is None:
        return merged
    converted = view.convert(merged)
    return back.convert(
        _prune_at_version(
            write, view.schema, previous.api_version, converted, managed, previous.fields
        )
    )


def _prune_at_version(
    write: Write,
    schema: Schema,
    version: str,
    merged: Obj,
    managed: ManagedFields,
    previous: FieldsV1,
) -> Obj:
    previous = with_named_members(schema, previous)
    pruned = remove(schema, merged, previous) or {}
    versions = [version, *(owned.api_version for owned in managed.values())]
    for owner_version in dict.fromkeys(versions):
        pruned = _add_back_owned(write, schema, version, merged, pruned, managed, owner_version)
    all_fields = with_named_members(schema, fields_of(schema, merged))
    removed = difference(all_fields, with_named_members(schema, fields_of(schema, pruned)))
    result: Obj = remove(schema, merged, intersection(removed, previous)) or {}
    return result


def _add_back_owned(
    write: Write,
    schema: Schema,
    version: str,
    merged: Obj,
    pruned: Obj,
    managed: ManagedFields,
    owner_version: str,
) -> Obj:
    """``pruned`` with what managers own at one version, converted to ``version``."""
    owned_fields: FieldsV1 = {}
    for owned in managed.values():
        if owned.api_version == owner_version:
            owned_fields = union(owned_fields, owned.fields)
    same_version = owner_version == version or write.view_at is None
    view = None if same_version or write.view_at is None else write.view_at(owner_version)
    back = None if same_version or write.view_at is None else write.view_at(version)
    if not same_version and (view is None or back is None):
        return pruned
    if view is not None:
        schema, merged, pruned = view.schema, view.convert(merged), view.convert(pruned)
    all_fields = with_named_members(schema, fields_of(schema, merged))
    remaining = union(
        with_named_members(schema, fields_of(schema, pruned)),
        with_named_members(schema, owned_fields),
    )
    restored: Obj = remove(schema, merged, difference(all_fields, remaining)) or {}
    return back.convert(restored) if back is not None else restored


def _describe_object(config: Obj) -> str:
    metadata = config.get("metadata") or {}
    group, _, version = str(config["apiVersion"]).rpartition("/")
    where = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    return f"{where}; {group}/{version}, Kind={config.get('kind', '')}"


def _drop_client_side_conflicts(
    write: Write, live: Obj, conflicts: list[_Conflict]
) -> list[_Conflict]:
    """The conflicts without those about fields that client-side apply recorded as its own."""
    annotations = (live.get("metadata") or {}).get("annotations") or {}
    try:
        recorded = msgspec.json.decode(annotations.get(LAST_APPLIED) or "null")
        if not isinstance(recorded, dict) or recorded.get("apiVersion") != write.api_version:
            return conflicts
        validate(write.schema, recorded)
        recorded_fields = fields_of(write.schema, recorded)
        changes = compare(write.schema, recorded, live, strict=write.custom)
    except (msgspec.DecodeError, SchemaViolation):
        return conflicts
    for changed in changes:
        recorded_fields = difference(recorded_fields, changed)
    return [conflict for conflict in conflicts if not contains(recorded_fields, conflict.path)]


def _update_last_applied(value: Obj, config: Obj) -> Obj:
    metadata = value.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return value
    recorded = {**config, "metadata": dict(config.get("metadata") or {})}
    if "annotations" in recorded["metadata"]:
        annotations_of_config = recorded["metadata"]["annotations"] or {}
        remaining = {
            name: text for name, text in annotations_of_config.items() if name != LAST_APPLIED
        }
        recorded["metadata"]["annotations"] = remaining
        if not remaining:
            del recorded["metadata"]["annotations"]
    line = msgspec.json.encode(recorded, order="sorted").decode() + "\n"
    annotations = {**annotations, LAST_APPLIED: line}
    if sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items()) > ANNOTATIONS_LIMIT:
        del annotations[LAST_APPLIED]
    return {**value, "metadata": {**metadata, "annotations": annotations}}


def _conflict_error(conflicts: list[_Conflict]) -> ApiError:
    causes = tuple(
        StatusCause(
            reason="FieldManagerConflict",
            message=f"conflict with {_describe_manager(conflict.manager)}",
            field=format_path(conflict.path),
        )
        for conflict in conflicts
    )
    if len(conflicts) == 1:
        message = f"Apply failed with 1 conflict: {causes[0].message}: {causes[0].field}"
    else:
        lines: list[str] = []
        for manager in dict.fromkeys(conflict.manager for conflict in conflicts):
            lines.append(f"conflicts with {_describe_manager(manager)}:")
            lines += [
                f"- {format_path(conflict.path)}"
                for conflict in conflicts
                if conflict.manager == manager
            ]
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    status = Status(
        status="Failure",
        message=message,
        reason="Conflict",
        details=StatusDetails(causes=causes),
        code=409,
    )
    return ApiError.from_status(409, status)


def _describe_manager(manager: Manager) -> str:
    description = _quote(manager.name)
    if manager.subresource:
        description += f" with subresource {_quote(manager.subresource)}"
    if manager.operation == UPDATE:
        description += f" using {manager.api_version}"
    return description


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _bad_request(message: str) -> BadRequest:
    return BadRequest(Status(status="Failure", message=message, reason="BadRequest", code=400))
