"""A cursor finds, names and checks the fields of an object, and makes no text without errors."""

from __future__ import annotations

import re
from typing import Any

import pytest

from zonewise.api.field_cursor import NOTHING, Field, FieldErrors


def root(value: Any, path: str = "") -> tuple[Field, FieldErrors]:
    """A cursor at an object, and the list its errors go to."""
    errors: FieldErrors = []
    return Field(value, errors, path), errors


def lines(errors: FieldErrors) -> list[str]:
    """Errors as a client reads them."""
    return [f"{error.field}: {error.message}" for error in errors]


def test_a_path_names_fields_items_and_entries() -> None:
    """Fields follow a dot, items and the keys of maps are in brackets."""
    obj, _ = root({"spec": {"ports": [{"name": "a"}], "limits": {"cpu": "1"}}})
    (port,) = obj["spec"]["ports"].each()
    assert port["name"].path == "spec.ports[0].name"
    assert obj["spec"]["limits"].entry("cpu").path == "spec.limits[cpu]"
    assert [(key, field.path) for key, field in obj["spec"]["limits"].entries()] == [
        ("cpu", "spec.limits[cpu]")
    ]
    assert obj["spec"]["ports"].item(0).path == "spec.ports[0]"
    assert obj.path == ""


def test_a_root_may_be_below_the_object() -> None:
    """A rule for a part of an object reports paths of the whole."""
    template, errors = root({"spec": {}}, "spec.template")
    template["spec"]["containers"].required()
    assert lines(errors) == ["spec.template.spec.containers: Required value"]


def test_missing_fields_read_as_none() -> None:
    """Fields below a missing one are missing; a missing list has no items."""
    obj, errors = root({"spec": None})
    assert obj["spec"]["template"]["metadata"].value is None
    assert list(obj["spec"]["ports"].each()) == []
    assert list(obj["spec"]["labels"].entries()) == []
    assert obj["spec"].get("replicas", 1).value == 1
    assert errors == []


@pytest.mark.parametrize(
    "check",
    [
        lambda field: field.enum(("a",)),
        lambda field: field.minimum(1),
        lambda field: field.maximum(1),
        lambda field: field.invalid_set("no"),
        lambda field: field.not_negative(),
        lambda field: field.positive(),
        lambda field: field.between(1, 2),
        lambda field: field.port_number(),
        lambda field: field.port(),
        lambda field: field.max_items(1),
        lambda field: field.max_length(1),
        lambda field: field.max_bytes(1),
        lambda field: field.unique(set()),
        lambda field: field.matches(re.compile("a"), ""),
        lambda field: field.dns_label(),
        lambda field: field.dns_1035_label(),
        lambda field: field.dns_subdomain(),
        lambda field: field.qualified_name(),
        lambda field: field.label_value(),
        lambda field: field.path_segment(),
        lambda field: field.port_name(),
        lambda field: field.forbid_set(""),
        lambda field: field.forbid_filled(""),
    ],
)
def test_none_passes_every_check(check: Any) -> None:
    """None breaks no rule except ``required``."""
    obj, errors = root({})
    assert check(obj["missing"])
    assert errors == []


def test_errors_read_as_an_api_servers() -> None:
    """Reason, path, value and sentence of each error equal those of Kubernetes."""
    obj, errors = root(
        {
            "least": 0,
            "count": -1,
            "positive": 0,
            "range": 9,
            "port": 0,
            "name": "-",
            "kind": "x",
            "items": [1, 2],
            "long": "ab",
            "set": "",
        }
    )
    obj["least"].minimum(1)
    obj["least"].minimum(1, "more")
    obj["range"].maximum(8)
    obj["count"].not_negative()
    obj["positive"].positive()
    obj["range"].between(1, 3)
    obj["port"].port()
    obj["name"].port()
    obj["kind"].enum(("b", "a"))
    obj["items"].max_items(1)
    obj["long"].max_length(1)
    obj["long"].immutable("a")
    obj["long"].unique({"ab"})
    obj["long"].not_found()
    obj["set"].forbid_set("no")
    obj["set"].invalid_set("no")
    obj["set"].present("why")
    obj["unset"].present("why")
    obj["set"].required("why")
    obj["set"].internal("broken")
    obj["least"].invalid_if("")
    obj["least"].invalid_if("a reason")
    assert lines(errors) == [
        "least: Invalid value: 0: must be greater than or equal to 1",
        "least: Invalid value: 0: more",
        "range: Invalid value: 9: must be less than or equal to 8",
        "count: Invalid value: -1: must be greater than or equal to 0",
        "positive: Invalid value: 0: must be greater than 0",
        "range: Invalid value: 9: must be between 1 and 3, inclusive",
        "port: Invalid value: 0: must be between 1 and 65535, inclusive",
        'name: Invalid value: "-": must contain at least one letter (a-z)',
        'name: Invalid value: "-": must not begin or end with a hyphen',
        'kind: Unsupported value: "x": supported values: "a", "b"',
        "items: Too many: 2: must have at most 1 items",
        "long: Too long: may not be more than 1 bytes",
        'long: Invalid value: "ab": field is immutable',
        'long: Duplicate value: "ab"',
        'long: Not found: "ab"',
        "set: Forbidden: no",
        'set: Invalid value: "": no',
        "unset: Required value: why",
        "set: Required value: why",
        "set: Internal error: broken",
        "least: Invalid value: 0: a reason",
    ]


def test_a_chain_ends_with_its_first_error() -> None:
    """After a failed check the next ones record nothing, and the chain is false."""
    obj, errors = root({"port": 0, "name": "A_"})
    assert not obj["port"].required().port_number()
    assert not obj["name"].required().dns_label().enum(("b",))
    assert [error.field for error in errors] == ["port", "name"]


def test_an_empty_optional_field_is_not_checked_further() -> None:
    """On an empty field ``optional`` ends the chain of checks without an error."""
    obj, errors = root({"name": "", "other": "A_"})
    assert obj["name"].optional().dns_label() is NOTHING
    assert not obj["other"].optional().dns_label()
    assert [error.field for error in errors] == ["other"]


def test_an_ended_chain_records_nothing() -> None:
    """After the end of a chain neither checks nor errors are recorded."""
    assert not NOTHING["a"]["b"].required()
    assert not NOTHING["a"].present()
    assert not NOTHING.get("a", 1)
    NOTHING.invalid("lost")
    assert NOTHING.errors == []


def test_an_error_may_be_about_another_value_or_name() -> None:
    """An error can show another value, and the name that servers use for the field."""
    obj, errors = root({"hostPID": True, "taints": [{"key": "a b"}]})
    obj["hostPID"].named("HostPID").forbid_filled("when `hostUsers` is false")
    obj["metadata"].child("taints", obj.value["taints"]).item(0)["key"].invalid("odd", "b")
    obj["list"].holding("x").enum(("a",))
    assert lines(errors) == [
        "HostPID: Forbidden: when `hostUsers` is false",
        'metadata.taints[0].key: Invalid value: "b": odd',
        'list: Unsupported value: "x": supported values: "a"',
    ]


def test_whether_a_rule_recorded_errors_is_known() -> None:
    """A rule can check whether another one recorded errors."""
    obj, errors = root({"good": "a", "bad": "_"})
    assert obj["good"].is_valid(Field.dns_label)
    assert not obj["bad"].is_valid(Field.dns_label)
    assert len(errors) == 1


def test_several_fields_may_be_required_at_once() -> None:
    """``require`` with several fields reports each of them that is empty or missing."""
    obj, errors = root({"a": "", "b": "x"})
    obj.require("a", "b", "c")
    assert [error.field for error in errors] == ["a", "c"]


def test_values_are_unique_once() -> None:
    """A value is reported when it was seen before, and remembered otherwise."""
    obj, errors = root({"names": ["a", "b", "a"]})
    names: set[str] = set()
    for name in obj["names"].each():
        name.unique(names)
    assert names == {"a", "b"}
    assert lines(errors) == ['names[2]: Duplicate value: "a"']
