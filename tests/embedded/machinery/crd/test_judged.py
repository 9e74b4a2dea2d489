"""Schemas, rules and values of custom resources are accepted or refused as by the real server."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.kubernetes.judgements import load, schema_of, sorted_by_case

from zonewise.embedded.machinery.crd.custom_resource import prepare, validate_custom_resource
from zonewise.embedded.machinery.crd.schema_validation import validate_schema
from zonewise.embedded.machinery.crd.structural import compile_schema

AT = "spec.validation.openAPIV3Schema"


def cases(name: str) -> list[Any]:
    def label(case: dict[str, Any]) -> str:
        rules = case["schema"].get("x-kubernetes-validations") or [{}]
        rule = rules[0].get("rule") or str(case["schema"])
        return f"{rule} <- {case.get('value', '')}"[:90]

    return [pytest.param(case, id=f"{n} {label(case)}") for n, case in enumerate(load(name))]


def verdict(case: dict[str, Any]) -> dict[str, Any]:
    schema = schema_of([case])
    causes = [(fault.reason, fault.field) for fault in validate_schema(schema, AT)]
    refused = sorted_by_case(causes, f"{AT}.properties[spec].properties", 1)[0]
    if refused or "value" not in case:
        return {"definition": refused}
    kind = compile_schema(schema)
    value = {"apiVersion": "x/v1", "kind": "Thing", "spec": {"p0": case["value"]}}
    before = copy.deepcopy(value)
    causes = [
        (fault.reason, fault.field)
        for fault in validate_custom_resource(kind, prepare(kind, value).value)
    ]
    assert value == before, "preparing must not change its input"
    return {"object": sorted_by_case(causes, "spec", 1)[0]}


@pytest.mark.parametrize("case", cases("schemas"))
def test_schemas_are_refused_for_the_same_causes(case: dict[str, Any]) -> None:
    """A schema that is not structural is refused for the reasons and paths of the real server."""
    assert verdict(case) == {"definition": case["definition"]}


@pytest.mark.parametrize("case", cases("costs"))
def test_rules_that_may_cost_too_much_are_refused(case: dict[str, Any]) -> None:
    """A rule whose estimated cost is too high is refused as by the real server."""
    assert verdict(case) == {"definition": case["definition"]}


@pytest.mark.parametrize("case", cases("values"))
def test_values_break_the_same_constraints(case: dict[str, Any]) -> None:
    """A value is accepted or refused with the real server's reasons and paths."""
    assert verdict(case) == {"object": case["object"]}


@pytest.mark.parametrize("case", cases("expressions"))
def test_rules_compile_and_decide_the_same(case: dict[str, Any]) -> None:
    """A rule is refused as by the real server, or else decides as the real server."""
    given = {key: case[key] for key in ("definition", "object") if key in case}
    assert verdict(case) == given
