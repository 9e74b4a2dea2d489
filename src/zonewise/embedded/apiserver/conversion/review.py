"""ConversionReview: the request to a conversion webhook, and the check of its answer.

An answer is untrusted. It must be for this request, have an object for each that was sent, in the
requested version and kind, and of the same name, namespace and uid. Of metadata only labels and
annotations may change; everything else is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from zonewise.api.errors import StatusCause
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
    """A review that does not fit its question, or itself; the text follows "conversion webhook
    for KIND".
    """


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


def encode(objects: Sequence[Obj], *, uid: str, wanted: str, version: str) -> bytes:
    """The request: these objects at the apiVersion ``wanted``."""
    return msgspec.json.encode(
        {
            "kind": "ConversionReview",
            "apiVersion": f"{GROUP}/{version}",
            "request": {"uid": uid, "desiredAPIVersion": wanted, "objects": list(objects)},
            "response": {"uid": "", "convertedObjects": None, "result": {"metadata": {}}},
        }
    )


def decode(
    body: bytes, objects: Sequence[Obj], *, uid: str, wanted: str, version: str
) -> list[Obj]:
    """The objects as the webhook converted them, in the order in which they were sent."""
    try:
        review = msgspec.convert(read(body, finite=True), _Review)
    except (NotJSON, msgspec.ValidationError, RecursionError) as error:
        raise BadConversion(f"failed: the answer is not a ConversionReview: {error}") from None
    if version == "v1":
        _check_kind(review, f"{GROUP}/{version}")
    response = review.response
    if response is None:
        raise BadConversion("failed: no response provided")
    if version == "v1" and response.uid != uid:
        raise BadConversion(f'failed: expected response.uid="{uid}", got "{response.uid[:64]}"')
    result = response.result or {}
    if result.get("status") != "Success":
        said = f"response.result.status was '{result.get('status', '')}', not 'Success'"
        raise BadConversion(f"failed: {result.get('message') or said}")
    found = response.converted_objects or []
    if len(found) != len(objects):
        raise BadConversion(f"returned {len(found)} objects, expected {len(objects)}")
    return [
        _checked(index, obj, converted, wanted)
        for index, (obj, converted) in enumerate(zip(objects, found, strict=True))
    ]


def _check_kind(review: _Review, wanted: str) -> None:
    if (review.api_version, review.kind) == (wanted, "ConversionReview"):
        return
    group, _, version = review.api_version.rpartition("/")
    if (group, review.kind) == (GROUP, "ConversionReview") and version in VERSIONS:
        raise BadConversion(
            f"failed: converting ({version}.ConversionReview) to (v1.ConversionReview):"
            " unknown conversion"
        )
    have = f"{review.api_version}, Kind={review.kind}"
    raise BadConversion(
        f"failed: expected webhook response of {wanted}, Kind=ConversionReview, got {have}"
    )


def _checked(index: int, obj: Obj, converted: Any, wanted: str) -> Obj:
    if not isinstance(converted, dict):
        raise BadConversion(f"returned invalid object at index {index}: it is not an object")
    for key, expected, what in (
        ("apiVersion", wanted, "groupVersion"),
        ("kind", obj["kind"], "kind"),
    ):
        have = converted.get(key, "")
        if have != expected:
            raise BadConversion(
                f"returned invalid object at index {index}: invalid {what}"
                f" (expected {expected}, received {have})"
            )
    given = converted.get("metadata", {})
    if not isinstance(given, dict):
        raise BadConversion(
            f"returned invalid metadata: it is not an object: {type(given).__name__}"
        )
    was = obj["metadata"]
    for key, what in (("name", "name"), ("namespace", "namespace"), ("uid", "UID")):
        before, after = was.get(key, ""), given.get(key, "")
        if before != after:
            raise BadConversion(
                f"returned invalid object: must have the same {what}: {before} != {after}"
            )
    if "metadata" not in converted:
        raise BadConversion("returned invalid metadata: missing metadata in converted object")
    return converted | {"metadata": _restored(was, given)}


def _restored(was: Obj, given: Obj) -> Obj:
    """The metadata of an object with the labels and annotations its conversion has."""
    made = dict(was)
    for key in CHANGEABLE:
        texts = given.get(key)
        if texts is None:
            made.pop(key, None)
            continue
        if not isinstance(texts, dict):
            raise BadConversion(f"returned invalid metadata: metadata.{key} is not an object")
        for name, text in texts.items():
            if not isinstance(text, str):
                raise BadConversion(
                    f"returned invalid metadata: metadata.{key}[{name}] must be a string, but is"
                    f" {GO_TYPES.get(type(text), 'map[string]interface {}')} in converted object"
                )
        if texts != (was.get(key) or {}):
            found = _faults(key, texts)
            if found:
                said = ", ".join(f"{one.field}: {one.message}" for one in found)
                text = said if len(found) == 1 else f"[{said}]"
                raise BadConversion(f"returned invalid metadata: {text}")
        made[key] = texts
    return made


def _faults(key: str, texts: dict[str, str]) -> list[StatusCause]:
    if key == "labels":
        return metadata.label_faults("metadata.labels", texts)
    return metadata.annotation_faults("metadata.annotation", texts)
