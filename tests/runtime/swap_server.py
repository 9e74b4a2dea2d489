"""Objects in memory behind compare-and-swap, for several replicas in virtual time.

Every replica has a transport of its own, which can be slow on the way there, slow on the way back,
lose answers to writes that were done, or be cut. The server keeps every write it accepted, in
order, with the replica that sent it. It knows resourceVersion, create, merge and JSON patches,
delete and plain lists; it validates nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.runtime.memory_server import Answered, refusal

from zonewise.api.errors import ConnectionFailed
from zonewise.embedded.machinery.patch import jsonpatch, mergepatch
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import Request


@dataclass(frozen=True)
class Write:
    """A write the server accepted."""

    at: float
    by: str
    method: str
    path: str
    result: dict[str, Any]

    @property
    def version(self) -> int:
        return int(self.result["metadata"]["resourceVersion"])


class SwapServer:
    """Objects by path, and all accepted writes."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.writes: list[Write] = []
        self.version = 1

    def way(self, name: str) -> Way:
        """A replica's transport."""
        return Way(self, name)

    def put(self, path: str, content: Mapping[str, Any], *, by: str = "test") -> dict[str, Any]:
        """Write an object without any check."""
        self.version += 1
        collection, _, name = path.rpartition("/")
        parts = collection.split("/")
        metadata = {"uid": f"uid-{self.version}", **content.get("metadata", {}), "name": name}
        if "namespaces" in parts[:-2]:
            metadata["namespace"] = parts[parts.index("namespaces") + 1]
        metadata["resourceVersion"] = str(self.version)
        self.objects[path] = {**content, "metadata": metadata}
        self._note(by, "PUT", path, self.objects[path])
        return self.objects[path]

    def answer(self, request: Request, *, by: str) -> Answered:
        path = request.path
        body: Any = msgspec.json.decode(request.body) if request.body else None
        stored = self.objects.get(path)
        match request.method:
            case "GET":
                if stored is not None:
                    return _ok(stored)
                prefix = path + "/"
                items = [item for at, item in self.objects.items() if at.startswith(prefix)]
                if items:
                    return _ok({"metadata": {"resourceVersion": str(self.version)}, "items": items})
            case "POST":
                target = f"{path}/{body['metadata']['name']}"
                if target in self.objects:
                    return refusal(409, "AlreadyExists", f"{target} already exists")
                return _ok(self._accept(by, "POST", target, body), status=201)
            case "PATCH" if stored is not None:
                if request.headers["Content-Type"].startswith("application/json-patch"):
                    changed = jsonpatch.apply(stored, body)
                else:
                    changed = mergepatch.apply(stored, body)
                if (
                    changed["metadata"].get("resourceVersion")
                    != stored["metadata"]["resourceVersion"]
                ):
                    return refusal(409, "Conflict", f"{path} has been modified")
                return _ok(self._accept(by, "PATCH", path, changed))
            case "DELETE" if stored is not None:
                del self.objects[path]
                self.version += 1
                self._note(by, "DELETE", path, stored)
                return _ok({"kind": "Status", "status": "Success"})
            case _:
                pass
        return refusal(404, "NotFound", f"{path} not found")

    def _accept(
        self, by: str, method: str, path: str, content: Mapping[str, Any]
    ) -> dict[str, Any]:
        written = self.put(path, content, by=by)
        self.writes[-1] = Write(self.writes[-1].at, by, method, path, written)
        return written

    def _note(self, by: str, method: str, path: str, result: dict[str, Any]) -> None:
        self.writes.append(Write(asyncio.get_running_loop().time(), by, method, path, result))


@dataclass
class Way:
    """The transport of one replica."""

    server: SwapServer
    name: str
    there: Callable[[Request], float] = field(default=lambda request: 0.0)
    back: Callable[[Request], float] = field(default=lambda request: 0.0)
    cut: bool = False
    loses: Callable[[Request], bool | None] = field(default=lambda request: False)
    refuses: Callable[[Request], Answered | None] = field(default=lambda request: None)
    requests: list[Request] = field(default_factory=list)
    _deliveries: set[asyncio.Task[Any]] = field(default_factory=set)

    def client(self, *, fence: Callable[[], None] | None = None) -> Client:
        return Client(self, fence=fence, retries=0)

    async def send(self, request: Request) -> Answered:
        """Send a request that cannot be recalled: it arrives even if its sender is cancelled."""
        self.requests.append(request)
        delivery = asyncio.create_task(self._deliver(request))
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)
        answer = await asyncio.shield(delivery)
        await asyncio.sleep(self.back(request))
        if isinstance(answer, ConnectionFailed):
            raise answer
        if self.loses(request):
            raise ConnectionFailed("the answer was lost")
        return answer

    async def _deliver(self, request: Request) -> Answered | ConnectionFailed:
        await asyncio.sleep(self.there(request))
        if self.cut:
            return ConnectionFailed("the way there is cut")
        refused = self.refuses(request)
        return refused if refused is not None else self.server.answer(request, by=self.name)

    async def close(self) -> None:
        """Drop requests in flight, at the end of a test."""
        for delivery in tuple(self._deliveries):
            delivery.cancel()


def _ok(body: Any, *, status: int = 200) -> Answered:
    return Answered(status, msgspec.json.encode(body))
