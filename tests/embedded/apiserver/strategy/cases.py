"""A table of cases for API servers: objects to create and changes to make, and the answers.

A case is a valid object with a few edits. Edits name fields by dots (``spec.containers.0.image``);
``GONE`` removes one. The same cases are sent to a real server and to the embedded one; compared are
the status, the reason, the causes and, if the object was accepted, the object without what differs
between servers.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

GONE = object()
Ask = Callable[[str, str, Any], Awaitable[tuple[int, dict[str, Any]]]]
"""Method, path with query, body -> status, body."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case."""

    label: str
    path: str
    body: dict[str, Any]
    edits: dict[str, Any] = field(default_factory=dict)
    change: bool = False
    status: dict[str, Any] | None = None
    part: str = ""


def any_of(*values: Any) -> tuple[Any, ...]:
    """Values of any type."""
    return values


def create(path: str, label: str, base: dict[str, Any], edits: dict[str, Any]) -> Case:
    """Create an object."""
    return Case(label=label, path=path, body=edited(base, edits))


def change(
    path: str,
    label: str,
    base: dict[str, Any],
    edits: dict[str, Any],
    *,
    first: dict[str, Any] | None = None,
    status: dict[str, Any] | None = None,
    part: str = "",
) -> Case:
    """Create an object, perhaps write its status, then change it or a part of it."""
    return Case(
        label=label,
        path=path,
        body=edited(base, first or {}),
        edits=edits,
        change=True,
        status=status,
        part=part,
    )


def edited(base: dict[str, Any], edits: dict[str, Any]) -> dict[str, Any]:
    """A copy with edits."""
    obj = copy.deepcopy(base)
    for dotted, value in edits.items():
        *way, last = dotted.split(".")
        holder: Any = obj
        for step in way:
            inside = isinstance(holder, list)
            holder = holder[int(step)] if inside else holder.setdefault(step, {})
        if isinstance(holder, list):
            number = int(last)
            holder[number : number + 1] = [copy.deepcopy(value)]
        elif value is GONE:
            holder.pop(last, None)
        else:
            holder[last] = copy.deepcopy(value)
    return obj


async def answer(ask: Ask, case: Case, namespace: str) -> dict[str, Any]:
    """The comparable part of a server's answer to a case."""
    path = case.path.replace("{ns}", namespace)
    if not case.change:
        return summary(*await ask("POST", f"{path}?dryRun=All", case.body))
    name = case.body["metadata"]["name"]
    code, obj = await ask("POST", path, case.body)
    if code != 201:
        return {"setup": summary(code, obj)}
    try:
        if case.status is not None:
            body = {**obj, "status": {**(obj.get("status") or {}), **case.status}}
            code, obj = await ask("PUT", f"{path}/{name}/status", body)
            if code != 200:
                return {"setup": summary(code, obj)}
        body = edited(obj, case.edits)
        part = f"/{case.part}" if case.part else ""
        return summary(*await ask("PUT", f"{path}/{name}{part}?dryRun=All", body))
    finally:
        options = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        await ask("DELETE", f"{path}/{name}", options)


def summary(code: int, body: dict[str, Any]) -> dict[str, Any]:
    """The part of an answer that must be equal."""
    if code < 300:
        return {"code": code, "object": plain(body)}
    causes = (body.get("details") or {}).get("causes") or ()
    return {
        "code": code,
        "reason": body.get("reason", ""),
        "causes": sorted({f"{c.get('reason', '')} {c.get('field', '')}".strip() for c in causes}),
    }


def plain(obj: dict[str, Any]) -> dict[str, Any]:
    """An object without what differs between servers."""
    text = json.dumps(obj)
    uid = obj["metadata"].get("uid")
    if uid:
        text = text.replace(uid, "UID")
    text = re.sub(r'("lastTransitionTime": )"[^"]*"', r'\1"now"', text)
    text = re.sub(r"kube-api-access-[a-z0-9]{5}", "kube-api-access-x", text)
    cleaned: dict[str, Any] = json.loads(text)
    for key in ("uid", "creationTimestamp", "resourceVersion", "managedFields", "namespace"):
        cleaned["metadata"].pop(key, None)
    return cleaned
