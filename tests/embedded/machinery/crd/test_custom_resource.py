"""Custom resources are defaulted, pruned and validated against their old state."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.api.errors import ParseError
from zonewise.embedded.machinery.crd.custom_resource import prepare, validate_custom_resource
from zonewise.embedded.machinery.crd.rules import OUT_OF_BUDGET
from zonewise.embedded.machinery.crd.schema_validation import validate_schema, validate_versions
from zonewise.embedded.machinery.crd.structural import compile_schema
from zonewise.embedded.machinery.schema.patterns import compile_pattern

NUMBER, TEXT = {"type": "integer"}, {"type": "string"}


def schema(**spec: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": spec},
            "status": {"type": "object"},
        },
    }


def thing(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "x/v1", "kind": "T", "metadata": {"name": "t", "odd": 1}, "spec": spec}


def rule(text: str, **more: Any) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": text, **more}]}


@pytest.mark.parametrize(
    ("fields", "sent", "stored", "unknown"),
    [
        ({"a": {**NUMBER, "default": 1}}, {}, {"a": 1}, ()),
        ({"a": {**NUMBER, "default": 1}}, {"a": None}, {"a": 1}, ()),
        ({"a": {**NUMBER, "default": 1, "nullable": True}}, {"a": None}, {"a": None}, ()),
        ({"a": NUMBER}, {"a": None}, {}, ()),
        ({"a": NUMBER}, {"b": 1, "c": {"d": 2}}, {}, ("spec.b", "spec.c")),
        (
            {"l": {"type": "array", "items": {"type": "object", "properties": {"a": NUMBER}}}},
            {"l": [{"a": 1, "b": 2}, {"b": 2}]},
            {"l": [{"a": 1}, {}]},
            ("spec.l[0].b", "spec.l[1].b"),
        ),
        (
            {"o": {"type": "object", "default": {}, "properties": {"d": {**TEXT, "default": "x"}}}},
            {},
            {"o": {"d": "x"}},
            (),
        ),
        (
            {
                "e": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": True,
                    "properties": {"apiVersion": {**TEXT, "default": "v1"}},
                }
            },
            {"e": {"kind": "Pod"}},
            {"e": {"apiVersion": "v1", "kind": "Pod"}},
            (),
        ),
        (
            {"m": {"type": "object", "additionalProperties": {"type": "object"}}},
            {"m": {"k": {"x": 1}}},
            {"m": {"k": {}}},
            ("spec.m.k.x",),
        ),
        (
            {"f": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            {"f": {"x": {"y": None}}},
            {"f": {"x": {"y": None}}},
            (),
        ),
    ],
)
def test_bodies_are_defaulted_and_pruned(
    fields: dict[str, Any], sent: dict[str, Any], stored: dict[str, Any], unknown: tuple[str, ...]
) -> None:
    """Nulls get defaults, unknown fields are removed and named, metadata is left alone."""
    body = thing(**sent)
    prepared = prepare(compile_schema(schema(**fields)), body)
    assert prepared.value == thing(**stored)
    assert prepared.unknown == unknown


def test_defaults_are_copies() -> None:
    """Two objects that get a default do not share it."""
    kind = compile_schema(
        schema(
            o={
                "type": "object",
                "default": {"l": [1]},
                "x-kubernetes-preserve-unknown-fields": True,
            }
        )
    )
    first, second = (prepare(kind, thing()).value for _ in range(2))
    first["spec"]["o"]["l"].append(2)
    assert second["spec"]["o"]["l"] == [1]


def reasons(kind: Any, new: dict[str, Any], old: dict[str, Any] | None = None) -> list[str]:
    return [f"{fault.reason} {fault.field}" for fault in validate_custom_resource(kind, new, old)]


@pytest.mark.parametrize(
    ("step", "number", "fits"),
    [
        (0.5, 3.5, True),
        (0.5, 3.25, False),
        (0.5, 1e308, False),
        pytest.param(0.5, 10**400, False, id="halves-of-a-huge-one"),
        pytest.param(2, 10**400, True, id="a-huge-even-one"),
        (0, 4, False),
        (0.0, 3.5, False),
        (-2, 4, False),
    ],
)
def test_multiples_of_any_number(step: float, number: float, fits: bool) -> None:
    """A number is a multiple or is refused, however large it is."""
    kind = compile_schema(schema(a={"type": "number", "multipleOf": step}))
    assert reasons(kind, thing(a=number)) == ([] if fits else ["FieldValueInvalid spec.a"])


def test_errors_in_unchanged_fields_are_ignored() -> None:
    """A schema may become stricter: only changed fields are validated."""
    kind = compile_schema(
        schema(a={**NUMBER, "minimum": 5}, b=TEXT, r={**NUMBER, **rule("self > 10")})
    )
    old = thing(a=1, r=1)
    assert reasons(kind, old) == ["FieldValueInvalid spec.a", "FieldValueInvalid spec.r"]
    assert reasons(kind, thing(a=1, r=1, b="x"), old) == []
    assert reasons(kind, thing(a=2, r=1), old) == ["FieldValueInvalid spec.a"]
    assert reasons(kind, thing(a=1, r=2), old) == ["FieldValueInvalid spec.r"]


def test_transition_rules_need_an_old_value() -> None:
    """A rule about oldSelf is evaluated on updates of existing values, by field and by list key."""
    item = {
        "type": "object",
        "required": ["k"],
        "properties": {"k": TEXT, "v": {**NUMBER, **rule("self >= oldSelf")}},
    }
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}
    kind = compile_schema(
        schema(t={**TEXT, **rule("self == oldSelf")}, l={"type": "array", "items": item, **keyed})
    )
    old = thing(t="a", l=[{"k": "x", "v": 5}, {"k": "y", "v": 5}])
    assert reasons(kind, old) == []
    assert reasons(kind, thing(t="b"), old) == ["FieldValueInvalid spec.t"]
    new = thing(t="a", l=[{"k": "new", "v": 1}, {"k": "y", "v": 4}, {"k": "x", "v": 6}])
    assert reasons(kind, new, old) == ["FieldValueInvalid spec.l[1].v"]


def test_optional_old_self_is_evaluated_always() -> None:
    """A rule with optionalOldSelf is evaluated on creations, too."""
    text = "oldSelf.hasValue() ? self >= oldSelf.value() : self == 1"
    kind = compile_schema(schema(n={**NUMBER, **rule(text, optionalOldSelf=True)}))
    assert reasons(kind, thing(n=2)) == ["FieldValueInvalid spec.n"]
    assert reasons(kind, thing(n=1)) == []
    assert reasons(kind, thing(n=3), thing(n=2)) == []
    assert reasons(kind, thing(n=1), thing(n=2)) == ["FieldValueInvalid spec.n"]


def test_rules_need_a_valid_object() -> None:
    """A rule is not evaluated for a value of a wrong type."""
    kind = compile_schema(schema(a={**NUMBER, **rule("self > 1")}, b=NUMBER))
    faults = validate_custom_resource(kind, thing(a=0, b="x"))
    assert [fault.field for fault in faults] == ["spec.b", "<nil>"]
    assert "some validation rules were not checked" in faults[1].message


def test_a_rule_defines_its_error() -> None:
    """Message, message expression, reason and path of a rule are those of the error."""
    more = {
        "message": "fixed words",
        "messageExpression": "'a is ' + string(self.a)",
        "reason": "FieldValueForbidden",
        "fieldPath": ".a",
    }
    spec = {"type": "object", "properties": {"a": NUMBER}, **rule("self.a > 1", **more)}
    (fault,) = validate_custom_resource(
        compile_schema({"type": "object", "properties": {"spec": spec}}), thing(a=1)
    )
    assert (fault.reason, fault.field) == ("FieldValueForbidden", "spec.a")
    assert fault.message == "Forbidden: a is 1"


def test_objects_that_cost_too_much_are_refused() -> None:
    """When the budget of an object is spent, it is refused and no more rules are evaluated."""
    dear = rule("self.all(a, self.all(b, self.all(c, a + b + c >= 0)))")
    lists = {f"l{n}": {"type": "array", "items": NUMBER, **dear} for n in range(6)}
    faults = validate_custom_resource(
        compile_schema(schema(**lists)), thing(**{name: [1] * 200 for name in lists})
    )
    assert len(faults) == 1
    assert "cost" in faults[0].message or OUT_OF_BUDGET in faults[0].message


def test_one_schema_for_all_versions_is_reported_once() -> None:
    """Equal schemas are validated once; different ones per version."""
    bad, fine = {"type": "string"}, {"type": "object"}

    def spec(*schemas: dict[str, Any]) -> dict[str, Any]:
        return {"versions": [{"schema": {"openAPIV3Schema": root}} for root in schemas]}

    assert {fault.field for fault in validate_versions(spec(bad, bad))} == {
        "spec.validation.openAPIV3Schema.type"
    }
    assert {fault.field for fault in validate_versions(spec(fine, bad))} == {
        "spec.versions[1].schema.openAPIV3Schema.type"
    }


def test_schemas_nest_within_bounds() -> None:
    """A schema that nests too deeply is refused."""
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(5000):
        deep = {"type": "array", "items": deep}
    (fault,) = validate_schema({"type": "object", "properties": {"a": deep}}, "at")
    assert "nest" in fault.message


@pytest.mark.parametrize("text", ["(?=a)", "a(", "\\Z", "(a+)\\1", "a{1001}", "[", "*"])
def test_patterns_are_those_of_re2(text: str) -> None:
    """Patterns that RE2 refuses are refused."""
    with pytest.raises(ParseError, match="error parsing regexp"):
        compile_pattern(text)


def test_patterns_run_in_linear_time() -> None:
    """A pattern that is slow in backtracking engines is evaluated in linear time."""
    assert not compile_pattern("^(a+)+$").matches("a" * 5000 + "b")
    assert compile_pattern("[a-c]").find_all("xaybzc", 2) == ["a", "b"]
    assert compile_pattern("b").find_first("abc") == "b"
