"""What is wrong with a field, in the words and with the reasons an API server uses.

A fault is a ``StatusCause``: the reason is for programs, the field path for both, the message for
people. Every check, by schema or by hand, makes its faults here, so one mistake reads the same
wherever it is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from zonewise.api.errors import Invalid, Status, StatusCause, StatusDetails
from zonewise.api.resource import Resource

VALUE_LIMIT = 10_000
FAULT_LIMIT = 500
"""A body of 3 MiB can have a hundred thousand faults; reporting them all helps no one."""


def required(field: str, detail: str = "") -> StatusCause:
    """Nothing is there and something must be."""
    return _fault("FieldValueRequired", field, "Required value", detail)


def invalid(field: str, value: Any, detail: str) -> StatusCause:
    """The value breaks a rule that ``detail`` states."""
    return _fault("FieldValueInvalid", field, f"Invalid value: {shown(value)}", detail)


def wrong_type(field: str, value: Any, detail: str) -> StatusCause:
    """The value is of another JSON type than the schema's."""
    return _fault("FieldValueTypeInvalid", field, f"Invalid value: {shown(value)}", detail)


def unsupported(field: str, value: Any, supported: Iterable[str]) -> StatusCause:
    """The value is none of the few that are meaningful."""
    names = ", ".join(f'"{name}"' for name in sorted(supported))
    detail = f"supported values: {names}" if names else ""
    return _fault("FieldValueNotSupported", field, f"Unsupported value: {shown(value)}", detail)


def duplicate(field: str, value: Any) -> StatusCause:
    """A value that must be unique is there a second time."""
    return _fault("FieldValueDuplicate", field, f"Duplicate value: {shown(value)}", "")


def forbidden(field: str, detail: str) -> StatusCause:
    """The field may not be set, or not be changed."""
    return _fault("FieldValueForbidden", field, "Forbidden", detail)


def not_found(field: str, value: Any) -> StatusCause:
    """The value names something that does not exist."""
    return _fault("FieldValueNotFound", field, f"Not found: {shown(value)}", "")


def too_long(field: str, limit: int) -> StatusCause:
    """A text of more than ``limit`` bytes."""
    return _fault("FieldValueTooLong", field, "Too long", f"may not be more than {limit} bytes")


def too_many(field: str, count: int, limit: int) -> StatusCause:
    """A list of more than ``limit`` items."""
    return _fault(
        "FieldValueTooMany", field, f"Too many: {count}", f"must have at most {limit} items"
    )


def internal(field: str, detail: str) -> StatusCause:
    """The value could not be judged, because a rule before this one already failed."""
    return _fault("InternalError", field, "Internal error", detail)


def refusal(resource: Resource, name: str, faults: Sequence[StatusCause]) -> Invalid:
    """The 422 that carries the faults of one object."""
    left_out = len(faults) - FAULT_LIMIT
    faults = faults[:FAULT_LIMIT]
    lines = [
        f"{fault.field}: {fault.message}" if fault.field else fault.message for fault in faults
    ]
    if left_out > 0:
        lines.append(f"and {left_out} more")
    text = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    return Invalid(
        Status(
            status="Failure",
            message=f'{resource.kind}{qualifier(resource)} "{name}" is invalid: {text}',
            reason="Invalid",
            details=StatusDetails(
                name=name, group=resource.group, kind=resource.kind, causes=tuple(faults)
            ),
            code=422,
        )
    )


def qualifier(resource: Resource) -> str:
    """``.apps`` after a kind of a named group, nothing after one of the core group."""
    return f".{resource.group}" if resource.group else ""


def shown(value: Any) -> str:
    """A value as messages print it: JSON, cut where it would drown the sentence."""
    if value is None:
        return "null"
    text = msgspec.json.encode(value).decode("utf-8", "replace")
    return text if len(text) <= VALUE_LIMIT else text[: VALUE_LIMIT - 1] + "…"


def _fault(reason: str, field: str, message: str, detail: str) -> StatusCause:
    return StatusCause(
        reason=reason, field=field, message=f"{message}: {detail}" if detail else message
    )
