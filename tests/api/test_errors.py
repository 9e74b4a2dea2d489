"""The error classes: which answer becomes which error, and which text a person sees."""

from __future__ import annotations

import inspect
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api import errors
from zonewise.api.errors import ApiError, Status, StatusCause, StatusDetails, Terminal

BY_CODE = [
    (400, "BadRequest", errors.BadRequest),
    (401, "Unauthorized", errors.Unauthorized),
    (403, "Forbidden", errors.Forbidden),
    (404, "NotFound", errors.NotFound),
    (405, "MethodNotAllowed", errors.MethodNotAllowed),
    (406, "NotAcceptable", ApiError),
    (409, "Conflict", errors.Conflict),
    (409, "AlreadyExists", errors.AlreadyExists),
    (410, "Expired", errors.Gone),
    (410, "Gone", errors.Gone),
    (413, "RequestEntityTooLarge", errors.TooLarge),
    (415, "UnsupportedMediaType", errors.UnsupportedMediaType),
    (422, "Invalid", errors.Invalid),
    (429, "TooManyRequests", errors.TooManyRequests),
    (500, "InternalError", errors.ServerError),
    (503, "ServiceUnavailable", errors.ServerError),
    (504, "Timeout", errors.ServerError),
]


@pytest.mark.parametrize(("code", "reason", "kind"), BY_CODE)
def test_an_answer_becomes_the_error_of_its_code(
    code: int, reason: str, kind: type[ApiError]
) -> None:
    """The class follows from the code; code, reason and message are the server's."""
    body = msgspec.json.encode(
        {"kind": "Status", "status": "Failure", "message": "no", "reason": reason, "code": code}
    )
    error = ApiError.from_status(code, body)
    assert type(error) is kind
    assert (error.code, error.reason, error.message) == (code, reason, "no")
    assert error.retry_after is None


def test_details_say_which_field_is_wrong() -> None:
    """The causes of an Invalid error are available, field by field."""
    body = (
        b'{"code":422,"reason":"Invalid","message":"m","details":{"name":"web","group":"apps",'
        b'"kind":"Deployment","causes":[{"reason":"FieldValueRequired","message":"Required value",'
        b'"field":"spec.selector"}]}}'
    )
    details = ApiError.from_status(422, body).details
    assert (details.name, details.group, details.kind) == ("web", "apps", "Deployment")
    assert details.causes == (
        StatusCause(reason="FieldValueRequired", message="Required value", field="spec.selector"),
    )


def test_null_causes_and_absent_details_are_no_error_of_their_own() -> None:
    """A Status with nulls, or without details, can be read."""
    assert ApiError.from_status(404, b'{"details":{"causes":null}}').details.causes is None
    assert ApiError.from_status(404, b'{"details":null}').details == StatusDetails()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"Too many requests, please try again\n", "Too many requests, please try again"),
        (b"404 page not found\n", "404 page not found"),
        (b"", "the API server answered 429"),
        (b"\xff\xfe", "��"),
        (b"[1]", "[1]"),
        (b'{"x":' * 100_000, '{"x":' * 199 + '{"x"…'),
        (b'{"message":7}', '{"message":7}'),
    ],
)
def test_a_body_that_is_no_status_becomes_the_message(body: bytes, message: str) -> None:
    """Plain text, as servers send it under load, becomes the message."""
    error = ApiError.from_status(429, body)
    assert type(error) is errors.TooManyRequests
    assert str(error) == message


def test_the_code_on_the_wire_wins_over_the_one_in_the_body() -> None:
    """A 503 of a proxy with a Status of 200 in its body is a server error."""
    error = ApiError.from_status(503, b'{"code":200,"message":"x"}')
    assert type(error) is errors.ServerError
    assert error.code == 503


def test_retry_after_is_read() -> None:
    """Retry-After comes from the header if there is one, else from the details."""
    body = b'{"details":{"retryAfterSeconds":10}}'
    assert ApiError.from_status(429, body).retry_after == 10.0
    assert ApiError.from_status(429, body, retry_after=0.5).retry_after == 0.5
    assert ApiError.from_status(429, b"{}").retry_after is None


@given(st.text(max_size=3000))
def test_a_message_is_one_printable_line_of_bounded_length(text: str) -> None:
    """A message of a server is shown as one short line without control characters."""
    text_shown = str(ApiError(Status(code=500, message=text)))
    assert text_shown
    assert len(text_shown) <= errors.MESSAGE_LIMIT
    assert text_shown.isprintable()


@given(st.binary(max_size=200), st.integers(300, 599))
def test_any_body_makes_an_error(body: bytes, code: int) -> None:
    """Any bytes under any code become an ApiError with that code."""
    assert ApiError.from_status(code, body).code == code


def test_only_errors_that_must_not_be_retried_are_terminal() -> None:
    """An error that the same work would meet again is Terminal, and no other."""
    tree = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.ZonewiseError) and kind is not Terminal
    }
    assert {kind for kind in tree if issubclass(kind, Terminal)} == {
        errors.ConfigError,
        errors.ParseError,
        errors.PatchFailed,
        errors.LeadershipLost,
        errors.BadRequest,
        errors.MethodNotAllowed,
        errors.TooLarge,
        errors.UnsupportedMediaType,
        errors.Invalid,
    }


def test_the_drawing_shows_the_whole_tree() -> None:
    """Every error is in the tree in the module's docstring, indented and marked if Terminal."""
    assert errors.__doc__ is not None
    lines = [line for line in errors.__doc__.splitlines() if "──" in line]
    drawn = {}
    for line in lines:
        branch, _, rest = line.partition("── ")
        drawn[rest.split()[0]] = (len(branch) // 4, "(Terminal)" in line)
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.ZonewiseError) and kind not in {errors.ZonewiseError, Terminal}:
            parents = [k for k in kind.__mro__ if k.__module__ == errors.__name__]
            depth = len([k for k in parents if k not in {Terminal, errors.ZonewiseError}])
            assert drawn.pop(name) == (depth, issubclass(kind, Terminal)), name
    assert not drawn


def test_a_bad_text_is_also_a_value_error() -> None:
    """A ParseError can be caught as a ValueError."""
    assert issubclass(errors.ParseError, ValueError)


def test_errors_cross_process_borders() -> None:
    """An error can be pickled, for test runners and executors."""
    error = ApiError.from_status(409, b'{"reason":"AlreadyExists","message":"m"}', retry_after=2)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.AlreadyExists
    assert (again.status, again.retry_after) == (error.status, 2)
