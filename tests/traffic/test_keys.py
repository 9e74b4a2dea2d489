"""Topology keys: which lists are right, and what is said of the others."""

from __future__ import annotations

import pytest
from tests.traffic.test_modes import service

from zonewise.traffic import TOPOLOGY_KEYS_ANNOTATION as ANNOTATION
from zonewise.traffic import invalid_keys, keys_faults, service_faults, topology_keys

PLACE = f"metadata.annotations[{ANNOTATION}]"
SIXTEEN = (*(f"example.com/k{number}" for number in range(15)), "*")


@pytest.mark.parametrize(
    "keys",
    [("*",), ("kubernetes.io/hostname",), ("zone", "*"), ("a" * 63, "b.c/d_e.f"), SIXTEEN],
)
def test_right_ones(keys: tuple[str, ...]) -> None:
    """A right list counts, in the field and in the annotation, with blanks or without."""
    for one in (
        service(topology_keys=keys),
        service({ANNOTATION: ",".join(keys)}),
        service({ANNOTATION: " , ".join(keys) + " "}),
        service({ANNOTATION: ",".join(keys)}, topology_keys=keys),
    ):
        assert (topology_keys(one), keys_faults(one), invalid_keys(one)) == (keys, [], None)


@pytest.mark.parametrize("text", ["", "  "])
def test_none(text: str) -> None:
    """A blank annotation is no list."""
    one = service({ANNOTATION: text})
    assert (topology_keys(one), keys_faults(one), invalid_keys(one)) == ((), [], None)


@pytest.mark.parametrize(
    ("keys", "spec", "where", "reason"),
    [
        ((*SIXTEEN[:-1], "a", "b"), {}, "", "FieldValueTooMany"),
        (("zone", "zone"), {}, "[1]", "FieldValueDuplicate"),
        (("*", "zone"), {}, "[0]", "FieldValueInvalid"),
        (("a b",), {}, "[0]", "FieldValueInvalid"),
        (("k" * 64,), {}, "[0]", "FieldValueInvalid"),
        (("/zone",), {}, "[0]", "FieldValueInvalid"),
        (("zone", ""), {}, "[1]", "FieldValueInvalid"),
        (("zone",), {"external_traffic_policy": "Local"}, "", "FieldValueForbidden"),
        (("zone",), {"traffic_policy": "PreferZone"}, "", "FieldValueForbidden"),
    ],
)
def test_each_mistake(
    keys: tuple[str, ...], spec: dict[str, object], where: str, reason: str
) -> None:
    """Each mistake is told alike for field and annotation, and such keys do not count."""
    written = service({}, topology_keys=keys, **spec)
    (fault,) = keys_faults(written)
    assert (fault.field, fault.reason) == (f"spec.topologyKeys{where}", reason)
    noted = service({ANNOTATION: ",".join(keys)}, **spec)
    (other,) = keys_faults(noted)
    assert (other.field, other.reason) == (PLACE, reason)
    assert service_faults(noted) == [other]
    for one in (written, noted):
        assert topology_keys(one) == ()
        told = invalid_keys(one)
        assert told is not None
        assert told.code == "InvalidTopologyKeys"


def test_all_at_once() -> None:
    """Several mistakes are told together, and as many as a person reads in the note."""
    one = service({ANNOTATION: "*,a b,a b,,"}, external_traffic_policy="Local")
    reasons = [fault.reason.removeprefix("FieldValue") for fault in keys_faults(one)]
    assert reasons == [
        "Forbidden",
        "Invalid",
        "Invalid",
        "Invalid",
        "Duplicate",
        "Invalid",
        "Invalid",
        "Duplicate",
    ]
    told = invalid_keys(one)
    assert told is not None
    assert told.message.endswith("(and 5 more)")


def test_two_lists_must_agree() -> None:
    """A field and an annotation that differ leave nobody to believe."""
    one = service({ANNOTATION: "zone"}, topology_keys=("zone", "*"))
    (fault,) = keys_faults(one)
    assert (fault.field, fault.reason) == (PLACE, "FieldValueInvalid")
    assert topology_keys(one) == ()


def test_a_list_without_end() -> None:
    """A hundred thousand keys are refused as fast as three."""
    one = service({ANNOTATION: "," * 100_000})
    told = invalid_keys(one)
    assert told is not None
    assert len(told.message) < 1000
