"""Everything that can go wrong, as one tree.

::

    ZonewiseError
    ├── ConfigError            (Terminal)  flags, files or a kubeconfig that cannot work
    ├── ConnectionFailed                   no answer: refused, reset, timed out, bad certificate
    ├── ProtocolError                      an answer that is not of a Kubernetes API server
    ├── ParseError             (Terminal)  an invalid quantity, selector, time or patch
    │   └── PatchFailed        (Terminal)  a good patch that does not fit this document
    ├── LeadershipLost         (Terminal)  a write stopped because another replica leads now
    └── ApiError                           the API server refused; a Status says why
        ├── BadRequest          400  (Terminal)
        ├── Unauthorized        401
        ├── Forbidden           403
        ├── NotFound            404
        ├── MethodNotAllowed    405  (Terminal)
        ├── Conflict            409
        │   └── AlreadyExists   409
        ├── Gone                410
        ├── TooLarge            413  (Terminal)
        ├── UnsupportedMediaType 415 (Terminal)
        ├── Invalid             422  (Terminal)
        ├── TooManyRequests     429
        └── ServerError         5xx

``Terminal`` is the one special case: the same work, unchanged, can never succeed, so it is not
retried. Everything else may recover by itself: credentials are renewed, permissions are granted,
quotas and terminating namespaces (403) come and go, a missing kind (404) may be installed later.

What a server sends is untrusted: messages are cut to ``MESSAGE_LIMIT`` characters and control
characters are made visible, so one line on a terminal stays one line.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from zonewise.api.struct import Struct

MESSAGE_LIMIT = 1000


class StatusCause(Struct):
    """One of several reasons in a refusal: which field, and what is wrong with it."""

    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(Struct):
    """What a refusal is about."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[StatusCause, ...] | None = ()
    retry_after_seconds: int = 0


class Status(Struct):
    """The body of an error answer, and of most successful deletions."""

    metadata: dict[str, str | int] | None = None
    status: str = ""
    message: str = ""
    reason: str = ""
    details: StatusDetails | None = None
    code: int = 0


class ZonewiseError(Exception):
    """Anything this project raises on purpose."""


class Terminal(ZonewiseError):
    """Marks errors that the same work, unchanged, would meet again: do not retry."""


class ConfigError(Terminal):
    """Flags, files or a kubeconfig that cannot work; says what to change."""


class ConnectionFailed(ZonewiseError):
    """The server gave no answer."""


class ProtocolError(ZonewiseError):
    """The answer is not that of a Kubernetes API server."""


class ParseError(Terminal, ValueError):
    """Text that is not a valid quantity, selector, time or patch."""


class PatchFailed(ParseError):
    """A well-formed patch that cannot be applied to this document."""


class LeadershipLost(Terminal):
    """A write was not sent because this replica's lease has ended."""


class ApiError(ZonewiseError):
    """The API server refused a request.

    ``status`` is the server's own, complete; ``str()`` is a bounded single line of it.
    ``retry_after`` is in seconds, or None when the server did not request a pause.
    """

    by_code: ClassVar[dict[int, type[ApiError]]] = {}

    def __init__(self, status: Status, *, retry_after: float | None = None) -> None:
        self.status = status
        self.retry_after = retry_after
        if retry_after is None and status.details and status.details.retry_after_seconds > 0:
            self.retry_after = float(status.details.retry_after_seconds)
        super().__init__(status)

    def __init_subclass__(cls, code: int = 0) -> None:
        if code:
            ApiError.by_code[code] = cls

    def __str__(self) -> str:
        return _single_line(self.status.message) or f"the API server answered {self.status.code}"

    @property
    def code(self) -> int:
        """The HTTP status."""
        return self.status.code

    @property
    def reason(self) -> str:
        """The reason for programs, such as ``NotFound`` or ``Expired``; may be empty."""
        return self.status.reason

    @property
    def message(self) -> str:
        """The server's message, bounded and on one line."""
        return str(self)

    @property
    def details(self) -> StatusDetails:
        """What the refusal is about; empty if the server did not say."""
        return self.status.details or StatusDetails()

    @classmethod
    def from_status(
        cls, code: int, body: bytes | Status, *, retry_after: float | None = None
    ) -> ApiError:
        """The error for an HTTP answer, or for the object of a watch's ERROR event.

        API servers answer in plain text in some places (429 under load, 404 on unknown paths);
        such a body becomes the message.
        """
        status = body if isinstance(body, Status) else _parse_status(body)
        if status.code != code:
            status = msgspec.structs.replace(status, code=code)
        return _error_class(status)(status, retry_after=retry_after)


class BadRequest(ApiError, Terminal, code=400):
    """The request itself is malformed."""


class Unauthorized(ApiError, code=401):
    """The credentials are missing, wrong or expired."""


class Forbidden(ApiError, code=403):
    """The credentials are valid without permission for this, or admission refused it."""

    @property
    def namespace_terminating(self) -> bool:
        """Whether the reason is that the namespace is being deleted."""
        return any(cause.reason == "NamespaceTerminating" for cause in self.details.causes or ())


class NotFound(ApiError, code=404):
    """No such object, or no such kind."""


class MethodNotAllowed(ApiError, Terminal, code=405):
    """The kind exists and does not support this verb."""


class Conflict(ApiError, code=409):
    """The object changed since it was read, or a field belongs to another manager."""


class AlreadyExists(Conflict):
    """An object of this name exists already."""


class Gone(ApiError, code=410):
    """The requested version is no longer stored: list again."""


class TooLarge(ApiError, Terminal, code=413):
    """The body is larger than the server accepts."""


class UnsupportedMediaType(ApiError, Terminal, code=415):
    """The server does not accept this kind of body."""


class Invalid(ApiError, Terminal, code=422):
    """The object breaks a rule of its kind; ``details.causes`` names the fields."""


class TooManyRequests(ApiError, code=429):
    """The server, or a disruption budget, asks to retry later."""


class ServerError(ApiError):
    """The server failed; it may succeed later."""


_STATUS_DECODER = msgspec.json.Decoder(Status)


def _parse_status(body: bytes) -> Status:
    try:
        return _STATUS_DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body[: 4 * MESSAGE_LIMIT].decode("utf-8", "replace").strip()
        return Status(status="Failure", message=text)


def _error_class(status: Status) -> type[ApiError]:
    if status.code == 409 and status.reason == "AlreadyExists":
        return AlreadyExists
    if status.code >= 500:
        return ServerError
    return ApiError.by_code.get(status.code, ApiError)


def _single_line(text: str) -> str:
    cut = text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"
    words = " ".join(cut.split())
    return words if words.isprintable() else "".join(c if c.isprintable() else "�" for c in words)
