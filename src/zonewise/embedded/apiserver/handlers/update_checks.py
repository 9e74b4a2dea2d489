"""Checks of an update: the same object, the present version, only fields it may change."""

from __future__ import annotations

from typing import Any

from zonewise.api.field_cursor import Field, FieldErrors
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.registry import ServedKind
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Obj, StrategyContext

STATUS_CHANGING = frozenset({"approval", "binding"})
"""Subresources besides ``status`` that change the status."""


def check_namespace(served: ServedKind, target: Target, meta: Obj) -> None:
    """Refuse an object that is in another namespace than the path."""
    if not served.kind.resource.namespaced:
        meta.pop("namespace", None)
        return
    if not target.namespace:
        raise status_errors.method_not_allowed()
    if meta.setdefault("namespace", target.namespace) != target.namespace:
        raise status_errors.namespace_mismatch()


def check_identity(served: ServedKind, target: Target, meta: Obj) -> None:
    """Refuse an object with another name or namespace than the path, or without a name."""
    name = meta.get("name")
    if not name:
        raise status_errors.bad_request(
            f"the name of the object ({target.name} based on URL) was undeterminable:"
            " name must be provided"
        )
    if name != target.name:
        raise status_errors.bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )
    check_namespace(served, target, meta)


def check_version(served: ServedKind, name: str, meta: Obj, old_meta: Obj, put: bool) -> None:
    """Refuse an object with another resourceVersion or uid than the stored one."""
    resource = served.kind.resource
    if put and meta.get("uid") and meta["uid"] != old_meta["uid"]:
        raise status_errors.conflict(
            resource,
            name,
            f"Precondition failed: UID in precondition: {meta['uid']},"
            f" UID in object meta: {old_meta['uid']}",
        )
    version = meta.get("resourceVersion", "")
    if version in {"", "0"}:
        if put and not served.rules.blind_update:
            raise status_errors.missing_version(resource, name)
    elif not version.isdigit():
        text = f'strconv.ParseUint: parsing "{version}": invalid syntax'
        raise status_errors.server_error(text)
    elif version != old_meta["resourceVersion"]:
        raise status_errors.conflict(resource, name)
    meta["resourceVersion"] = old_meta["resourceVersion"]


def prepare_update(served: ServedKind, obj: Obj, old: Obj, context: StrategyContext) -> None:
    """Restore what this write may not change, and increment the generation."""
    rules = served.rules
    metadata.carry(obj, old)
    if context.subresource == "status":
        for key in obj.keys() - old.keys() - {"status"}:
            del obj[key]
        for key in old.keys() - {"metadata", "status"}:
            obj[key] = old[key]
        if served.custom or rules.status_keeps_metadata:
            managed = obj["metadata"].get("managedFields")
            obj["metadata"] = dict(old["metadata"])
            if managed is not None:
                obj["metadata"]["managedFields"] = managed
        rules.prepare_status(obj, old, context)
    else:
        if "status" in served.kind.subresources and context.subresource not in STATUS_CHANGING:
            if "status" in old:
                obj["status"] = old["status"]
            else:
                obj.pop("status", None)
        rules.prepare_update(obj, old, context)
    if (
        rules.generation
        and context.subresource not in {"status", "binding"}
        and rules.changed(obj, old)
    ):
        obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1


def validate_update(
    served: ServedKind, obj: Obj, old: Obj, context: StrategyContext
) -> FieldErrors:
    """The errors in an object that replaces ``old``."""
    errors: FieldErrors = []
    root = Field(obj, errors)
    meta = root["metadata"]
    metadata.validate_object_meta_update(meta, old["metadata"])
    metadata.validate_object_meta(
        meta,
        namespaced=served.kind.resource.namespaced,
        find_name_errors=_accept_any_name,
        custom=served.custom,
    )
    errors += bodies.validate_custom(served, obj, old)
    if context.subresource == "status":
        served.rules.validate_status(root, old, context)
    else:
        served.rules.validate_update(root, old, context)
    return errors


def _accept_any_name(_: str) -> list[str]:
    """A name that was once valid stays valid."""
    return []


def set_or_remove(meta: Obj, key: str, values: list[Any]) -> None:
    """Set a list in metadata, or remove it if it is empty."""
    if values:
        meta[key] = values
    else:
        meta.pop(key, None)


def is_released(served: ServedKind, obj: Obj) -> bool:
    """Whether an object that is being deleted has nothing left to wait for."""
    meta = obj["metadata"]
    return (
        bool(meta.get("deletionTimestamp"))
        and not meta.get("finalizers")
        and not meta.get("deletionGracePeriodSeconds")
        and not served.rules.is_retained(obj)
    )
