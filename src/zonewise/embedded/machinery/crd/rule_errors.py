"""Why a real server would refuse the rules of a definition.

A rule must compile against the types its schema gives it, use ``oldSelf`` only where old and new
can be matched, and cost at worst no more than an API server may spend: on one rule, and on all
rules of a definition together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.embedded.machinery.cel import CompileError, cost
from zonewise.embedded.machinery.cel.compiler import compiled as checked
from zonewise.embedded.machinery.cel.kinds import CelKind, optional_of
from zonewise.embedded.machinery.crd.rules import MessageError, compile_rule, kind_of
from zonewise.embedded.machinery.crd.structural import Schema, subschemas, type_of
from zonewise.embedded.machinery.schema.types import Type, ValidationRule


def compile_faults(schema: Schema, at: str, faulty: Sequence[str] = ()) -> list[StatusCause]:
    """What is wrong with the rules of a schema; ``faulty`` are fields with faults of other kinds.

    A part with such a fault in it is passed over: its rules would be wrong for that reason only.
    """
    check = _RuleCheck(faulty)
    found = list(check.schema(schema, at, root=True, uncorrelated="", times_there=1))
    if check.total > cost.DEFINITION_LIMIT:
        words = "contributed to estimated rule cost total exceeding cost limit"
        for _, path in sorted(check.dear, key=lambda one: -one[0])[:4]:
            found.append(field_errors.forbidden(path, f"{words} for entire OpenAPIv3 schema"))
        what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
        found.append(_too_dear(at, what, check.total, cost.DEFINITION_LIMIT))
    return found


def _too_dear(at: str, what: str, spent: int, limit: int) -> StatusCause:
    factor = spent / limit
    shown = (
        "more than 100x" if factor > 100 else f"{factor:f}x" if factor < 1.5 else f"{factor:.1f}x"
    )
    advice = "maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared"
    words = (
        f"{what} exceeds budget by factor of {shown} (try simplifying the rule, or adding {advice})"
    )
    return field_errors.forbidden(at, words)


class _RuleCheck:
    """The rules of one definition; adds up what they may cost."""

    def __init__(self, faulty: Sequence[str]) -> None:
        self.faulty = faulty
        self.total = 0
        self.dear: list[tuple[int, str]] = []

    def schema(
        self, schema: Schema, at: str, *, root: bool, uncorrelated: str, times_there: int | None
    ) -> Iterator[StatusCause]:
        """``times_there`` is how often this part may occur in an object, None if nothing bounds
        it.
        """
        within = (f"{at}.", f"{at}[")
        sound = not any(field == at or field.startswith(within) for field in self.faulty)
        if schema.get("x-kubernetes-validations") and sound:
            whole = type_of(schema) if root else _type_below(schema)
            seen = kind_of(whole, root=root)
            for n, rule in enumerate(whole.rules):
                where = f"{at}.x-kubernetes-validations[{n}]"
                if seen is None:
                    words = "Internal error: the schema has no type that rules could speak of"
                    field = where.rpartition("[")[0]
                    yield StatusCause(reason="InternalError", field=field, message=words)
                    continue
                yield from self.rule(rule, whole, seen, where, times_there)
                yield from _past_faults(rule, seen, where, uncorrelated)
        below = _occurrences(schema, times_there)
        for path, sub, structure in subschemas(schema, at):
            if not structure:
                continue
            lost = uncorrelated
            if path == f"{at}.items" and schema.get("x-kubernetes-list-type") != "map":
                lost = lost or at
            yield from self.schema(sub, path, root=False, uncorrelated=lost, times_there=below)

    def rule(
        self, rule: ValidationRule, whole: Type, seen: CelKind, at: str, times_there: int | None
    ) -> Iterator[StatusCause]:
        try:
            compile_rule(rule, seen)
        except MessageError as error:
            yield field_errors.invalid(
                f"{at}.messageExpression", rule.message_expression, str(error)
            )
        except CompileError as error:
            yield field_errors.invalid(f"{at}.rule", rule.rule, str(error))
            return
        often = times_there
        if often is None:
            often = cost.REQUEST_SIZE // (cost.least_size(whole) + 1)
        spent = cost.times(_estimated(rule, rule.rule, whole, seen), often)
        if spent > cost.RULE_LIMIT:
            yield _too_dear(f"{at}.rule", "estimated rule cost", spent, cost.RULE_LIMIT)
        self.observe(f"{at}.rule", spent)
        if rule.message_expression:
            try:
                spent = _estimated(rule, rule.message_expression, whole, seen)
            except CompileError:
                return
            where = f"{at}.messageExpression"
            if spent > cost.RULE_LIMIT:
                yield _too_dear(where, "estimated messageExpression cost", spent, cost.RULE_LIMIT)
            self.observe(where, spent)

    def observe(self, at: str, spent: int) -> None:
        self.total = min(self.total + spent, cost.MOST)
        if spent >= cost.NOTABLE:
            self.dear.append((spent, at))


def _occurrences(schema: Schema, times_there: int | None) -> int | None:
    """How often what is below a schema may occur."""
    if times_there is None:
        return None
    most: int | None = 1
    if schema.get("type") == "array":
        most = schema.get("maxItems")
    elif schema.get("type") == "object" and schema.get("additionalProperties") is not None:
        most = schema.get("maxProperties")
    return None if most is None else cost.times(times_there, max(0, most))


def _estimated(rule: ValidationRule, text: str, whole: Type, seen: CelKind) -> int:
    old = optional_of(seen) if rule.optional_old_self else seen
    made = checked(text, {"self": seen, "oldSelf": old})
    return cost.estimated(made, {"self": whole, "oldSelf": whole})


def _type_below(schema: Schema) -> Type:
    return type_of({"type": "object", "properties": {"x": schema}}).fields["x"]


def _past_faults(
    rule: ValidationRule, seen: CelKind, at: str, uncorrelated: str
) -> Iterator[StatusCause]:
    """What is wrong with a rule's use of ``oldSelf``."""
    try:
        program, _ = compile_rule(rule, seen)
    except CompileError:
        return
    if "oldSelf" in program.variables:
        if uncorrelated:
            words = (
                "oldSelf cannot be used on the uncorrelatable portion of the schema "
                f"within {uncorrelated}"
            )
            yield field_errors.invalid(f"{at}.rule", rule.rule, words)
    elif rule.optional_old_self is not None:
        words = "may not be set if oldSelf is not used in rule"
        yield field_errors.invalid(f"{at}.optionalOldSelf", rule.optional_old_self, words)
