"""HTTP connections whose next request must arrive whole, in time and in bounded memory.

aiohttp bounds a line and a single header, not a header as a whole, and sets no deadline. Here a
connection's first header must be complete so many seconds after the connection began, a later one
so many seconds after its first byte; it may have so many bytes, and the unfinished headers of all
connections together so many: above that the oldest connections are closed. Headers of ordinary
clients arrive in one piece and are never unfinished, so only the clients that cause the pressure
are affected.

A connection knows for how long its client has let it wait (``waiting``), so that a listener without
room can close the longest idle ones.

What is counted is what arrived, in the pieces in which it arrived: where a request's end and the
beginning of the next arrive together, that beginning counts only once more of it arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import HttpVersion11, web
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

Handler = Callable[["HttpRequest"], Awaitable[web.StreamResponse]]

SLOW = 3.0
"""Seconds in which a client that is not slow has sent a whole request."""

TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: 35\r\n\r\n"
    b"431 Request Header Fields Too Large"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeaderLimits:
    """What headers may take: one in seconds and bytes, the unfinished ones together in bytes."""

    seconds: float = 30.0
    size: int = 128 * 1024
    together: int = 8 * 1024 * 1024


class BodyTooLarge(Exception):
    """A body has more bytes than it may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body has more than {limit} bytes")
        self.limit = limit


class BodyIncomplete(Exception):
    """A body is not what its headers announced."""

    def __init__(self) -> None:
        super().__init__("the body is not what its headers announced")


class Connections(web.Server):
    """All connections of a server, which end together; for a ``web.ServerRunner``."""

    def __init__(self, handler: Handler, headers: HeaderLimits, **options: Any) -> None:
        # The factory makes no other requests than those the handler takes.
        general = cast("Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]", handler)
        super().__init__(general, request_factory=self._request, **options)
        self.headers = Headers(headers)

    def __call__(self) -> Connection:
        """The protocol of a new connection."""
        return Connection(self, loop=self._loop, **self._kwargs)

    def _request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any
    ) -> HttpRequest:
        return HttpRequest(message, payload, protocol, writer, task, self._loop)


class HttpRequest(web.BaseRequest):
    """A request whose answer does not name the server library."""

    def invite(self) -> None:
        """Send 100 Continue to a client that waits for it."""
        if (
            self.headers.get("Expect", "").lower() == "100-continue"
            and self.version >= HttpVersion11
            and self.transport is not None
        ):
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def read_body(self, limit: int) -> bytes:
        """The whole body; ``BodyTooLarge`` as soon as it is known, ``BodyIncomplete``."""
        if self.content_length is not None and self.content_length > limit:
            raise BodyTooLarge(limit)
        self.invite()
        parts: list[bytes] = []
        size = 0
        try:
            async for part in self.content.iter_any():
                size += len(part)
                if size > limit:
                    raise BodyTooLarge(limit)
                parts.append(part)
        except web.RequestPayloadError:
            raise BodyIncomplete from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def left_unread(self) -> bool:
        """Whether part of its body is unread, which cannot be told from the next request."""
        return self.can_read_body and not self.content.is_eof()

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)


class Headers:
    """The connections with an unfinished header, the oldest first."""

    def __init__(self, limits: HeaderLimits) -> None:
        self.limits = limits
        self._unfinished: dict[Connection, float] = {}
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, connection: Connection) -> None:
        """A header begins, or a connection that waits for its first header."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.limits.seconds
        self._unfinished[connection] = deadline
        if self._timer is None:
            self._timer = loop.call_at(deadline, self._expire, loop)

    def grow(self, connection: Connection, size: int) -> None:
        """A part of a header has arrived."""
        if connection not in self._unfinished:
            self.begin(connection)
        connection.header_bytes += size
        self._bytes += size
        if connection.header_bytes > self.limits.size:
            connection.refuse(TOO_LARGE)
        while self._bytes > self.limits.together:
            next(request for request in self._unfinished if request.header_bytes).refuse()

    def end(self, connection: Connection) -> None:
        """A header is complete, or its connection has ended."""
        if self._unfinished.pop(connection, None) is not None:
            self._bytes -= connection.header_bytes
            connection.header_bytes = 0

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for connection, deadline in list(self._unfinished.items()):
            if deadline > now:
                self._timer = loop.call_at(deadline, self._expire, loop)
                return
            connection.refuse()


class Connection(web.RequestHandler):
    """One connection of a client."""

    def __init__(self, manager: Connections, **options: Any) -> None:
        super().__init__(manager, **options)
        self._headers = manager.headers
        self._newest: StreamReader = EMPTY_PAYLOAD
        self._answered = 0
        self._since = self._loop.time()
        self.header_bytes = 0
        """Bytes received of the unfinished header."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The time of the first header begins."""
        super().connection_made(transport)
        self._headers.begin(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Nothing is awaited any more."""
        self._headers.end(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Part of a header or of a body, or the end of either."""
        before = self._request_count
        in_body = not self._newest.is_eof()
        super().data_received(data)
        if self._request_count != before:
            self._since = self._loop.time()
            if self._messages:
                self._newest = self._messages[-1][1]
            self._headers.end(self)
        elif data and not in_body:
            self._headers.grow(self, len(data))

    async def finish_response(self, *arguments: Any) -> tuple[web.StreamResponse, bool]:
        """A request was answered."""
        try:
            return await super().finish_response(*arguments)
        finally:
            self._answered += 1

    def waiting(self, now: float) -> float | None:
        """For how long the client has let us wait; None if it is our turn, or not slow yet.

        Between two requests it may be closed at any time, inside of one only if that is ``SLOW``.
        """
        unanswered = self._request_count - self._answered
        if unanswered > 1 or (unanswered and self._newest.is_eof()):
            return None
        seconds = now - self._since
        idle = self._request_count and not unanswered and not self.header_bytes
        return seconds if idle or seconds >= SLOW else None

    def refuse(self, answer: bytes = b"") -> None:
        """Close the connection, with an answer if no other is being sent."""
        self._headers.end(self)
        transport = self.transport
        if transport is not None:
            if answer and not self._request_in_progress:
                transport.write(answer)
            transport.abort()
