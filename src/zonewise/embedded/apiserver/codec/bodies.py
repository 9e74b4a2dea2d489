"""Conversion between bytes and objects: request bodies, stored objects, answers.

Stored bytes begin with kind and apiVersion, then metadata: lists of built-in kinds cut the first
two off. Everything that a client sends is decoded with the schema once, so later code can rely on
its types.
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
from zonewise.embedded.apiserver.registry import ServedKind
from zonewise.embedded.apiserver.request import negotiation, status_errors
from zonewise.embedded.apiserver.request.call import Call
from zonewise.embedded.apiserver.store import entry
from zonewise.embedded.apiserver.store.entry import Entry
from zonewise.embedded.machinery.crd.custom_resource import lacks_defaults
from zonewise.embedded.machinery.decoding import decoder, defaulting, protobuf
from zonewise.embedded.machinery.decoding.decoder import Decoded, NotYAML, WrongType
from zonewise.embedded.machinery.fields import managed_fields
from zonewise.embedded.machinery.schema.definitions import Definitions
from zonewise.embedded.machinery.schema.schema import Schema

Obj = dict[str, Any]

UNSTORED_KINDS = {
    "Binding": "io.k8s.api.core.v1.Binding",
    "DeleteOptions": "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "Eviction": "io.k8s.api.policy.v1.Eviction",
    "Scale": "io.k8s.api.autoscaling.v1.Scale",
    "TokenRequest": "io.k8s.api.authentication.v1.TokenRequest",
}
"""Definitions of the kinds that are only sent to subresources and never stored."""

FIELD_VALIDATIONS = ("", "Ignore", "Strict", "Warn")

encode = entry.encode
_encoder = msgspec.json.Encoder()
_decode = msgspec.json.Decoder().decode


def decode_stored(raw: bytes) -> Obj:
    """A stored object."""
    obj: Obj = _decode(raw)
    return obj


def read_stored(served: ServedKind, stored: Entry) -> Obj:
    """A stored object in the served version; may raise ``Unconverted``."""
    converted = converted_view(served, stored)
    obj = decode_stored(converted.raw)
    if converted is not stored:
        return obj
    if served.versions is not None and not stored.raw.startswith(served.prefix):
        return served.versions.convert_stored(obj, served.kind.resource.api_version)
    if served.conversion:
        served.conversion.from_storage(obj)
        _set_type_meta(served, obj)
    schema = served.kind.schema
    if served.fills_defaults_on_read and stored.completed_by is not schema:
        obj = decoder.decode_custom_value(
            schema, schema.fields["metadata"], obj, strict=False
        ).value
    return obj


def completing_schema(served: ServedKind, stored: Obj) -> Schema | None:
    """The schema of a custom kind, if an object that was decoded by it is stored complete."""
    if not (served.fills_defaults_on_read and served.is_storage_version):
        return None
    schema = served.kind.schema
    return None if lacks_defaults(schema, stored) else schema


def converted_view(served: ServedKind, stored: Entry) -> Entry:
    """A stored object as a webhook converted it to the served version, if that is another one.

    Raises ``Unconverted`` if the webhook was not called yet.
    """
    if served.versions is None:
        return stored
    return served.versions.view_at(stored, served.kind.resource.api_version)


async def to_storage(served: ServedKind, obj: Obj) -> Obj:
    """An object in the storage version; without conversion it is the same object."""
    _set_type_meta(served, obj)
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


def copy(obj: Obj) -> Obj:
    """A copy that may be changed."""
    return decode_stored(_encoder.encode(obj))


def encoder_of(served: ServedKind) -> Callable[[Entry], bytes]:
    """The function that encodes a stored object in the served version."""
    if served.versions is not None:
        return lambda stored: _encode_served(served, stored)
    if served.conversion is None and not served.fills_defaults_on_read:
        return _stored_bytes
    return lambda stored: _encode_read(served, stored)


def _encode_served(served: ServedKind, stored: Entry) -> bytes:
    converted = converted_view(served, stored)
    if converted is not stored or (
        not served.fills_defaults_on_read and stored.raw.startswith(served.prefix)
    ):
        return converted.raw
    return _encode_read(served, stored)


def _encode_read(served: ServedKind, stored: Entry) -> bytes:
    schema = served.kind.schema
    if stored.completed_by is schema:
        return stored.raw
    raw = encode(read_stored(served, stored))
    if served.custom and raw == stored.raw:
        stored.completed_by = schema
    return raw


def read_object(call: Call, served: ServedKind) -> Obj:
    """The object in a POST or PUT: of the right kind, pruned, without defaults."""
    format = negotiation.body_format(call.headers.get("content-type", ""))
    validation = field_validation(call)
    resource = served.kind.resource
    kind = resource.kind
    try:
        decoded = _decode_body(served, call.body, format, validation != "Ignore")
    except (NotJSON, NotYAML) as error:
        raise status_errors.bad_request(
            decoder.unrecognized_message(kind, call.body, error)
        ) from None
    except WrongType as error:
        raise status_errors.bad_request(
            decoder.cannot_handle_message(resource.kind, resource.version, kind, str(error))
        ) from None
    if served.custom:
        obj = _check_type_meta(
            served, decoded.value
        )  # before unknown fields are reported: another version has other fields
        report_problems(call, served, decoded, validation)
        return obj
    report_problems(call, served, decoded, validation)
    return _check_type_meta(served, decoded.value)


def _decode_body(served: ServedKind, body: bytes, format: str, strict: bool) -> Decoded:
    schema = served.kind.schema
    if format == "protobuf":
        return decoder.decode_value(schema, _decode_protobuf(schema, body), strict=False)
    if not served.custom:
        if format == "yaml":
            return decoder.decode_yaml(schema, body, strict=strict)
        return decoder.decode(schema, body, strict=strict)
    meta = schema.fields["metadata"]
    if format == "json":
        return decoder.decode_custom(schema, meta, body, strict=strict)
    value, repeated = decoder.read_yaml(body)
    decoded = decoder.decode_custom_value(schema, meta, value, strict=strict)
    return Decoded(decoded.value, (*repeated, *decoded.problems) if strict else ())


def _decode_protobuf(schema: Schema, body: bytes) -> Obj:
    try:
        envelope = protobuf.open_envelope(body)
        value = protobuf.decode(schema, envelope.message)
    except protobuf.NotProtobuf as error:
        raise status_errors.unsupported_media_type(
            negotiation.BODY_TYPES, f"{error}; {negotiation.PROTOBUF_HINT}"
        ) from None
    return {"apiVersion": envelope.api_version, "kind": envelope.kind} | value


def decode_patched(call: Call, served: ServedKind, value: Obj, original: Obj | None = None) -> Obj:
    """The result of a patch as an object of its kind; ``original`` is what was patched."""
    validation = field_validation(call)
    strict = validation != "Ignore"
    schema = served.kind.schema
    try:
        if served.custom:
            decoded = decoder.decode_custom_value(
                schema, schema.fields["metadata"], value, strict=strict
            )
        else:
            normalized = original if served.conversion is None else None
            decoded = decoder.decode_value(schema, value, strict=strict, normalized=normalized)
    except WrongType as error:
        raise status_errors.invalid_patch(_encode_text(value), str(error)) from None
    report_problems(call, served, decoded, validation)
    return _check_type_meta(served, decoded.value)


def report_problems(call: Call, served: ServedKind, decoded: Decoded, validation: str) -> None:
    """Refuse, warn of, or ignore unknown and duplicate fields."""
    if not decoded.problems:
        return
    if validation == "Strict":
        resource = served.kind.resource
        text = decoder.strict_error_message(decoded.problems)
        if call.method == "PATCH":
            raise status_errors.invalid_patch(_encode_text(decoded.value), text)
        raise status_errors.bad_request(
            decoder.cannot_handle_message(resource.kind, resource.version, resource.kind, text)
        )
    call.warnings.extend(decoded.problems)


def field_validation(call: Call) -> Literal["Strict", "Warn", "Ignore"]:
    """How to treat unknown and duplicate fields."""
    match call.query.get("fieldValidation", ""):
        case "" | "Warn":
            return "Warn"
        case "Strict":
            return "Strict"
        case "Ignore":
            return "Ignore"
        case other:
            error = field_errors.unsupported("fieldValidation", other, FIELD_VALIDATIONS)
            raise status_errors.invalid_options(call.options, [error])


def field_manager(call: Call) -> str:
    """The field manager of a write."""
    return managed_fields.manager_name(
        call.query.get("fieldManager", ""), call.headers.get("user-agent", "")
    )


def fill_defaults(served: ServedKind, obj: Obj, old: Obj | None = None) -> None:
    """Set defaults; custom resources get theirs when they are decoded.

    Fields that are equal in ``old``, a stored object, have all their defaults.
    """
    if served.custom:
        return
    defaulting.complete(served.kind.schema, obj, old)


def validate_custom(served: ServedKind, obj: Obj, old: Obj | None) -> list[StatusCause]:
    """The errors by a custom resource's schema; built-in kinds have none here."""
    return served.custom_validation.validate(obj, old) if served.custom_validation else []


def read_options(call: Call) -> Obj:
    """The DeleteOptions in a request; an empty body has none."""
    if not call.body.strip():
        return {}
    value = read_unstored(call, "DeleteOptions")
    if value.get("kind", "DeleteOptions") != "DeleteOptions":
        raise status_errors.bad_request(
            f'no kind "{value["kind"]}" is registered for the options of a deletion'
        )
    return value


def read_unstored(call: Call, kind: str) -> Obj:
    """A body of a kind that is never stored: options, an eviction, a binding, a scale."""
    schema = _unstored_schema(kind)
    try:
        match negotiation.body_format(call.headers.get("content-type", "")):
            case "protobuf":
                return _decode_protobuf(schema, call.body)
            case "yaml":
                return decoder.decode_yaml(schema, call.body, strict=False).value
        return decoder.decode(schema, call.body or b"{}", strict=False).value
    except (NotJSON, NotYAML) as error:
        raise status_errors.bad_request(f"the body cannot be read: {error}") from None
    except WrongType as error:
        raise status_errors.bad_request(
            decoder.cannot_handle_message(
                kind, UNSTORED_KINDS[kind].split(".")[-2], kind, str(error)
            )
        ) from None


def decode_unstored(kind: str, value: Obj) -> Obj:
    """The result of a patch as an object of a kind that is never stored."""
    try:
        return decoder.decode_value(_unstored_schema(kind), value, strict=False).value
    except WrongType as error:
        raise status_errors.invalid_patch(encode_plain(value).decode(), str(error)) from None


@cache
def _unstored_schema(kind: str) -> Schema:
    return Definitions().schema(UNSTORED_KINDS[kind])


def read_configuration(call: Call) -> Obj:
    """The configuration of an apply; duplicate keys are refused, warned of or ignored."""
    try:
        value, repeated = decoder.read_yaml(call.body)
    except NotYAML as error:
        raise status_errors.bad_request(f"error decoding YAML: {error}") from None
    validation = field_validation(call)
    if repeated and validation == "Strict":
        raise status_errors.bad_request("error decoding YAML: " + ", ".join(repeated))
    if validation == "Warn":
        call.warnings.extend(repeated)
    config: Obj = value
    return config


def parse_yaml(body: bytes) -> Obj:
    """A YAML body without a schema."""
    try:
        value: Obj = decoder.read_yaml(body).value
    except NotYAML as error:
        raise status_errors.bad_request(str(error)) from None
    return value


def encode_yaml(body: bytes) -> bytes:
    """An answer as YAML."""
    text: str = yaml.dump(_decode(body), Dumper=yaml.CSafeDumper, sort_keys=False)
    return text.encode()


def _check_type_meta(served: ServedKind, obj: Obj) -> Obj:
    resource = served.kind.resource
    version, kind = obj.get("apiVersion"), obj.get("kind")
    if served.custom and not (version and kind):
        missing = "Kind" if not kind else "apiVersion"
        raise status_errors.bad_request(
            f"the object provided is unrecognized (must be of type {resource.kind}):"
            f" Object '{missing}' is missing"
        )
    if version and version != resource.api_version:
        raise status_errors.bad_request(
            f"the API version in the data ({version}) does not match the expected API version"
            f" ({resource.api_version})"
        )
    if kind and kind != resource.kind:
        if served.custom:
            name = str((obj.get("metadata") or {}).get("name", ""))
            raise status_errors.kind_mismatch(resource, kind, name)
        raise status_errors.bad_request(
            f"{kind} in version {version or resource.api_version!r} cannot be handled as a"
            f" {resource.kind}"
        )
    _set_type_meta(served, obj)
    obj.setdefault("metadata", {})
    return obj


def _set_type_meta(served: ServedKind, obj: Obj) -> None:
    obj["apiVersion"] = served.kind.resource.api_version
    obj["kind"] = served.kind.resource.kind


def _encode_text(obj: Obj) -> str:
    return _encoder.encode(obj).decode()


def _stored_bytes(stored: Entry) -> bytes:
    return stored.raw
