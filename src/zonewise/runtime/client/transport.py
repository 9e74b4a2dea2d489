"""How a request reaches an API server and its answer comes back.

``Transport`` is what the client is written against; ``HttpsTransport`` is the one for clusters and
other processes. It owns one aiohttp session, thus one connection pool without a limit: every watch
holds a connection, and the client's rate limit bounds the requests that run at a time.

Credentials are read before each request. A 401 makes the transport renew them once and send the
request a second time if there are new ones; nothing else is retried here, because only the caller
can decide whether a write that got no answer may be repeated.

``timeout`` covers connecting, sending and reading a whole body. A stream that is read in chunks may
stay open forever once its headers have arrived; TCP keepalive detects dead peers, and the caller
bounds silence. Bodies that are read as a whole are bounded by ``body_limit``.

Redirects are followed within the same server for reads only: credentials are never sent to a host
that the configuration does not name. Answers that no API server gives, such as a login page, become
``ProtocolError``; everything below HTTP becomes ``ConnectionFailed``. Neither shows a secret.
"""

from __future__ import annotations

import asyncio
import platform
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from types import SimpleNamespace
from typing import Protocol
from urllib.parse import quote, urlencode, urljoin, urlsplit

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from zonewise.api.errors import ConnectionFailed, ProtocolError
from zonewise.runtime.client.failure import explain
from zonewise.runtime.config.cluster import ClusterConfig
from zonewise.runtime.config.credentials import Credential
from zonewise.runtime.config.egress import is_loopback
from zonewise.runtime.config.tls import TlsContexts

REQUEST_TIMEOUT = 30.0
CONNECT_TIMEOUT = 10.0
BODY_LIMIT = 1 << 30
READ_BUFFER = 1 << 20
HEADER_LIMIT = 1 << 16
REDIRECTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request. ``path`` starts with a slash and is not yet percent-encoded.

    ``timeout`` is in seconds: None is the transport's own, 0 is no limit. ``fence`` is called each
    time just before the bytes are sent, after everything that may take long; it raises to stop
    them.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = field(default=None, repr=False)
    timeout: float | None = None
    stream: bool = False
    fence: Callable[[], None] | None = field(default=None, repr=False)


class Response(Protocol):
    """An answer whose body is still to be read. The caller closes it."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; names are found in any case."""
        ...

    async def read(self) -> bytes:
        """The whole body."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, in blocks of any size; ends when the server ends it."""
        ...

    async def close(self) -> None:
        """Give the connection back, or end it if the body was not read to its end."""
        ...


class Transport(Protocol):
    """A way to an API server."""

    async def send(self, request: Request) -> Response:
        """Send a request and wait for the head of its answer."""
        ...

    async def close(self) -> None:
        """End every connection."""
        ...


class HttpsTransport:
    """The way to an API server over the network."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        request_timeout: float = REQUEST_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        body_limit: int = BODY_LIMIT,
    ) -> None:
        self._config = config
        self._base = config.server.rstrip("/")
        self._request_timeout = request_timeout
        self._connect_timeout = connect_timeout
        self._body_limit = body_limit
        self._tls = TlsContexts(config.trust, origin=config.origin or config.server)
        near = is_loopback(urlsplit(config.server).hostname or "")
        self._compress = config.compression and not near
        self._act_as = config.impersonation.headers() if config.impersonation else ()
        self._session: aiohttp.ClientSession | None = None

    async def send(self, request: Request) -> Response:
        """Send a request, with new credentials a second time if the first are rejected."""
        credentials = self._config.credentials
        credential = await credentials.current()
        response = await self._follow(request, credential)
        try:
            renewed = await credentials.renew(credential) if response.status == 401 else None
            if renewed is not None:
                await response.close()
                response = await self._follow(request, renewed)
            _judge(response, self._base)
        except BaseException:
            await response.close()
            raise
        return response

    async def close(self) -> None:
        """End every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def accept_encoding(self, *, stream: bool) -> str:
        """What we let the server send: nothing compressed on the loopback or in a stream.

        There, packing and unpacking cost more than the bytes they save.
        """
        return "gzip" if self._compress and not stream else "identity"

    async def _follow(self, request: Request, credential: Credential) -> HttpsResponse:
        url = self._base + quote(request.path, safe="/:@!$&'()*+,;=~")
        if request.query:
            url += "?" + urlencode(request.query)
        seconds = self._request_timeout if request.timeout is None else request.timeout
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds if seconds > 0 else None
        response = await self._once(request, credential, url, deadline, seconds)
        for _ in range(REDIRECTS):
            target = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or not target:
                break
            target = urljoin(url, target)
            if request.method not in ("GET", "HEAD") or not _same_server(target, self._base):
                break
            await response.close()
            url = target
            response = await self._once(request, credential, url, deadline, seconds)
        return response

    async def _once(
        self,
        request: Request,
        credential: Credential,
        url: str,
        deadline: float | None,
        seconds: float,
    ) -> HttpsResponse:
        if self._session is None:
            self._session = self._connect()
        headers = CIMultiDict(request.headers)
        headers.extend(self._act_as)
        headers.setdefault("Accept", "application/json")
        headers["Accept-Encoding"] = self.accept_encoding(stream=request.stream)
        if credential.authorization is not None:
            headers["Authorization"] = credential.authorization
        secure = self._base.startswith("https:")
        try:
            async with asyncio.timeout_at(deadline):
                raw = await self._session.request(
                    request.method,
                    URL(url, encoded=True),
                    headers=headers,
                    data=request.body,
                    allow_redirects=False,
                    ssl=self._tls.get(credential.certificate) if secure else True,
                    server_hostname=self._config.trust.server_name,
                    proxy=self._config.proxy,
                    trace_request_ctx=request.fence,
                )
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            slow = isinstance(error, aiohttp.ServerTimeoutError)
            limit = self._connect_timeout if slow else seconds
            raise explain(error, self._config, seconds=limit) from error
        return HttpsResponse(
            raw, config=self._config, deadline=deadline, seconds=seconds, limit=self._body_limit
        )

    def _connect(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, socket_factory=keepalive_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout),
            headers={"User-Agent": _user_agent()},
            read_bufsize=READ_BUFFER,
            max_field_size=HEADER_LIMIT,
            trace_configs=[_fencing()],
        )


class HttpsResponse:
    """An answer over a socket."""

    def __init__(
        self,
        raw: aiohttp.ClientResponse,
        *,
        config: ClusterConfig,
        deadline: float | None,
        seconds: float,
        limit: int,
    ) -> None:
        self.status = raw.status
        self.headers: Mapping[str, str] = raw.headers
        self._raw = raw
        self._config = config
        self._deadline = deadline
        self._seconds = seconds
        self._limit = limit

    async def read(self) -> bytes:
        """The whole body; one that is larger than the limit is refused."""
        blocks: list[bytes] = []
        size = 0
        content = self._raw.content
        try:
            async with asyncio.timeout_at(self._deadline):
                while block := await content.readany():
                    size += len(block)
                    if size > self._limit:
                        self._raw.close()
                        raise ProtocolError(
                            f"{self._config.server} sent more than {self._limit >> 20} MiB "
                            "in one answer; ask for smaller pages"
                        )
                    blocks.append(block)
        except (aiohttp.ClientError, OSError) as error:
            raise explain(error, self._config, seconds=self._seconds) from error
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        return _Chunks(self._raw.content, self._config)

    async def close(self) -> None:
        """Release the connection, or abort it if the body is not complete.

        A connection that is ended is aborted: a TLS close would wait for a peer that may be dead.
        """
        connection = self._raw.connection
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self._raw.close()


class _Chunks:
    def __init__(self, content: aiohttp.StreamReader, config: ClusterConfig) -> None:
        self._readany = content.readany
        self._config = config

    def __aiter__(self) -> _Chunks:
        return self

    async def __anext__(self) -> bytes:
        try:
            block = await self._readany()
        except (aiohttp.ClientError, OSError) as error:
            raise explain(error, self._config) from error
        if not block:
            raise StopAsyncIteration
        return block


def _judge(response: Response, server: str) -> None:
    """Refuse what no API server can have sent."""
    status = response.status
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if 300 <= status < 400 and status != 304:
        target = urlsplit(response.headers.get("Location", ""))
        location = f"{target.scheme}://{target.hostname}" if target.hostname else "another page"
        raise ProtocolError(
            f"{server} is not a Kubernetes API server: it redirects to {location}; "
            "check the server address in the kubeconfig"
        )
    if kind == "text/html" and status in (502, 503, 504):
        raise ConnectionFailed(
            f"a gateway in front of {server} answered {status} with a web page; "
            "the API server behind it may be down, try again later"
        )
    if kind == "text/html" and status != 413:
        raise ProtocolError(
            f"{server} is not a Kubernetes API server: it answered {status} with a web page; "
            "check the server address in the kubeconfig"
        )


def _fencing() -> aiohttp.TraceConfig:
    """Calls a request's fence when it has its connection and has not written to it."""

    async def ask(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx()

    config = aiohttp.TraceConfig()
    config.on_request_headers_sent.append(ask)
    return config


def _same_server(url: str, base: str) -> bool:
    ours, theirs = urlsplit(base), urlsplit(url)
    return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)


def _user_agent() -> str:
    return f"zonewise/{version('zonewise')} ({platform.system()}/{platform.machine()})".lower()


def keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that finds out within a minute that its peer has vanished."""
    family, kind, protocol, _, _ = address
    created = socket.socket(family, kind, protocol)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            created.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    return created
