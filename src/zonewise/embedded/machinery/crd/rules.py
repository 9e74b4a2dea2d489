"""The rules of a custom resource (``x-kubernetes-validations``).

They are compiled once and evaluated on every write.

A rule has its own part of the object as ``self`` and, on updates, what it replaces as ``oldSelf``.
Old and new parts are matched by field, by map key, and by the keys of keyed lists; a rule that uses
``oldSelf`` where nothing matches is not evaluated, unless its ``oldSelf`` is optional. A violation
in a part that did not change is ignored unless the rule uses ``oldSelf``.

Values are converted by their schema: times, durations and bytes get their CEL type, numbers of a
``number`` field are doubles, sets and keyed lists compare without regard to order. What has no
schema (preserved unknown fields) cannot be used.

Work is bounded per rule and per object; an object that exceeds it is refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zonewise.api.errors import StatusCause
from zonewise.api.field_errors import duplicate, forbidden, invalid, required
from zonewise.embedded.machinery.cel.compiler import CALL_BUDGET, CelProgram, compile_expression
from zonewise.embedded.machinery.cel.evaluation import OutOfBudget
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
from zonewise.embedded.machinery.cel.syntax import CompileError
from zonewise.embedded.machinery.cel.values import (
    Duration,
    EvaluationError,
    Optional,
    Timestamp,
    UnorderedList,
)
from zonewise.embedded.machinery.crd.constraints import NIL_PATH, items_by_key, key_of
from zonewise.embedded.machinery.crd.structural import META_FIELDS, has_rules, resolve_field_path
from zonewise.embedded.machinery.fields.comparison import ABSENT, equal_strictly
from zonewise.embedded.machinery.schema.schema import Schema, ValidationRule

OBJECT_BUDGET = 3_000_000
MESSAGE_LIMIT = 5 * 1024
OUT_OF_BUDGET = (
    "validation failed due to running out of cost budget, no further validation rules will be run"
)

Convert = Callable[[Any], Any]


# ------------------------------------------------------------------------------ schemas in CEL


def cel_kind_of(schema: Schema, *, root: bool = False) -> CelKind | None:
    """The CEL kind of a part of an object, None if rules cannot use it."""
    match schema.shape:
        case "int-or-string":
            return DYN
        case "boolean":
            return BOOL
        case "integer":
            return INT
        case "number":
            return DOUBLE
        case "string":
            return _STRING_FORMATS.get(schema.format, STRING)
        case "list":
            item = cel_kind_of(schema.items) if schema.items is not None else None
            return list_of(item) if item is not None else None
        case "map":
            value = cel_kind_of(schema.values) if schema.values is not None else None
            return map_of(STRING, value) if value is not None else None
        case "object":
            fields = {
                name: field_kind
                for name, child in schema.fields.items()
                if not ((root or schema.embedded_resource) and name in META_FIELDS)
                and (field_kind := cel_kind_of(child)) is not None
            }
            if root or schema.embedded_resource:
                fields |= {"apiVersion": STRING, "kind": STRING}
                fields["metadata"] = object_of({"name": STRING, "generateName": STRING})
            return object_of(fields)
    return None


_STRING_FORMATS = {"byte": BYTES, "duration": DURATION, "date": TIMESTAMP, "date-time": TIMESTAMP}


def converter(schema: Schema) -> Convert | None:
    """The function that converts JSON to CEL values; None if there is nothing to convert."""
    if "to cel" not in schema.memo:
        schema.memo["to cel"] = _converter(schema)
    result: Convert | None = schema.memo["to cel"]
    return result


def _converter(schema: Schema) -> Convert | None:
    if schema.shape == "number":
        return lambda value: float(value) if isinstance(value, int) else value
    if schema.shape == "integer":
        return lambda value: int(value) if isinstance(value, float) else value
    if schema.shape == "string":
        return {"byte": _decode_base64, "duration": Duration.parse}.get(schema.format) or (
            _parse_time if schema.format in ("date", "date-time") else None
        )
    if schema.shape == "list" and schema.items is not None:
        return _list_converter(schema, converter(schema.items))
    if schema.shape == "map" and schema.values is not None:
        inner = converter(schema.values)
        if inner is None:
            return None
        return lambda value: {
            name: item if item is None else inner(item) for name, item in value.items()
        }
    if schema.shape == "object":
        return _object_converter(schema)
    return None


def _object_converter(schema: Schema) -> Convert | None:
    """Fields that are null are absent to a rule."""
    fields = {
        name: field_converter
        for name, sub in schema.fields.items()
        if (field_converter := converter(sub))
    }
    if not fields and not any(sub.nullable for sub in schema.fields.values()):
        return None

    def convert(value: Any) -> Any:
        return {
            name: fields[name](item) if name in fields else item
            for name, item in value.items()
            if item is not None
        }

    return convert


def _list_converter(schema: Schema, inner: Convert | None) -> Convert | None:
    unordered = schema.list_type in ("set", "map")
    if not unordered and inner is None:
        return None

    def convert(value: Any) -> Any:
        items = value if inner is None else [x if x is None else inner(x) for x in value]
        return UnorderedList(items, schema.keys) if unordered else items

    return convert


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except (binascii.Error, ValueError):
        raise EvaluationError("invalid base64") from None


def _parse_time(text: str) -> Timestamp:
    if len(text) == 10:
        text += "T00:00:00Z"
    return Timestamp.parse(text if text[-1:] in "Zz" or text[-6:-5] in "+-" else text + "Z")


# ------------------------------------------------------------------------------------- compilation


@dataclass(frozen=True, slots=True)
class _CompiledRule:
    """A rule with its programs."""

    rule: ValidationRule
    program: CelProgram
    message: CelProgram | None
    path: str

    @property
    def uses_old(self) -> bool:
        return "oldSelf" in self.program.variables

    @property
    def optional_old(self) -> bool:
        return bool(self.rule.optional_old_self)


def compile_rule(rule: ValidationRule, kind: CelKind) -> tuple[CelProgram, CelProgram | None]:
    """A rule's program and that of its message, for a part of this kind."""
    old = optional_of(kind) if rule.optional_old_self else kind
    variables = {"self": kind, "oldSelf": old}
    try:
        program = compile_expression(rule.rule, variables)
    except CompileError as error:
        raise CompileError(f"compilation failed: {error}") from None
    if program.kind is not BOOL:
        raise CompileError("cel expression must evaluate to a bool")
    message = None
    if rule.message_expression:
        try:
            message = compile_expression(rule.message_expression, variables)
        except CompileError as error:
            raise MessageError(f"messageExpression compilation failed: {error}") from None
        if message.kind is not STRING:
            raise MessageError("messageExpression must evaluate to a string")
    return program, message


class MessageError(CompileError):
    """The message expression of a rule is invalid."""


def _compiled_rules(schema: Schema, *, root: bool) -> tuple[_CompiledRule, ...]:
    """The rules of one part, compiled; invalid ones are left out."""
    if not schema.rules:
        return ()
    key = "rules at the root" if root else "rules"
    cached: tuple[_CompiledRule, ...] | None = schema.memo.get(key)
    if cached is None:
        cel_kind = cel_kind_of(schema, root=root)
        rules = []
        for rule in schema.rules:
            if cel_kind is None:
                continue
            try:
                program, message = compile_rule(rule, cel_kind)
            except CompileError:
                continue
            rules.append(
                _CompiledRule(
                    rule, program, message, resolve_field_path(schema, rule.field_path) or ""
                )
            )
        cached = schema.memo[key] = tuple(rules)
    return cached


# -------------------------------------------------------------------------------------- evaluation


def validate_rules(
    schema: Schema, new: Any, old: Any = None, *, path: str = ""
) -> list[StatusCause]:
    """The rules an object violates, or with ``path`` a part of one; ``old`` is what it replaces."""
    evaluation = _Evaluation()
    evaluation.visit(
        schema, path, new, ABSENT if old is None else old, root=not path, same_above=False
    )
    return evaluation.errors


class _Evaluation:
    """The validation of one object; stops when its budget is spent."""

    def __init__(self) -> None:
        self.budget = OBJECT_BUDGET
        self.errors: list[StatusCause] = []
        self.done = False

    def visit(
        self, schema: Schema, path: str, new: Any, old: Any, *, root: bool = False, same_above: bool
    ) -> None:
        if new is None or self.done:
            return
        unchanged = same_above or (
            old is not ABSENT and old is not None and equal_strictly(old, new)
        )
        self.evaluate_rules(schema, path, new, old, root=root, unchanged=unchanged)
        for child, child_path, item, old_item in _children_of(schema, path, new, old):
            if has_rules(child):
                self.visit(
                    child, child_path, item, old_item, same_above=unchanged and old_item is ABSENT
                )

    def evaluate_rules(
        self, schema: Schema, path: str, new: Any, old: Any, *, root: bool, unchanged: bool
    ) -> None:
        rules = _compiled_rules(schema, root=root)
        if not rules:
            return
        has_old = old is not ABSENT and old is not None
        convert = converter(schema) or (lambda value: value)
        try:
            variables: dict[str, Any] = {"self": convert(new)}
            if has_old:
                variables["oldSelf"] = convert(old)
        except (EvaluationError, TypeError, ValueError) as error:
            self.errors.append(invalid(path or NIL_PATH, "", f"{error} reading the value"))
            return
        for rule in rules:
            if rule.uses_old and not has_old and not rule.optional_old:
                continue
            bound = variables
            if rule.optional_old:
                old_self = Optional(variables["oldSelf"]) if has_old else Optional()
                bound = {**variables, "oldSelf": old_self}
            failure = self.evaluate_rule(rule, schema, path, new, bound)
            if failure is not None and (rule.uses_old or not unchanged or self.done):
                self.errors.append(failure)
            if self.done:
                return

    def run(self, program: CelProgram, variables: Mapping[str, Any]) -> Any:
        limit = min(CALL_BUDGET, self.budget)
        try:
            value, steps = program.evaluate(variables, budget=limit)
        except OutOfBudget:
            self.budget -= limit
            raise
        self.budget -= steps
        return value

    def evaluate_rule(
        self,
        compiled: _CompiledRule,
        schema: Schema,
        path: str,
        new: Any,
        variables: Mapping[str, Any],
    ) -> StatusCause | None:
        rule, rule_text = compiled.rule, compiled.rule.message.strip() or compiled.rule.rule.strip()
        location = path or NIL_PATH
        try:
            if self.run(compiled.program, variables) is True:
                return None
        except OutOfBudget as error:
            self.done = True
            if self.budget <= 0:
                return invalid(location, schema.shape, OUT_OF_BUDGET)
            explanation = (
                "no further validation rules will be run due to call cost exceeds limit for rule"
            )
            return invalid(location, schema.shape, f"'{error}': {explanation}: {rule_text}")
        except EvaluationError as error:
            if str(error).startswith("no such overload"):
                explanation = "call arguments did not match a supported operator, function or macro"
                explanation += " signature for rule"
                return invalid(location, schema.shape, f"'{error}': {explanation}: {rule_text}")
            return invalid(location, schema.shape, f"{error} evaluating rule: {rule_text}")
        detail = self.evaluate_message(compiled, variables) or rule.message.strip()
        detail = detail or f"failed rule: {rule.rule.strip()}"
        error_path = (
            compiled.path if not path else f"{path}.{compiled.path}" if compiled.path else path
        )
        error_path = error_path.replace(".[", "[") or NIL_PATH
        return _error_of(rule.reason, error_path, schema, new, detail)

    def evaluate_message(self, compiled: _CompiledRule, variables: Mapping[str, Any]) -> str:
        """The result of the rule's message expression, empty if there is none or it fails."""
        if compiled.message is None:
            return ""
        try:
            text = self.run(compiled.message, variables)
        except OutOfBudget:
            self.done = True
            return ""
        except EvaluationError:
            return ""
        message = text.strip() if isinstance(text, str) else ""
        return message if len(message.encode()) <= MESSAGE_LIMIT and "\n" not in message else ""


def _error_of(reason: str, path: str, schema: Schema, value: Any, detail: str) -> StatusCause:
    if reason == "FieldValueForbidden":
        return forbidden(path, detail)
    if reason == "FieldValueRequired":
        return required(path, detail)
    compound = schema.shape in ("object", "map", "list")
    if reason == "FieldValueDuplicate":
        if compound:
            return StatusCause(reason=reason, field=path, message="Duplicate value")
        return duplicate(path, value)
    if compound:
        return StatusCause(
            reason="FieldValueInvalid", field=path, message=f"Invalid value: {detail}"
        )
    return invalid(path, value, detail)


def _children_of(
    schema: Schema, path: str, new: Any, old: Any
) -> Iterator[tuple[Schema, str, Any, Any]]:
    if isinstance(new, dict):
        old_fields = old if isinstance(old, dict) else {}
        for name, item in new.items():
            if schema.embedded_resource and name in META_FIELDS:
                continue
            child = schema.fields.get(name)
            if child is not None:
                yield child, f"{path}.{name}" if path else name, item, old_fields.get(name, ABSENT)
            elif schema.values is not None:
                yield schema.values, f"{path}[{name}]", item, old_fields.get(name, ABSENT)
    elif isinstance(new, list) and schema.shape == "list" and schema.items is not None:
        old_items = items_by_key(schema, old)
        for n, item in enumerate(new):
            yield schema.items, f"{path}[{n}]", item, old_items.get(key_of(schema, item), ABSENT)
