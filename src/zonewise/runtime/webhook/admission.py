"""An API server's admission request and its answer: AdmissionReview v1, typed.

A handler gets an ``AdmissionRequest`` and returns ``Allowed`` (perhaps with a patch) or ``Denied``.
It may raise: that is a failure, not a refusal, and the webhook configuration's ``failurePolicy``
decides what happens to the request. A handler must not write anything when ``dry_run`` is set.

Objects stay raw bytes until a handler decodes them, because most handlers read one of the two and
many only names. Nothing here does I/O.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from zonewise.api.codec import decoder
from zonewise.api.errors import ParseError, StatusCause
from zonewise.api.reason import Reason
from zonewise.api.struct import Struct
from zonewise.api.values import names

API_VERSION = "admission.k8s.io/v1"
WARNING_LIMIT = 256
WARNINGS_LIMIT = 4096
MESSAGE_LIMIT = 4096
NAME_LIMIT = 253

T = TypeVar("T")


class GroupVersionKind(Struct):
    """A kind by its three names."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(Struct):
    """A resource by its three names."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(Struct):
    """The user that writes."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] | None = ()
    extra: dict[str, tuple[str, ...]] | None = None


class AdmissionRequest(Struct):
    """What is about to be written, where, how, and by which user."""

    uid: str = ""
    kind: GroupVersionKind = GroupVersionKind()
    resource: GroupVersionResource = GroupVersionResource()
    sub_resource: str = ""
    request_kind: GroupVersionKind | None = None
    request_resource: GroupVersionResource | None = None
    request_sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")
    options: msgspec.Raw = msgspec.Raw(b"null")
    dry_run: bool | None = None

    def new(self, cls: type[T]) -> T | None:
        """The object as it would be written, typed; None for deletions."""
        return _typed(self.object, cls)

    def old(self, cls: type[T]) -> T | None:
        """The object as it is, typed; None for creations."""
        return _typed(self.old_object, cls)

    def typed_options(self, cls: type[T]) -> T | None:
        """The options of the request, typed; None if it has none."""
        return _typed(self.options, cls)

    def plain(self) -> dict[str, Any]:
        """The object as it would be written, as dictionaries and lists; empty for deletions."""
        value = msgspec.json.decode(self.object)
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Yes, perhaps after the operations of a JSON patch, perhaps with words for the user."""

    patch: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    audit: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Denied:
    """No, and why. The user sees the sentence; programs see ``code`` and ``status``."""

    why: Reason | str
    code: int = field(default=403, kw_only=True)
    status: str = field(default="Forbidden", kw_only=True)
    retry_after: int | None = field(default=None, kw_only=True)
    causes: Sequence[StatusCause] = field(default=(), kw_only=True)
    warnings: Sequence[str] = field(default=(), kw_only=True)
    audit: Mapping[str, str] = field(default_factory=dict, kw_only=True)


AdmissionAnswer = Allowed | Denied
Handler = Callable[[AdmissionRequest], Awaitable[AdmissionAnswer]]


class _Review(Struct):
    api_version: str = ""
    kind: str = ""
    request: AdmissionRequest | None = None


class _StatusDetails(Struct):
    retry_after_seconds: int | None = None
    causes: tuple[StatusCause, ...] = ()


class _Status(Struct):
    code: int = 0
    message: str = ""
    reason: str = ""
    details: _StatusDetails | None = None


class _Response(Struct, omit_defaults=False):
    uid: str
    allowed: bool
    status: _Status | msgspec.UnsetType = msgspec.UNSET
    patch: str | msgspec.UnsetType = msgspec.UNSET
    patch_type: str | msgspec.UnsetType = msgspec.UNSET
    audit_annotations: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET
    warnings: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class _Answered(Struct, omit_defaults=False):
    response: _Response
    api_version: str = API_VERSION
    kind: str = "AdmissionReview"


def decode(body: bytes) -> AdmissionRequest:
    """The request in the body of a call; anything else is a ``ParseError``."""
    review = decoder(_Review).decode(body)
    if (review.api_version, review.kind) != (API_VERSION, "AdmissionReview"):
        raise ParseError(
            f"the body is {review.kind or 'of no kind'} of {review.api_version or 'no version'}, "
            f"not AdmissionReview of {API_VERSION}"
        )
    if review.request is None or not review.request.uid:
        raise ParseError("the AdmissionReview has no request, or its request has no uid")
    _check_names(review.request)
    return review.request


def _check_names(request: AdmissionRequest) -> None:
    """Refuse names that no API server sends, so that they reach no cache, log or request."""
    if request.namespace and names.label_errors(request.namespace):
        raise ParseError("the namespace of the AdmissionReview is not a valid name")
    if request.name and not valid_name(request.name):
        raise ParseError("the name in the AdmissionReview is not a valid name")


def valid_name(name: str) -> bool:
    """Whether an API server may have an object of this name, so that it can be asked for it."""
    return 0 < len(name) <= NAME_LIMIT and not names.path_segment_errors(name)


def encode(request: AdmissionRequest, answer: AdmissionAnswer) -> bytes:
    """The body of the answer to a request."""
    response = (
        _allowed(request, answer) if isinstance(answer, Allowed) else _denied(request, answer)
    )
    return msgspec.json.encode(_Answered(response=response))


def _allowed(request: AdmissionRequest, answer: Allowed) -> _Response:
    patch: str | msgspec.UnsetType = msgspec.UNSET
    if answer.patch:
        patch = base64.b64encode(msgspec.json.encode(answer.patch)).decode()
    return _Response(
        uid=request.uid,
        allowed=True,
        patch=patch,
        patch_type="JSONPatch" if answer.patch else msgspec.UNSET,
        audit_annotations=answer.audit or msgspec.UNSET,
        warnings=_warnings(answer.warnings),
    )


def _denied(request: AdmissionRequest, answer: Denied) -> _Response:
    details = None
    if answer.retry_after is not None or answer.causes:
        causes = tuple(answer.causes)
        details = _StatusDetails(retry_after_seconds=answer.retry_after, causes=causes)
    message = str(answer.why)
    return _Response(
        uid=request.uid,
        allowed=False,
        status=_Status(
            code=answer.code,
            reason=answer.status,
            message=message
            if len(message) <= MESSAGE_LIMIT
            else message[: MESSAGE_LIMIT - 1] + "…",
            details=details,
        ),
        audit_annotations=answer.audit or msgspec.UNSET,
        warnings=_warnings(answer.warnings),
    )


def _warnings(warnings: Sequence[str]) -> tuple[str, ...] | msgspec.UnsetType:
    """Warnings as the API server passes them on: it drops long ones, and many."""
    lines: list[str] = []
    size = 0
    for warning in warnings:
        line = " ".join(warning.split())[:WARNING_LIMIT]
        size += len(line.encode())
        if line and size <= WARNINGS_LIMIT:
            lines.append(line)
    return tuple(lines) or msgspec.UNSET


def _typed(raw: msgspec.Raw, cls: type[T]) -> T | None:
    data = bytes(raw)
    return None if data == b"null" else decoder(cls).decode(data)
