"""Which Services are refused on write."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.traffic.clusters import NEW, OLD, OVERLOAD, service

from zonewise.traffic.validation import validate_service_traffic

SHARES = "zonewise.io/share-nodes"


def errors_of(annotations: Mapping[str, str], **spec: object) -> list[tuple[str, str]]:
    """The errors of a new Service: field and reason."""
    return [
        (fault.field, fault.reason)
        for fault in validate_service_traffic(service(annotations, **spec))
    ]


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
def test_valid_services(annotations: dict[str, str]) -> None:
    """Known values are accepted, and so are annotations of other domains."""
    assert errors_of(annotations) == []


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
    """Each mistake in a new Service is reported once, at its annotation."""
    assert errors_of(annotations) == [(f"metadata.annotations[{key}]", reason)]


def test_two_ways_to_choose() -> None:
    """Zones and topology keys exclude each other, in annotation and field."""
    reason = "FieldValueForbidden"
    both = errors_of({}, traffic_policy="PreferZone", topology_keys=("*",))
    assert both == [("spec.topologyKeys", reason)]
    key = "zonewise.io/topology-keys"
    assert errors_of({key: "*"}, traffic_policy="PreferZone") == [
        (f"metadata.annotations[{key}]", reason)
    ]
    assert errors_of({}, topology_keys=("*",)) == []


def test_existing_mistakes_are_accepted_in_updates() -> None:
    """An update is refused for new mistakes, not for existing ones."""
    old = service({NEW: "AUTO", OVERLOAD: "nonsense"})
    assert validate_service_traffic(old, old) == []
    (fault,) = validate_service_traffic(service({NEW: "auTo", OVERLOAD: "nonsense"}), old)
    assert "auTo" in fault.message
