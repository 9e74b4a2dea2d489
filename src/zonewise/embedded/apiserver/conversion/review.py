"""ConversionReview: the request to a conversion webhook, and the validation of its response.

A response is untrusted. It must be for this request, have an object for each that was sent, in the
requested version and kind, and of the same name, namespace and uid. Of metadata only labels and
annotations may change; everything else is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from zonewise.api.field_cursor import Field, FieldErrors
from zonewise.api.text.jsontext import NotJSON, read
from zonewise.embedded.apiserver.strategy import metadata

Obj = dict[str, Any]

GROUP = "apiextensions.k8s.io"
VERSIONS = ("v1", "v1beta1")
CHANGEABLE = ("labels", "annotations")
GO_TYPES = {
    int: "int64",
    float: "float64",
    bool: "bool",
    list: "[]interface {}",
    type(None): "<nil>",
}


class BadConversion(Exception):
    """An invalid review, or not for this request; its text follows "conversion webhook for X"."""


class _Response(msgspec.Struct, rename="camel"):
    uid: str = ""
    converted_objects: list[Any] | None = None
    result: dict[str, Any] | None = None


class _Review(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    response: _Response | None = None


def version_of(accepted: Sequence[str]) -> str | None:
    """The first version of reviews a webhook accepts that this server supports."""
    return next((version for version in accepted if version in VERSIONS), None)


def encode(objects: Sequence[Obj], *, uid: str, api_version: str, version: str) -> bytes:
    """The request to convert these objects to ``api_version``."""
    return msgspec.json.encode(
        {
            "kind": "ConversionReview",
            "apiVersion": f"{GROUP}/{version}",
            "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": list(objects)},
            "response": {"uid": "", "convertedObjects": None, "result": {"metadata": {}}},
        }
    )


def decode(
    body: bytes, objects: Sequence[Obj], *, uid: str, api_version: str, version: str
) -> list[Obj]:
    """The objects as the webhook converted them, in the order in which they were sent."""
    try:
        review = msgspec.convert(read(body, finite=True), _Review)
    except (NotJSON, msgspec.ValidationError, RecursionError) as error:
        raise BadConversion(f"failed: the response is not a ConversionReview: {error}") from None
    if version == "v1":
        _check_kind(review, f"{GROUP}/{version}")
    response = review.response
    if response is None:
        raise BadConversion("failed: no response provided")
    if version == "v1" and response.uid != uid:
        raise BadConversion(f'failed: expected response.uid="{uid}", got "{response.uid[:64]}"')
    result = response.result or {}
    if result.get("status") != "Success":
        status_text = f"response.result.status was '{result.get('status', '')}', not 'Success'"
        raise BadConversion(f"failed: {result.get('message') or status_text}")
    converted_objects = response.converted_objects or []
    if len(converted_objects) != len(objects):
        raise BadConversion(f"returned {len(converted_objects)} objects, expected {len(objects)}")
    return [
        _check_converted(index, obj, converted, api_version)
        for index, (obj, converted) in enumerate(zip(objects, converted_objects, strict=True))
    ]


def _check_kind(review: _Review, expected: str) -> None:
    if (review.api_version, review.kind) == (expected, "ConversionReview"):
        return
    group, _, version = review.api_version.rpartition("/")
    if (group, review.kind) == (GROUP, "ConversionReview") and version in VERSIONS:
        raise BadConversion(
            f"failed: converting ({version}.ConversionReview) to (v1.ConversionReview):"
            " unknown conversion"
        )
    actual = f"{review.api_version}, Kind={review.kind}"
    raise BadConversion(
        f"failed: expected webhook response of {expected}, Kind=ConversionReview, got {actual}"
    )


def _check_converted(index: int, obj: Obj, converted: Any, api_version: str) -> Obj:
    if not isinstance(converted, dict):
        raise BadConversion(f"returned invalid object at index {index}: it is not an object")
    for key, expected, description in (
        ("apiVersion", api_version, "groupVersion"),
        ("kind", obj["kind"], "kind"),
    ):
        actual = converted.get(key, "")
        if actual != expected:
            raise BadConversion(
                f"returned invalid object at index {index}: invalid {description}"
                f" (expected {expected}, received {actual})"
            )
    new_metadata = converted.get("metadata", {})
    if not isinstance(new_metadata, dict):
        raise BadConversion(
            f"returned invalid metadata: it is not an object: {type(new_metadata).__name__}"
        )
    original = obj["metadata"]
    for key, description in (("name", "name"), ("namespace", "namespace"), ("uid", "UID")):
        old_value, new_value = original.get(key, ""), new_metadata.get(key, "")
        if old_value != new_value:
            raise BadConversion(
                f"returned invalid object: must have the same {description}:"
                f" {old_value} != {new_value}"
            )
    if "metadata" not in converted:
        raise BadConversion("returned invalid metadata: missing metadata in converted object")
    return converted | {"metadata": _restore_metadata(original, new_metadata)}


def _restore_metadata(original: Obj, converted: Obj) -> Obj:
    """The original metadata with the labels and annotations of the converted object."""
    result = dict(original)
    for key in CHANGEABLE:
        texts = converted.get(key)
        if texts is None:
            result.pop(key, None)
            continue
        if not isinstance(texts, dict):
            raise BadConversion(f"returned invalid metadata: metadata.{key} is not an object")
        for name, text in texts.items():
            if not isinstance(text, str):
                raise BadConversion(
                    f"returned invalid metadata: metadata.{key}[{name}] must be a string, but is"
                    f" {GO_TYPES.get(type(text), 'map[string]interface {}')} in converted object"
                )
        if texts != (original.get(key) or {}):
            errors = _validate_texts(key, texts)
            if errors:
                messages = ", ".join(f"{error.field}: {error.message}" for error in errors)
                text = messages if len(errors) == 1 else f"[{messages}]"
                raise BadConversion(f"returned invalid metadata: {text}")
        result[key] = texts
    return result


def _validate_texts(key: str, texts: dict[str, str]) -> FieldErrors:
    errors: FieldErrors = []
    if key == "labels":
        metadata.validate_labels(Field(texts, errors, "metadata.labels"))
    else:
        metadata.validate_annotations(Field(texts, errors, "metadata.annotation"))
    return errors
