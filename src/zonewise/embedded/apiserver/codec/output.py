"""The forms in which clients get stored objects: in full, metadata alone, or rows of a table.

A form encodes one object, a list and an event of a watch. The full form in the stored version is
the stored bytes, encoded once when the object was written. Forms are cached, one per kind and
requested format, because watchers share their encodings only if they have the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.registry import ServedKind
from zonewise.embedded.apiserver.request.negotiation import AnswerFormat
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType

Obj = dict[str, Any]


class Form(Protocol):
    """How objects of one kind are encoded for a client."""

    def encode(self, entry: Entry) -> bytes:
        """One object."""

    def encode_list(self, entries: Sequence[Entry], meta: Obj) -> bytes:
        """A list with its metadata."""

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        """One event of a watch, with a newline."""

    def encode_bookmark(self, rv: int, *, ended: bool) -> bytes:
        """A bookmark."""


class FullObject:
    """Objects in full; items in the list of a built-in kind have no kind of their own."""

    def __init__(self, served: ServedKind) -> None:
        resource = served.kind.resource
        self._encode_entry = bodies.encoder_of(served)
        self._splices_stored = served.is_storage_version and not served.custom
        self._prefix_length = 0 if served.custom else len(served.prefix)
        self._prefix = served.prefix
        self._head = (
            f'{{"kind":"{served.kind.list_kind}","apiVersion":"{resource.api_version}","metadata":'
        ).encode()

    def encode(self, entry: Entry) -> bytes:
        """The object."""
        return self._encode_entry(entry)

    def encode_list(self, entries: Sequence[Entry], meta: Obj) -> bytes:
        """The list of the objects, with its newline already, as it may be large to copy."""
        prefix_length = self._prefix_length
        if self._splices_stored and prefix_length:
            items = [b"{" + entry.raw[prefix_length:] for entry in entries]
        elif prefix_length:
            items = [b"{" + self._encode_entry(entry)[prefix_length:] for entry in entries]
        else:
            items = [self._encode_entry(entry) for entry in entries]
        return b"".join(
            (self._head, msgspec.json.encode(meta), b',"items":[', b",".join(items), b"]}\n")
        )

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        """The event with the object."""
        return b'{"type":"%b","object":%b}\n' % (type.encode(), self._encode_entry(entry))

    def encode_bookmark(self, rv: int, *, ended: bool) -> bytes:
        """A bookmark of this kind."""
        return b'{"type":"BOOKMARK","object":%b"metadata":%b}}\n' % (
            self._prefix,
            msgspec.json.encode(bookmark_metadata(rv, ended)),
        )


HIDDEN_ANNOTATIONS = {"apps/daemonsets": "deprecated.daemonset.template.generation"}


class _Metadata(msgspec.Struct, gc=False):
    metadata: msgspec.Raw


_METADATA = msgspec.json.Decoder(_Metadata)


def metadata_of(raw: bytes) -> bytes:
    """The encoded metadata of an encoded object."""
    return bytes(_METADATA.decode(raw).metadata)


class PartialMetadata:
    """Metadata alone.

    ``hidden`` is an annotation that a real server derives from another field only for full objects.
    """

    def __init__(self, served: ServedKind, version: str, hidden: str = "") -> None:
        self._served = served
        self._hidden = hidden
        self._head = (
            f'{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{version}","metadata":'
        ).encode()
        self._list = (
            f'{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/{version}","metadata":'
        ).encode()

    def encode(self, entry: Entry) -> bytes:
        """The object's metadata."""
        return self._head + self._metadata(bodies.converted_view(self._served, entry).raw) + b"}"

    def _metadata(self, raw: bytes) -> bytes:
        if not self._hidden or self._hidden.encode() not in raw:
            return metadata_of(raw)
        meta = msgspec.json.decode(metadata_of(raw))
        annotations = meta.get("annotations", {})
        annotations.pop(self._hidden, None)
        if not annotations:
            meta.pop("annotations", None)
        return msgspec.json.encode(meta)

    def encode_list(self, entries: Sequence[Entry], meta: Obj) -> bytes:
        """The list of the objects' metadata."""
        items = b",".join([self.encode(entry) for entry in entries])
        return b"".join((self._list, msgspec.json.encode(meta), b',"items":[', items, b"]}"))

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        """The event with the metadata."""
        return b'{"type":"%b","object":%b}\n' % (type.encode(), self.encode(entry))

    def encode_bookmark(self, rv: int, *, ended: bool) -> bytes:
        """A bookmark."""
        meta = msgspec.json.encode(bookmark_metadata(rv, ended))
        return b'{"type":"BOOKMARK","object":%b%b}}\n' % (self._head, meta)


def bookmark_metadata(rv: int, ended: bool) -> Obj:
    """The metadata of a bookmark; ``ended`` means that all initial events were sent."""
    meta: Obj = {"resourceVersion": str(rv), "creationTimestamp": None}
    if ended:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return meta


class Forms:
    """The forms by kind and format."""

    def __init__(self, table: Callable[[ServedKind, str, str], Form]) -> None:
        self._table = table
        self._forms: dict[tuple[ServedKind, AnswerFormat, str], Form] = {}

    def get(self, served: ServedKind, format: AnswerFormat, include: str = "") -> Form:
        """The form for a kind and format; ``include`` is what rows of a table contain."""
        key = (served, format, include)
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = self._build(served, format, include)
        return form

    def clear(self) -> None:
        """Drop forms of kinds that may no longer be served."""
        self._forms.clear()

    def _build(self, served: ServedKind, format: AnswerFormat, include: str) -> Form:
        if format.form == "object":
            return FullObject(served)
        if format.form == "Table":
            return self._table(served, include or "Metadata", format.version)
        return PartialMetadata(served, format.version, HIDDEN_ANNOTATIONS.get(served.storage, ""))
