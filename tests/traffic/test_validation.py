"""What a Service may not be written with."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.traffic.test_modes import NEW, OLD, OVERLOAD, service

from zonewise.traffic import service_faults

SHARES = "zonewise.io/share-nodes"


def told(annotations: Mapping[str, str], **spec: object) -> list[tuple[str, str]]:
    """The faults of a new Service: field and reason."""
    return [(fault.field, fault.reason) for fault in service_faults(service(annotations, **spec))]


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {NEW: "Auto"},
        {OLD: "auto"},
        {NEW: "Disabled"},
        {OLD: "disabled"},
        {NEW: ""},
        {NEW: "example.com/mine"},
        {OLD: "Auto", NEW: "Auto"},
        {OVERLOAD: "1%/100%"},
        {SHARES: "all"},
        {SHARES: "tolerated"},
    ],
)
def test_welcome(annotations: dict[str, str]) -> None:
    """What is known passes, and so does what other domains know."""
    assert told(annotations) == []


@pytest.mark.parametrize(
    ("annotations", "key", "reason"),
    [
        ({NEW: "AUTO"}, NEW, "FieldValueNotSupported"),
        ({OLD: "on"}, OLD, "FieldValueNotSupported"),
        ({NEW: "zonewise.io/unheard-of"}, NEW, "FieldValueNotSupported"),
        ({OLD: "Auto", NEW: "Disabled"}, NEW, "FieldValueInvalid"),
        ({OLD: "auto", NEW: "Auto"}, NEW, "FieldValueInvalid"),
        ({OVERLOAD: "0%/30%"}, OVERLOAD, "FieldValueInvalid"),
        ({OVERLOAD: "40%/30%"}, OVERLOAD, "FieldValueInvalid"),
        ({OVERLOAD: "20%/101%"}, OVERLOAD, "FieldValueInvalid"),
        ({OVERLOAD: "20/30"}, OVERLOAD, "FieldValueInvalid"),
        ({SHARES: "some"}, SHARES, "FieldValueNotSupported"),
        ({SHARES: ""}, SHARES, "FieldValueNotSupported"),
    ],
)
def test_refused(annotations: dict[str, str], key: str, reason: str) -> None:
    """Each mistake is told once, at its annotation."""
    assert told(annotations) == [(f"metadata.annotations[{key}]", reason)]


def test_two_ways_to_choose() -> None:
    """Zones and topology keys exclude each other, however the keys are written."""
    reason = "FieldValueForbidden"
    both = told({}, traffic_policy="PreferZone", topology_keys=("*",))
    assert both == [("spec.topologyKeys", reason)]
    key = "zonewise.io/topology-keys"
    assert told({key: "*"}, traffic_policy="PreferZone") == [
        (f"metadata.annotations[{key}]", reason)
    ]
    assert told({}, topology_keys=("*",)) == []


def test_what_was_there_stays() -> None:
    """An update is refused for what it brings, not for what it finds."""
    old = service({NEW: "AUTO", OVERLOAD: "nonsense"})
    assert service_faults(old, old) == []
    (fault,) = service_faults(service({NEW: "auTo", OVERLOAD: "nonsense"}), old)
    assert "auTo" in fault.message
