"""Objects of kinds without a Struct look like typed ones to client, store and reflector."""

from __future__ import annotations

import pytest

from zonewise import api
from zonewise.api import ParseError, Resource, unstructured

WIDGETS = Resource("example.com", "v1", "Widget", "widgets")
Widget = unstructured(WIDGETS)


def test_the_surface_is_that_of_typed_objects() -> None:
    """Resource, metadata and key are where typed objects have them."""
    widget = api.decode(
        Widget, b'{"metadata":{"name":"w","namespace":"n","labels":{"a":"b"}},"spec":{"size":3}}'
    )
    assert widget.resource is WIDGETS
    assert widget.key == ("n", "w")
    assert widget.metadata.labels == {"a": "b"}
    assert widget.metadata is widget.metadata
    assert repr(widget) == "Widget(n/w)"


def test_one_class_per_resource() -> None:
    """The same resource gives the same class, so it can be a key of a dictionary."""
    assert unstructured(Resource("example.com", "v1", "Widget", "widgets")) is Widget
    assert unstructured(Resource("example.com", "v2", "Widget", "widgets")) is not Widget


def test_nothing_is_lost_in_a_round_trip() -> None:
    """What was decoded is encoded in full, with apiVersion and kind added if missing."""
    item = api.decode(Widget, b'{"spec":{"any":[1,{"deep":null}]},"metadata":{"name":"w"}}')
    assert api.encode(item) == (
        b'{"apiVersion":"example.com/v1","kind":"Widget",'
        b'"spec":{"any":[1,{"deep":null}]},"metadata":{"name":"w"}}'
    )
    whole = b'{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w"}}'
    assert api.encode(api.decode(Widget, whole)) == whole
    assert api.to_builtins(item)["spec"] == {"any": [1, {"deep": None}]}


def test_values_are_reached_by_path() -> None:
    """A path of names and indexes gives a value, or the default if any part is missing."""
    widget = Widget({"spec": {"ports": [{"name": "http"}], "nothing": None}})
    assert widget.get("spec", "ports", 0, "name") == "http"
    assert widget.get("spec", "ports", 7, "name") is None
    assert widget.get("spec", "ports", "x", default="d") == "d"
    assert widget.get("spec", "nothing", default=0) == 0
    assert widget.get("spec", "ports", 0, "name", "deeper") is None


def test_equal_content_is_equal() -> None:
    """Objects of one resource with the same content are equal and hash alike; others are not."""
    first, second = Widget({"metadata": {"name": "a"}}), Widget({"metadata": {"name": "a"}})
    assert first == second
    assert hash(first) == hash(second)
    assert first != Widget({"metadata": {"name": "b"}})
    assert first != unstructured(Resource("", "v1", "Other", "others"))({"metadata": {"name": "a"}})
    assert first != "a"


def test_metadata_with_nulls_reads_as_absent() -> None:
    """Nulls in metadata, which real servers send for times, are absent values."""
    widget = Widget({"metadata": {"name": "w", "creationTimestamp": None, "labels": None}})
    assert widget.metadata == api.ObjectMeta(name="w")
    assert Widget({}).key == ("", "")


@pytest.mark.parametrize("metadata", [[], "x", {"name": 7}, {"labels": {"a": 1}}])
def test_bad_metadata_is_refused_in_a_sentence(metadata: object) -> None:
    """Invalid metadata is a ParseError that names the kind, raised when metadata is read."""
    widget = Widget({"metadata": metadata or [1]})
    with pytest.raises(ParseError, match="Widget: bad metadata"):
        _ = widget.metadata
