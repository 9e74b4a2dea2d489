"""The requests to an API server, typed.

A class says which resource is meant: an ``Object`` class for kinds we know, ``unstructured(...)``
for any other. Bytes are decoded straight into it. All calls may run concurrently on one client;
nothing is ordered between them but what the caller awaits. Limits, fencing and retries are
described in ``zonewise.runtime.client.exchange``.

Typed objects are lean views, so writing is done with ``patch`` and ``apply`` of the fields that are
ours. ``create`` and ``replace`` send the whole object and are for objects that we made in full.

Large lists are read in pages, so that neither side holds a huge answer at once. All pages show the
state of the first one. If the server has compacted that state before the last page was read, the
list is read once more in one piece.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from zonewise.api.codec import Decoder, Page, decoder, encode, page_decoder
from zonewise.api.errors import Conflict, Gone, Invalid, ParseError, ProtocolError
from zonewise.api.meta import Object
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct
from zonewise.api.unstructured import Unstructured
from zonewise.runtime.client.exchange import RETRIES, Exchange, RequestResult
from zonewise.runtime.client.limiter import Limiter
from zonewise.runtime.client.scope import PAGE, Scope
from zonewise.runtime.client.server_clock import ServerClock
from zonewise.runtime.client.transport import Request, Response, Transport
from zonewise.runtime.client.watch import WatchEvent, watch
from zonewise.runtime.process.memory import paused

T = TypeVar("T", bound=Object | Unstructured)

GC_PAUSE_ABOVE = 1 << 20
"""Bodies above this many bytes are decoded with the garbage collector off."""

PatchKind = Literal["json", "merge", "strategic"]

_PATCH_TYPES: Mapping[PatchKind, str] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


FIELD_MANAGER = "zonewise"
"""The owner of what our own programs apply."""


class Version(Struct):
    """The server's version."""

    major: str = ""
    minor: str = ""
    git_version: str = ""
    git_commit: str = ""
    build_date: str = ""
    go_version: str = ""
    platform: str = ""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """All requested objects, as they were at one version."""

    items: tuple[T, ...]
    resource_version: str

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Client:
    """A typed client; owns its transport by default, and ``async with`` closes it."""

    def __init__(
        self,
        transport: Transport,
        *,
        limiter: Limiter | None = None,
        field_manager: str = FIELD_MANAGER,
        fence: Callable[[], None] | None = None,
        retries: int = RETRIES,
        clock: ServerClock | None = None,
    ) -> None:
        self.transport = transport
        self.field_manager = field_manager
        self.exchange = Exchange(
            transport, limiter=limiter, fence=fence, retries=retries, clock=clock
        )
        self.refused_watch_list: set[Resource] = set()
        """Resources whose server has no WatchList; detected once, see ``reflector``."""

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    def clock(self) -> ServerClock:
        """The server's time of day."""
        return self.exchange.clock

    async def close(self) -> None:
        """End every connection."""
        await self.transport.close()

    async def get(
        self,
        cls: type[T],
        name: str,
        namespace: str | None = None,
        *,
        subresource: str | None = None,
    ) -> T:
        """One object; raises ``NotFound``."""
        path = cls.resource.path(namespace, name, subresource)
        answer = await self.exchange.send(Request(method="GET", path=path), repeatable=True)
        return _decoded(cls, answer.body)

    async def list(
        self,
        cls: type[T],
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = PAGE,
        resource_version: str | None = None,
    ) -> Listing[T]:
        """All objects, read in pages of ``limit`` (0: in one piece).

        The state is the newest there is; with ``resource_version`` it is at least that version,
        which a server may answer from its cache.
        """
        scope = Scope(cls, namespace, label_selector, field_selector)
        items: tuple[T, ...] = ()
        first = ""
        try:
            async for version, page in self.pages(
                scope, limit=limit, resource_version=resource_version
            ):
                items += tuple(page)
                first = version
        except Gone:
            if not first:
                raise
            async for version, page in self.pages(scope, limit=0):
                items, first = tuple(page), version
        return Listing(items, first)

    async def pages(
        self,
        scope: Scope[T],
        *,
        limit: int = PAGE,
        resource_version: str | None = None,
        one_by_one: bool = False,
        retries: int | None = None,
    ) -> AsyncIterator[tuple[str, Iterable[T]]]:
        """The version of a list and the objects of each of its pages, as they arrive.

        Raises ``Gone`` when the server has compacted the state of the first page. With
        ``one_by_one`` an object is decoded when it is taken, so that objects which are not kept
        never fill the memory.
        """
        query = scope.query()
        if resource_version is not None:
            query |= {"resourceVersion": resource_version, "resourceVersionMatch": "NotOlderThan"}
        if limit:
            query["limit"] = str(limit)
        first = ""
        while True:
            headers = scope.headers(stream=False)
            request = Request(method="GET", path=scope.path, query=query, headers=headers)
            answer = await self.exchange.send(request, repeatable=True, retries=retries)
            if one_by_one:
                rough = _page(page_decoder(msgspec.Raw), answer.body)
                metadata = rough.metadata
                items: Iterable[T] = _each(scope.cls, rough.items or ())
            else:
                page = _page(page_decoder(scope.cls), answer.body)
                metadata = page.metadata
                items = page.items or ()
            first = first or metadata.resource_version
            yield first, items
            if not metadata.continue_:
                return
            query = scope.query(**{"limit": str(limit), "continue": metadata.continue_})

    async def create(self, item: T, *, dry_run: bool = False) -> T:
        """Create an object; raises ``AlreadyExists``."""
        path, query = item.resource.path(item.metadata.namespace), self._writing(dry_run)
        answer = await self._write("POST", path, encode(item), query=query)
        return _decoded(type(item), answer.body)

    async def replace(self, item: T, *, subresource: str | None = None, dry_run: bool = False) -> T:
        """Put a whole object in the place of the one there; its version, if set, must match."""
        answer = await self._write(
            "PUT",
            item.resource.path(item.metadata.namespace, item.metadata.name, subresource),
            encode(item),
            query=self._writing(dry_run),
            repeatable=True,
        )
        return _decoded(type(item), answer.body)

    async def patch(
        self,
        cls: type[T],
        name: str,
        namespace: str | None,
        body: object,
        *,
        kind: PatchKind = "merge",
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> T:
        """Change some fields; ``body`` is plain values, Structs among them if one likes.

        If ``body`` has a uid and the object there has another, that is a ``Conflict``.
        """
        answer = await self._patch(
            cls.resource.path(namespace, name, subresource),
            msgspec.json.encode(body),
            content_type=_PATCH_TYPES[kind],
            query=self._writing(dry_run),
        )
        return _decoded(cls, answer.body)

    async def patch_status(
        self,
        item: T,
        status: object,
        *,
        kind: PatchKind = "merge",
        resource_version: str | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> T:
        """Change fields of the status of this very object; raises ``Conflict`` for a successor.

        With ``resource_version`` any change since that version is a ``Conflict`` too.
        ``annotations`` are written along, as a status may.
        """
        meta = item.metadata
        metadata: dict[str, object] = {"uid": meta.uid}
        if resource_version is not None:
            metadata["resourceVersion"] = resource_version
        if annotations:
            metadata["annotations"] = annotations
        body = {"metadata": metadata, "status": status}
        return await self.patch(
            type(item), meta.name, meta.namespace, body, kind=kind, subresource="status"
        )

    async def apply(
        self,
        cls: type[T],
        name: str,
        namespace: str | None,
        body: Mapping[str, Any],
        *,
        force: bool = False,
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
    ) -> T:
        """Server-side apply: these fields, and no others, are ours and have these values.

        Kind and name are filled in. Without ``force`` a field of another manager with another
        value is a ``Conflict``.
        """
        resource = cls.resource
        metadata = {**body.get("metadata", {}), "name": name}
        if resource.namespaced and namespace:
            metadata["namespace"] = namespace
        names = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
        query = self._writing(dry_run, manager=field_manager)
        if force:
            query["force"] = "true"
        answer = await self._patch(
            resource.path(namespace, name, subresource),
            msgspec.json.encode({**body, **names}),
            content_type="application/apply-patch+yaml",
            query=query,
            repeatable=True,
        )
        return _decoded(cls, answer.body)

    async def delete(
        self,
        cls: type[T],
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] | None = None,
        dry_run: bool = False,
    ) -> T | None:
        """Delete an object, if it still is the one with that uid and version.

        Gives the object as the server last had it, or None where the server does not send it.
        """
        answer = await self._write(
            "DELETE",
            cls.resource.path(namespace, name),
            msgspec.json.encode(
                _delete_options(uid, resource_version, grace_period, propagation, dry_run=dry_run)
            ),
            query={},
            repeatable=True,
        )
        return None if _kind(answer.body) == "Status" else _decoded(cls, answer.body)

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_period: int | None = None,
        dry_run: bool = False,
    ) -> None:
        """Evict a pod; a budget that does not allow it now raises ``TooManyRequests``."""
        options = _delete_options(uid, resource_version, grace_period, None, dry_run=dry_run)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        path = Resource("", "v1", "Pod", "pods").path(namespace, name, "eviction")
        await self._write("POST", path, msgspec.json.encode(body), query={}, final=True)

    def watch(
        self,
        cls: type[T],
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[WatchEvent[T]]:
        """Changes after a version, endlessly: lost connections are resumed where they broke.

        Raises ``Gone`` when the server no longer has the changes since then: list again. A
        ``Reflector`` does that by itself.
        """
        scope = Scope(cls, namespace, label_selector, field_selector)
        return watch(self, scope, resource_version=resource_version)

    async def raw(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
    ) -> RequestResult:
        """Any request; errors are typed as everywhere."""
        request = Request(
            method=method,
            path=path,
            query=query or {},
            headers=headers or {},
            body=body,
            timeout=timeout,
        )
        return await self.exchange.send(request, repeatable=method in ("GET", "HEAD"))

    async def open(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> Response:
        """A stream, such as a watch or a log; the caller closes it."""
        request = Request(method="GET", path=path, query=query, headers=headers or {}, stream=True)
        return await self.exchange.open(request)

    async def server_version(self) -> Version:
        """The server's version."""
        answer = await self.raw("GET", "/version")
        try:
            version = decoder(Version).decode(answer.body)
        except ParseError as error:
            raise _unexpected_answer(str(error)) from error
        if not version.git_version:
            raise _unexpected_answer("no version")
        return version

    async def _patch(
        self,
        path: str,
        body: bytes,
        *,
        query: Mapping[str, str],
        content_type: str,
        repeatable: bool = False,
    ) -> RequestResult:
        """Send a patch; a successor of the object that it is for is a ``Conflict``.

        To the server another uid is a change of a field that must not change (422). That would be
        final, while the object was merely deleted and created again since it was read.
        """
        try:
            return await self._write(
                "PATCH", path, body, content_type=content_type, query=query, repeatable=repeatable
            )
        except Invalid as error:
            if all(cause.field != "metadata.uid" for cause in error.details.causes or ()):
                raise
            status = msgspec.structs.replace(error.status, code=409, reason="Conflict")
            raise Conflict(status) from error

    async def _write(
        self,
        method: str,
        path: str,
        body: bytes,
        *,
        query: Mapping[str, str],
        content_type: str = "application/json",
        repeatable: bool = False,
        final: bool = False,
    ) -> RequestResult:
        request = Request(
            method=method, path=path, query=query, headers={"Content-Type": content_type}, body=body
        )
        return await self.exchange.send(request, repeatable=repeatable, final=final)

    def _writing(self, dry_run: bool, *, manager: str | None = None) -> dict[str, str]:
        query = {"fieldManager": manager or self.field_manager}
        if dry_run:
            query["dryRun"] = "All"
        return query


class _Kind(Struct):
    kind: str = ""


def _delete_options(
    uid: str | None,
    version: str | None,
    grace: int | None,
    propagation: str | None,
    *,
    dry_run: bool,
) -> dict[str, Any]:
    # All in the body: API servers ignore the query of a deletion that has a body.
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    conditions = {"uid": uid, "resourceVersion": version}
    if present := {name: value for name, value in conditions.items() if value is not None}:
        options["preconditions"] = present
    if grace is not None:
        options["gracePeriodSeconds"] = grace
    if propagation is not None:
        options["propagationPolicy"] = propagation
    if dry_run:
        options["dryRun"] = ["All"]
    return options


def _kind(body: bytes) -> str:
    try:
        return decoder(_Kind).decode(body).kind
    except ParseError as error:
        raise _unexpected_answer(str(error)) from error


P = TypeVar("P")


def _page(decoder: Decoder[Page[P]], body: bytes) -> Page[P]:
    try:
        if len(body) < GC_PAUSE_ABOVE:
            page = decoder.decode(body)
        else:
            with paused():
                page = decoder.decode(body)
    except ParseError as error:
        raise _unexpected_answer(str(error)) from error
    # Every member has a default, so any JSON object would pass as an empty list, and an empty list
    # empties a store.
    if not page.kind.endswith("List"):
        raise _unexpected_answer(f"a {page.kind or 'object without a kind'} instead of a list")
    return page


def _each(cls: type[T], items: Iterable[msgspec.Raw]) -> Iterator[T]:
    decode = decoder(cls).decode
    for item in items:
        try:
            yield decode(item)
        except ParseError as error:
            raise _unexpected_answer(str(error)) from error


def _decoded(cls: type[T], body: bytes) -> T:
    try:
        item = decoder(cls).decode(body)
        named = bool(item.metadata.name)
    except ParseError as error:
        raise _unexpected_answer(str(error)) from error
    if not named:
        raise _unexpected_answer(f"a {cls.resource.kind} without a name")
    return item


def _unexpected_answer(what: str) -> ProtocolError:
    return ProtocolError(
        f"the server's answer is not what was requested: {what}; "
        "check that the server address is that of a Kubernetes API server"
    )
