"""The values of topology keys in slices: what is written, what is read, and what is not known."""

from __future__ import annotations

import pytest

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.discovery import Endpoint, EndpointConditions, EndpointSlice
from zonewise.topology.nodes import HOSTNAME_LABEL, ZONE_LABEL
from zonewise.traffic.slices.identity import MANAGED_BY_LABEL, MANAGER
from zonewise.traffic.slices.topology import (
    TOPOLOGY_ANNOTATION,
    SliceTopology,
    StatedTopology,
    annotated_keys,
    format_topology,
    parse_topology,
    unstated_labels_of,
)
from zonewise.traffic.weights import MAX_TEXT_LENGTH

RACK, ROW = "example.com/rack", "row"


def endpoint(
    last: int, node: str | None, zone: str | None = None, *, terminating: bool = False
) -> Endpoint:
    conditions = EndpointConditions(ready=not terminating, terminating=terminating)
    return Endpoint(addresses=(f"10.0.0.{last}",), node_name=node, zone=zone, conditions=conditions)


def piece(*endpoints: Endpoint, text: str = "") -> EndpointSlice:
    labels = {MANAGED_BY_LABEL: MANAGER}
    annotations = {TOPOLOGY_ANNOTATION: text} if text else {}
    metadata = ObjectMeta(name="s", labels=labels, annotations=annotations)
    return EndpointSlice(metadata=metadata, address_type="IPv4", endpoints=endpoints)


def test_the_text_is_sorted_and_says_which_labels_a_node_does_not_have() -> None:
    """Keys and addresses are sorted, nothing is blank, and a missing label is null."""
    nodes = {"n1": {RACK: "r1", ROW: "w", "other": "x"}, "n2": {ROW: ""}}
    endpoints = [endpoint(7, "n2"), endpoint(5, "n1"), endpoint(6, None)]
    keys = annotated_keys([ROW, HOSTNAME_LABEL, ZONE_LABEL, RACK, "*"])
    assert keys == (RACK, ROW)
    assert format_topology(endpoints, keys, nodes) == (
        '{"10.0.0.5":{"example.com/rack":"r1","row":"w"},'
        '"10.0.0.7":{"example.com/rack":null,"row":""}}'
    )
    assert format_topology([endpoint(6, None)], keys, nodes) == ""


def test_of_two_pods_with_one_address_the_one_that_stays_counts() -> None:
    """An address that a terminating pod had has the labels of its new pod's node."""
    nodes = {"n1": {ROW: "old"}, "n2": {ROW: "new"}}
    both = [endpoint(5, "n2"), endpoint(5, "n1", terminating=True)]
    for endpoints in (both, both[::-1]):
        assert format_topology(endpoints, (ROW,), nodes) == '{"10.0.0.5":{"row":"new"}}'


def test_a_text_above_the_bound_is_not_written_and_not_read() -> None:
    """Above 8 KiB a slice has no values, the reason has the length, and readers refuse the text."""
    nodes = {"n": {ROW: "v" * 63}}
    topology = SliceTopology((ROW,), nodes)
    small = [endpoint(last, "n") for last in range(90)]
    text = topology.text(small)
    assert len(text) <= MAX_TEXT_LENGTH
    assert not topology.too_long
    assert parse_topology(text)
    large = [endpoint(last, "n") for last in range(100)]
    assert topology.text(large) == ""
    assert topology.reason is not None
    length = len(format_topology(large, (ROW,), nodes))
    assert topology.reason.code == "TopologyTooLong"
    assert topology.reason.numbers == {"bytes": length, "limitBytes": MAX_TEXT_LENGTH}
    assert parse_topology(format_topology(large, (ROW,), nodes)) is None


@pytest.mark.parametrize("text", ["", "x", "[]", '{"10.0.0.5":1}', '{"10.0.0.5":{"row":1}}'])
def test_a_text_that_is_not_well_formed_states_nothing(text: str) -> None:
    """Of an invalid annotation nothing is believed."""
    assert parse_topology(text) is None
    slices = [piece(endpoint(5, "n1", "a"), text=text)]
    assert unstated_labels_of(slices, [ROW]) == {"n1": {ROW}}


@pytest.mark.parametrize(
    ("keys", "text", "zone", "unknown"),
    [
        ([HOSTNAME_LABEL, "*"], "", None, {}),
        ([ZONE_LABEL], "", "a", {}),
        ([ZONE_LABEL], "", None, {"n1": {ZONE_LABEL}}),
        ([ZONE_LABEL], '{"10.0.0.5":{"row":null}}', None, {}),
        ([ZONE_LABEL], '{"10.0.0.6":{"row":null}}', None, {"n1": {ZONE_LABEL}}),
        ([ROW], "", "a", {"n1": {ROW}}),
        ([ROW], '{"10.0.0.5":{"row":null}}', "a", {}),
        ([ROW], '{"10.0.0.5":{"row":"w"}}', "a", {}),
        ([ROW, RACK], '{"10.0.0.5":{"row":"w"}}', "a", {"n1": {RACK}}),
        ([ROW], '{"10.0.0.6":{"row":"w"}}', "a", {"n1": {ROW}}),
    ],
)
def test_which_nodes_have_to_be_looked_up(
    keys: list[str], text: str, zone: str | None, unknown: dict[str, set[str]]
) -> None:
    """A node is looked up elsewhere only for the values that a key needs and its slice leaves out;
    a zone that is missing is not known, unless the annotation knows the endpoint.
    """
    slices = [piece(endpoint(5, "n1", zone), endpoint(8, None), text=text)]
    assert unstated_labels_of(slices, keys) == unknown


def test_the_zone_is_that_of_the_field() -> None:
    """A zone in the annotation does not replace the endpoint's own."""
    text = '{"10.0.0.5":{"topology.kubernetes.io/zone":"z","row":"w"}}'
    placed = endpoint(5, "n1", "a")
    stated = StatedTopology.of(piece(placed, text=text)).labels(placed)
    assert stated == {ZONE_LABEL: "a", ROW: "w"}
