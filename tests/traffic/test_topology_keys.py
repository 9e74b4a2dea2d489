"""Topology keys: which lists are valid, and the notes about others."""

from __future__ import annotations

import pytest
from tests.traffic.clusters import service

from zonewise.api import FeatureGates
from zonewise.traffic.topology_keys import TOPOLOGY_KEYS_ANNOTATION as ANNOTATION
from zonewise.traffic.topology_keys import (
    ignored_keys_reason,
    topology_key_errors,
    topology_keys_of,
)
from zonewise.traffic.validation import validate_service_traffic

FIELD = f"metadata.annotations[{ANNOTATION}]"
SIXTEEN = (*(f"example.com/k{number}" for number in range(15)), "*")


@pytest.mark.parametrize(
    "keys",
    [("*",), ("kubernetes.io/hostname",), ("zone", "*"), ("a" * 63, "b.c/d_e.f"), SIXTEEN],
)
def test_valid_lists(keys: tuple[str, ...]) -> None:
    """A valid list counts, in the field and in the annotation, with spaces or without."""
    for annotated in (
        service(topology_keys=keys),
        service({ANNOTATION: ",".join(keys)}),
        service({ANNOTATION: " , ".join(keys) + " "}),
        service({ANNOTATION: ",".join(keys)}, topology_keys=keys),
    ):
        assert (
            topology_keys_of(annotated),
            topology_key_errors(annotated),
            ignored_keys_reason(annotated),
        ) == (
            keys,
            [],
            None,
        )


def test_a_field_whose_gate_is_off_is_noted() -> None:
    """Keys of the field do not count without the gate, which a note says, unless the annotation
    has the same.
    """
    off = FeatureGates()
    stored = service(topology_keys=("zone", "*"))
    assert topology_keys_of(stored, off) == ()
    reason = ignored_keys_reason(stored, off)
    assert reason is not None
    assert reason.code == "TopologyKeysOff"
    assert ANNOTATION in reason.fix
    both = service({ANNOTATION: "zone,*"}, topology_keys=("zone", "*"))
    assert ignored_keys_reason(both, off) is None
    other = ignored_keys_reason(service({ANNOTATION: "*"}, topology_keys=("zone", "*")), off)
    assert other is not None


@pytest.mark.parametrize("text", ["", "  "])
def test_blank_annotations(text: str) -> None:
    """A blank annotation is no list."""
    annotated = service({ANNOTATION: text})
    assert (
        topology_keys_of(annotated),
        topology_key_errors(annotated),
        ignored_keys_reason(annotated),
    ) == (
        (),
        [],
        None,
    )


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
    """Each mistake in topology keys has the same note for field and annotation, and such keys do
    not count.
    """
    written = service({}, topology_keys=keys, **spec)
    (fault,) = topology_key_errors(written)
    assert (fault.field, fault.reason) == (f"spec.topologyKeys{where}", reason)
    noted = service({ANNOTATION: ",".join(keys)}, **spec)
    (other,) = topology_key_errors(noted)
    assert (other.field, other.reason) == (FIELD, reason)
    assert validate_service_traffic(noted) == [other]
    for invalid in (written, noted):
        assert topology_keys_of(invalid) == ()
        reason_shown = ignored_keys_reason(invalid)
        assert reason_shown is not None
        assert reason_shown.code == "InvalidTopologyKeys"


def test_all_at_once() -> None:
    """Several mistakes are reported together, as many as fit in a note."""
    invalid = service({ANNOTATION: "*,a b,a b,,"}, external_traffic_policy="Local")
    reasons = [fault.reason.removeprefix("FieldValue") for fault in topology_key_errors(invalid)]
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
    summary = ignored_keys_reason(invalid)
    assert summary is not None
    assert summary.message.endswith("(and 5 more)")


def test_two_lists_must_agree() -> None:
    """If field and annotation differ, neither counts."""
    contradictory = service({ANNOTATION: "zone"}, topology_keys=("zone", "*"))
    (fault,) = topology_key_errors(contradictory)
    assert (fault.field, fault.reason) == (FIELD, "FieldValueInvalid")
    assert topology_keys_of(contradictory) == ()


def test_a_very_long_list() -> None:
    """A hundred thousand keys are refused as fast as three."""
    overlong = service({ANNOTATION: "," * 100_000})
    summary = ignored_keys_reason(overlong)
    assert summary is not None
    assert len(summary.message) < 1000
