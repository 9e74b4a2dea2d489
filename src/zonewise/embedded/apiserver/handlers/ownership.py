"""Field ownership of ordinary writes and of applies, by the kind's schema."""

from __future__ import annotations

from typing import Any

from zonewise.embedded.apiserver.handlers.update_checks import set_or_remove
from zonewise.embedded.apiserver.registry import ServedKind
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.machinery.fields import apply, managed_fields
from zonewise.embedded.machinery.fields.comparison import SchemaViolation
from zonewise.embedded.machinery.fields.managed_fields import VersionView, ViewAtVersion, Write
from zonewise.embedded.machinery.fields.reset_fields import reset_fields_of

Obj = dict[str, Any]


def write_of(served: ServedKind, *, manager: str, now: str, subresource: str = "") -> Write:
    """The attributes of a write for field ownership."""
    resource = served.kind.resource
    return Write(
        schema=served.kind.schema,
        api_version=resource.api_version,
        manager=manager,
        time=now,
        subresource=subresource,
        reset=reset_fields_of(
            resource.group,
            resource.plural,
            subresource,
            has_status="status" in served.kind.subresources,
            custom=served.custom,
            replicas=served.rules.scale_paths[0],
        ),
        custom=served.custom,
        view_at=_view_at(served) if served.versions is not None else None,
    )


def _view_at(served: ServedKind) -> ViewAtVersion:
    """The views of an object in the other versions of its kind; may raise ``Unconverted``."""

    def view_at(api_version: str) -> VersionView | None:
        versions = served.versions
        kind = versions.kind_at(api_version) if versions is not None else None
        if versions is None or kind is None:
            return None
        return VersionView(kind.schema, lambda obj: versions.convert_cached(obj, api_version))

    return view_at


def update_owners(
    served: ServedKind, obj: Obj, old: Obj | None, *, manager: str, now: str, subresource: str = ""
) -> None:
    """Update managedFields of ``obj``, which replaces ``old``."""
    stated = obj
    if subresource == "scale" and not served.custom and not obj["spec"].get("replicas"):
        # A Scale omits a size of 0, so it has no owner.
        stated = {
            **obj,
            "spec": {key: obj["spec"][key] for key in obj["spec"] if key != "replicas"},
        }
    entries = managed_fields.update_managed_fields(
        write_of(served, manager=manager, now=now, subresource=subresource), old, stated
    )
    set_or_remove(obj["metadata"], "managedFields", entries)


def apply_configuration(
    served: ServedKind,
    config: Obj,
    old: Obj | None,
    *,
    manager: str,
    now: str,
    force: bool,
    subresource: str = "",
) -> Obj:
    """The object after ``manager`` applied ``config``, with its managedFields."""
    try:
        result = apply.apply(
            write_of(served, manager=manager, now=now, subresource=subresource),
            old,
            config,
            force=force,
        )
    except SchemaViolation as error:
        # A real server has no better code for a configuration that violates its schema.
        raise status_errors.server_error(str(error)) from None
    set_or_remove(result.object["metadata"], "managedFields", result.managers)
    return result.object
