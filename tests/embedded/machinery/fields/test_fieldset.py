"""Sets of fields behave as sets of paths, in the real server's format."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.errors import ParseError
from zonewise.embedded.machinery.fields import fieldset

ELEMENTS = ["f:a", "f:b", "f:c", 'k:{"name":"x"}', 'k:{"name":"y"}', 'v:"x"', "v:2", "i:3"]
PATHS = st.lists(st.sampled_from(ELEMENTS), min_size=1, max_size=4).map(tuple)
SETS = st.frozensets(PATHS, max_size=12)


def tree(paths: frozenset[tuple[str, ...]]) -> fieldset.FieldsV1:
    return fieldset.from_paths(sorted(paths))


def members(fields: fieldset.FieldsV1) -> frozenset[tuple[str, ...]]:
    listed = list(fieldset.paths(fields))
    assert len(listed) == len(set(listed))
    return frozenset(listed)


@given(SETS)
def test_a_set_is_its_paths(paths: frozenset[tuple[str, ...]]) -> None:
    """A set has exactly its paths, in canonical order."""
    fields = tree(paths)
    assert members(fields) == paths
    assert repr(fieldset.canonicalize(fields)) == repr(fields)
    assert all(fieldset.contains(fields, path) for path in paths)


@given(SETS, SETS)
def test_operations_are_those_of_sets(
    left: frozenset[tuple[str, ...]], right: frozenset[tuple[str, ...]]
) -> None:
    """Union, difference and intersection of trees are those of their paths, in order."""
    a, b = tree(left), tree(right)
    before = repr((a, b))
    for computed, expected in [
        (fieldset.union(a, b), left | right),
        (fieldset.difference(a, b), left - right),
        (fieldset.intersection(a, b), left & right),
    ]:
        assert members(computed) == expected
        assert repr(fieldset.canonicalize(computed)) == repr(computed)
    assert repr((a, b)) == before


@given(SETS, SETS)
def test_without_takes_what_lies_below(
    left: frozenset[tuple[str, ...]], right: frozenset[tuple[str, ...]]
) -> None:
    """Removing a field recursively removes every path that begins with it."""
    remaining = fieldset.recursive_difference(tree(left), tree(right))
    prefixes = {path for path in left if any(path[:n] in right for n in range(1, 5))}
    assert members(remaining) == left - prefixes


@given(SETS, SETS)
def test_unchanged_sets_are_not_copied(
    left: frozenset[tuple[str, ...]], right: frozenset[tuple[str, ...]]
) -> None:
    """An operation that changes nothing returns its operand."""
    a = tree(left)
    assert fieldset.union(a, tree(left & right)) is a or not left
    assert fieldset.difference(a, tree(right - left)) is a


@pytest.mark.parametrize(
    ("name", "element", "text"),
    [
        ("f:spec", "f:spec", ".spec"),
        (fieldset.key_element([("name", "x")]), 'k:{"name":"x"}', '[name="x"]'),
        (
            fieldset.key_element([("protocol", "TCP"), ("port", 80)]),
            'k:{"port":80,"protocol":"TCP"}',
            '[port=80,protocol="TCP"]',
        ),
        (fieldset.value_element("x"), 'v:"x"', '[="x"]'),
        (fieldset.value_element(2), "v:2", "[=2]"),
        (fieldset.value_element("a<b>&"), 'v:"a\\u003cb\\u003e\\u0026"', '[="a<b>&"]'),
        ("i:3", "i:3", "[3]"),
    ],
)
def test_elements_are_written_as_the_real_server_does(name: str, element: str, text: str) -> None:
    """Keys are sorted, values are JSON with HTML escaped, conflicts print them readably."""
    assert name == element
    assert fieldset.format_path((name,)) == text


def test_order_is_by_meaning() -> None:
    """Fields come before keys, keys before values, and numbers are in numeric order."""
    names = ["i:1", 'v:"a"', "v:10", "v:9", 'k:{"port":80}', 'k:{"port":9}', "f:z", "f:a", "."]
    canonical = fieldset.canonicalize({"f:x": {name: {} for name in names}})
    assert list(canonical["f:x"]) == [
        ".",
        "f:a",
        "f:z",
        'k:{"port":9}',
        'k:{"port":80}',
        "v:9",
        "v:10",
        'v:"a"',
        "i:1",
    ]


@pytest.mark.parametrize(
    "sent",
    [
        {"spec": {}},
        {"f": {}},
        {"k:{": {}},
        {"k:[1]": {}},
        {"i:x": {}},
        {"f:a": 1},
        [],
    ],
)
def test_malformed_sets_are_refused(sent: Any) -> None:
    """An invalid set is an error."""
    with pytest.raises(ParseError):
        fieldset.canonicalize(sent)


def test_unknown_kinds_of_elements_are_dropped() -> None:
    """Unknown elements are left out, and keys are normalized."""
    sent: dict[str, Any] = {"x:new": {}, 'k:{"b": 1, "a":2}': {".": {}}}
    assert fieldset.canonicalize(sent) == {'k:{"a":2,"b":1}': {}}


def test_depth_is_bounded() -> None:
    """A set that nests too deeply is refused."""
    deep: dict[str, Any] = {}
    for _ in range(10_000):
        deep = {"f:a": deep}
    with pytest.raises(ParseError):
        fieldset.canonicalize(deep)


def test_patterns_select_what_is_at_or_below_them() -> None:
    """A pattern with a star matches every item, and nothing else."""
    fields = fieldset.from_paths(
        [
            ("f:spec", "f:containers", 'k:{"name":"a"}', "f:resources", "f:limits"),
            ("f:spec", "f:containers", 'k:{"name":"a"}', "f:image"),
            ("f:spec", "f:hostname"),
        ]
    )
    patterns = [("f:spec", "f:containers", "*", "f:resources")]
    assert fieldset.select_matching(fields, patterns) == fieldset.from_paths(
        [("f:spec", "f:containers", 'k:{"name":"a"}', "f:resources", "f:limits")]
    )
