"""One request to the API and its answer, free of any HTTP library.

The HTTP server and the in-process transport both create a ``Call`` and get an ``Answer``;
everything between is independent of sockets. The user is authenticated before.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from zonewise.api import field_errors
from zonewise.api.errors import ApiError, Status
from zonewise.embedded.apiserver.request import status_errors


@dataclass(frozen=True, slots=True)
class User:
    """The user of a call, by authentication or impersonation."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def info(self) -> dict[str, Any]:
        """The user as a UserInfo without empty fields."""
        info: dict[str, Any] = {"username": self.name}
        if self.uid:
            info["uid"] = self.uid
        if self.groups:
            info["groups"] = list(self.groups)
        if self.extra:
            info["extra"] = {key: list(values) for key, values in self.extra}
        return info


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpersonatedUser:
    """The user that a caller impersonates."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


MANAGER_LIMIT = 128


@dataclass(slots=True, kw_only=True)
class Call:
    """One request. Header names are lower case; of a repeated parameter the last value counts."""

    method: str
    path: str
    user: User
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    impersonate: ImpersonatedUser | None = None
    may_create: Callable[[], None] = lambda: None
    """Raises if the caller may change the object but not create it; used if it is missing."""
    in_process: bool = False  # from a component in this process, which repeats what a crash loses
    warnings: list[str] = field(default_factory=list)

    def flag(self, name: str) -> bool:
        """A boolean parameter; whatever is not a form of false is true, as on a real server."""
        value = self.query.get(name)
        if value is None:
            return False
        return value not in {"0", "f", "F", "false", "FALSE", "False"}

    def number(self, name: str, *, signed: bool = False) -> int | None:
        """An integer parameter, negative only if ``signed``; None if it is absent."""
        value = self.query.get(name, "")
        if not value:
            return None
        digits = value.removeprefix("-") if signed else value
        if not digits.isascii() or not digits.isdigit() or len(value) > 18:
            raise status_errors.bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax')
        return int(value)

    @property
    def options(self) -> str:
        """The kind of the options in this request's parameters."""
        prefixes = {"POST": "Create", "PUT": "Update", "PATCH": "Patch", "DELETE": "Delete"}
        return prefixes.get(self.method, "List") + "Options"

    def check_options(self) -> None:
        """Refuse invalid parameters of a write, before anything is read."""
        name = self.query.get("fieldManager", "")
        errors = []
        if len(name.encode()) > MANAGER_LIMIT:
            errors.append(field_errors.too_long("fieldManager", MANAGER_LIMIT))
        elif not name.isprintable():
            errors.append(
                field_errors.invalid(
                    "fieldManager", name, "should only contain printable characters"
                )
            )
        if errors:
            raise status_errors.invalid_options(self.options, errors)
        _ = self.dry_run

    @property
    def dry_run(self) -> bool:
        """Whether this write must not be stored."""
        value = self.query.get("dryRun")
        if value not in {None, "All"}:
            error = field_errors.unsupported("dryRun", [value], ("All",))
            raise status_errors.invalid_options(self.options, [error])
        return value == "All"


@dataclass(slots=True, kw_only=True)
class Answer:
    """The answer: a body, or a stream of them for a watch."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    verbatim: bool = False
    """Whether the body is sent unchanged, where a real server does not negotiate."""
    stream: AsyncGenerator[bytes, None] | None = None
    on_end: Callable[[Callable[[], None]], None] | None = None
    """Takes a function to call when the server ends the stream while a write is stuck."""
    push_to: Callable[[Callable[[bytes], bool]], None] | None = None
    """Takes a function that writes parts of the stream at once, or declines with False."""


def parse_query(text: str) -> dict[str, str]:
    """The parameters of a URL's query."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=1000, errors="strict"))
    except ValueError as error:
        raise status_errors.bad_request(f"the query of the URL cannot be read: {error}") from None


def encode_status(status: Status) -> bytes:
    """A Status as an encoded object."""
    type_meta = {"kind": "Status", "apiVersion": "v1", "metadata": status.metadata or {}}
    return msgspec.json.encode(type_meta | msgspec.to_builtins(status))


def answer_error(error: ApiError) -> Answer:
    """An error as an answer."""
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(round(error.retry_after))
    return Answer(status=error.code, body=encode_status(error.status), headers=headers)
