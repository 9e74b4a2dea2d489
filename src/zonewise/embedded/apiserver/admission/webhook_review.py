"""AdmissionReview: the request to a webhook, and the validation of its response.

A response is untrusted. It must be for this request, of the requested version, and consistent;
anything else counts as a failed call, to which the webhook's failure policy applies. A refusal has
the webhook's own code, reason and message.
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
from zonewise.embedded.apiserver.registry import ServedKind

Obj = dict[str, Any]

VERSIONS = ("v1", "v1beta1")
JSON_PATCH = "JSONPatch"
WARNING_LIMIT = 20
WARNING_LENGTH = 256
_PARAMETERS = ("fieldManager", "fieldValidation")


class InvalidResponse(Exception):
    """A response that is not for this request, or inconsistent."""


class UndecodableResponse(Exception):
    """A response that is not an AdmissionReview."""


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
    """A webhook's response."""

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
    raise InvalidResponse(
        "webhook does not accept known AdmissionReview versions (" + ", ".join(VERSIONS) + ")"
    )


def build_request(attributes: Attributes, matched: ServedKind, uid: str) -> Obj:
    """The request without the objects, which are in the version of ``matched``."""
    request: Obj = {
        "uid": uid,
        "kind": _kind(attributes, matched),
        "resource": _resource(matched.kind.resource),
        "requestKind": _kind(attributes, attributes.served),
        "requestResource": _resource(attributes.served.kind.resource),
        "operation": attributes.operation,
        "userInfo": attributes.user.info(),
        "dryRun": attributes.dry_run,
        "options": options_of(attributes),
    }
    if attributes.subresource:
        request["subResource"] = request["requestSubResource"] = attributes.subresource
    if attributes.name:
        request["name"] = attributes.name
    namespace = namespace_of(attributes)
    if namespace:
        request["namespace"] = namespace
    return request


def namespace_of(attributes: Attributes) -> str:
    """The namespace of a write; of a Namespace, the namespace itself."""
    if attributes.served.storage == "/namespaces":
        return attributes.name
    return attributes.namespace


def options_of(attributes: Attributes) -> Obj:
    """The options of a write as an object."""
    kind = attributes.operation.capitalize() + "Options"
    head = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if attributes.operation == "DELETE":
        options = {k: v for k, v in attributes.options.items() if k not in {"kind", "apiVersion"}}
    else:
        options = {
            key: attributes.options[key] for key in _PARAMETERS if attributes.options.get(key)
        }
    if attributes.dry_run:
        options["dryRun"] = ["All"]
    return head | options


def _kind(attributes: Attributes, served: ServedKind) -> Obj:
    resource = served.kind.resource
    subresource = served.kind.subresources.get(attributes.subresource)
    if subresource is not None:
        return {
            "group": subresource.group,
            "version": subresource.version,
            "kind": subresource.kind,
        }
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _resource(resource: Resource) -> Obj:
    return {"group": resource.group, "version": resource.version, "resource": resource.plural}


def encode_review(request: Obj, *, obj: Obj | None, old: Obj | None, version: str) -> bytes:
    """The encoded AdmissionReview of a request."""
    return msgspec.json.encode(
        {
            "kind": "AdmissionReview",
            "apiVersion": f"admission.k8s.io/{version}",
            "request": request | {"object": obj, "oldObject": old},
        }
    )


def decode_review(body: bytes, *, uid: str, version: str, mutating: bool) -> WebhookVerdict:
    """The response to the request ``uid``."""
    try:
        review = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableResponse(f"the response is not an AdmissionReview: {error}") from None
    expected = f"admission.k8s.io/{version}"
    if (review.api_version, review.kind) != (expected, "AdmissionReview"):
        actual = f"{review.api_version}, Kind={review.kind}"
        raise UndecodableResponse(
            f"expected webhook response of {expected}, Kind=AdmissionReview, got {actual}"
        )
    response = review.response
    if response is None:
        raise InvalidResponse("webhook response was absent")
    if version == "v1":
        _check_response(response, uid, mutating)
    return WebhookVerdict(
        allowed=response.allowed,
        status=response.status,
        patch=_decode_patch(response) if mutating else b"",
        patch_type=response.patch_type or JSON_PATCH,
        warnings=response.warnings or (),
    )


def _check_response(response: _Response, uid: str, mutating: bool) -> None:
    if response.uid != uid:
        raise InvalidResponse(f'expected response.uid="{uid}", got "{response.uid[:64]}"')
    if not mutating:
        for name, value in (("patch", response.patch), ("patchType", response.patch_type)):
            if value:
                raise InvalidResponse(f"validating webhook may not return response.{name}")
    elif response.patch and response.patch_type is None:
        raise InvalidResponse("webhook returned response.patch but not response.patchType")
    elif not response.patch and response.patch_type is not None:
        raise InvalidResponse("webhook returned response.patchType but not response.patch")
    elif response.patch_type == "":
        raise InvalidResponse('webhook returned invalid response.patchType of ""')


def _decode_patch(response: _Response) -> bytes:
    if not response.patch:
        return b""
    try:
        return base64.b64decode(response.patch, validate=True)
    except (binascii.Error, ValueError):
        raise UndecodableResponse("illegal base64 data in response.patch") from None


def denial_error(name: str, status_fields: Mapping[str, Any] | None) -> ApiError:
    """The refusal of the webhook ``name``."""
    try:
        status = msgspec.convert(status_fields or {}, Status)
    except msgspec.ValidationError:
        status = Status(message=str((status_fields or {}).get("message") or ""))
    prefix = f'admission webhook "{name}" denied the request'
    if status.message or status.reason:
        message = f"{prefix}: {status.message or status.reason}"
    else:
        message = f"{prefix} without explanation"
    code = status.code if 400 <= status.code <= 599 else 400
    refusal = msgspec.structs.replace(
        status,
        status=status.status if status.status not in {"", "Success"} else "Failure",
        message=message,
        code=code,
    )
    return ApiError.from_status(code, refusal)


def add_warnings(warnings: list[str], texts: Sequence[str]) -> None:
    """Add a webhook's warnings, limited in number and length, in one line each."""
    for text in texts:
        if len(warnings) >= WARNING_LIMIT:
            return
        line = "".join(character if character.isprintable() else " " for character in text).strip()
        if line:
            warnings.append(line[:WARNING_LENGTH])
