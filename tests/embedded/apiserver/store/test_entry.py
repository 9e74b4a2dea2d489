"""Entries: fields of an object that are known without decoding it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.embedded.apiserver.objects import configmap

from zonewise.embedded.apiserver.store.entry import Entry, key_of


def test_facts_are_read_from_the_bytes() -> None:
    """Version, key, uid, labels and the deletion mark come from the object's metadata."""
    raw = msgspec.json.encode(
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": "a",
                "namespace": "shop",
                "uid": "u",
                "resourceVersion": "12",
                "labels": {"x": "y"},
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"metadata": {"name": "decoy"}},
        }
    )
    entry = Entry.decode(raw)
    assert (entry.rv, entry.namespace, entry.name, entry.key) == (12, "shop", "a", "shop/a")
    assert (entry.uid, dict(entry.labels), entry.deleting) == ("u", {"x": "y"}, True)
    assert entry.raw is raw


def test_null_metadata_counts_as_absent() -> None:
    """Null fields are empty, and the version may be given separately."""
    entry = Entry.decode(
        b'{"metadata":{"name":"n","namespace":null,"labels":null,"deletionTimestamp":null}}', 7
    )
    assert (entry.key, dict(entry.labels), entry.deleting, entry.rv) == ("n", {}, False, 7)


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"metadata":{}}', b'{"metadata":{"name":1}}'])
def test_bytes_without_a_name_are_refused(raw: bytes) -> None:
    """Bytes without the name of an object cannot become an entry."""
    with pytest.raises(msgspec.DecodeError):
        Entry.decode(raw)


def test_another_version_changes_nothing_else() -> None:
    """The same content with another version differs only in that number."""
    entry = Entry.decode(
        configmap("a", value='"resourceVersion":"5"', labels={"resourceVersion": "5"})(5)
    )
    later = entry.with_version(9)
    assert later.rv == 9
    before, after = msgspec.json.decode(entry.raw), msgspec.json.decode(later.raw)
    assert after["metadata"].pop("resourceVersion") == "9"
    assert before["metadata"].pop("resourceVersion") == "5"
    assert before == after
    assert list(before["metadata"]) == list(after["metadata"])


def test_selectable_fields_are_extracted_once() -> None:
    """An object is decoded once for its fields, whatever the number of selectors."""
    entry = Entry.decode(configmap("a")(5))
    decoded = []

    def extract(raw: bytes) -> dict[str, str]:
        decoded.append(raw)
        return {"metadata.name": "a"}

    rules = object()
    assert entry.selectable_fields(rules, extract) is entry.selectable_fields(rules, extract)
    assert decoded == [entry.raw]


_SEGMENT = st.text(alphabet="ab-.z09", min_size=1, max_size=4)


@given(st.lists(st.tuples(_SEGMENT, _SEGMENT), max_size=8))
def test_keys_are_ordered_as_paths(places: list[tuple[str, str]]) -> None:
    """The order of keys is the order of etcd's paths, byte by byte."""
    by_key = sorted(key_of(*pair) for pair in places)
    by_path = sorted(f"/registry/configmaps/{ns}/{name}".encode() for ns, name in places)
    assert [f"/registry/configmaps/{key}".encode() for key in by_key] == by_path
