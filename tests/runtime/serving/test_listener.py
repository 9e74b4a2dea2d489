"""Connections: how many are allowed, and what happens if their request does not arrive."""

from __future__ import annotations

import asyncio
import io
import json
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
import trustme
from aiohttp import web

from zonewise.runtime.process.logs import configure
from zonewise.runtime.serving import connection
from zonewise.runtime.serving import listener as listening
from zonewise.runtime.serving.connection import Connections, Handler, HeaderLimits
from zonewise.runtime.serving.listener import OWN_FILES, Listener

REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def answer(request: web.BaseRequest) -> web.StreamResponse:
    """Read the whole request and answer 200."""
    await request.read()
    return web.Response(text="done")


class RunningServer:
    """A running server, and its address."""

    def __init__(self, listener: Listener, port: int, trust: ssl.SSLContext) -> None:
        self.listener = listener
        self.port = port
        self.trust = trust

    async def connect(self, stack: AsyncExitStack, source: str = "127.0.0.1") -> Link:
        """A connection from an address of this machine that is closed with the test."""
        link = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.trust, local_addr=(source, 0)
        )
        stack.callback(link[1].transport.abort)
        return link


@asynccontextmanager
async def run_server(
    *,
    connections: int = 100,
    per_source: int | None = None,
    pause: float = 0.01,
    headers: HeaderLimits | None = None,
    handler: Handler = answer,
) -> AsyncIterator[RunningServer]:
    """A server on a free port."""
    authority = trustme.CA()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    server = Connections(handler, headers or HeaderLimits(), access_log=None)
    runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    listener = Listener(
        server,
        serving,
        connections=connections,
        handshake_seconds=1.0,
        per_source=per_source,
        pause=pause,
    )
    port = await listener.start("127.0.0.1", 0)
    try:
        yield RunningServer(listener, port, trust)
    finally:
        listener.close()
        await runner.cleanup()


async def served(link: Link, request: bytes = REQUEST) -> bytes:
    """The first line of the answer to a request."""
    link[1].write(request)
    line = await link[0].readline()
    while await link[0].readline() not in {b"\r\n", b""}:
        pass
    with suppress(asyncio.IncompleteReadError):
        await link[0].readexactly(len(b"done"))
    return line


async def test_connections_above_the_limit_wait(log: io.StringIO) -> None:
    """Above the limit no connection is accepted; when one is closed the next is served."""
    async with run_server(connections=3) as server, AsyncExitStack() as stack:
        links = [await server.connect(stack) for _ in range(3)]
        waiting = [asyncio.create_task(server.connect(stack)) for _ in range(2)]
        for _ in range(5):
            for link in links:
                assert (await served(link)).startswith(b"HTTP/1.1 200")
        assert server.listener.open == 3
        assert not any(task.done() for task in waiting)
        for link in links[:2]:
            link[1].close()
        for link in await asyncio.gather(*waiting):
            assert (await served(link)).startswith(b"HTTP/1.1 200")
    (line,) = map(json.loads, log.getvalue().splitlines())
    assert (line["connections"], line["limit"]) == (3, 3)


async def ended(link: Link) -> bool:
    """Whether a connection was closed."""
    with suppress(ConnectionError):
        return await link[0].read() == b""
    return True


async def test_a_client_cannot_hold_all_connections(log: io.StringIO) -> None:
    """Idle connections of the address with most are closed for those of another address, the one
    that is idle for longest first.
    """
    async with run_server(connections=20, per_source=15) as server, AsyncExitStack() as stack:
        modest = [await server.connect(stack, "127.0.0.2") for _ in range(5)]
        greedy = [await server.connect(stack) for _ in range(15)]
        for link in (*modest, *greedy):
            assert (await served(link)).startswith(b"HTTP/1.1 200")
        late = []
        for number in range(5):
            late.append(await server.connect(stack, "127.0.0.3"))
            assert (await served(late[-1])).startswith(b"HTTP/1.1 200")
            assert await ended(greedy[number])
        for link in (*modest, *late, *greedy[5:]):
            assert (await served(link)).startswith(b"HTTP/1.1 200")
        assert server.listener.open == 20
    (line,) = map(json.loads, log.getvalue().splitlines())
    assert line["source"] == "127.0.0.1"


async def test_an_address_has_a_limit_of_its_own() -> None:
    """Above its limit an address loses its longest idle connection, even if there is room."""
    async with run_server(connections=20, per_source=3) as server, AsyncExitStack() as stack:
        links = []
        for _ in range(5):
            links.append(await server.connect(stack))
            assert (await served(links[-1])).startswith(b"HTTP/1.1 200")
        assert await ended(links[0]) and await ended(links[1])
        assert server.listener.open == 3


async def test_requests_that_are_being_answered_are_never_cut_off() -> None:
    """All connections of an address may be busy, also above its limit; new ones wait."""
    released, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def busy(request: web.BaseRequest) -> web.StreamResponse:
        begun.release()
        await released.wait()
        return web.Response(text="done")

    async with (
        run_server(connections=6, per_source=2, handler=busy) as server,
        AsyncExitStack() as stack,
    ):
        links = []
        for _ in range(6):
            links.append(await server.connect(stack))
            links[-1][1].write(REQUEST)
            await begun.acquire()
        late = asyncio.create_task(server.connect(stack, "127.0.0.2"))
        await asyncio.wait([late], timeout=0.05)
        assert not late.done()
        released.set()
        for link in links:
            assert (await link[0].readline()).startswith(b"HTTP/1.1 200")
        assert (await served(await late)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "beginning", [b"", b"GET /", b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\na"]
)
async def test_slow_requests_make_room(beginning: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that does not arrive holds its connection for a short time only."""
    async with run_server(connections=3, per_source=3) as server, AsyncExitStack() as stack:
        slow = [await server.connect(stack) for _ in range(3)]
        for _, writer in slow:
            writer.write(beginning)
        late = asyncio.create_task(server.connect(stack, "127.0.0.2"))
        await asyncio.wait([late], timeout=0.05)
        assert not late.done(), "a moment is not slow"
        monkeypatch.setattr(connection, "SLOW", 0.0)
        monkeypatch.setattr(listening, "SLOW", 0.0)
        assert (await served(await late)).startswith(b"HTTP/1.1 200")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log of the program, as lines of JSON."""
    stream = io.StringIO()
    configure(format="json", stream=stream)
    yield stream
    configure()


@contextmanager
def no_files_left() -> Iterator[None]:
    """Use up all file descriptors of this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_without_descriptors_accepting_pauses(log: io.StringIO) -> None:
    """Without free descriptors there is one line in the log, and open connections are served."""
    async with run_server() as server, AsyncExitStack() as stack:
        link = await server.connect(stack)
        with socket.socket() as late:
            late.setblocking(False)
            with no_files_left():
                await asyncio.get_running_loop().sock_connect(late, ("127.0.0.1", server.port))
                while not log.getvalue():
                    assert (await served(link)).startswith(b"HTTP/1.1 200")
                for _ in range(100):
                    assert (await served(link)).startswith(b"HTTP/1.1 200")
        other = await server.connect(stack)
        assert (await served(other)).startswith(b"HTTP/1.1 200")
    (line,) = map(json.loads, log.getvalue().splitlines())
    assert line["connections"] == 1 and line["error"] == "Too many open files"


async def test_the_bound_is_below_the_limit_of_files() -> None:
    """Descriptors are left for what the program itself opens, whatever the limit is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with run_server(connections=1_000_000) as server:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
            assert server.listener.room == 1000 - OWN_FILES
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
            assert server.listener.room == 100
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "beginning", [b"", b"GET ", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: here\r\nA: b\r\n"]
)
async def test_a_header_that_does_not_end_ends_its_connection(beginning: bytes) -> None:
    """Of 150 connections that never finish a header, the first or a later one, none stays."""
    limits = HeaderLimits(seconds=1.0)
    async with run_server(connections=200, headers=limits) as server, AsyncExitStack() as stack:
        links = []
        for number in range(150):
            link = await server.connect(stack)
            if beginning and number % 2:
                assert (await served(link)).startswith(b"HTTP/1.1 200")
            link[1].write(beginning)
            links.append(link)
        for reader, _ in links:
            with suppress(ConnectionError):
                assert await reader.read() == b""


async def test_a_handshake_that_does_not_end_ends_its_connection() -> None:
    """A client that connects and sends nothing is disconnected."""
    async with run_server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_a_slow_body_is_not_a_slow_header() -> None:
    """The time limit is for the header; a body and an idle connection may take longer."""
    async with run_server(headers=HeaderLimits(seconds=0.2)) as server, AsyncExitStack() as stack:
        link = await server.connect(stack)
        link[1].write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 10\r\n\r\nabc")
        other = await server.connect(stack)
        assert await other[0].read() == b""  # by now the time is over
        assert (await served(link, b"defghij")).startswith(b"HTTP/1.1 200")
        other = await server.connect(stack)
        assert await other[0].read() == b""
        assert (await served(link)).startswith(b"HTTP/1.1 200")


async def test_headers_are_bounded_one_by_one() -> None:
    """Many short headers are refused once they are too long together."""
    limits = HeaderLimits(size=20_000)
    async with run_server(headers=limits) as server, AsyncExitStack() as stack:
        link = await server.connect(stack)
        link[1].write(REQUEST[:-2] + b"A: %b\r\n" % (b"x" * 4000) * 2 + b"\r\n")
        assert (await link[0].readline()).startswith(b"HTTP/1.1 200")
        other = await server.connect(stack)
        other[1].write(REQUEST[:-2] + b"A: %b\r\n" % (b"x" * 4000) * 8)
        assert (await other[0].readline()).startswith(b"HTTP/1.1 431 ")


async def test_headers_are_bounded_together() -> None:
    """If unfinished headers take too much memory, the oldest connections among them are closed."""
    limits = HeaderLimits(size=20_000, together=20_000)
    async with run_server(headers=limits) as server, AsyncExitStack() as stack:
        idle = await server.connect(stack)
        links = [await server.connect(stack) for _ in range(4)]
        for _, writer in links:
            writer.write(REQUEST[:-2] + b"A: %b\r\n" % (b"x" * 7000))
            await writer.drain()
            assert (await served(idle)).startswith(b"HTTP/1.1 200")
        for reader, _ in links[:2]:
            with suppress(ConnectionError):
                assert await reader.read() == b""
        for link in links[2:]:
            assert (await served(link, b"\r\n")).startswith(b"HTTP/1.1 200")
