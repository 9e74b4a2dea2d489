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
from asyncio.sslproto import SSLProtocol
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import unquote

import structlog
from aiohttp import HttpVersion10, web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict, CIMultiDictProxy

from zonewise.api.errors import ApiError
from zonewise.embedded import refusals
from zonewise.embedded.call import Answer, Call, Impersonation, User, answer_error, parse_query

BODY_LIMIT = 3 * 1024 * 1024
LINE_LIMIT = 64 * 1024
HEADER_LIMIT = 64 * 1024
LARGE = 512 * 1024
SLICE = 128 * 1024

Authenticate = Callable[[str, "bytes | None"], User]
"""Authorization header and client certificate (DER) -> who calls, or 401."""

_AS = "Impersonate-User"
_AS_EXTRA = "impersonate-extra-"

Handle = Callable[[Call], Awaitable[Answer]]

_log = structlog.get_logger(__name__)


def _own_fault(record: logging.LogRecord) -> bool:
    """Whether a failure is the server's; what strangers send must not fill the log."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_quiet = logging.getLogger(__name__)
_quiet.addFilter(_own_fault)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be under way at once."""

    reads: int = 400
    writes: int = 200
    watches: int = 10_000
    body_seconds: float = 60.0


class Encryption(SSLProtocol):
    """TLS for one connection.

    asyncio gives each a buffer of 256 KiB to receive into, all of it touched. Requests are small,
    and thousands of watchers never send a second one.
    """

    max_size = 8 * 1024


class HttpServer:
    """Serves calls until it is closed."""

    def __init__(
        self, handle: Handle, authenticate: Authenticate, tls: ssl.SSLContext, limits: Limits
    ) -> None:
        self._handle = handle
        self._authenticate = authenticate
        self._tls = tls
        self._limits = limits
        self._reads = 0
        self._writes = 0
        self._watches = 0
        self._framed = (b"", b"")
        self._listener: asyncio.Server | None = None
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; the port that was bound."""
        server = web.Server(
            self._serve,
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
        loop = asyncio.get_running_loop()

        def connected() -> Encryption:
            waiter = loop.create_future()
            waiter.add_done_callback(_told)
            return Encryption(loop, server(), self._tls, waiter, server_side=True)

        self._listener = await loop.create_server(connected, host, port, backlog=1024)
        return int(self._listener.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop taking requests, end the watches, let the rest finish shortly."""
        if self._listener:
            self._listener.close()
            self._listener = None
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except ApiError as error:
            response = _response(answer_error(error))
            if request.can_read_body and not request.content.is_eof():
                # What was not read cannot be told from the next request: say that this is the end.
                response.force_close()
            return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        user = self._authenticate(headers.get("authorization", ""), _certificate(request))
        path, _, query = request.raw_path.partition("?")
        if not path.startswith("/") or request.version < HttpVersion10:
            raise refusals.bad_request("this is not a request that HTTP/1.1 allows")
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
            # Before a place is taken: who sends slowly must not keep others from being served.
            call.body = await self._body(request)
        writing = request.method not in {"GET", "HEAD", "OPTIONS"}
        if (self._writes if writing else self._reads) >= (
            self._limits.writes if writing else self._limits.reads
        ):
            raise refusals.too_many_requests("too many requests, please try again later")
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
        if len(answer.body) > LARGE and request.method == "GET":
            return await self._slices(request, answer)
        return _response(answer)

    async def _body(self, request: web.BaseRequest) -> bytes:
        length = request.content_length
        if length is not None and length > BODY_LIMIT:
            raise refusals.too_large(BODY_LIMIT)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for part in request.content.iter_any():
                    size += len(part)
                    if size > BODY_LIMIT:
                        raise refusals.too_large(BODY_LIMIT)
                    parts.append(part)
        except TimeoutError:
            raise refusals.bad_request("the body did not arrive in time") from None
        except web.RequestPayloadError:
            raise refusals.bad_request("the body is not what its headers announced") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _watch(self, request: web.BaseRequest, call: Call) -> web.StreamResponse:
        if self._watches >= self._limits.watches:
            raise refusals.too_many_requests("too many watches, please try again later")
        self._watches += 1
        try:
            answer = await self._handle(call)
            if answer.stream is None:
                return _response(answer)
            response = web.StreamResponse(status=answer.status, headers=_headers(answer))
            response.enable_chunked_encoding()
            try:
                await response.prepare(request)
                if request.transport is not None:
                    if answer.on_end:
                        answer.on_end(request.transport.abort)
                    if answer.push_to:
                        answer.push_to(self._sink(request.transport))
                async for part in answer.stream:
                    await response.write(part)
                await response.write_eof()
            except ConnectionError:
                pass  # the watcher left; its generator is closed below
            finally:
                await answer.stream.aclose()
            return response
        finally:
            self._watches -= 1

    async def _slices(self, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
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

    def _sink(self, transport: asyncio.Transport) -> Callable[[bytes], bool]:
        """Writes frames of a watch past the task that waits for them, while the reader keeps up.

        What does not fit the socket is declined: then the task writes, and waits.
        """

        def sink(part: bytes) -> bool:
            if transport.is_closing() or transport.get_write_buffer_size():
                return False
            if part is not self._framed[0]:  # the same for all watchers of a representation
                self._framed = (part, b"%x\r\n%b\r\n" % (len(part), part))
            transport.write(self._framed[1])
            return True

        return sink


def _told(waiter: asyncio.Future[None]) -> None:
    """A handshake that failed concerns nobody here: the connection is gone."""
    if not waiter.cancelled():
        waiter.exception()


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


def _certificate(request: web.BaseRequest) -> bytes | None:
    transport = request.transport
    if transport is None:
        return None
    connection = transport.get_extra_info("ssl_object")
    return connection.getpeercert(binary_form=True) if connection else None


def _impersonation(headers: CIMultiDictProxy[str]) -> Impersonation:
    extra: dict[str, list[str]] = {}
    for name, value in headers.items():
        if name.lower().startswith(_AS_EXTRA):
            key = unquote(name[len(_AS_EXTRA) :].lower())
            extra.setdefault(key, []).append(value)
    return Impersonation(
        user=headers[_AS],
        groups=tuple(headers.getall("Impersonate-Group", ())),
        uid=headers.get("Impersonate-Uid", ""),
        extra=tuple(sorted((key, tuple(values)) for key, values in extra.items())),
    )
