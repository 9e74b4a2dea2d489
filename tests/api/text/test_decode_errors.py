"""Errors about files, in the terms of YAML."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from zonewise.api.text.decode_errors import decode_error_text


class Step(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a file."""

    at: str
    do: str | list[str] = ""
    way: Literal["fast", "slow"] = "fast"
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class Plan(msgspec.Struct, forbid_unknown_fields=True):
    """A file."""

    steps: list[Step]
    seed: int = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("hello", "the file must be a mapping, not text"),
        (None, "the file must be a mapping, not empty"),
        ({}, "the file lacks steps"),
        ({"steps": 3}, "steps must be a list, not a number"),
        ({"steps": [{}]}, "steps[0] lacks at"),
        ({"steps": [{"at": 3}]}, "steps[0].at must be text, not a number; write it in quotes"),
        ({"steps": [{"at": "0", "do": 3}]}, "steps[0].do must be text or a list, not a number"),
        ({"steps": [{"at": "0", "foo": 1}]}, "steps[0] has foo, which is unknown"),
        ({"steps": [{"at": "0", "way": "x"}]}, "steps[0].way cannot be 'x'"),
        ({"steps": [], "seed": "x"}, "seed must be a number, not text"),
        (
            {"steps": [{"at": "0", "labels": {"a": True}}]},
            "steps[0].labels must be text, not true or false; write it in quotes",
        ),
    ],
)
def test_words(value: Any, message: str) -> None:
    """A decode error names the path, the expected and the actual type, not a library's types."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Plan)
    assert decode_error_text(caught.value) == message


def test_a_list() -> None:
    """An error in a file that is a list calls its items entries."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert([{}], list[Step])
    assert decode_error_text(caught.value) == "entry [0] lacks at"


def test_unknown_errors_are_passed_on() -> None:
    """An error of another form is shown unchanged, with its path."""
    assert decode_error_text(msgspec.ValidationError("Too long - at `$.a`")) == "a: Too long"
