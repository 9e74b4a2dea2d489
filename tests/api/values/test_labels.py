"""The syntax of labels."""

from __future__ import annotations

import pytest

from zonewise.api.values import labels

LONG = "x" * 63
PREFIX = ".".join(["p" * 63] * 3 + ["q" * 61])


@pytest.mark.parametrize(
    "key",
    ["a", "A", "a.b_c-d", "9", LONG, "example.com/a", f"{PREFIX}/{LONG}", "1.2/3", "a-b.c/D.e"],
)
def test_good_keys(key: str) -> None:
    """Names of up to 63 characters, with or without a DNS prefix of up to 253, are keys."""
    assert labels.label_key_error(key) is None


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("", "is empty"),
        ("/a", "nothing before"),
        ("a/", "no name after"),
        ("a/b/c", "more than one"),
        (LONG + "x", "name of more than 63"),
        (f"{PREFIX}p/a", "prefix of more than 253"),
        ("A.com/a", "not a DNS subdomain"),
        ("a..b/c", "not a DNS subdomain"),
        ("-a.com/b", "not a DNS subdomain"),
        ("a_b/c", "not a DNS subdomain"),
        ("-a", "begin and end"),
        ("a-", "begin and end"),
        ("a b", "only letters"),
        ("ä", "only letters"),
        ("a\n", "only letters"),
    ],
)
def test_bad_keys_say_what_is_wrong(key: str, fault: str) -> None:
    """Each rule that a key breaks has its own message."""
    assert fault in (labels.label_key_error(key) or "")


@pytest.mark.parametrize("value", ["", "a", "A.b-c_d", "1", LONG])
def test_good_values(value: str) -> None:
    """Values are empty or have the form of names."""
    assert labels.label_value_error(value) is None


@pytest.mark.parametrize("value", ["-", "a.", "a b", "a/b", LONG + "x", "é", "a\n"])
def test_bad_values_say_what_is_wrong(value: str) -> None:
    """A value of another form is refused."""
    assert labels.label_value_error(value) is not None
