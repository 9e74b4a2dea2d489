"""Errors of fields, with the messages and reasons of an API server.

A field error is a ``StatusCause``: the reason is for programs, the message for people, the field
path for both. Every validation, by schema or by hand, makes its errors here, so the same mistake
has the same message everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from zonewise.api.errors import Invalid, Status, StatusCause, StatusDetails
from zonewise.api.resource import Resource

VALUE_LIMIT = 10_000
ERROR_LIMIT = 500
"""A body of 3 MiB can have a hundred thousand errors, too many to report."""


def required(field: str, detail: str = "") -> StatusCause:
    """The value is missing and required."""
    return _field_error("FieldValueRequired", field, "Required value", detail)


def invalid(field: str, value: Any, detail: str) -> StatusCause:
    """The value breaks a rule that ``detail`` states."""
    return _field_error("FieldValueInvalid", field, f"Invalid value: {render_value(value)}", detail)


def wrong_type(field: str, value: Any, detail: str) -> StatusCause:
    """The value is of another JSON type than the schema's."""
    message = f"Invalid value: {render_value(value)}"
    return _field_error("FieldValueTypeInvalid", field, message, detail)


def unsupported(field: str, value: Any, supported: Iterable[str]) -> StatusCause:
    """The value is not one of the supported values."""
    names = ", ".join(f'"{name}"' for name in sorted(supported))
    detail = f"supported values: {names}" if names else ""
    return _field_error(
        "FieldValueNotSupported", field, f"Unsupported value: {render_value(value)}", detail
    )


def duplicate(field: str, value: Any) -> StatusCause:
    """A value that must be unique occurs twice."""
    return _field_error("FieldValueDuplicate", field, f"Duplicate value: {render_value(value)}", "")


def forbidden(field: str, detail: str) -> StatusCause:
    """The field may not be set, or not be changed."""
    return _field_error("FieldValueForbidden", field, "Forbidden", detail)


def not_found(field: str, value: Any) -> StatusCause:
    """The value names something that does not exist."""
    return _field_error("FieldValueNotFound", field, f"Not found: {render_value(value)}", "")


def too_long(field: str, limit: int) -> StatusCause:
    """A text of more than ``limit`` bytes."""
    detail = f"may not be more than {limit} bytes"
    return _field_error("FieldValueTooLong", field, "Too long", detail)


def too_many(field: str, count: int, limit: int) -> StatusCause:
    """A list of more than ``limit`` items."""
    return _field_error(
        "FieldValueTooMany", field, f"Too many: {count}", f"must have at most {limit} items"
    )


def internal(field: str, detail: str) -> StatusCause:
    """The value could not be validated, because an earlier rule failed."""
    return _field_error("InternalError", field, "Internal error", detail)


def new_invalid(resource: Resource, name: str, errors: Sequence[StatusCause]) -> Invalid:
    """The 422 that carries the field errors of one object."""
    omitted = len(errors) - ERROR_LIMIT
    errors = errors[:ERROR_LIMIT]
    lines = [
        f"{error.field}: {error.message}" if error.field else error.message for error in errors
    ]
    if omitted > 0:
        lines.append(f"and {omitted} more")
    text = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    return Invalid(
        Status(
            status="Failure",
            message=f'{resource.kind}{group_suffix(resource)} "{name}" is invalid: {text}',
            reason="Invalid",
            details=StatusDetails(
                name=name, group=resource.group, kind=resource.kind, causes=tuple(errors)
            ),
            code=422,
        )
    )


def group_suffix(resource: Resource) -> str:
    """``.apps`` after a kind of a named group, nothing after one of the core group."""
    return f".{resource.group}" if resource.group else ""


def render_value(value: Any) -> str:
    """A value as messages print it: JSON, truncated at ``VALUE_LIMIT`` characters."""
    if value is None:
        return "null"
    text = msgspec.json.encode(value).decode("utf-8", "replace")
    return text if len(text) <= VALUE_LIMIT else text[: VALUE_LIMIT - 1] + "…"


def _field_error(reason: str, field: str, message: str, detail: str) -> StatusCause:
    message = f"{message}: {detail}" if detail else message
    return StatusCause(reason=reason, field=field, message=message)
