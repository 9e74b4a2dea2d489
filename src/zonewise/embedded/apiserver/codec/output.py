"""The forms in which stored objects reach a client: whole, metadata alone, or as rows of a table.

A form encodes one object, a list and an event of a watch. The plain form of the stored version is
the identity: those bytes were made once, when the object was written. Forms are cached, one per
kind and requested form, because watchers share their encodings only when they have the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.registry import Served
from zonewise.embedded.apiserver.request.negotiation import WantedFormat
from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType

Obj = dict[str, Any]


class Form(Protocol):
    """How objects of one kind look to one client."""

    def one(self, entry: Entry) -> bytes:
        """One object."""

    def many(self, entries: Sequence[Entry], meta: Obj) -> bytes:
        """A list with its metadata."""

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        """One event of a watch, with its line end."""

    def mark(self, rv: int, *, ended: bool) -> bytes:
        """A bookmark."""


class Whole:
    """Objects as they are; items of a built-in kind's list carry no kind of their own."""

    def __init__(self, served: Served) -> None:
        resource = served.kind.resource
        self._shown = bodies.shown(served)
        self._same = served.stored and not served.custom
        self._cut = 0 if served.custom else len(served.prefix)
        self._prefix = served.prefix
        self._head = (
            f'{{"kind":"{served.kind.list_kind}","apiVersion":"{resource.api_version}","metadata":'
        ).encode()

    def one(self, entry: Entry) -> bytes:
        """The object."""
        return self._shown(entry)

    def many(self, entries: Sequence[Entry], meta: Obj) -> bytes:
        """The list of the objects, with the newline it is sent with: it may be large to copy."""
        cut = self._cut
        if self._same and cut:
            items = [b"{" + entry.raw[cut:] for entry in entries]
        elif cut:
            items = [b"{" + self._shown(entry)[cut:] for entry in entries]
        else:
            items = [self._shown(entry) for entry in entries]
        return b"".join(
            (self._head, msgspec.json.encode(meta), b',"items":[', b",".join(items), b"]}\n")
        )

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        """The event with the object."""
        return b'{"type":"%b","object":%b}\n' % (type.encode(), self._shown(entry))

    def mark(self, rv: int, *, ended: bool) -> bytes:
        """A bookmark of this kind."""
        return b'{"type":"BOOKMARK","object":%b"metadata":%b}}\n' % (
            self._prefix,
            msgspec.json.encode(mark_metadata(rv, ended)),
        )


HIDDEN = {"apps/daemonsets": "deprecated.daemonset.template.generation"}


class _Metadata(msgspec.Struct, gc=False):
    metadata: msgspec.Raw


_METADATA = msgspec.json.Decoder(_Metadata)


def metadata_of(raw: bytes) -> bytes:
    """The encoded metadata of an encoded object."""
    return bytes(_METADATA.decode(raw).metadata)


class Partial:
    """Metadata alone.

    ``hidden`` is an annotation that a real server makes of another field when it shows the whole
    object, and only then.
    """

    def __init__(self, served: Served, version: str, hidden: str = "") -> None:
        self._served = served
        self._hidden = hidden
        self._head = (
            f'{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/{version}","metadata":'
        ).encode()
        self._list = (
            f'{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/{version}","metadata":'
        ).encode()

    def one(self, entry: Entry) -> bytes:
        """The object's metadata."""
        return self._head + self._metadata(bodies.view(self._served, entry).raw) + b"}"

    def _metadata(self, raw: bytes) -> bytes:
        if not self._hidden or self._hidden.encode() not in raw:
            return metadata_of(raw)
        meta = msgspec.json.decode(metadata_of(raw))
        notes = meta.get("annotations", {})
        notes.pop(self._hidden, None)
        if not notes:
            meta.pop("annotations", None)
        return msgspec.json.encode(meta)

    def many(self, entries: Sequence[Entry], meta: Obj) -> bytes:
        """The list of the objects' metadata."""
        items = b",".join([self.one(entry) for entry in entries])
        return b"".join((self._list, msgspec.json.encode(meta), b',"items":[', items, b"]}"))

    def frame(self, type: WatchEventType, entry: Entry) -> bytes:
        """The event with the metadata."""
        return b'{"type":"%b","object":%b}\n' % (type.encode(), self.one(entry))

    def mark(self, rv: int, *, ended: bool) -> bytes:
        """A bookmark."""
        meta = msgspec.json.encode(mark_metadata(rv, ended))
        return b'{"type":"BOOKMARK","object":%b%b}}\n' % (self._head, meta)


def mark_metadata(rv: int, ended: bool) -> Obj:
    """The metadata of a bookmark; ``ended`` says that the initial events were all sent."""
    meta: Obj = {"resourceVersion": str(rv), "creationTimestamp": None}
    if ended:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return meta


class Forms:
    """Finds the form that a request accepts."""

    def __init__(self, table: Callable[[Served, str, str], Form]) -> None:
        self._table = table
        self._known: dict[tuple[Served, WantedFormat, str], Form] = {}

    def of(self, served: Served, wanted: WantedFormat, include: str = "") -> Form:
        """The form for a kind and a requested format; ``include`` is what rows of a table carry."""
        key = (served, wanted, include)
        form = self._known.get(key)
        if form is None:
            form = self._known[key] = self._make(served, wanted, include)
        return form

    def forget(self) -> None:
        """Drop forms of kinds that may no longer be served."""
        self._known.clear()

    def _make(self, served: Served, wanted: WantedFormat, include: str) -> Form:
        if wanted.form == "object":
            return Whole(served)
        if wanted.form == "Table":
            return self._table(served, include or "Metadata", wanted.version)
        return Partial(served, wanted.version, HIDDEN.get(served.storage, ""))
