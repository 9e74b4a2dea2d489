"""Runs a case of the tables on any server, and extracts what is compared.

A case creates one object and then changes it step by step. Of a refusal the status, the reason and
the causes are compared; of an accepted object everything except uid, times, versions and field
owners.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from zonewise.embedded.machinery.patch import mergepatch

Obj = dict[str, Any]
Send = Callable[[str, str, Obj | None, dict[str, str]], Awaitable[tuple[int, Obj]]]
"""Method, path with query, body, headers -> status and decoded body."""

VOLATILE = ("creationTimestamp", "deletionTimestamp", "managedFields", "resourceVersion", "uid")
MERGE = {"content-type": "application/merge-patch+json"}
PLAIN = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Step:
    """One change: ``put`` sends the merged object, ``status`` the same to the subresource,
    ``patch`` only the change, ``get`` reads what the change (a path's end) names.
    """

    verb: str
    change: Any = None


@dataclass(frozen=True, slots=True)
class Case:
    """An object that is posted to a collection, and the steps after that."""

    label: str
    path: str
    body: Obj
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return self.label


async def ask(send: Send, case: Case, namespace: str) -> list[Obj]:
    """Every answer to a case, cleaned for comparison; the object is deleted afterwards."""
    path = case.path.replace("{ns}", namespace)
    code, created = await send("POST", path, placed(case.body, namespace), PLAIN)
    answers = [clean(code, created, namespace)]
    if code >= 400:
        return answers
    name = created["metadata"]["name"]
    current = created
    for step in case.steps:
        change = placed(step.change, namespace)
        where = f"{path}/{name}" + ("/status" if step.verb == "status" else "")
        if step.verb == "get":
            code, answer = await send("GET", f"{path}{step.change}", None, {})
        elif step.verb == "patch":
            code, answer = await send("PATCH", where, change, MERGE)
        else:
            body = mergepatch.apply(current, change)
            code, answer = await send("PUT", where, body, PLAIN)
        answers.append(clean(code, answer, namespace))
        if code < 400 and step.verb != "get":
            current = answer
    await send("PATCH", f"{path}/{name}", {"metadata": {"finalizers": None}}, MERGE)
    await send("DELETE", f"{path}/{name}?gracePeriodSeconds=0", None, {})
    await send("PATCH", f"{path}/{name}", {"metadata": {"finalizers": None}}, MERGE)
    if path.endswith("/namespaces"):
        empty = {"metadata": {"name": name}, "spec": {"finalizers": []}}
        await send("PUT", f"{path}/{name}/finalize", empty, PLAIN)
    return answers


def placed(value: Any, namespace: str) -> Any:
    """A value with ``{ns}`` replaced by the namespace."""
    return json.loads(json.dumps(value).replace("{ns}", namespace))


def clean(code: int, body: Obj, namespace: str) -> Obj:
    """The part of an answer that is compared."""
    if body.get("kind") == "Status" and code >= 400:
        causes = (body.get("details") or {}).get("causes") or ()
        pairs = sorted({(cause.get("reason", ""), cause.get("field", "")) for cause in causes})
        return {"code": code, "reason": body.get("reason", ""), "causes": [list(c) for c in pairs]}
    body = copy.deepcopy(body)
    for item in (body, *(body.get("items") or ())):
        meta = item.get("metadata") or {}
        for key in VOLATILE:
            meta.pop(key, None)
        if isinstance(item.get("status"), dict):
            item["status"].pop("lastPhaseTransitionTime", None)
    if body.get("kind") == "Status":
        (body.get("details") or {}).pop("uid", None)
    cleaned = json.loads(json.dumps(body).replace(namespace, "{ns}"))
    return {"code": code, "object": cleaned}
