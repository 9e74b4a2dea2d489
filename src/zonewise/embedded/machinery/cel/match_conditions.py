"""Match conditions of admission webhooks: which requests a webhook is called for.

All conditions must hold. One that is false decides against the webhook, even if others fail; if
none is false and one fails, the caller decides by the webhook's failure policy. ``object``,
``oldObject``, ``request`` and ``namespaceObject`` may be used; the latter is null, as in a real
server. ``authorizer``, which a real server offers too, would let an expression check permissions in
the middle of admission; it is not supported, and a condition that uses it fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.embedded.machinery.cel import CALL_BUDGET, CompileError, EvaluationError, Program
from zonewise.embedded.machinery.cel import compile_expression as compiled
from zonewise.embedded.machinery.cel.kinds import (
    BOOL,
    DYN,
    STRING,
    CelKind,
    list_of,
    map_of,
    object_of,
)

REQUEST_BUDGET = 2_500_000

_NAMES = dict.fromkeys(("group", "version"), STRING)
_USER = {"username": STRING, "uid": STRING, "groups": list_of(STRING)}
REQUEST = object_of(
    {
        "kind": object_of({**_NAMES, "kind": STRING}),
        "resource": object_of({**_NAMES, "resource": STRING}),
        "subResource": STRING,
        "requestKind": object_of({**_NAMES, "kind": STRING}),
        "requestResource": object_of({**_NAMES, "resource": STRING}),
        "requestSubResource": STRING,
        "name": STRING,
        "namespace": STRING,
        "operation": STRING,
        "userInfo": object_of({**_USER, "extra": map_of(STRING, list_of(STRING))}),
        "dryRun": BOOL,
        "options": DYN,
    }
)
VARIABLES: dict[str, CelKind] = {
    "object": DYN,
    "oldObject": DYN,
    "namespaceObject": DYN,
    "request": REQUEST,
}


class AuthorizerUsed(CompileError):
    """The expression needs ``authorizer``, which is not supported."""


class ConditionFailed(Exception):
    """No condition is false, and at least one could not be evaluated."""


@dataclass(frozen=True, slots=True)
class MatchConditions:
    """The compiled conditions of one webhook."""

    programs: tuple[tuple[str, Program | CompileError], ...]

    def hold(
        self,
        *,
        request: Mapping[str, Any],
        object: Mapping[str, Any] | None,
        old_object: Mapping[str, Any] | None,
    ) -> bool:
        """Whether the webhook is called for this request; ConditionFailed if that is unknown."""
        variables = {
            "object": object,
            "oldObject": old_object,
            "namespaceObject": None,
            "request": request,
        }
        left, failed = REQUEST_BUDGET, list[str]()
        for name, program in self.programs:
            if isinstance(program, CompileError):
                failed.append(f"expression of {name} failed: {program}")
                continue
            try:
                value, steps = program.evaluate(variables, budget=min(CALL_BUDGET, left))
            except EvaluationError as error:
                failed.append(f"expression '{program.text}' of {name} failed: {error}")
                continue
            left -= steps
            if value is not True:
                return False
        if failed:
            raise ConditionFailed("; ".join(failed))
        return True


def conditions_of(entries: Sequence[Mapping[str, Any]]) -> MatchConditions:
    """The conditions of a webhook; one that cannot be compiled fails when it is evaluated."""
    return MatchConditions(tuple((entry.get("name") or "", _compiled(entry)) for entry in entries))


def _compiled(entry: Mapping[str, Any]) -> Program | CompileError:
    try:
        return condition_of(entry.get("expression") or "")
    except CompileError as error:
        return error


def condition_of(text: str) -> Program:
    """The condition an expression is; CompileError says why it is none."""
    try:
        program = compiled(text, VARIABLES)
    except CompileError as error:
        if re.search(r"\bauthorizer\b", text):
            raise AuthorizerUsed("authorizer is not supported in match conditions") from None
        raise CompileError(f"compilation failed: {error}") from None
    if program.kind is not BOOL:
        raise CompileError(f"must evaluate to bool but got {program.kind}")
    return program
