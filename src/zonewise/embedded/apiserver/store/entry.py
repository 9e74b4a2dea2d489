"""One stored version of one object.

The bytes are the object: what a client gets, what a list joins, what a watch splices and what the
log stores are the same ``raw``, encoded once by the writer. Beside them are the few fields that
readers need without decoding: version, namespace, name, uid, labels, whether it is being deleted.

An entry never changes (its last three fields are caches). Many readers share one, a
watcher that is behind may use the version of a minute ago, and identity tells whether another write
came first: the latest entry *is* the one that was read, or it is not.

Keys are ordered as etcd orders them: by the text ``namespace/name``, so ``a-b/x`` is before
``a/x``. Lists and continue tokens depend on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

WatchEventType = Literal["ADDED", "MODIFIED", "DELETED"]


class Entry(msgspec.Struct, gc=False, eq=False):
    """An object's bytes, and the fields that are known without decoding them."""

    raw: bytes
    rv: int
    namespace: str
    name: str
    key: str
    uid: str
    labels: Mapping[str, str]
    deleting: bool
    cached_fields: tuple[object, Mapping[str, str]] | None = None
    views: dict[tuple[object, str], Entry] | None = None
    """The object in other API versions, converted by a webhook; by ``Versions`` and apiVersion."""
    completed_by: object = None
    """The schema by which a custom resource is known to be complete: readers get ``raw``."""

    @classmethod
    def decode(cls, raw: bytes, rv: int | None = None) -> Entry:
        """The entry for an encoded object; ``rv`` is read from it unless given.

        Raises ``msgspec.DecodeError`` for bytes that are not an object with a name.
        """
        meta = _DECODER.decode(raw).metadata
        namespace = sys.intern(meta.namespace or "")
        return cls(
            raw=raw,
            rv=int(meta.resource_version or 0) if rv is None else rv,
            namespace=namespace,
            name=meta.name,
            key=key_of(namespace, meta.name),
            uid=meta.uid or "",
            labels=meta.labels or _NO_LABELS,
            deleting=meta.deletion_timestamp is not None,
        )

    def selectable_fields(
        self, rules: object, extract: Callable[[bytes], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """The fields that selectors may use, extracted at most once for the same ``rules``."""
        if self.cached_fields is None or self.cached_fields[0] is not rules:
            self.cached_fields = (rules, extract(self.raw))
        return self.cached_fields[1]

    def with_version(self, rv: int) -> Entry:
        """The same content under another version."""
        obj = msgspec.json.decode(self.raw)
        obj["metadata"]["resourceVersion"] = str(rv)
        copy = Entry.decode(msgspec.json.encode(obj), rv)
        if self.views:
            copy.views = {key: view.with_version(rv) for key, view in self.views.items()}
        return copy


def key_of(namespace: str, name: str) -> str:
    """The key of an object among those of its kind; cluster-scoped objects have no namespace."""
    return f"{namespace}/{name}" if namespace else name


def encoded_prefix(kind: str, api_version: str) -> bytes:
    """How every encoded object of a kind begins."""
    return f'{{"kind":"{kind}","apiVersion":"{api_version}",'.encode()


def encode(obj: dict[str, Any]) -> bytes:
    """The bytes that are stored, beginning with kind, apiVersion and metadata."""
    ordered = {"kind": obj["kind"], "apiVersion": obj["apiVersion"], "metadata": obj["metadata"]}
    ordered.update(obj)
    return _encode(ordered)


class _Meta(msgspec.Struct, gc=False, rename="camel"):
    name: str
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Head(msgspec.Struct, gc=False):
    metadata: _Meta


_encode = msgspec.json.Encoder().encode
_DECODER = msgspec.json.Decoder(_Head)
_NO_LABELS: Mapping[str, str] = {}
