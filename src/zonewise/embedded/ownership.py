"""Field ownership of ordinary writes and of applies, from the kind's type and what each write
reaches.
"""

from __future__ import annotations

from typing import Any

from zonewise.api import apply, managed
from zonewise.api.comparison import Mistyped
from zonewise.api.managed import Write
from zonewise.api.resets import reset_of
from zonewise.embedded import refusals
from zonewise.embedded.registry import Served

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
        ),
        custom=served.custom,
    )


def updated(
    served: Served, obj: Obj, old: Obj | None, *, manager: str, now: str, subresource: str = ""
) -> None:
    """Bring managedFields of ``obj``, which replaces ``old``, up to date."""
    entries = managed.updated(
        write(served, manager=manager, now=now, subresource=subresource), old, obj
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
        raise refusals.plain_failure(str(error)) from None
    _set(result.object, result.managers)
    return result.object


def _set(obj: Obj, entries: list[Obj]) -> None:
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)
