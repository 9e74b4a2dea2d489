"""JSON Patch: the RFC, the leniences of API servers, atomicity, limits."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api import ParseError, PatchFailed
from zonewise.embedded.machinery.patch import jsonpatch

DOC: dict[str, Any] = {
    "a": {"b": [1, 2, 3], "n": None},
    "l": ["x", "y"],
    "s": "t",
    "": {"": 1},
    "m~n": 1,
    "p/q": 2,
}


def op(verb: str, path: str, **members: Any) -> dict[str, Any]:
    """One operation; ``source`` is the member ``from``."""
    if "source" in members:
        members["from"] = members.pop("source")
    return {"op": verb, "path": path, **members}


@pytest.mark.parametrize(
    ("operation", "pointer", "expected"),
    [
        (op("add", "/new", value=7), "/new", 7),
        (op("add", "/s", value=[]), "/s", []),
        (op("add", "/a/b/0", value=0), "/a/b", [0, 1, 2, 3]),
        (op("add", "/a/b/3", value=4), "/a/b", [1, 2, 3, 4]),
        (op("add", "/a/b/-", value=4), "/a/b", [1, 2, 3, 4]),
        (op("add", "/a/-", value=4), "/a/-", 4),
        (op("add", "", value={"q": 1}), "", {"q": 1}),
        (op("remove", "/a/b/1"), "/a/b", [1, 3]),
        (op("remove", "/a/n"), "/a", {"b": [1, 2, 3]}),
        (op("replace", "/a/n", value=1), "/a/n", 1),
        (op("replace", "/a/b/2", value=None), "/a/b", [1, 2, None]),
        (op("replace", "", value=[]), "", []),
        (op("move", "/a/c", source="/s"), "/a/c", "t"),
        (op("move", "/l/0", source="/l/1"), "/l", ["y", "x"]),
        (op("move", "/a", source="/a/b"), "/a", [1, 2, 3]),
        (op("move", "/s", source="/s"), "/s", "t"),
        (op("copy", "/l/-", source="/l/0"), "/l", ["x", "y", "x"]),
        (op("copy", "/c", source="/a"), "/c", {"b": [1, 2, 3], "n": None}),
        (op("test", "/a/b", value=[1, 2.0, 3]), "/s", "t"),
        (op("test", "/a", value={"n": None, "b": [1, 2, 3]}), "/s", "t"),
        (op("test", "//", value=1), "/s", "t"),
        (op("test", "/m~0n", value=1), "/s", "t"),
        (op("test", "/p~1q", value=2), "/s", "t"),
        (op("test", "", value=DOC), "/s", "t"),
        (op("test", "/s", value="t", comment="unknown members are ignored"), "/s", "t"),
    ],
)
def test_operations_do_what_the_rfc_says(
    operation: dict[str, Any], pointer: str, expected: Any
) -> None:
    """Every operation has the RFC's result, on members, items and the whole document."""
    result = jsonpatch.apply(DOC, [operation])
    for part in jsonpatch.parse_pointer(pointer):
        result = result[int(part) if isinstance(result, list) else part]
    assert result == expected


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (op("add", "/x/y", value=1), "there is nothing at '/x'"),
        (op("add", "/a/b/4", value=1), "'/a/b/4': index 4 is outside the list"),
        (op("add", "/a/b/01", value=1), "'01' is not an index"),
        (op("add", "/a/b/-1", value=1), "'-1' is not an index"),
        (op("add", "/a/b/x", value=1), "'x' is not an index"),
        (op("add", "/s/x", value=1), "'/s' is neither an object nor a list"),
        (op("remove", "/zz"), "there is nothing at '/zz'"),
        (op("remove", "/a/b/-"), "'-' is not an index"),
        (op("remove", "/a/b/3"), "index 3 is outside the list"),
        (op("remove", ""), "the whole document cannot be removed"),
        (op("replace", "/zz", value=1), "there is nothing at '/zz'"),
        (op("replace", "/a/b/-", value=1), "'-' is not an index"),
        (op("move", "/a/b/0", source="/a"), "'/a' cannot be moved into itself"),
        (op("move", "/zz", source="/yy"), "there is nothing at '/yy'"),
        (op("copy", "/zz", source="/yy"), "there is nothing at '/yy'"),
        (op("test", "/s", value="u"), "the value is different"),
        (op("test", "/zz", value=None), "there is nothing at '/zz'"),
        (op("test", "/a/b/0", value=True), "the value is different"),
        (op("test", "/s/x", value=None), "neither an object nor a list"),
    ],
)
def test_errors_name_operation_and_path(operation: dict[str, Any], words: str) -> None:
    """A patch that does not apply raises an error with operation and path, and no ParseError."""
    good = op("test", "/s", value="t")
    with pytest.raises(PatchFailed) as caught:
        jsonpatch.apply(DOC, [good, operation])
    assert str(caught.value).startswith(f"operation 1 ({operation['op']} {operation['path']}")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({}, "a JSON patch is a list"),
        ("x", "a JSON patch is a list"),
        ([7], "operation 0: an operation is an object"),
        ([{}], "'op' is not one of add"),
        ([op("nop", "/a")], "operation 0 (unknown /a): 'op' is not one of"),
        ([{"op": ["add"], "path": "/a"}], "'op' is not one of"),
        ([{"op": "add", "value": 1}], "'path' is missing"),
        ([{"op": "add", "path": 7, "value": 1}], "'path' is missing or not a string"),
        ([op("add", "/a")], "'value' is missing"),
        ([op("move", "/a")], "'from' is missing"),
        ([op("add", "a", value=1)], "does not begin with '/'"),
        ([op("add", "/a~", value=1)], "neither ~0 nor ~1"),
        ([op("add", "/a~2b", value=1)], "neither ~0 nor ~1"),
        ([op("test", "/a", value=1)] * 10_001, "at most 10000 operations, not 10001"),
    ],
)
def test_a_malformed_patch_is_refused(patch: Any, words: str) -> None:
    """An invalid JSON patch is a ParseError that names the operation and the reason."""
    with pytest.raises(ParseError) as caught:
        jsonpatch.apply(DOC, patch)
    assert type(caught.value) is ParseError
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (op("replace", "/zz", value=1), {**DOC, "zz": 1}),
        (op("test", "/zz", value=None), DOC),
        (op("copy", "/c", source="/zz"), {**DOC, "c": None}),
        (op("add", "/c"), {**DOC, "c": None}),
        (op("remove", "/l/-1"), {**DOC, "l": ["x"]}),
        (op("replace", "/l/-2", value=0), {**DOC, "l": [0, "y"]}),
        (op("add", "/l/-1", value=0), {**DOC, "l": ["x", "y", 0]}),
        (op("add", "/l/+01", value=0), {**DOC, "l": ["x", 0, "y"]}),
        (op("test", "/l/-1", value="y"), DOC),
    ],
)
def test_leniences_of_api_servers(operation: dict[str, Any], expected: Any) -> None:
    """What real API servers accept beyond the RFC is accepted only on request."""
    assert jsonpatch.apply(DOC, [operation], lenient=True) == expected
    with pytest.raises(ParseError):
        jsonpatch.apply(DOC, [operation])


@pytest.mark.parametrize(
    "operation",
    [
        op("remove", "/zz"),
        op("move", "/c", source="/zz"),
        op("move", "/zz", source="/zz"),
        op("remove", "/l/-3"),
        op("add", "/l/-4", value=1),
        op("test", "/zz/deep", value=None),
        op("replace", "/zz/deep", value=1),
        op("test", "/l/5", value=None),
    ],
)
def test_leniency_has_its_limits(operation: dict[str, Any]) -> None:
    """What real API servers refuse is refused."""
    with pytest.raises(PatchFailed):
        jsonpatch.apply(DOC, [operation], lenient=True)


def test_inputs_are_not_changed() -> None:
    """Document and patch are not changed by a patch that succeeds or fails."""
    document, before = copy.deepcopy(DOC), copy.deepcopy(DOC)
    patch = [
        op("add", "/a/b/-", value={"deep": [1]}),
        op("add", "/a/b/3/deep/-", value=2),
        op("remove", "/l/0"),
        op("copy", "/l2", source="/l"),
        op("add", "/l2/-", value="z"),
    ]
    original = copy.deepcopy(patch)
    result = jsonpatch.apply(document, patch)
    assert result["a"]["b"][3] == {"deep": [1, 2]}
    assert (result["l"], result["l2"]) == (["y"], ["y", "z"])
    with pytest.raises(PatchFailed):
        jsonpatch.apply(document, [*patch, op("remove", "/nothing")])
    assert document == before
    assert patch == original


def test_copies_are_bounded() -> None:
    """A patch cannot grow a document by doubling it again and again."""
    patch = [op("add", "/a", value=["x" * 1000])]
    patch += [op("copy", "/a/-", source="/a") for _ in range(30)]
    with pytest.raises(PatchFailed, match="copies more than"):
        jsonpatch.apply({}, patch)


def test_deep_documents_are_refused_not_crashed_on() -> None:
    """Nesting beyond the interpreter's stack is a ParseError."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ParseError, match="nested too deeply"):
        jsonpatch.apply({"a": deep}, [op("test", "/a", value=deep)])


def test_pointers_print_and_parse() -> None:
    """Names with slashes and tildes survive a pointer."""
    assert jsonpatch.format_pointer(["a/b", "~1", 0, ""]) == "/a~1b/~01/0/"
    assert jsonpatch.parse_pointer("/a~1b/~01/0/") == ("a/b", "~1", "0", "")
    assert jsonpatch.parse_pointer("") == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(alphabet="ab~/", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet="ab~/-0", max_size=2), inner, max_size=4)
    ),
    max_leaves=12,
)


def diff(before: Any, after: Any, at: tuple[str | int, ...] = ()) -> list[dict[str, Any]]:
    """A simple patch from one value to another."""
    path = jsonpatch.format_pointer(at)
    if jsonpatch.equal(before, after):
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        patch = [op("remove", jsonpatch.format_pointer((*at, k))) for k in before if k not in after]
        for name, value in after.items():
            if name in before:
                patch += diff(before[name], value, (*at, name))
            else:
                patch.append(op("add", jsonpatch.format_pointer((*at, name)), value=value))
        return patch
    if isinstance(before, list) and isinstance(after, list):
        patch = []
        for number, (old, new) in enumerate(zip(before, after, strict=False)):
            patch += diff(old, new, (*at, number))
        surplus = range(len(before) - 1, len(after) - 1, -1)
        patch += [op("remove", jsonpatch.format_pointer((*at, number))) for number in surplus]
        patch += [op("add", f"{path}/-", value=value) for value in after[len(before) :]]
        return patch
    return [op("replace", path, value=after)]


@given(JSON, JSON)
def test_a_diff_leads_where_it_should(before: Any, after: Any) -> None:
    """Applying the difference of two values to the first gives the second."""
    patch = diff(before, after)
    original = copy.deepcopy((before, patch))
    assert jsonpatch.equal(jsonpatch.apply(before, patch), after)
    assert jsonpatch.equal(jsonpatch.apply(before, patch, lenient=True), after)
    assert (before, patch) == original


@given(JSON, JSON)
def test_a_tested_diff_fails_on_another_document(before: Any, other: Any) -> None:
    """A leading test guards a patch against a document that changed meanwhile."""
    patch = [op("test", "", value=before), op("replace", "", value=None)]
    if jsonpatch.equal(before, other):
        assert jsonpatch.apply(other, patch) is None
    else:
        with pytest.raises(PatchFailed):
            jsonpatch.apply(other, patch)


@given(JSON, JSON, JSON)
def test_patches_can_be_chained(start: Any, middle: Any, end: Any) -> None:
    """Two patches after each other do what their concatenation does."""
    first, second = diff(start, middle), diff(middle, end)
    assert jsonpatch.equal(
        jsonpatch.apply(jsonpatch.apply(start, first), second),
        jsonpatch.apply(start, [*first, *second]),
    )


OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
            "path": st.sampled_from(["", "/a", "/a/0", "/a/-", "/b/a", "/b", "x", "/~", "/a/-1"]),
            "from": st.sampled_from(["", "/a", "/a/0", "/b", "/b/a"]),
            "value": JSON,
        },
    ),
    max_size=5,
)


@given(st.fixed_dictionaries({"a": st.lists(JSON, max_size=3), "b": JSON}), OPERATIONS)
def test_any_patch_applies_or_is_refused(document: Any, patch: list[dict[str, Any]]) -> None:
    """Any list of operations gives a document or one of two errors, and changes no input."""
    for lenient in (False, True):
        original = copy.deepcopy((document, patch))
        with suppress(ParseError):
            jsonpatch.apply(document, patch, lenient=lenient)
        assert (document, patch) == original
