"""Messages for decoding errors in files that people write, in the terms of YAML."""

from __future__ import annotations

import re

import msgspec

_TYPES = {
    "object": "a mapping",
    "array": "a list",
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "empty",
}
_PARTS = re.compile(r"(?P<problem>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?", re.DOTALL)
_TYPE = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<actual>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`")
_VALUE = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)


def decode_error_text(error: msgspec.ValidationError) -> str:
    """The error as a clause: where it is, what is expected, what is there."""
    parts = _PARTS.fullmatch(str(error))
    assert parts is not None
    problem = parts["problem"]
    path = (parts["path"] or "").removeprefix(".").replace("[...]", "") or "the file"
    if path.startswith("["):
        path = f"entry {path}"
    if match := _TYPE.fullmatch(problem):
        expected = dict.fromkeys(_TYPES.get(name, name) for name in match["expected"].split(" | "))
        actual = _TYPES.get(match["actual"], match["actual"])
        hint = "; write it in quotes" if _is_unquoted(list(expected), match["actual"]) else ""
        return f"{path} must be {' or '.join(expected)}, not {actual}{hint}"
    if match := _MISSING.fullmatch(problem):
        return f"{path} lacks {match['field']}"
    if match := _UNKNOWN.fullmatch(problem):
        return f"{path} has {match['field']}, which is unknown"
    if match := _VALUE.fullmatch(problem):
        return f"{path} cannot be {match['value']}"
    return f"{path}: {problem}"


def _is_unquoted(expected: list[str], actual: str) -> bool:
    return expected == ["text"] and actual in ("int", "float", "bool")
