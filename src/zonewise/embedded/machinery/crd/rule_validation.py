"""Validation of the rules in a CustomResourceDefinition.

A rule must compile against the types its schema gives it, use ``oldSelf`` only where old and new
can be matched, and cost at worst no more than an API server may spend: on one rule, and on all
rules of a definition together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zonewise.api.errors import StatusCause
from zonewise.api.field_errors import forbidden, invalid
from zonewise.embedded.machinery.cel import cost
from zonewise.embedded.machinery.cel.compiler import compile_expression
from zonewise.embedded.machinery.cel.kinds import CelKind, optional_of
from zonewise.embedded.machinery.cel.syntax import CompileError
from zonewise.embedded.machinery.crd.rules import MessageError, cel_kind_of, compile_rule
from zonewise.embedded.machinery.crd.structural import (
    Props,
    compile_below,
    compile_schema,
    subschemas,
)
from zonewise.embedded.machinery.schema.schema import Schema, ValidationRule


def validate_rules(props: Props, path: str, invalid_paths: Sequence[str] = ()) -> list[StatusCause]:
    """The errors in the rules of a schema; ``invalid_paths`` are fields with other errors.

    A part with such a field is skipped: its rules would be invalid for that reason only.
    """
    validation = _RulesValidation(invalid_paths)
    errors = list(
        validation.validate_schema(props, path, root=True, uncorrelated="", occurrences=1)
    )
    if validation.total > cost.DEFINITION_LIMIT:
        message = "contributed to estimated rule cost total exceeding cost limit"
        for _, costly_path in sorted(validation.costly, key=lambda rule: -rule[0])[:4]:
            errors.append(forbidden(costly_path, f"{message} for entire OpenAPIv3 schema"))
        subject = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
        errors.append(_too_costly(path, subject, validation.total, cost.DEFINITION_LIMIT))
    return errors


def _too_costly(path: str, subject: str, cost_spent: int, limit: int) -> StatusCause:
    factor = cost_spent / limit
    factor_text = (
        "more than 100x" if factor > 100 else f"{factor:f}x" if factor < 1.5 else f"{factor:.1f}x"
    )
    advice = "maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared"
    message = (
        f"{subject} exceeds budget by factor of {factor_text} "
        f"(try simplifying the rule, or adding {advice})"
    )
    return forbidden(path, message)


class _RulesValidation:
    """The rules of one definition; adds up their estimated cost."""

    def __init__(self, invalid_paths: Sequence[str]) -> None:
        self.invalid_paths = invalid_paths
        self.total = 0
        self.costly: list[tuple[int, str]] = []

    def validate_schema(
        self, props: Props, path: str, *, root: bool, uncorrelated: str, occurrences: int | None
    ) -> Iterator[StatusCause]:
        """``occurrences`` is how often this part may occur in an object, None if unbounded."""
        within = (f"{path}.", f"{path}[")
        is_valid = not any(
            field == path or field.startswith(within) for field in self.invalid_paths
        )
        if props.get("x-kubernetes-validations") and is_valid:
            schema = compile_schema(props) if root else compile_below(props)
            cel_kind = cel_kind_of(schema, root=root)
            for n, rule in enumerate(schema.rules):
                rule_path = f"{path}.x-kubernetes-validations[{n}]"
                if cel_kind is None:
                    message = "Internal error: the schema has no type that rules can use"
                    error_path = rule_path.rpartition("[")[0]
                    yield StatusCause(reason="InternalError", field=error_path, message=message)
                    continue
                yield from self.validate_rule(rule, schema, cel_kind, rule_path, occurrences)
                yield from _validate_old_self(rule, cel_kind, rule_path, uncorrelated)
        child_occurrences = _max_occurrences(props, occurrences)
        for child_path, sub, structure in subschemas(props, path):
            if not structure:
                continue
            child_uncorrelated = uncorrelated
            if child_path == f"{path}.items" and props.get("x-kubernetes-list-type") != "map":
                child_uncorrelated = child_uncorrelated or path
            yield from self.validate_schema(
                sub,
                child_path,
                root=False,
                uncorrelated=child_uncorrelated,
                occurrences=child_occurrences,
            )

    def validate_rule(
        self,
        rule: ValidationRule,
        schema: Schema,
        cel_kind: CelKind,
        path: str,
        occurrences: int | None,
    ) -> Iterator[StatusCause]:
        try:
            compile_rule(rule, cel_kind)
        except MessageError as error:
            yield invalid(f"{path}.messageExpression", rule.message_expression, str(error))
        except CompileError as error:
            yield invalid(f"{path}.rule", rule.rule, str(error))
            return
        times = occurrences
        if times is None:
            times = cost.REQUEST_SIZE // (cost.min_size(schema) + 1)
        rule_cost = cost.times(_estimate(rule, rule.rule, schema, cel_kind), times)
        if rule_cost > cost.RULE_LIMIT:
            yield _too_costly(f"{path}.rule", "estimated rule cost", rule_cost, cost.RULE_LIMIT)
        self.add_cost(f"{path}.rule", rule_cost)
        if rule.message_expression:
            try:
                rule_cost = _estimate(rule, rule.message_expression, schema, cel_kind)
            except CompileError:
                return
            message_path = f"{path}.messageExpression"
            if rule_cost > cost.RULE_LIMIT:
                yield _too_costly(
                    message_path, "estimated messageExpression cost", rule_cost, cost.RULE_LIMIT
                )
            self.add_cost(message_path, rule_cost)

    def add_cost(self, path: str, rule_cost: int) -> None:
        self.total = min(self.total + rule_cost, cost.MAX_COST)
        if rule_cost >= cost.NOTABLE_COST:
            self.costly.append((rule_cost, path))


def _max_occurrences(props: Props, occurrences: int | None) -> int | None:
    """How often the parts below a schema may occur, None if unbounded."""
    if occurrences is None:
        return None
    limit: int | None = 1
    if props.get("type") == "array":
        limit = props.get("maxItems")
    elif props.get("type") == "object" and props.get("additionalProperties") is not None:
        limit = props.get("maxProperties")
    return None if limit is None else cost.times(occurrences, max(0, limit))


def _estimate(rule: ValidationRule, text: str, schema: Schema, cel_kind: CelKind) -> int:
    old = optional_of(cel_kind) if rule.optional_old_self else cel_kind
    program = compile_expression(text, {"self": cel_kind, "oldSelf": old})
    return cost.estimate_cost(program, {"self": schema, "oldSelf": schema})


def _validate_old_self(
    rule: ValidationRule, cel_kind: CelKind, path: str, uncorrelated: str
) -> Iterator[StatusCause]:
    """Errors in a rule's use of ``oldSelf``."""
    try:
        program, _ = compile_rule(rule, cel_kind)
    except CompileError:
        return
    if "oldSelf" in program.variables:
        if uncorrelated:
            message = (
                "oldSelf cannot be used on the uncorrelatable portion of the schema "
                f"within {uncorrelated}"
            )
            yield invalid(f"{path}.rule", rule.rule, message)
    elif rule.optional_old_self is not None:
        message = "may not be set if oldSelf is not used in rule"
        yield invalid(f"{path}.optionalOldSelf", rule.optional_old_self, message)
