"""JSON Merge Patch: the examples of RFC 7386 and its properties."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api import ParseError
from zonewise.embedded.machinery.patch import mergepatch

RFC = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ({}, {"a": [{"b": None}]}, {"a": [{"b": None}]}),
]


@pytest.mark.parametrize(("document", "patch", "expected"), RFC)
def test_examples_of_the_rfc(document: Any, patch: Any, expected: Any) -> None:
    """Each example of the RFC's appendix gives the RFC's result, and changes no input."""
    original = copy.deepcopy((document, patch))
    assert mergepatch.apply(document, patch) == expected
    assert (document, patch) == original


def test_deep_patches_are_refused_not_crashed_on() -> None:
    """Nesting beyond the interpreter's stack is a ParseError."""
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(ParseError, match="nested too deeply"):
        mergepatch.apply({}, deep)


NAMES = st.sampled_from("abc")
VALUES = st.recursive(
    st.booleans() | st.integers(0, 3) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)
PATCHES = st.recursive(
    st.dictionaries(NAMES, st.none() | VALUES, max_size=3),
    lambda inner: st.dictionaries(NAMES, st.none() | VALUES | inner, max_size=3),
    max_leaves=6,
)


def diff(before: Any, after: Any) -> Any:
    """The merge patch that leads from one document without nulls to another."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return after
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        if name not in before or before[name] != value:
            patch[name] = diff(before.get(name), value)
    return patch


@given(DOCUMENTS, PATCHES)
def test_a_second_time_changes_nothing(document: Any, patch: Any) -> None:
    """A merge patch is idempotent: repeating a write after a lost answer is safe."""
    once = mergepatch.apply(document, patch)
    assert mergepatch.apply(once, patch) == once


@given(DOCUMENTS, DOCUMENTS)
def test_a_diff_leads_to_the_other_document(before: Any, after: Any) -> None:
    """Applying the difference of two documents to the first gives the second."""
    assert mergepatch.apply(before, diff(before, after)) == after


@given(DOCUMENTS)
def test_the_empty_patch_changes_nothing(document: Any) -> None:
    """The empty patch is neutral."""
    assert mergepatch.apply(document, {}) == document


LEAVES = st.dictionaries(NAMES, st.integers(0, 3), max_size=3)
SHAPED = st.dictionaries(NAMES, st.dictionaries(NAMES, LEAVES, max_size=3), max_size=3)


@given(SHAPED, SHAPED, SHAPED)
def test_grouping_does_not_matter_within_one_schema(base: Any, two: Any, three: Any) -> None:
    """Patches that delete nothing and keep types can be merged first and applied at once."""
    assert mergepatch.apply(mergepatch.apply(base, two), three) == mergepatch.apply(
        base, mergepatch.apply(two, three)
    )


@given(DOCUMENTS, PATCHES)
def test_inputs_stay_as_they_are(document: Any, patch: Any) -> None:
    """A merge patch changes neither the given document nor the patch."""
    original = copy.deepcopy((document, patch))
    mergepatch.apply(document, patch)
    assert (document, patch) == original
