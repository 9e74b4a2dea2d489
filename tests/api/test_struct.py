"""The rules every Struct follows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from zonewise.api import Struct, field


class Inner(Struct):
    """A Struct inside of another."""

    some_name: str = ""
    pod_ip: str = field(name="podIP", default="")
    items: tuple[int, ...] = ()


class Outer(Inner):
    """A Struct that inherits the rules."""

    required: int
    inner: Inner | None = None


def test_names_are_camel_case_on_the_wire() -> None:
    """Python names become camelCase, acronyms keep their spelling, defaults are not sent."""
    outer = Outer(required=1, some_name="x", pod_ip="y")
    assert msgspec.json.encode(outer) == b'{"someName":"x","podIP":"y","required":1}'


def test_structs_cannot_be_changed() -> None:
    """A Struct is immutable; a changed copy can be made."""
    inner: Any = Inner(some_name="x")
    with pytest.raises(AttributeError):
        inner.some_name = "y"
    assert msgspec.structs.replace(inner, some_name="y") == Inner(some_name="y")


def test_subclasses_are_keyword_only_too() -> None:
    """A subclass takes no positional arguments; its required fields may follow others."""
    outer: Any = Outer
    with pytest.raises(TypeError):
        outer(1)
    with pytest.raises(TypeError, match="required"):
        outer()


def test_unknown_fields_are_skipped_and_sequences_are_tuples() -> None:
    """Unknown fields are ignored, and sequences cannot be changed."""
    inner = msgspec.json.decode(b'{"items":[1,2],"new":{"x":[]}}', type=Inner)
    assert inner.items == (1, 2)
