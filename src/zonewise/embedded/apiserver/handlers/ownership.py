"""Field ownership of ordinary writes and of applies, from the kind's type and what each write
reaches.
"""

from __future__ import annotations

from typing import Any

from zonewise.embedded.apiserver.registry import Served
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.machinery.fields import apply, managed_fields
from zonewise.embedded.machinery.fields.comparison import Mistyped
from zonewise.embedded.machinery.fields.managed_fields import VersionView, Views, Write
from zonewise.embedded.machinery.fields.reset_fields import reset_of

Obj = dict[str, Any]


def write(served: Served, *, manager: str, now: str, subresource: str = "") -> Write:
    """A write as far as ownership is concerned."""
    resource = served.kind.resource
    return Write(
        type=served.kind.type,
        api_version=resource.api_version,
        manager=manager,
        time=now,
        subresource=subresource,
        reset=reset_of(
            resource.group,
            resource.plural,
            subresource,
            has_status="status" in served.kind.subresources,
            custom=served.custom,
            replicas=served.rules.scale_paths[0],
        ),
        custom=served.custom,
        views=_views(served) if served.versions is not None else None,
    )


def _views(served: Served) -> Views:
    """How an object reads at the other versions of its kind; may raise ``Unconverted``."""

    def at(api_version: str) -> VersionView | None:
        versions = served.versions
        kind = versions.of(api_version) if versions is not None else None
        if versions is None or kind is None:
            return None
        return VersionView(kind.type, lambda obj: versions.converted(obj, api_version))

    return at


def updated(
    served: Served, obj: Obj, old: Obj | None, *, manager: str, now: str, subresource: str = ""
) -> None:
    """Bring managedFields of ``obj``, which replaces ``old``, up to date."""
    said = obj
    if subresource == "scale" and not served.custom and not obj["spec"].get("replicas"):
        # A Scale leaves out a size of 0, so nobody owns it.
        said = {**obj, "spec": {key: obj["spec"][key] for key in obj["spec"] if key != "replicas"}}
    entries = managed_fields.updated(
        write(served, manager=manager, now=now, subresource=subresource), old, said
    )
    _set(obj, entries)


def applied(
    served: Served,
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
        result = apply.applied(
            write(served, manager=manager, now=now, subresource=subresource),
            old,
            config,
            force=force,
        )
    except Mistyped as error:
        # A real server has no better code for a configuration that its type cannot describe.
        raise status_errors.plain_failure(str(error)) from None
    _set(result.object, result.managers)
    return result.object


def _set(obj: Obj, entries: list[Obj]) -> None:
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)
