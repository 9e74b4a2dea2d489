"""Match conditions of admission webhooks: which requests a webhook is called for.

All conditions must hold. One that is false decides against the webhook, even if others fail; if
none is false and one fails, the caller decides by the webhook's failure policy. ``object``,
``oldObject``, ``request`` and ``namespaceObject`` may be used; the latter is null, as in a real
server. ``authorizer``, which a real server offers too, would check permissions in the middle of
admission; it is not supported, and a condition that uses it fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.embedded.machinery.cel.compiler import CALL_BUDGET, CelProgram, compile_expression
from zonewise.embedded.machinery.cel.kinds import (
    BOOL,
    DYN,
    STRING,
    CelKind,
    list_of,
    map_of,
    object_of,
)
from zonewise.embedded.machinery.cel.syntax import CompileError
from zonewise.embedded.machinery.cel.values import EvaluationError

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

    programs: tuple[tuple[str, CelProgram | CompileError], ...]

    def evaluate(
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
        budget, errors = REQUEST_BUDGET, list[str]()
        for name, program in self.programs:
            if isinstance(program, CompileError):
                errors.append(f"expression of {name} failed: {program}")
                continue
            try:
                value, steps = program.evaluate(variables, budget=min(CALL_BUDGET, budget))
            except EvaluationError as error:
                errors.append(f"expression '{program.text}' of {name} failed: {error}")
                continue
            budget -= steps
            if value is not True:
                return False
        if errors:
            raise ConditionFailed("; ".join(errors))
        return True


def compile_conditions(entries: Sequence[Mapping[str, Any]]) -> MatchConditions:
    """Compile the conditions of a webhook; an invalid one fails when it is evaluated."""
    conditions = ((entry.get("name") or "", _compile_or_error(entry)) for entry in entries)
    return MatchConditions(tuple(conditions))


def _compile_or_error(entry: Mapping[str, Any]) -> CelProgram | CompileError:
    try:
        return compile_condition(entry.get("expression") or "")
    except CompileError as error:
        return error


def compile_condition(text: str) -> CelProgram:
    """Compile a condition; CompileError if it is invalid."""
    try:
        program = compile_expression(text, VARIABLES)
    except CompileError as error:
        if re.search(r"\bauthorizer\b", text):
            raise AuthorizerUsed("authorizer is not supported in match conditions") from None
        raise CompileError(f"compilation failed: {error}") from None
    if program.kind is not BOOL:
        raise CompileError(f"must evaluate to bool but got {program.kind}")
    return program
