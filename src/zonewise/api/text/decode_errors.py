"""What is wrong with a file that people wrote, in words of YAML instead of a library's."""

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
_PLACE = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<place>.*)`)?", re.DOTALL)
_TYPE = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<found>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)`")
_VALUE = re.compile(r"Invalid enum value (?P<value>.*)", re.DOTALL)


def decode_error_text(error: msgspec.ValidationError) -> str:
    """The fault as a clause: where it is, what it must be, what it is."""
    parts = _PLACE.fullmatch(str(error))
    assert parts is not None
    what = parts["what"]
    place = (parts["place"] or "").removeprefix(".").replace("[...]", "") or "the file"
    if place.startswith("["):
        place = f"entry {place}"
    if found := _TYPE.fullmatch(what):
        wanted = dict.fromkeys(_TYPES.get(one, one) for one in found["wanted"].split(" | "))
        is_now = _TYPES.get(found["found"], found["found"])
        hint = "; write it in quotes" if _is_unquoted(list(wanted), found["found"]) else ""
        return f"{place} must be {' or '.join(wanted)}, not {is_now}{hint}"
    if found := _MISSING.fullmatch(what):
        return f"{place} lacks {found['field']}"
    if found := _UNKNOWN.fullmatch(what):
        return f"{place} has {found['field']}, which is unknown"
    if found := _VALUE.fullmatch(what):
        return f"{place} cannot be {found['value']}"
    return f"{place}: {what}"


def _is_unquoted(wanted: list[str], found: str) -> bool:
    return wanted == ["text"] and found in ("int", "float", "bool")
