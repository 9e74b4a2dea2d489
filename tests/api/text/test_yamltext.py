"""YAML as Go reads it: scalars, duplicate keys, and limits."""

from __future__ import annotations

from typing import Any

import pytest

from zonewise.api.text.yamltext import NotYAML, read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("y", True),
        ("No", False),
        ("off", False),
        ("yEs", "yEs"),
        ("~", None),
        ("", None),
        ("1e3", 1000),
        ("1.5", 1.5),
        (".5", 0.5),
        ("012", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("-0b11", -3),
        ("+3", 3),
        ("1_000", 1000),
        ("089", 89),
        ("1:30", "1:30"),
        ("2026-01-01", "2026-01-01"),
        ("1.2.3", "1.2.3"),
        ("12e", "12e"),
        ('"5"', "5"),
        ("'y'", "y"),
        ("!!str 5", "5"),
        ("!!int '5'", 5),
        ("!!binary YQ==", "a"),
        ("! 5", "5"),
        ("12345678901234567890", 12345678901234567890),
    ],
)
def test_a_scalar_is_read_as_in_go(text: str, value: Any) -> None:
    """Plain scalars become booleans, numbers or null by YAML 1.1's rules as Go has them."""
    parsed = read(f"a: {text}\n".encode()).value["a"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_the_first_document_counts() -> None:
    """Only the first YAML document of a stream counts, and an empty stream is null."""
    assert read(b"a: 1\n---\nb: 2\n").value == {"a": 1}
    assert read(b"").value is None
    assert read(b"# only a comment\n").value is None


def test_keys_are_text() -> None:
    """Numbers and booleans as keys are written out; other keys are refused."""
    assert read(b"{1: a, true: b, 1.5: c}").value == {"1": "a", "true": "b", "1.5": "c"}
    with pytest.raises(NotYAML, match="unsupported map key"):
        read(b"? [a]\n: b\n")


def test_duplicate_keys_are_reported_with_their_lines() -> None:
    """Of a repeated key the last value counts, and each repetition is a problem with its line."""
    value, problems = read(b"a: 1\nb:\n  c: 1\n  c: 2\na: 3\n1: x\n1: z\n")
    assert value == {"a": 3, "b": {"c": 2}, "1": "z"}
    assert problems == (
        'line 4: key "c" already set in map',
        'line 5: key "a" already set in map',
        "line 7: key 1 already set in map",
    )


def test_merge_keys_do_not_replace_written_keys() -> None:
    """`<<` adds missing keys, from one map or from several."""
    text = b"x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nz: {<<: [*x, *y], c: 5}\n"
    assert read(text).value["z"] == {"a": 1, "b": 2, "c": 5}
    with pytest.raises(NotYAML, match="map merge"):
        read(b"a: {<<: 5}\n")


def test_an_alias_is_a_copy() -> None:
    """Changing an alias does not change its anchor."""
    value = read(b"a: &a [1]\nb: *a\n").value
    value["b"].append(2)
    assert value["a"] == [1]


def test_aliases_cannot_multiply_without_bound() -> None:
    """A short text that expands to billions of values is refused."""
    lines = [b"a0: &a0 [x]"]
    lines += [b"a%d: &a%d [%s]" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)]
    with pytest.raises(NotYAML, match="excessive aliasing"):
        read(b"\n".join(lines))


@pytest.mark.parametrize(
    "text",
    [
        b"a: b: c",
        b"a: *none",
        b"\ta: 1",
        b"a: [",
        b"a: .nan",
        b"a: -.inf",
        b"a: !!int x",
        b"a: !!binary '*'",
        b"\xff\xfe\x00",
        b"&a [*a]",
        b"[" * 1000,
        b"a: " * 300,
        b"\x00",
    ],
)
def test_yaml_that_cannot_be_json_is_refused(text: bytes) -> None:
    """Broken YAML, unknown anchors, numbers that JSON lacks and deep nesting raise one error."""
    with pytest.raises(NotYAML):
        read(text)
