"""Between bytes and objects: what a client sent, what is stored, what is answered.

Stored bytes begin with kind and apiVersion, then metadata: lists of built-in kinds cut the first
two off. Everything that is read from a client passes the schema once, so later code can rely on its
types.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import msgspec
import yaml

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.api.text.jsontext import NotJSON
from zonewise.embedded.apiserver.registry import Served
from zonewise.embedded.apiserver.request import negotiation, status_errors
from zonewise.embedded.apiserver.request.call import Call
from zonewise.embedded.apiserver.store import entry
from zonewise.embedded.apiserver.store.entry import Entry
from zonewise.embedded.machinery.decoding import defaulting, protobuf, validation
from zonewise.embedded.machinery.decoding.validation import Decoded, NotYAML, WrongType
from zonewise.embedded.machinery.fields import managed_fields
from zonewise.embedded.machinery.schema.definitions import Definitions
from zonewise.embedded.machinery.schema.types import Type

Obj = dict[str, Any]

LOOSE = {
    "Binding": "io.k8s.api.core.v1.Binding",
    "DeleteOptions": "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "Eviction": "io.k8s.api.policy.v1.Eviction",
    "Scale": "io.k8s.api.autoscaling.v1.Scale",
    "TokenRequest": "io.k8s.api.authentication.v1.TokenRequest",
}
"""Kinds that are sent to subresources, by their definitions."""

STRICTNESS = ("", "Ignore", "Strict", "Warn")

encode = entry.encode
_encoder = msgspec.json.Encoder()
_decode = msgspec.json.Decoder().decode


def decode_stored(raw: bytes) -> Obj:
    """A stored object."""
    found: Obj = _decode(raw)
    return found


def read_stored(served: Served, stored: Entry) -> Obj:
    """A stored object in the version it is served in; may raise ``Unconverted``."""
    seen = view(served, stored)
    obj = decode_stored(seen.raw)
    if seen is not stored:
        return obj
    if served.versions is not None and not stored.raw.startswith(served.prefix):
        return served.versions.renamed(obj, served.kind.resource.api_version)
    if served.conversion:
        served.conversion.from_storage(obj)
        _name(served, obj)
    if served.refills:
        kind = served.kind.type
        obj = validation.accept_custom(kind, kind.fields["metadata"], obj, strict=False).value
    return obj


def view(served: Served, stored: Entry) -> Entry:
    """A stored object as a webhook converted it to this version, if that is another one.

    Raises ``Unconverted`` where the webhook was not called yet.
    """
    if served.versions is None:
        return stored
    return served.versions.view(stored, served.kind.resource.api_version)


async def to_storage(served: Served, obj: Obj) -> Obj:
    """An object in the version it is stored in; without conversion it is the same object."""
    _name(served, obj)
    if served.versions is not None:
        return await served.versions.to_storage(obj)
    if served.conversion is None:
        return obj
    stored = dict(obj)
    served.conversion.to_storage(stored)
    stored["apiVersion"] = served.conversion.stored_as
    return stored


def encode_plain(value: Any) -> bytes:
    """Any value as JSON."""
    return _encoder.encode(value)


def copied(obj: Obj) -> Obj:
    """A copy that may be changed."""
    return decode_stored(_encoder.encode(obj))


def shown(served: Served) -> Callable[[Entry], bytes]:
    """How a stored object becomes bytes of the served version."""
    if served.versions is not None:
        return lambda stored: _shown(served, stored)
    if served.conversion is None and not served.refills:
        return _same
    return lambda stored: encode(read_stored(served, stored))


def _shown(served: Served, stored: Entry) -> bytes:
    seen = view(served, stored)
    if seen is not stored or (not served.refills and stored.raw.startswith(served.prefix)):
        return seen.raw
    return encode(read_stored(served, stored))


def read(call: Call, served: Served) -> Obj:
    """The object a POST or PUT carries: of the right kind, pruned, without defaults."""
    format = negotiation.body_format(call.headers.get("content-type", ""))
    mode = strictness(call)
    resource = served.kind.resource
    into = resource.kind
    try:
        decoded = _decoded(served, call.body, format, mode != "Ignore")
    except (NotJSON, NotYAML) as error:
        raise status_errors.bad_request(validation.unrecognized(into, call.body, error)) from None
    except WrongType as error:
        raise status_errors.bad_request(
            validation.unhandled(resource.kind, resource.version, into, str(error))
        ) from None
    if served.custom:
        obj = _checked(served, decoded.value)  # what is of another version has fields of its own
        complain(call, served, decoded, mode)
        return obj
    complain(call, served, decoded, mode)
    return _checked(served, decoded.value)


def _decoded(served: Served, body: bytes, format: str, strict: bool) -> Decoded:
    kind = served.kind.type
    if format == "protobuf":
        return validation.accept(kind, _unpacked(served, body), strict=False)
    if not served.custom:
        if format == "yaml":
            return validation.decode_yaml(kind, body, strict=strict)
        return validation.decode(kind, body, strict=strict)
    meta = kind.fields["metadata"]
    if format == "json":
        return validation.decode_custom(kind, meta, body, strict=strict)
    value, repeated = validation.read_yaml(body)
    decoded = validation.accept_custom(kind, meta, value, strict=strict)
    return Decoded(decoded.value, (*repeated, *decoded.problems) if strict else ())


def _unpacked(served: Served, body: bytes) -> Obj:
    try:
        found = protobuf.envelope(body)
        value = protobuf.decode(served.kind.type, found.message)
    except protobuf.NotProtobuf as error:
        raise status_errors.unsupported_media_type(
            negotiation.BODY_TYPES, f"{error}; {negotiation.PROTOBUF_HINT}"
        ) from None
    return {"apiVersion": found.api_version, "kind": found.kind} | value


def accept(call: Call, served: Served, value: Obj, before: Obj | None = None) -> Obj:
    """The result of a patch as an object of its kind; ``before`` is what was patched."""
    mode = strictness(call)
    strict = mode != "Ignore"
    kind = served.kind.type
    try:
        if served.custom:
            decoded = validation.accept_custom(kind, kind.fields["metadata"], value, strict=strict)
        else:
            tidy = before if served.conversion is None else None
            decoded = validation.accept(kind, value, strict=strict, tidy_already=tidy)
    except WrongType as error:
        raise status_errors.invalid_patch(_text(value), str(error)) from None
    complain(call, served, decoded, mode)
    return _checked(served, decoded.value)


def complain(call: Call, served: Served, decoded: Decoded, mode: str) -> None:
    """Refuse, warn of, or pass over unknown and duplicate fields."""
    if not decoded.problems:
        return
    if mode == "Strict":
        resource = served.kind.resource
        text = validation.strict_error(decoded.problems)
        if call.method == "PATCH":
            raise status_errors.invalid_patch(_text(decoded.value), text)
        raise status_errors.bad_request(
            validation.unhandled(resource.kind, resource.version, resource.kind, text)
        )
    call.warnings.extend(decoded.problems)


def strictness(call: Call) -> Literal["Strict", "Warn", "Ignore"]:
    """What to do about unknown and duplicate fields."""
    match call.query.get("fieldValidation", ""):
        case "" | "Warn":
            return "Warn"
        case "Strict":
            return "Strict"
        case "Ignore":
            return "Ignore"
        case other:
            fault = field_errors.unsupported("fieldValidation", other, STRICTNESS)
            raise status_errors.invalid_options(call.options, [fault])


def manager(call: Call) -> str:
    """The field manager of a write."""
    return managed_fields.manager_name(
        call.query.get("fieldManager", ""), call.headers.get("user-agent", "")
    )


def fill_defaults(served: Served, obj: Obj, old: Obj | None = None) -> None:
    """Set what is not set and has a default; custom resources had theirs when they were read.

    What is as in ``old``, a stored object, has all its defaults.
    """
    if served.custom:
        return
    defaulting.complete(served.kind.type, obj, old)


def schema_faults(served: Served, obj: Obj, old: Obj | None) -> list[StatusCause]:
    """What the schema alone finds wrong; for built-in kinds the rules by hand say it instead."""
    return served.structure.faults(obj, old) if served.structure else []


def read_options(call: Call) -> Obj:
    """The DeleteOptions a request carries; an empty body has none."""
    if not call.body.strip():
        return {}
    value = read_any(call, "DeleteOptions")
    if value.get("kind", "DeleteOptions") != "DeleteOptions":
        raise status_errors.bad_request(
            f'no kind "{value["kind"]}" is registered for the options of a deletion'
        )
    return value


def read_any(call: Call, kind: str) -> Obj:
    """A body of a kind that is not stored: options, an eviction, a binding, a scale."""
    shape = _loose_type(kind)
    try:
        match negotiation.body_format(call.headers.get("content-type", "")):
            case "protobuf":
                return _unpacked_any(call.body, kind)
            case "yaml":
                return validation.decode_yaml(shape, call.body, strict=False).value
        return validation.decode(shape, call.body or b"{}", strict=False).value
    except (NotJSON, NotYAML) as error:
        raise status_errors.bad_request(f"the body cannot be read: {error}") from None
    except WrongType as error:
        raise status_errors.bad_request(
            validation.unhandled(kind, LOOSE[kind].split(".")[-2], kind, str(error))
        ) from None


def typed(kind: str, value: Obj) -> Obj:
    """The outcome of a patch as an object of a kind that is not stored."""
    try:
        return validation.accept(_loose_type(kind), value, strict=False).value
    except WrongType as error:
        raise status_errors.invalid_patch(encode_plain(value).decode(), str(error)) from None


def _unpacked_any(body: bytes, kind: str) -> Obj:
    try:
        found = protobuf.envelope(body)
        value = protobuf.decode(_loose_type(kind), found.message)
    except protobuf.NotProtobuf as error:
        raise status_errors.unsupported_media_type(
            negotiation.BODY_TYPES, f"{error}; {negotiation.PROTOBUF_HINT}"
        ) from None
    return {"apiVersion": found.api_version, "kind": found.kind} | value


@cache
def _loose_type(kind: str) -> Type:
    return Definitions().type(LOOSE[kind])


def read_configuration(call: Call) -> Obj:
    """The configuration of an apply; duplicate keys are refused, warned of or passed over."""
    try:
        value, repeated = validation.read_yaml(call.body)
    except NotYAML as error:
        raise status_errors.bad_request(f"error decoding YAML: {error}") from None
    mode = strictness(call)
    if repeated and mode == "Strict":
        raise status_errors.bad_request("error decoding YAML: " + ", ".join(repeated))
    if mode == "Warn":
        call.warnings.extend(repeated)
    found: Obj = value
    return found


def parse_yaml(body: bytes) -> Obj:
    """A YAML body that has no type yet."""
    try:
        found: Obj = validation.read_yaml(body).value
    except NotYAML as error:
        raise status_errors.bad_request(str(error)) from None
    return found


def as_yaml(body: bytes) -> bytes:
    """An answer as YAML."""
    text: str = yaml.dump(_decode(body), Dumper=yaml.CSafeDumper, sort_keys=False)
    return text.encode()


def _checked(served: Served, obj: Obj) -> Obj:
    resource = served.kind.resource
    version, kind = obj.get("apiVersion"), obj.get("kind")
    if served.custom and not (version and kind):
        what = "Kind" if not kind else "apiVersion"
        raise status_errors.bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}):"
            f" Object '{what}' is missing"
        )
    if version and version != resource.api_version:
        raise status_errors.bad_request(
            f"the API version in the data ({version}) does not match the expected API version"
            f" ({resource.api_version})"
        )
    if kind and kind != resource.kind:
        if served.custom:
            name = str((obj.get("metadata") or {}).get("name", ""))
            raise status_errors.another_kind(resource, kind, name)
        raise status_errors.bad_request(
            f"{kind} in version {version or resource.api_version!r} cannot be handled as a"
            f" {resource.kind}"
        )
    _name(served, obj)
    obj.setdefault("metadata", {})
    return obj


def _name(served: Served, obj: Obj) -> None:
    obj["apiVersion"] = served.kind.resource.api_version
    obj["kind"] = served.kind.resource.kind


def _text(obj: Obj) -> str:
    return _encoder.encode(obj).decode()


def _same(stored: Entry) -> bytes:
    return stored.raw
