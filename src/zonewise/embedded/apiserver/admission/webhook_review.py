"""AdmissionReview: the request to a webhook, and the check of its answer.

An answer is untrusted. It must be for this request, of the requested version, and consistent;
anything else counts as a failed call, which the webhook's failure policy decides about. A refusal
keeps the webhook's own code, reason and words.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from zonewise.api.errors import ApiError, Status
from zonewise.api.resource import Resource
from zonewise.embedded.apiserver.admission.admission import Attributes
from zonewise.embedded.apiserver.registry import Served

Obj = dict[str, Any]

VERSIONS = ("v1", "v1beta1")
JSON_PATCH = "JSONPatch"
WARNING_LIMIT = 20
WARNING_LENGTH = 256
_PARAMETERS = ("fieldManager", "fieldValidation")


class BadAnswer(Exception):
    """A review that does not fit its question, or itself."""


class Unreadable(Exception):
    """An answer that is no review."""


class _Response(msgspec.Struct, rename="camel"):
    uid: str = ""
    allowed: bool = False
    status: dict[str, Any] | None = None
    patch: str | None = None
    patch_type: str | None = None
    warnings: list[str] | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    response: _Response | None = None


_decode = msgspec.json.Decoder(_Review).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookVerdict:
    """A webhook's answer."""

    allowed: bool
    status: Obj | None
    patch: bytes
    patch_type: str
    warnings: Sequence[str]


def version_of(accepted: Sequence[str] | None) -> str:
    """The first version a webhook accepts that this server supports."""
    for version in accepted or ():
        if version in VERSIONS:
            return version
    raise BadAnswer(
        "webhook does not accept known AdmissionReview versions (" + ", ".join(VERSIONS) + ")"
    )


def request(attributes: Attributes, viewed: Served, uid: str) -> Obj:
    """The request without the objects, which are in the version of ``viewed``."""
    asked: Obj = {
        "uid": uid,
        "kind": _kind(attributes, viewed),
        "resource": _resource(viewed.kind.resource),
        "requestKind": _kind(attributes, attributes.served),
        "requestResource": _resource(attributes.served.kind.resource),
        "operation": attributes.operation,
        "userInfo": attributes.user.info(),
        "dryRun": attributes.dry_run,
        "options": options(attributes),
    }
    if attributes.subresource:
        asked["subResource"] = asked["requestSubResource"] = attributes.subresource
    if attributes.name:
        asked["name"] = attributes.name
    namespace = place(attributes)
    if namespace:
        asked["namespace"] = namespace
    return asked


def place(attributes: Attributes) -> str:
    """The namespace of a write; a namespace's own is itself."""
    if attributes.served.storage == "/namespaces":
        return attributes.name
    return attributes.namespace


def options(attributes: Attributes) -> Obj:
    """The options of a write, as if they had been an object."""
    kind = attributes.operation.capitalize() + "Options"
    head = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if attributes.operation == "DELETE":
        given = {k: v for k, v in attributes.options.items() if k not in {"kind", "apiVersion"}}
    else:
        given = {key: attributes.options[key] for key in _PARAMETERS if attributes.options.get(key)}
    if attributes.dry_run:
        given["dryRun"] = ["All"]
    return head | given


def _kind(attributes: Attributes, served: Served) -> Obj:
    resource = served.kind.resource
    below = served.kind.subresources.get(attributes.subresource)
    if below is not None:
        return {"group": below.group, "version": below.version, "kind": below.kind}
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _resource(resource: Resource) -> Obj:
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}


def encode(asked: Obj, *, obj: Obj | None, old: Obj | None, version: str) -> bytes:
    """The question as a body."""
    return msgspec.json.encode(
        {
            "kind": "AdmissionReview",
            "apiVersion": f"admission.k8s.io/{version}",
            "request": asked | {"object": obj, "oldObject": old},
        }
    )


def read(body: bytes, *, uid: str, version: str, mutating: bool) -> WebhookVerdict:
    """The answer to the question ``uid``."""
    try:
        review = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"the answer is not an AdmissionReview: {error}") from None
    wanted = f"admission.k8s.io/{version}"
    if (review.api_version, review.kind) != (wanted, "AdmissionReview"):
        have = f"{review.api_version}, Kind={review.kind}"
        raise Unreadable(f"expected webhook response of {wanted}, Kind=AdmissionReview, got {have}")
    response = review.response
    if response is None:
        raise BadAnswer("webhook response was absent")
    if version == "v1":
        _check(response, uid, mutating)
    return WebhookVerdict(
        allowed=response.allowed,
        status=response.status,
        patch=_patch(response) if mutating else b"",
        patch_type=response.patch_type or JSON_PATCH,
        warnings=response.warnings or (),
    )


def _check(response: _Response, uid: str, mutating: bool) -> None:
    if response.uid != uid:
        raise BadAnswer(f'expected response.uid="{uid}", got "{response.uid[:64]}"')
    if not mutating:
        for name, value in (("patch", response.patch), ("patchType", response.patch_type)):
            if value:
                raise BadAnswer(f"validating webhook may not return response.{name}")
    elif response.patch and response.patch_type is None:
        raise BadAnswer("webhook returned response.patch but not response.patchType")
    elif not response.patch and response.patch_type is not None:
        raise BadAnswer("webhook returned response.patchType but not response.patch")
    elif response.patch_type == "":
        raise BadAnswer('webhook returned invalid response.patchType of ""')


def _patch(response: _Response) -> bytes:
    if not response.patch:
        return b""
    try:
        return base64.b64decode(response.patch, validate=True)
    except (binascii.Error, ValueError):
        raise Unreadable("illegal base64 data in response.patch") from None


def denial(name: str, given: Mapping[str, Any] | None) -> ApiError:
    """The refusal of the webhook ``name``."""
    try:
        status = msgspec.convert(given or {}, Status)
    except msgspec.ValidationError:
        status = Status(message=str((given or {}).get("message") or ""))
    said = f'admission webhook "{name}" denied the request'
    if status.message or status.reason:
        message = f"{said}: {status.message or status.reason}"
    else:
        message = f"{said} without explanation"
    code = status.code if 400 <= status.code <= 599 else 400
    whole = msgspec.structs.replace(
        status,
        status=status.status if status.status not in {"", "Success"} else "Failure",
        message=message,
        code=code,
    )
    return ApiError.from_status(code, whole)


def warn(into: list[str], said: Sequence[str]) -> None:
    """Pass a webhook's warnings on: so many, so long, in one line each."""
    for text in said:
        if len(into) >= WARNING_LIMIT:
            return
        line = "".join(one if one.isprintable() else " " for one in text).strip()
        if line:
            into.append(line[:WARNING_LENGTH])
