"""The API over HTTPS.

One aiohttp server without its router: a handler turns a request into a ``Call``, and an ``Answer``
into a response. It holds the limits that keep strangers from hurting the process: sizes of line,
headers and body, how many requests are under way (reads and writes apart, watches on their own),
how long a body may take to arrive.

A watch is the one answer that streams. Its writes wait for the socket, so a reader that stops
reading stops its own watch; the watch's bounded queue then closes the stream.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import unquote

from aiohttp import HttpVersion10, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy

from zonewise.api.errors import ApiError
from zonewise.embedded.apiserver.http.compression import Packer, dress
from zonewise.embedded.apiserver.http.unread import Unread
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import (
    Answer,
    Call,
    ImpersonatedUser,
    User,
    answer_error,
    parse_query,
)
from zonewise.runtime.serving.connection import Connections, HeaderLimits, HttpRequest
from zonewise.runtime.serving.listener import ENCRYPTION, Encryption, Listener

BODY_LIMIT = 3 * 1024 * 1024
LINE_LIMIT = 64 * 1024
HEADER_LIMIT = 64 * 1024
SLICE = 128 * 1024
"""What is encrypted at once; a connection keeps the memory of the most it ever encrypted."""
EVENTS = 80 * 1024
"""The same for a watch, of which there may be thousands: a chunk of events, and a little more."""
COMPRESSED = 128 * 1024
"""A real server compresses answers to reads that are larger."""

Authenticate = Callable[[str, "bytes | None"], User]
"""Authorization header and client certificate (DER) -> the user, or 401."""

_AS = "Impersonate-User"
_AS_EXTRA = "impersonate-extra-"

Handle = Callable[[Call], Awaitable[Answer]]


def _own_fault(record: logging.LogRecord) -> bool:
    """Whether a failure is the server's; what strangers send must not fill the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_quiet = logging.getLogger(__name__)
_quiet.addFilter(_own_fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """How much may be under way at once."""

    reads: int = 400
    writes: int = 200
    watches: int = 10_000
    connections: int = 12_000
    unread_bytes: int = 64 * 1024 * 1024
    body_seconds: float = 60.0
    headers: HeaderLimits = field(default_factory=HeaderLimits)


class HttpServer:
    """Serves calls until it is closed."""

    def __init__(
        self, handle: Handle, authenticate: Authenticate, tls: ssl.SSLContext, limits: RequestLimits
    ) -> None:
        self._handle = handle
        self._authenticate = authenticate
        self._tls = tls
        self._limits = limits
        self._reads = 0
        self._writes = 0
        self._watches = 0
        self._framed = (b"", 0, b"")
        self._unread = Unread(limits.unread_bytes)
        self._packer = Packer()
        self._listener: Listener | None = None
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; the port that was bound."""
        server = Connections(
            self._serve,
            self._limits.headers,
            access_log=None,
            max_line_size=LINE_LIMIT,
            max_field_size=HEADER_LIMIT,
            keepalive_timeout=180.0,
            tcp_keepalive=True,
            lingering_time=0,
            handler_cancellation=True,
            auto_decompress=False,
            logger=_quiet,
        )
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=2.0)
        await self._runner.setup()
        self._listener = Listener(
            server,
            self._tls,
            connections=self._limits.connections,
            handshake_seconds=self._limits.headers.seconds,
        )
        try:
            return await self._listener.start(host, port)
        except OSError:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop taking requests, end the watches, let the rest finish shortly."""
        if self._listener:
            self._listener.close()
            self._listener = None
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: HttpRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as error:
            _, _, query = request.raw_path.partition("?")
            answer = answer_error(error)
            dress(answer, query, request.headers.get("User-Agent", ""))
            response = _response(answer)
            if request.left_unread():
                response.force_close()
            return response

    async def _answer(self, request: HttpRequest) -> web.StreamResponse:
        headers: dict[str, str] = {}
        for name, value in request.headers.items():
            headers.setdefault(name.lower(), value)  # the first wins, as with Go
        user = self._authenticate(headers.get("authorization", ""), _certificate(request))
        path, _, query = request.raw_path.partition("?")
        if not path.startswith("/") or request.version < HttpVersion10:
            raise status_errors.bad_request("this is not a request that HTTP/1.1 allows")
        call = Call(
            method=request.method,
            path=path,
            user=user,
            query=parse_query(query) if query else {},
            headers=headers,
            impersonate=_impersonation(request.headers) if _AS in request.headers else None,
        )
        if request.method == "GET" and (call.flag("watch") or "/watch/" in path):
            return await self._watch(request, call)
        if request.can_read_body:
            # Before a slot is taken: a slow sender must not keep others from being served.
            call.body = await self._body(request)
        writing = request.method not in {"GET", "HEAD", "OPTIONS"}
        if (self._writes if writing else self._reads) >= (
            self._limits.writes if writing else self._limits.reads
        ):
            raise status_errors.too_many_requests("too many requests, please try again later")
        if writing:
            self._writes += 1
        else:
            self._reads += 1
        try:
            answer = await self._handle(call)
        finally:
            if writing:
                self._writes -= 1
            else:
                self._reads -= 1
        dress(answer, query, headers.get("user-agent", ""))
        if len(answer.body) <= SLICE:
            return _response(answer)
        if len(answer.body) > COMPRESSED and request.method == "GET":
            await self._packer.pack(answer, headers.get("accept-encoding", ""))
        return await self._slices(request, answer)

    async def _body(self, request: HttpRequest) -> bytes:
        length = request.content_length
        if length is not None and length > BODY_LIMIT:
            raise status_errors.too_large(BODY_LIMIT)
        request.invite()
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for part in request.content.iter_any():
                    size += len(part)
                    if size > BODY_LIMIT:
                        raise status_errors.too_large(BODY_LIMIT)
                    parts.append(part)
        except TimeoutError:
            raise status_errors.bad_request("the body did not arrive in time") from None
        except web.RequestPayloadError:
            raise status_errors.bad_request("the body is not what its headers announced") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _watch(self, request: HttpRequest, call: Call) -> web.StreamResponse:
        if self._watches >= self._limits.watches:
            raise status_errors.too_many_requests("too many watches, please try again later")
        self._watches += 1
        try:
            answer = await self._handle(call)
            if answer.stream is None:
                _, _, query = request.raw_path.partition("?")
                dress(answer, query, call.headers.get("user-agent", ""))
                return _response(answer)
            return await self._stream(request, answer, answer.stream)
        finally:
            self._watches -= 1

    async def _stream(
        self, request: HttpRequest, answer: Answer, parts: AsyncGenerator[bytes, None]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=_headers(answer))
        response.enable_chunked_encoding()
        transport = request.transport
        link: Encryption | None = transport.get_extra_info(ENCRYPTION) if transport else None
        try:
            if transport is None or link is None:
                raise ConnectionResetError
            transport.set_write_buffer_limits(high=EVENTS)
            await response.prepare(request)
            if answer.on_end:
                answer.on_end(transport.abort)
            if answer.push_to:
                answer.push_to(self._sink(transport, link))
            async for part in parts:
                for start in range(0, len(part), EVENTS):
                    if transport.is_closing():
                        raise ConnectionResetError
                    transport.write(self._frame(part, start))
                    self._unread.look(link)  # before the wait, which may be endless
                    await request.writer.drain()
            await response.write_eof()
        except ConnectionError:
            pass  # the watcher left; its generator is closed below
        finally:
            if link is not None:
                self._unread.leave(link)
            await parts.aclose()
        return response

    async def _slices(self, request: HttpRequest, answer: Answer) -> web.StreamResponse:
        """A large body, encrypted only as fast as it is read: never all of it a second time."""
        response = web.StreamResponse(status=answer.status, headers=_headers(answer))
        response.content_length = len(answer.body)
        body = memoryview(answer.body)
        try:
            await response.prepare(request)
            for start in range(0, len(body), SLICE):
                await response.write(body[start : start + SLICE])
            await response.write_eof()
        except ConnectionError:
            pass  # the reader left
        return response

    def _sink(self, transport: asyncio.Transport, link: Encryption) -> Callable[[bytes], bool]:
        """Writes frames of a watch past the task that waits for them, while the reader keeps up.

        What does not fit the socket is declined: then the task writes, and waits.
        """

        def sink(part: bytes) -> bool:
            if len(part) > EVENTS or transport.is_closing() or self._unread.waits(link):
                return False
            transport.write(self._frame(part, 0))
            self._unread.look(link)
            return True

        return sink

    def _frame(self, part: bytes, start: int) -> bytes:
        """A slice of what is sent as a chunk of HTTP, the same for all watchers that get it."""
        if part is not self._framed[0] or start != self._framed[1]:
            piece = part if len(part) <= EVENTS else part[start : start + EVENTS]
            self._framed = (part, start, b"%x\r\n%b\r\n" % (len(piece), piece))
        return self._framed[2]


def _response(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers=_headers(answer))


def _headers(answer: Answer) -> CIMultiDict[str]:
    headers = CIMultiDict(
        {"Content-Type": answer.content_type, "Cache-Control": "no-cache, private"}
    )
    headers.update(answer.headers)
    for warning in answer.warnings:
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        headers.add("Warning", f'299 - "{quoted}"')
    return headers


def _certificate(request: HttpRequest) -> bytes | None:
    transport = request.transport
    if transport is None:
        return None
    connection = transport.get_extra_info("ssl_object")
    return connection.getpeercert(binary_form=True) if connection else None


def _impersonation(headers: CIMultiDictProxy[str]) -> ImpersonatedUser:
    extra: dict[str, list[str]] = {}
    for name, value in headers.items():
        if name.lower().startswith(_AS_EXTRA):
            key = unquote(name[len(_AS_EXTRA) :].lower())
            extra.setdefault(key, []).append(value)
    return ImpersonatedUser(
        user=headers[_AS],
        groups=tuple(headers.getall("Impersonate-Group", ())),
        uid=headers.get("Impersonate-Uid", ""),
        extra=tuple(sorted((key, tuple(values)) for key, values in extra.items())),
    )
