"""The API over HTTPS.

One aiohttp server without its router: a handler converts a request to a ``Call``, and an ``Answer``
to a response. It has the limits that protect the process from clients: sizes of line, headers and
body, numbers of concurrent reads, writes and watches, how long a body may take to arrive.

A watch is the only answer that streams. Its writes wait for the socket, so a reader that stops
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
from zonewise.embedded.apiserver.http.compression import Compressor, format_body
from zonewise.embedded.apiserver.http.unread import UnreadBytes
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import (
    Answer,
    Call,
    ImpersonatedUser,
    User,
    answer_error,
    parse_query,
)
from zonewise.runtime.serving.connection import (
    BodyIncomplete,
    BodyTooLarge,
    HeaderLimits,
    HttpRequest,
)
from zonewise.runtime.serving.https_server import ConnectionLimits, HttpsServer
from zonewise.runtime.serving.listener import ENCRYPTION, Encryption

BODY_LIMIT = 3 * 1024 * 1024
LINE_LIMIT = 64 * 1024
HEADER_LIMIT = 64 * 1024
SLICE_BYTES = 128 * 1024
"""Bytes encrypted at once; a connection keeps the memory of the most it ever encrypted."""
EVENT_BYTES = 80 * 1024
"""The same for a watch, of which there may be thousands: a chunk of events, and some more."""
COMPRESS_ABOVE = 128 * 1024
"""Answers to reads that are larger are compressed, as by a real server."""

Authenticate = Callable[[str, "bytes | None"], User]
"""Authorization header and client certificate (DER) -> the user, or 401."""

_IMPERSONATE_USER = "Impersonate-User"
_IMPERSONATE_EXTRA = "impersonate-extra-"

Handle = Callable[[Call], Awaitable[Answer]]


def _is_server_error(record: logging.LogRecord) -> bool:
    """Whether a failure is the server's; malformed requests must not fill the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_logger = logging.getLogger(__name__)
_logger.addFilter(_is_server_error)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """Limits of concurrent requests and connections."""

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
        self._limits = limits
        self._reads = 0
        self._writes = 0
        self._watches = 0
        self._last_frame = (b"", 0, b"")
        self._unread = UnreadBytes(limits.unread_bytes)
        self._compressor = Compressor()
        self._server = HttpsServer(
            self._serve,
            tls,
            ConnectionLimits(connections=limits.connections, headers=limits.headers),
            shutdown_seconds=2.0,
            max_line_size=LINE_LIMIT,
            max_field_size=HEADER_LIMIT,
            keepalive_timeout=180.0,
            tcp_keepalive=True,
            handler_cancellation=True,
            logger=_logger,
        )

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; returns the port."""
        return await self._server.start(host, port)

    async def close(self) -> None:
        """Stop accepting requests, end the watches, let the rest finish shortly."""
        await self._server.close()

    async def _serve(self, request: HttpRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as error:
            _, _, query = request.raw_path.partition("?")
            answer = answer_error(error)
            format_body(answer, query, request.headers.get("User-Agent", ""))
            response = _build_response(answer)
            if request.left_unread():
                response.force_close()
            return response

    async def _answer(self, request: HttpRequest) -> web.StreamResponse:
        headers: dict[str, str] = {}
        for name, value in request.headers.items():
            headers.setdefault(name.lower(), value)  # the first counts, as in Go
        user = self._authenticate(headers.get("authorization", ""), _client_certificate(request))
        path, _, query = request.raw_path.partition("?")
        if not path.startswith("/") or request.version < HttpVersion10:
            raise status_errors.bad_request("this is not a request that HTTP/1.1 allows")
        call = Call(
            method=request.method,
            path=path,
            user=user,
            query=parse_query(query) if query else {},
            headers=headers,
            impersonate=_parse_impersonation(request.headers)
            if _IMPERSONATE_USER in request.headers
            else None,
        )
        if request.method == "GET" and (call.flag("watch") or "/watch/" in path):
            return await self._watch(request, call)
        if request.can_read_body:
            # Before it counts as running: a slow sender must not block others.
            call.body = await self._read_body(request)
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
        format_body(answer, query, headers.get("user-agent", ""))
        if len(answer.body) <= SLICE_BYTES:
            return _build_response(answer)
        if len(answer.body) > COMPRESS_ABOVE and request.method == "GET":
            await self._compressor.compress(answer, headers.get("accept-encoding", ""))
        return await self._send_slices(request, answer)

    async def _read_body(self, request: HttpRequest) -> bytes:
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await request.read_body(BODY_LIMIT)
        except BodyTooLarge as error:
            raise status_errors.too_large(error.limit) from None
        except TimeoutError:
            raise status_errors.bad_request("the body did not arrive in time") from None
        except BodyIncomplete as error:
            raise status_errors.bad_request(str(error)) from None

    async def _watch(self, request: HttpRequest, call: Call) -> web.StreamResponse:
        if self._watches >= self._limits.watches:
            raise status_errors.too_many_requests("too many watches, please try again later")
        self._watches += 1
        try:
            answer = await self._handle(call)
            if answer.stream is None:
                _, _, query = request.raw_path.partition("?")
                format_body(answer, query, call.headers.get("user-agent", ""))
                return _build_response(answer)
            return await self._stream(request, answer, answer.stream)
        finally:
            self._watches -= 1

    async def _stream(
        self, request: HttpRequest, answer: Answer, parts: AsyncGenerator[bytes, None]
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=_build_headers(answer))
        response.enable_chunked_encoding()
        transport = request.transport
        link: Encryption | None = transport.get_extra_info(ENCRYPTION) if transport else None
        try:
            if transport is None or link is None:
                raise ConnectionResetError
            transport.set_write_buffer_limits(high=EVENT_BYTES)
            await response.prepare(request)
            if answer.on_end:
                answer.on_end(transport.abort)
            if answer.push_to:
                answer.push_to(self._build_sink(transport, link))
            async for part in parts:
                for start in range(0, len(part), EVENT_BYTES):
                    if transport.is_closing():
                        raise ConnectionResetError
                    transport.write(self._frame(part, start))
                    self._unread.update(link)  # before the wait, which may not end
                    await request.writer.drain()
            await response.write_eof()
        except ConnectionError:
            pass  # the watcher left; its generator is closed below
        finally:
            if link is not None:
                self._unread.remove(link)
            await parts.aclose()
        return response

    async def _send_slices(self, request: HttpRequest, answer: Answer) -> web.StreamResponse:
        """Send a large body in slices, encrypted only as fast as it is read."""
        response = web.StreamResponse(status=answer.status, headers=_build_headers(answer))
        response.content_length = len(answer.body)
        body = memoryview(answer.body)
        try:
            await response.prepare(request)
            for start in range(0, len(body), SLICE_BYTES):
                await response.write(body[start : start + SLICE_BYTES])
            await response.write_eof()
        except ConnectionError:
            pass  # the reader left
        return response

    def _build_sink(
        self, transport: asyncio.Transport, link: Encryption
    ) -> Callable[[bytes], bool]:
        """A function that writes frames of a watch without its task, while the reader keeps up.

        It declines what does not fit into the socket: then the task writes, and waits.
        """

        def sink(part: bytes) -> bool:
            if len(part) > EVENT_BYTES or transport.is_closing() or self._unread.is_waiting(link):
                return False
            transport.write(self._frame(part, 0))
            self._unread.update(link)
            return True

        return sink

    def _frame(self, part: bytes, start: int) -> bytes:
        """A slice as a chunk of HTTP, the same bytes for all watchers that get it."""
        if part is not self._last_frame[0] or start != self._last_frame[1]:
            slice = part if len(part) <= EVENT_BYTES else part[start : start + EVENT_BYTES]
            self._last_frame = (part, start, b"%x\r\n%b\r\n" % (len(slice), slice))
        return self._last_frame[2]


def _build_response(answer: Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body, headers=_build_headers(answer))


def _build_headers(answer: Answer) -> CIMultiDict[str]:
    headers = CIMultiDict(
        {"Content-Type": answer.content_type, "Cache-Control": "no-cache, private"}
    )
    headers.update(answer.headers)
    for warning in answer.warnings:
        quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
        headers.add("Warning", f'299 - "{quoted}"')
    return headers


def _client_certificate(request: HttpRequest) -> bytes | None:
    transport = request.transport
    if transport is None:
        return None
    connection = transport.get_extra_info("ssl_object")
    return connection.getpeercert(binary_form=True) if connection else None


def _parse_impersonation(headers: CIMultiDictProxy[str]) -> ImpersonatedUser:
    extra: dict[str, list[str]] = {}
    for name, value in headers.items():
        if name.lower().startswith(_IMPERSONATE_EXTRA):
            key = unquote(name[len(_IMPERSONATE_EXTRA) :].lower())
            extra.setdefault(key, []).append(value)
    return ImpersonatedUser(
        user=headers[_IMPERSONATE_USER],
        groups=tuple(headers.getall("Impersonate-Group", ())),
        uid=headers.get("Impersonate-Uid", ""),
        extra=tuple(sorted((key, tuple(values)) for key, values in extra.items())),
    )
