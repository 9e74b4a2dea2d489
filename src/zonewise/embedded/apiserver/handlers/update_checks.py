"""What an update may be: the same object, the version it was made from, only what it may change."""

from __future__ import annotations

from zonewise.api.errors import StatusCause
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.registry import Served
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Obj, StrategyContext

STATUS_TOO = frozenset({"approval", "binding"})
"""Subresources besides ``status`` that change the status."""


def check_namespace(served: Served, target: Target, meta: Obj) -> None:
    """Refuse an object that is in another namespace than the path."""
    if not served.kind.resource.namespaced:
        meta.pop("namespace", None)
        return
    if not target.namespace:
        raise status_errors.method_not_allowed()
    if meta.setdefault("namespace", target.namespace) != target.namespace:
        raise status_errors.elsewhere()


def check_identity(served: Served, target: Target, meta: Obj) -> None:
    """Refuse an object that names itself otherwise than the path does, or not at all."""
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


def check_version(served: Served, name: str, meta: Obj, before: Obj, put: bool) -> None:
    """Refuse an object that was made from another version or uid than the stored one."""
    resource = served.kind.resource
    if put and meta.get("uid") and meta["uid"] != before["uid"]:
        raise status_errors.conflict(
            resource,
            name,
            f"Precondition failed: UID in precondition: {meta['uid']},"
            f" UID in object meta: {before['uid']}",
        )
    version = meta.get("resourceVersion", "")
    if version in {"", "0"}:
        if put and not served.rules.blind_update:
            raise status_errors.unversioned(resource, name)
    elif not version.isdigit():
        text = f'strconv.ParseUint: parsing "{version}": invalid syntax'
        raise status_errors.plain_failure(text)
    elif version != before["resourceVersion"]:
        raise status_errors.conflict(resource, name)
    meta["resourceVersion"] = before["resourceVersion"]


def prepare(served: Served, obj: Obj, old: Obj, context: StrategyContext) -> None:
    """Keep what this write may not change, and count its generation."""
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
        if "status" in served.kind.subresources and context.subresource not in STATUS_TOO:
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


def update_faults(
    served: Served, obj: Obj, old: Obj, context: StrategyContext
) -> list[StatusCause]:
    """What is wrong with an object that replaces ``old``."""
    found = metadata.update_faults(obj, old)
    found += metadata.object_faults(
        obj,
        namespaced=served.kind.resource.namespaced,
        check_name=_any_name,
        custom=served.custom,
    )
    found += bodies.schema_faults(served, obj, old)
    if context.subresource == "status":
        return found + served.rules.validate_status(obj, old, context)
    return found + served.rules.validate_update(obj, old, context)


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
