"""Content negotiation: the formats that a client sends and accepts.

JSON, YAML and protobuf are read, JSON and YAML are written: as the object, as a ``Table`` (what
kubectl prints) or as metadata alone. A client that accepts only protobuf, or sends protobuf of a
kind that has none here, gets a message with the flag that helps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from zonewise.embedded.apiserver.request import status_errors

PROTOBUF = "application/vnd.kubernetes.protobuf"
PROTOBUF_HINT = (
    "this server speaks JSON only: use --kube-api-content-type=application/json, or the content"
    " type application/json in the client's configuration"
)
BODY_TYPES = ("application/json", "application/yaml")
ANSWER_TYPES = ("application/json", "application/yaml", "application/json;stream=watch")
PATCH_TYPES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
)

AnswerFormName = Literal["object", "Table", "PartialObjectMetadata", "PartialObjectMetadataList"]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The format of an answer."""

    form: AnswerFormName = "object"
    version: str = ""
    yaml: bool = False


@dataclass(frozen=True, slots=True)
class Clause:
    """One alternative of an Accept header."""

    media: str
    parameters: tuple[tuple[str, str], ...]
    weight: float

    def get(self, name: str) -> str:
        """A parameter's value, empty if it is absent."""
        return next((value for key, value in self.parameters if key == name), "")


@lru_cache(maxsize=1024)
def parse_accept(accept: str) -> tuple[Clause, ...]:
    """An Accept header's alternatives, best first; equally good ones in the client's order."""
    alternatives = []
    for part in accept.split(",")[:64]:
        media, *parameters = (piece.strip() for piece in part.split(";"))
        pairs = [
            (k.strip(), v.strip()) for k, _, v in (piece.partition("=") for piece in parameters)
        ]
        weight = 1.0
        for key, value in pairs:
            if key == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        if media:
            alternatives.append(Clause(media, tuple((k, v) for k, v in pairs if k != "q"), weight))
    return tuple(sorted(alternatives, key=lambda clause: -clause.weight))


@lru_cache(maxsize=1024)
def negotiate(accept: str) -> AnswerFormat:
    """The first alternative that this server can write; raises 406 if there is none."""
    if not accept:
        return AnswerFormat()
    for clause in parse_accept(accept):
        form = clause.get("as")
        if clause.media in {"application/json", "*/*", "application/*"}:
            if not form:
                return AnswerFormat()
            if clause.get("g") == "meta.k8s.io" and clause.get("v") in {"v1", "v1beta1"}:
                if form == "Table":
                    return AnswerFormat("Table", clause.get("v"))
                if form == "PartialObjectMetadata":
                    return AnswerFormat("PartialObjectMetadata", clause.get("v"))
                if form == "PartialObjectMetadataList":
                    return AnswerFormat("PartialObjectMetadataList", clause.get("v"))
        if clause.media in {"application/yaml", "text/yaml"} and not form:
            return AnswerFormat(yaml=True)
    raise status_errors.not_acceptable(ANSWER_TYPES, PROTOBUF_HINT if PROTOBUF in accept else "")


@lru_cache(maxsize=256)
def body_format(content_type: str) -> Literal["json", "yaml", "protobuf"]:
    """How to read the body of a POST or PUT."""
    media = content_type.partition(";")[0].strip().lower()
    if media in {"", "application/json"}:
        return "json"
    if media in {"application/yaml", "text/yaml"}:
        return "yaml"
    if media == PROTOBUF:
        return "protobuf"
    raise status_errors.unsupported_media_type(BODY_TYPES)


@lru_cache(maxsize=256)
def patch_format(content_type: str) -> Literal["json", "merge", "strategic", "apply"]:
    """Which of the four patches a PATCH is."""
    media = content_type.partition(";")[0].strip().lower()
    match media:
        case "application/json-patch+json":
            return "json"
        case "application/merge-patch+json":
            return "merge"
        case "application/strategic-merge-patch+json":
            return "strategic"
        case "application/apply-patch+yaml":
            return "apply"
    raise status_errors.unsupported_media_type(PATCH_TYPES)
