"""Match conditions of admission webhooks: which requests a webhook is called for.

All conditions must hold. One that is false decides against the webhook, even if others fail; if
none is false and one fails, the caller decides by the webhook's failure policy. ``object``,
``oldObject`` and ``request`` may be used. ``authorizer``, which a real server offers too, would let
an expression check permissions in the middle of admission; it is refused when the webhook is
written, so that no webhook is ever silently skipped for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.machinery.cel import CALL_BUDGET, CompileError, EvaluationError, Program
from zonewise.machinery.cel import compile_expression as compiled
from zonewise.machinery.cel.kinds import BOOL, DYN, STRING, CelKind, list_of, map_of, object_of

CONDITION_LIMIT = 64
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
VARIABLES: dict[str, CelKind] = {"object": DYN, "oldObject": DYN, "request": REQUEST}
_PART = "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED = re.compile(rf"({_LABEL}(\.{_LABEL})*/)?{_PART}")


class ConditionFailed(Exception):
    """No condition is false, and at least one could not be evaluated."""


@dataclass(frozen=True, slots=True)
class MatchConditions:
    """The compiled conditions of one webhook."""

    programs: tuple[tuple[str, Program], ...]

    def hold(
        self,
        *,
        request: Mapping[str, Any],
        object: Mapping[str, Any] | None,
        old_object: Mapping[str, Any] | None,
    ) -> bool:
        """Whether the webhook is called for this request; ConditionFailed if that is unknown."""
        variables = {"object": object, "oldObject": old_object, "request": request}
        left, failed = REQUEST_BUDGET, list[str]()
        for name, program in self.programs:
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
    """Conditions that were checked when they were written; CompileError if they were not."""
    return MatchConditions(
        tuple(
            (entry.get("name") or "", _program(entry.get("expression") or "")) for entry in entries
        )
    )


def _program(text: str) -> Program:
    try:
        program = compiled(text, VARIABLES)
    except CompileError as error:
        if re.search(r"\bauthorizer\b", text):
            raise CompileError("authorizer is not supported in match conditions") from None
        raise CompileError(f"compilation failed: {error}") from None
    if program.kind is not BOOL:
        raise CompileError("must evaluate to bool")
    return program


def condition_faults(entries: Sequence[Mapping[str, Any]], at: str) -> list[StatusCause]:
    """What is wrong with match conditions, whose path is ``at``."""
    if len(entries) > CONDITION_LIMIT:
        return [field_errors.too_many(at, len(entries), CONDITION_LIMIT)]
    seen: set[str] = set()
    found: list[StatusCause] = []
    for n, entry in enumerate(entries):
        found += _entry_faults(entry, f"{at}[{n}]")
        name = entry.get("name") or ""
        if name and name in seen:
            found.append(field_errors.duplicate(f"{at}[{n}].name", name))
        seen.add(name)
    return found


def _entry_faults(entry: Mapping[str, Any], at: str) -> Iterator[StatusCause]:
    name, text = entry.get("name") or "", entry.get("expression") or ""
    if not text.strip():
        yield field_errors.required(f"{at}.expression")
    else:
        try:
            _program(text)
        except CompileError as error:
            yield field_errors.invalid(f"{at}.expression", text, str(error))
    if not name:
        yield field_errors.required(f"{at}.name")
    elif not _QUALIFIED.fullmatch(name) or len(name.rpartition("/")[2]) > 63:
        yield field_errors.invalid(
            f"{at}.name", name, "must be a qualified name such as example.com/name"
        )
