"""The rules of a custom resource (``x-kubernetes-validations``).

They are compiled once and evaluated on every write.

A rule sees its own part of the object as ``self`` and, on updates, what it replaces as ``oldSelf``.
Old and new parts are matched by field, by map key, and by the keys of keyed lists; a rule that uses
``oldSelf`` where nothing matches is not evaluated, unless it takes ``oldSelf`` as optional. A
broken rule in a part that did not change is ignored unless it uses ``oldSelf``.

Values are read through their schema: times, durations and bytes become what they mean, numbers of a
``number`` field are doubles, sets and keyed lists compare without regard to order. What has no type
(preserved unknown fields) cannot be used.

Work is bounded per rule and per object; what exceeds it fails closed with a fault that says so.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.embedded.machinery.cel import (
    CALL_BUDGET,
    CompileError,
    EvaluationError,
    OutOfBudget,
    Program,
)
from zonewise.embedded.machinery.cel import compile_expression as compiled
from zonewise.embedded.machinery.cel.kinds import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    CelKind,
    list_of,
    map_of,
    object_of,
    optional_of,
)
from zonewise.embedded.machinery.cel.values import Bag, Duration, Optional, Timestamp
from zonewise.embedded.machinery.crd.constraints import NOWHERE
from zonewise.embedded.machinery.crd.structural import (
    META_FIELDS,
    field_path,
    has_rules,
)
from zonewise.embedded.machinery.fields.comparison import ABSENT, Mistyped, element_of, same
from zonewise.embedded.machinery.schema.types import Type, ValidationRule

OBJECT_BUDGET = 3_000_000
MESSAGE_LIMIT = 5 * 1024
OUT_OF_BUDGET = (
    "validation failed due to running out of cost budget, no further validation rules will be run"
)

Convert = Callable[[Any], Any]


# ------------------------------------------------------------------------ schemas as CEL sees them


def kind_of(kind: Type, *, root: bool = False) -> CelKind | None:
    """The kind of a part of an object in rules, None if they cannot use it."""
    match kind.shape:
        case "int-or-string":
            return DYN
        case "boolean":
            return BOOL
        case "integer":
            return INT
        case "number":
            return DOUBLE
        case "string":
            return _TEXTS.get(kind.format, STRING)
        case "list":
            item = kind_of(kind.items) if kind.items is not None else None
            return list_of(item) if item is not None else None
        case "map":
            value = kind_of(kind.values) if kind.values is not None else None
            return map_of(STRING, value) if value is not None else None
        case "object":
            fields = {
                name: made
                for name, child in kind.fields.items()
                if not ((root or kind.embedded) and name in META_FIELDS)
                and (made := kind_of(child)) is not None
            }
            if root or kind.embedded:
                fields |= {"apiVersion": STRING, "kind": STRING}
                fields["metadata"] = object_of({"name": STRING, "generateName": STRING})
            return object_of(fields)
    return None


_TEXTS = {"byte": BYTES, "duration": DURATION, "date": TIMESTAMP, "date-time": TIMESTAMP}


def converter(kind: Type) -> Convert | None:
    """What turns JSON into the values rules calculate with; None where JSON already is."""
    if "to cel" not in kind.memo:
        kind.memo["to cel"] = _converter(kind)
    made: Convert | None = kind.memo["to cel"]
    return made


def _converter(kind: Type) -> Convert | None:
    if kind.shape == "number":
        return lambda value: float(value) if isinstance(value, int) else value
    if kind.shape == "integer":
        return lambda value: int(value) if isinstance(value, float) else value
    if kind.shape == "string":
        return {"byte": _decoded, "duration": Duration.parse}.get(kind.format) or (
            _instant if kind.format in ("date", "date-time") else None
        )
    if kind.shape == "list" and kind.items is not None:
        return _list_converter(kind, converter(kind.items))
    if kind.shape == "map" and kind.values is not None:
        inner = converter(kind.values)
        if inner is None:
            return None
        return lambda value: {
            name: item if item is None else inner(item) for name, item in value.items()
        }
    if kind.shape == "object":
        return _object_converter(kind)
    return None


def _object_converter(kind: Type) -> Convert | None:
    """Fields that are null are absent to a rule."""
    fields = {name: made for name, sub in kind.fields.items() if (made := converter(sub))}
    if not fields and not any(sub.nullable for sub in kind.fields.values()):
        return None

    def convert(value: Any) -> Any:
        return {
            name: fields[name](item) if name in fields else item
            for name, item in value.items()
            if item is not None
        }

    return convert


def _list_converter(kind: Type, inner: Convert | None) -> Convert | None:
    bag = kind.list_type in ("set", "map")
    if not bag and inner is None:
        return None

    def convert(value: Any) -> Any:
        items = value if inner is None else [x if x is None else inner(x) for x in value]
        return Bag(items, kind.keys) if bag else items

    return convert


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        raise EvaluationError("invalid base64") from None


def _instant(text: str) -> Timestamp:
    if len(text) == 10:
        text += "T00:00:00Z"
    return Timestamp.parse(text if text[-1:] in "Zz" or text[-6:-5] in "+-" else text + "Z")


# ------------------------------------------------------------------------------------- compilation


@dataclass(frozen=True, slots=True)
class _Ready:
    """A rule that can be evaluated."""

    rule: ValidationRule
    program: Program
    message: Program | None
    path: str

    @property
    def uses_old(self) -> bool:
        return "oldSelf" in self.program.variables

    @property
    def optional_old(self) -> bool:
        return bool(self.rule.optional_old_self)


def compile_rule(rule: ValidationRule, kind: CelKind) -> tuple[Program, Program | None]:
    """A rule's program and that of its message, for a part of this kind."""
    old = optional_of(kind) if rule.optional_old_self else kind
    variables = {"self": kind, "oldSelf": old}
    try:
        program = compiled(rule.rule, variables)
    except CompileError as error:
        raise CompileError(f"compilation failed: {error}") from None
    if program.kind is not BOOL:
        raise CompileError("cel expression must evaluate to a bool")
    message = None
    if rule.message_expression:
        try:
            message = compiled(rule.message_expression, variables)
        except CompileError as error:
            raise MessageError(f"messageExpression compilation failed: {error}") from None
        if message.kind is not STRING:
            raise MessageError("messageExpression must evaluate to a string")
    return program, message


class MessageError(CompileError):
    """The rule is fine, its message is not."""


def _ready(kind: Type, *, root: bool) -> tuple[_Ready, ...]:
    """The rules of one part, compiled; those that a definition should not have had are left out."""
    if not kind.rules:
        return ()
    key = "rules at the root" if root else "rules"
    known: tuple[_Ready, ...] | None = kind.memo.get(key)
    if known is None:
        seen = kind_of(kind, root=root)
        made = []
        for rule in kind.rules:
            if seen is None:
                continue
            try:
                program, message = compile_rule(rule, seen)
            except CompileError:
                continue
            made.append(_Ready(rule, program, message, field_path(kind, rule.field_path) or ""))
        known = kind.memo[key] = tuple(made)
    return known


# -------------------------------------------------------------------------------------- evaluation


def rule_faults(kind: Type, new: Any, old: Any = None, *, at: str = "") -> list[StatusCause]:
    """The rules an object breaks, or with ``at`` a part of one; ``old`` is what it replaces."""
    asking = _Asking()
    asking.part(kind, at, new, ABSENT if old is None else old, root=not at, same_above=False)
    return asking.found


class _Asking:
    """One object's validation; ends when its budget does."""

    def __init__(self) -> None:
        self.left = OBJECT_BUDGET
        self.found: list[StatusCause] = []
        self.done = False

    def part(
        self, kind: Type, at: str, new: Any, old: Any, *, root: bool = False, same_above: bool
    ) -> None:
        if new is None or self.done:
            return
        unchanged = same_above or (old is not ABSENT and old is not None and same(old, new))
        self.rules(kind, at, new, old, root=root, unchanged=unchanged)
        for child, path, item, before in _below(kind, at, new, old):
            if has_rules(child):
                self.part(child, path, item, before, same_above=unchanged and before is ABSENT)

    def rules(
        self, kind: Type, at: str, new: Any, old: Any, *, root: bool, unchanged: bool
    ) -> None:
        ready = _ready(kind, root=root)
        if not ready:
            return
        has_old = old is not ABSENT and old is not None
        convert = converter(kind) or (lambda value: value)
        try:
            variables: dict[str, Any] = {"self": convert(new)}
            if has_old:
                variables["oldSelf"] = convert(old)
        except (EvaluationError, TypeError, ValueError) as error:
            self.found.append(field_errors.invalid(at or NOWHERE, "", f"{error} reading the value"))
            return
        for one in ready:
            if one.uses_old and not has_old and not one.optional_old:
                continue
            bound = variables
            if one.optional_old:
                past = Optional(variables["oldSelf"]) if has_old else Optional()
                bound = {**variables, "oldSelf": past}
            fault = self.ask(one, kind, at, new, bound)
            if fault is not None and (one.uses_old or not unchanged or self.done):
                self.found.append(fault)
            if self.done:
                return

    def run(self, program: Program, variables: Mapping[str, Any]) -> Any:
        budget = min(CALL_BUDGET, self.left)
        try:
            value, steps = program.evaluate(variables, budget=budget)
        except OutOfBudget:
            self.left -= budget
            raise
        self.left -= steps
        return value

    def ask(
        self, one: _Ready, kind: Type, at: str, new: Any, variables: Mapping[str, Any]
    ) -> StatusCause | None:
        rule, shown = one.rule, one.rule.message.strip() or one.rule.rule.strip()
        where = at or NOWHERE
        try:
            if self.run(one.program, variables) is True:
                return None
        except OutOfBudget as error:
            self.done = True
            if self.left <= 0:
                return field_errors.invalid(where, kind.shape, OUT_OF_BUDGET)
            words = (
                "no further validation rules will be run due to call cost exceeds limit for rule"
            )
            return field_errors.invalid(where, kind.shape, f"'{error}': {words}: {shown}")
        except EvaluationError as error:
            if str(error).startswith("no such overload"):
                words = "call arguments did not match a supported operator, function or macro"
                words += " signature for rule"
                return field_errors.invalid(where, kind.shape, f"'{error}': {words}: {shown}")
            return field_errors.invalid(where, kind.shape, f"{error} evaluating rule: {shown}")
        detail = self.message(one, variables) or rule.message.strip()
        detail = detail or f"failed rule: {rule.rule.strip()}"
        path = one.path if not at else f"{at}.{one.path}" if one.path else at
        path = path.replace(".[", "[") or NOWHERE
        return _fault(rule.reason, path, kind, new, detail)

    def message(self, one: _Ready, variables: Mapping[str, Any]) -> str:
        """The result of the rule's message expression, empty if that is not usable."""
        if one.message is None:
            return ""
        try:
            text = self.run(one.message, variables)
        except OutOfBudget:
            self.done = True
            return ""
        except EvaluationError:
            return ""
        words = text.strip() if isinstance(text, str) else ""
        return words if len(words.encode()) <= MESSAGE_LIMIT and "\n" not in words else ""


def _fault(reason: str, at: str, kind: Type, value: Any, detail: str) -> StatusCause:
    if reason == "FieldValueForbidden":
        return field_errors.forbidden(at, detail)
    if reason == "FieldValueRequired":
        return field_errors.required(at, detail)
    compound = kind.shape in ("object", "map", "list")
    if reason == "FieldValueDuplicate":
        if compound:
            return StatusCause(reason=reason, field=at, message="Duplicate value")
        return field_errors.duplicate(at, value)
    if compound:
        return StatusCause(reason="FieldValueInvalid", field=at, message=f"Invalid value: {detail}")
    return field_errors.invalid(at, value, detail)


def _below(kind: Type, at: str, new: Any, old: Any) -> Iterator[tuple[Type, str, Any, Any]]:
    if isinstance(new, dict):
        before = old if isinstance(old, dict) else {}
        for name, item in new.items():
            if kind.embedded and name in META_FIELDS:
                continue
            child = kind.fields.get(name)
            if child is not None:
                yield child, f"{at}.{name}" if at else name, item, before.get(name, ABSENT)
            elif kind.values is not None:
                yield kind.values, f"{at}[{name}]", item, before.get(name, ABSENT)
    elif isinstance(new, list) and kind.shape == "list" and kind.items is not None:
        known = _by_key(kind, old)
        for n, item in enumerate(new):
            yield kind.items, f"{at}[{n}]", item, known.get(_key(kind, item), ABSENT)


def _key(kind: Type, item: Any) -> str:
    try:
        return element_of(kind, item) if kind.list_type == "map" else ""
    except Mistyped:
        return ""


def _by_key(kind: Type, old: Any) -> dict[str, Any]:
    if kind.list_type != "map" or not isinstance(old, list):
        return {}
    return {_key(kind, item): item for item in old}
