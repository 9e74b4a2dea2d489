"""Small objects, and helpers to read a state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from zonewise.embedded.apiserver.store.entry import Entry, WatchEventType
from zonewise.embedded.apiserver.store.state import Build, State

KIND = "/configmaps"


def configmap(
    name: str,
    *,
    namespace: str = "default",
    value: str = "",
    labels: Mapping[str, str] | None = None,
) -> Build:
    """Builds a ConfigMap for the version it is given."""

    def build(rv: int) -> bytes:
        metadata: dict[str, Any] = {"name": name}
        if namespace:
            metadata["namespace"] = namespace
        metadata["uid"] = f"uid-of-{name}"
        metadata["resourceVersion"] = str(rv)
        if labels:
            metadata["labels"] = dict(labels)
        return msgspec.json.encode(
            {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"v": value}}
        )

    return build


async def put(
    state: State,
    name: str,
    type: WatchEventType = "ADDED",
    *,
    namespace: str = "default",
    value: str = "",
    labels: Mapping[str, str] | None = None,
    kind: str = KIND,
) -> Entry:
    """Write one ConfigMap and wait for it."""
    build = configmap(name, namespace=namespace, value=value, labels=labels)
    return await state.write(kind, namespace, name, type, build)


def contents(state: State, kind: str = KIND) -> dict[str, bytes]:
    """Every committed object of a kind."""
    return {entry.key: entry.raw for entry in state.list(kind).entries}


def frames(*chunks: bytes | None) -> list[tuple[str, str, int]]:
    """The events in chunks of a stream: type, key, version."""
    events = []
    for line in b"".join(chunk or b"" for chunk in chunks).splitlines():
        event = msgspec.json.decode(line)
        meta = event["object"]["metadata"]
        key = "/".join(filter(None, (meta.get("namespace"), meta["name"])))
        events.append((event["type"], key, int(meta["resourceVersion"])))
    return events


def keys(entries: Iterable[Entry]) -> list[str]:
    """The keys of these objects."""
    return [entry.key for entry in entries]
