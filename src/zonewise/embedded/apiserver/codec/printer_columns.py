"""The cells of custom resources: JSON paths of their definition's printer columns.

Of the JSON path language this supports what definitions use: names (dotted or quoted), indexes, the
star, and a filter that compares one field with a value. A path that matches nothing, or is not
supported, gives an empty cell; printing an object must never fail because of a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from zonewise.api.errors import ParseError
from zonewise.embedded.apiserver.codec.printers.base import Printer, format_age
from zonewise.embedded.machinery.schema.kinds import Column

Obj = dict[str, Any]
PathStep = Callable[[Any], list[Any]]
Cell = Callable[[Obj, str], Any]

_STEP = re.compile(
    r"""\.(?P<name>(?:[^.\[\]\\'"]|\\.)+)
      | \[(?P<quote>['"])(?P<quoted>(?:[^'"\\]|\\.)*)(?P=quote)\]
      | \[(?P<index>-?\d+)\]
      | (?P<star>\[\*\]|\.\*)
      | \[\?\(\s*@\.(?P<field>[\w.\-/]+)\s*(?P<op>==|!=)
        \s*(?P<value>"[^"]*"|'[^']*'|[\w.\-]+)\s*\)\]
    """,
    re.VERBOSE,
)


def cell_of(column: Column) -> Cell:
    """The function that computes the cell of a column."""
    steps = _parse_path(column.path)
    column_type = column.type

    def cell(obj: Obj, now: str) -> Any:
        values: list[Any] = [obj]
        for step in steps:
            values = [item for value in values for item in step(value)]
        if not values:
            return None
        if column_type == "string":
            return " ".join(_text(value) for value in values)
        return _convert_cell(column_type, values[0], now)

    return cell if steps else lambda _obj, _now: None


def custom_printer(columns: Sequence[Column]) -> Printer:
    """The printer of a custom kind: its name, then its columns, or its age."""
    cells = [cell_of(column) for column in columns[1:] if column.path]

    def print_row(obj: Obj, now: str) -> list[Any]:
        name = obj["metadata"].get("name", "")
        if not cells:
            return [name, format_age(obj["metadata"].get("creationTimestamp"), now)]
        return [name, *(cell(obj, now) for cell in cells)]

    return print_row


def _parse_path(path: str) -> Sequence[PathStep]:
    steps: list[PathStep] = []
    position = 0
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None:
            return ()
        steps.append(_build_step(match))
        position = match.end()
    return steps


def _build_step(match: re.Match[str]) -> PathStep:
    if match["index"] is not None:
        number = int(match["index"])
        return lambda value: (
            [value[number]]
            if isinstance(value, list) and -len(value) <= number < len(value)
            else []
        )
    if match["star"] is not None:
        return lambda value: (
            value if isinstance(value, list) else list(value.values()) if _is_object(value) else []
        )
    if match["field"] is not None:
        return _build_filter(
            match["field"].split("."), match["op"] == "==", match["value"].strip("'\"")
        )
    name = re.sub(r"\\(.)", r"\1", match["name"] or match["quoted"] or "")
    return lambda value: [value[name]] if _is_object(value) and value.get(name) is not None else []


def _build_filter(field: list[str], equal: bool, expected: str) -> PathStep:
    def select(value: Any) -> list[Any]:
        return [
            item
            for item in (value if isinstance(value, list) else [])
            if _get_field(item, field) is not None
            and (_text(_get_field(item, field)) == expected) is equal
        ]

    return select


def _get_field(value: Any, field: list[str]) -> Any:
    for name in field:
        value = value.get(name) if _is_object(value) else None
    return value


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _convert_cell(column_type: str, value: Any, now: str) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match column_type:
        case "integer":
            return int(value) if is_number else None
        case "number":
            return float(value) if is_number else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date":
            try:
                return format_age(value, now) if isinstance(value, str) else None
            except (ParseError, ValueError):
                return "<invalid>"
    return None
