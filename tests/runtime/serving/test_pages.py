"""Pages on a plain port: requests are answered, and unfinished ones time out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from aiohttp import web

from zonewise.runtime.serving.connection import HeaderLimits, HttpRequest
from zonewise.runtime.serving.pages import page_server

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def page(request: HttpRequest) -> web.Response:
    """A page that answers 200."""
    return web.Response(text=request.query_string)


@asynccontextmanager
async def port(limits: HeaderLimits) -> AsyncIterator[int]:
    """A server with one page."""
    runner = await page_server({"/page": page}, headers=limits)
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


async def connect(stack: AsyncExitStack, number: int) -> Link:
    link = await asyncio.open_connection("127.0.0.1", number)
    stack.callback(link[1].transport.abort)
    return link


async def first_line(link: Link, request: bytes) -> bytes:
    """The first line of the answer to a request."""
    link[1].write(request)
    return await link[0].readline()


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (b"GET /page?a HTTP/1.1\r\nHost: h\r\n\r\n", b"HTTP/1.1 200 "),
        (b"HEAD /page HTTP/1.1\r\nHost: h\r\n\r\n", b"HTTP/1.1 200 "),
        (b"GET /other HTTP/1.1\r\nHost: h\r\n\r\n", b"HTTP/1.1 404 "),
        (b"POST /page HTTP/1.1\r\nHost: h\r\nContent-Length: 99\r\n\r\n", b"HTTP/1.1 405 "),
        (b"GET / HTTP/1.1\r\n" + b"A: %b\r\n" % (b"x" * 4000) * 5, b"HTTP/1.1 431 "),
    ],
)
async def test_requests_are_answered_by_their_header(request_: bytes, answer: bytes) -> None:
    """A page can only be read; a body is not waited for, and a long header is refused."""
    async with port(HeaderLimits(size=16_000)) as number, AsyncExitStack() as stack:
        link = await connect(stack, number)
        assert (await first_line(link, request_)).startswith(answer)


@pytest.mark.parametrize("beginning", [b"", b"GET /page HTTP/1.1\r\nHost: h\r\n"])
async def test_requests_that_never_finish_are_disconnected(beginning: bytes) -> None:
    """Of 150 connections that begin a request and never finish it, none stays open."""
    async with port(HeaderLimits(seconds=1.0)) as number, AsyncExitStack() as stack:
        links = [await connect(stack, number) for _ in range(150)]
        for _, writer in links:
            writer.write(beginning)
        for reader, _ in links:
            with suppress(ConnectionError):
                assert await reader.read() == b""
