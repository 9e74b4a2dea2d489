"""YAML as a real API server reads it: the YAML 1.1 of Go's library, made into JSON's types.

It differs from Python's in what a plain word is. Here `y`, `on` and `no` are booleans, `1e3` is a
number, `012` is ten, `2026-01-01` and `1:30` are texts. Of duplicate keys the last one counts, and
each is reported with its line. Only the first document is read.

The value is built from the parser's events, so it is bounded while it grows: `DEPTH_LIMIT` levels,
and aliases may expand to `ALIAS_LIMIT` values altogether. Each alias becomes a copy.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from zonewise.api.errors import ParseError
from zonewise.api.text.jsontext import DEPTH_LIMIT, to_builtins

ALIAS_LIMIT = 100_000

_NULL = ("", "~", "null", "Null", "NULL")
_TRUE = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_FALSE = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_INTEGER = re.compile(
    r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO][0-7]+|0[0-7]*|[1-9][0-9]*)", re.ASCII
)
_STANDARD = "tag:yaml.org,2002:"
_MERGE = object()
_WORDS: dict[str, Any] = {
    **dict.fromkeys(_NULL),
    **dict.fromkeys(_TRUE, True),
    **dict.fromkeys(_FALSE, False),
    "<<": _MERGE,
}
_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "null": (type(None),),
}


class NotYAML(ParseError):
    """The text is not YAML, or cannot be JSON."""


class YamlDocument(NamedTuple):
    """A value, and a problem for each duplicate key: `line 5: key "name" already set in map`."""

    value: Any
    problems: tuple[str, ...] = ()


def read(raw: bytes) -> YamlDocument:
    """Decode the first document of a body."""
    try:
        return _DocumentBuilder(raw).run()
    except yaml.MarkedYAMLError as error:
        raise NotYAML(f"yaml: {_line_prefix(error)}{error.problem or 'malformed'}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NotYAML(f"yaml: {str(error).splitlines()[0]}") from None


def _line_prefix(error: yaml.MarkedYAMLError) -> str:
    """Where Go's parser says an error is: it counts from zero and omits line zero."""
    marks = (error.context_mark, error.problem_mark)
    line = next((mark.line for mark in marks if mark is not None and mark.line), 0)
    if line and isinstance(error, yaml.scanner.ScannerError):
        line += 1
    return f"line {line}: " if line else ""


class _DocumentBuilder:
    def __init__(self, raw: bytes) -> None:
        # Calling get_event directly avoids the Python generator of yaml.parse.
        self._events: Iterator[Any] = iter(yaml.CSafeLoader(raw).get_event, None)
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._problems: list[str] = []
        self._count = 0
        self._alias_count = 0

    def run(self) -> YamlDocument:
        for event in self._events:
            if isinstance(event, yaml.StreamEndEvent):
                return YamlDocument(None)
            if isinstance(event, yaml.DocumentStartEvent):
                break
        value = self._build_value(next(self._events), 0)
        return YamlDocument(None if value is _MERGE else value, tuple(self._problems))

    def _build_value(self, event: Any, depth: int) -> Any:
        kind = type(event)
        if kind is yaml.AliasEvent:
            if event.anchor not in self._anchors:
                raise NotYAML(f"yaml: unknown anchor '{event.anchor}' referenced")
            value, size = self._anchors[event.anchor]
            self._alias_count += size
            if self._alias_count > ALIAS_LIMIT:
                raise NotYAML("yaml: document contains excessive aliasing")
            self._count += size
            return to_builtins(value)
        if depth > DEPTH_LIMIT:
            raise NotYAML("yaml: exceeded max depth")
        count_before = self._count
        self._count += 1
        if kind is yaml.ScalarEvent:
            value = _parse_scalar(event)
        elif kind is yaml.SequenceStartEvent:
            value = self._build_sequence(depth)
        else:
            value = self._build_mapping(depth)
        if event.anchor:
            self._anchors[event.anchor] = (value, self._count - count_before)
        return value

    def _build_sequence(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._build_value(event, depth + 1))
        return items

    def _build_mapping(self, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._build_value(event, depth + 1)
            value = self._build_value(next(self._events), depth + 1)
            if key is _MERGE:
                for source in value if isinstance(value, list) else [value]:
                    if not isinstance(source, dict):
                        raise NotYAML(
                            "yaml: map merge requires map or sequence of maps as the value"
                        )
                    merged = {**source, **merged}
                continue
            name = _key_text(key)
            if name in own:
                quoted = f'"{name}"' if isinstance(key, str) else name
                line = event.start_mark.line + 1
                self._problems.append(f"line {line}: key {quoted} already set in map")
            own[name] = value
        return {**merged, **own} if merged else own


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int | float):
        return str(key)
    raise NotYAML("yaml: unsupported map key: it is neither text nor a number nor a boolean")


def _parse_scalar(event: Any) -> Any:
    text: str = event.value
    tag = event.tag
    if tag is None or tag == "!":
        return _parse_word(text) if event.implicit[0] and tag is None else text
    kind = tag.removeprefix(_STANDARD)
    if kind == "binary":
        try:
            return base64.b64decode(text, validate=True).decode("utf-8", "replace")
        except binascii.Error:
            raise NotYAML("yaml: !!binary value contains invalid base64 data") from None
    if kind in ("int", "float", "bool", "null"):
        value = _parse_word(text)
        if not isinstance(value, _KINDS[kind]):
            raise NotYAML(f"yaml: cannot decode !!str `{text[:32]}` as a !!{kind}")
        return value
    return text


def _parse_word(text: str) -> Any:
    """The value of a scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] in "+-.0123456789":
        return _parse_number(text)
    return text


def _parse_number(text: str) -> Any:
    if text.lstrip("+-").lower() in (".inf", ".nan"):
        raise NotYAML(f"json: unsupported value: {text}")
    digits = text.replace("_", "")
    if _INTEGER.fullmatch(digits) and len(digits) < 4000:
        return _parse_integer(digits)
    if _FLOAT.fullmatch(digits):
        value = float(digits)
        if not math.isinf(value):
            return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return text


def _parse_integer(digits: str) -> int:
    unsigned = digits.lstrip("+-")
    octal = len(unsigned) > 1 and unsigned[0] == "0" and unsigned[1].isdigit()
    value = int(unsigned, 8) if octal else int(unsigned, 0)
    return -value if digits[0] == "-" else value
