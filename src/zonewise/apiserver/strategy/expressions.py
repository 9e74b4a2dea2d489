"""Whether an expression in an object can be compiled at all."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zonewise.machinery.cel import CelKind

AUTHORIZER = "authorizer"


def condition_fault(text: str) -> str:
    """Why an expression is no condition over an admission request; empty where it is one.

    The functions of ``authorizer`` are not supported here, so an expression that uses it is
    accepted.
    """
    # Loading the language is slow, and most servers never get an expression.
    from zonewise.machinery.cel import CompileError, compile_expression

    if AUTHORIZER in text:
        return ""
    try:
        program = compile_expression(text, _variables())
    except CompileError as error:
        return f"compilation failed: {error}"
    if program.kind.name not in {"bool", "dyn"}:
        return "must evaluate to bool"
    return ""


@cache
def _variables() -> dict[str, CelKind]:
    from zonewise.machinery.cel.kinds import (
        BOOL,
        DYN,
        STRING,
        list_of,
        map_of,
        object_of,
    )

    kind = object_of({"group": STRING, "version": STRING, "kind": STRING}, "kind")
    resource = object_of({"group": STRING, "version": STRING, "resource": STRING}, "resource")
    user = object_of(
        {
            "username": STRING,
            "uid": STRING,
            "groups": list_of(STRING),
            "extra": map_of(STRING, list_of(STRING)),
        },
        "user",
    )
    request = object_of(
        {
            "kind": kind,
            "resource": resource,
            "subResource": STRING,
            "requestKind": kind,
            "requestResource": resource,
            "requestSubResource": STRING,
            "name": STRING,
            "namespace": STRING,
            "operation": STRING,
            "userInfo": user,
            "dryRun": BOOL,
            "options": DYN,
        },
        "request",
    )
    return {"object": DYN, "oldObject": DYN, "namespaceObject": DYN, "request": request}
