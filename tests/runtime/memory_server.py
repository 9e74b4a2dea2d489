"""An API server in memory, as a transport, that fails when told to; for virtual time.

It knows lists with pages, watches with bookmarks and initial events, and simple writes. History can
be compacted, streams can be cut, fall silent or be poisoned. It is a stand-in for tests of the
runtime alone: it validates nothing and has no admission, and only real servers prove behaviour.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zonewise.api.errors import ConnectionFailed
from zonewise.runtime.client.transport import Request, Response

Fault = Callable[[Request], "Answered | Exception | None"]


@dataclass
class Answered:
    """A complete answer."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    closed: bool = False

    async def read(self) -> bytes:
        return self.body

    async def chunks(self) -> AsyncIterator[bytes]:
        if self.body:
            yield self.body

    async def close(self) -> None:
        self.closed = True


def refusal(
    code: int, reason: str, message: str = "", *, headers: Mapping[str, str] | None = None
) -> Answered:
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message or reason,
        "reason": reason,
        "code": code,
    }
    return Answered(code, json.dumps(status).encode(), headers or {})


@dataclass(frozen=True)
class Seen:
    """A request and when it came."""

    at: float
    request: Request

    @property
    def watching(self) -> bool:
        return "watch" in self.request.query


class Streaming:
    """A watch that goes on until it is cut or its time is over."""

    status = 200

    def __init__(self, seconds: float) -> None:
        self.headers: Mapping[str, str] = {}
        self.silent = False
        self.closed = False
        self._seconds = seconds
        self._blocks: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    def push(self, *events: Any) -> None:
        if not self.silent:
            lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
            self._blocks.put_nowait(lines)

    def push_bytes(self, block: bytes) -> None:
        self._blocks.put_nowait(block)

    def cut(self, error: Exception | None = None) -> None:
        self._blocks.put_nowait(error or ConnectionFailed("the connection was cut"))

    def end(self) -> None:
        self._blocks.put_nowait(None)

    async def read(self) -> bytes:
        raise AssertionError("nobody reads a watch as a whole")

    async def chunks(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        while True:
            try:
                async with asyncio.timeout_at(None if self.silent else end):
                    block = await self._blocks.get()
            except TimeoutError:
                return
            if block is None:
                return
            if isinstance(block, Exception):
                raise block
            yield block

    async def close(self) -> None:
        self.closed = True


class MemoryServer:
    """The server; it is its own transport."""

    def __init__(self, *, watch_list: bool = True, bookmarks: float = 60.0) -> None:
        self.watch_list = watch_list
        self.version = 100
        self.oldest = 0
        self.objects: dict[str, dict[tuple[str, str], dict[str, Any]]] = {}
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.faults: list[Fault] = []
        self.always: Fault | None = None
        self.seen: list[Seen] = []
        self.streams: list[tuple[str, Streaming]] = []
        self.closed = False
        self._bookmarks = bookmarks

    def put(self, path: str, name: str, namespace: str = "", **content: Any) -> dict[str, Any]:
        """Create or change an object in a collection."""
        self.version += 1
        key = (namespace, name)
        collection = self.objects.setdefault(path, {})
        uid = collection[key]["metadata"]["uid"] if key in collection else f"uid-{self.version}"
        metadata = {"name": name, "uid": uid, "resourceVersion": str(self.version)}
        if namespace:
            metadata["namespace"] = namespace
        metadata |= content.pop("metadata", {})
        kind = "MODIFIED" if key in collection else "ADDED"
        collection[key] = {"metadata": metadata, **content}
        self._tell(path, kind, collection[key])
        return collection[key]

    def drop(self, path: str, name: str, namespace: str = "") -> None:
        """Delete an object."""
        self.version += 1
        gone = self.objects[path].pop((namespace, name))
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
        self._tell(path, "DELETED", gone)

    def compact(self) -> None:
        """Forget all changes so far: watches that start before now are too old."""
        self.oldest = self.version
        self.history.clear()

    def live(self) -> list[Streaming]:
        return [stream for _, stream in self.streams if not stream.closed]

    def cut(self) -> None:
        """Break every connection."""
        for stream in self.live():
            stream.cut()

    def watches(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.watching]

    def lists(self) -> list[Seen]:
        return [
            seen for seen in self.seen if not seen.watching and seen.request.path in self.objects
        ]

    async def send(self, request: Request) -> Response:
        loop = asyncio.get_running_loop()
        self.seen.append(Seen(loop.time(), request))
        await asyncio.sleep(0)
        fault = self.always or (self.faults.pop(0) if self.faults else None)
        if fault is not None and (answer := fault(request)) is not None:
            if isinstance(answer, Exception):
                raise answer
            return answer
        if "watch" in request.query:
            return self._watch(request)
        if request.method == "GET" and request.path in self.objects:
            return self._list(request)
        return self._single(request)

    async def close(self) -> None:
        self.closed = True

    def _tell(self, path: str, kind: str, item: dict[str, Any]) -> None:
        self.history.append((self.version, path, kind, item))
        for watched, stream in self.streams:
            if watched == path and not stream.closed:
                stream.push({"type": kind, "object": item})

    def _list(self, request: Request) -> Answered:
        items = list(self.objects[request.path].values())
        limit = int(request.query.get("limit", "0")) or len(items)
        start, _, at = request.query.get("continue", "").partition("@")
        if at and int(at) < self.oldest:
            return refusal(410, "Expired", "The provided continue parameter is too old.")
        version = at or str(self.version)
        begin = int(start or 0)
        metadata: dict[str, Any] = {"resourceVersion": version}
        if begin + limit < len(items):
            metadata["continue"] = f"{begin + limit}@{version}"
        page = {"kind": "List", "metadata": metadata, "items": items[begin : begin + limit]}
        return Answered(200, json.dumps(page).encode())

    def _watch(self, request: Request) -> Response:
        query = request.query
        initial = query.get("sendInitialEvents") == "true"
        if initial and not self.watch_list:
            return refusal(422, "Invalid", "sendInitialEvents is forbidden")
        stream = Streaming(float(query.get("timeoutSeconds", "1800")))
        collection = self.objects.setdefault(request.path, {})
        start = int(query.get("resourceVersion") or self.version)
        if not initial and start < self.oldest:
            stream.push(
                {
                    "type": "ERROR",
                    "object": {
                        "kind": "Status",
                        "code": 410,
                        "reason": "Expired",
                        "message": f"too old resource version: {start} ({self.oldest})",
                    },
                }
            )
            stream.end()
            return stream
        if initial:
            for item in collection.values():
                stream.push({"type": "ADDED", "object": item})
            stream.push(self._bookmark(end=True))
        else:
            for version, path, kind, item in self.history:
                if path == request.path and version > start:
                    stream.push({"type": kind, "object": item})
        self.streams.append((request.path, stream))
        if self._bookmarks:
            asyncio.get_running_loop().call_later(self._bookmarks, self._mark, stream)
        return stream

    def _bookmark(self, *, end: bool = False) -> dict[str, Any]:
        metadata: dict[str, Any] = {"resourceVersion": str(self.version)}
        if end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        return {"type": "BOOKMARK", "object": {"metadata": metadata}}

    def _mark(self, stream: Streaming) -> None:
        if not stream.closed:
            stream.push(self._bookmark())
            asyncio.get_running_loop().call_later(self._bookmarks, self._mark, stream)

    def _single(self, request: Request) -> Answered:
        path, _, name = request.path.rpartition("/")
        parts = path.split("/")
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts[:-1] else ""
        collection = path.replace(f"/namespaces/{namespace}/", "/") if namespace else path
        stored = self.objects.get(collection, {}).get((namespace, name))
        if request.method == "GET" and stored is not None:
            return Answered(200, json.dumps(stored).encode())
        if request.method in ("PATCH", "PUT"):
            body = json.loads(request.body or b"{}")
            content = {k: v for k, v in body.items() if k not in ("apiVersion", "kind")}
            changed = {**(stored or {}), **content}
            changed["metadata"] = {
                k: v
                for k, v in {**changed.get("metadata", {}), **content.get("metadata", {})}.items()
                if k not in ("resourceVersion", "uid")
            }
            return Answered(
                200, json.dumps(self.put(collection, name, namespace, **changed)).encode()
            )
        if request.method == "DELETE" and stored is not None:
            self.drop(collection, name, namespace)
            return Answered(200, b'{"kind":"Status","status":"Success"}')
        return refusal(404, "NotFound", f"{request.path} not found")
