"""A proxy in front of an API server that injects faults chosen by the test.

Clients speak plain HTTP to it; it speaks TLS to the server. Every request is recorded with its
time, so that a test can count requests as the server receives them. One fault is in force at a
time, and running streams can be cut or frozen at any moment.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self
from urllib.parse import parse_qs, urlsplit

Fault = Literal[
    "none", "refuse", "cut", "429", "500", "410", "too old", "silent", "trickle", "ended"
]

EXPIRED = (
    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},'
    b'"status":"Failure","message":"too old resource version: 1 (2)","reason":"Expired",'
    b'"code":410}}\n'
)
REASONS = {"429": "TooManyRequests", "500": "InternalError", "410": "Expired"}
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Seen:
    """A request and when it came."""

    at: float
    target: str

    @property
    def watching(self) -> bool:
        return "watch" in parse_qs(urlsplit(self.target).query)


class Relay:
    """One request on its way through."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.frozen = asyncio.Event()

    def abort(self) -> None:
        transport = self.client.transport
        assert isinstance(transport, asyncio.WriteTransport)
        transport.abort()


class BreakingProxy:
    """Listens on a free port of the loopback; use it with ``async with``."""

    def __init__(self, port: int, context: ssl.SSLContext, *, seed: int = 0) -> None:
        self.fault: Fault = "none"
        self.seen: list[Seen] = []
        self._upstream = port
        self._context = context
        self._rng = random.Random(seed)
        self._relays: set[Relay] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Break every connection that is open now."""
        for relay in tuple(self._relays):
            relay.abort()

    def freeze(self) -> None:
        """Forward nothing more on open connections, and close none of them: half-open sockets."""
        for relay in self._relays:
            relay.frozen.set()

    def within(self, seconds: float, *, before: float) -> int:
        """How many requests came in the seconds before a moment."""
        return sum(before - seconds <= seen.at < before for seen in self.seen)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        relay = Relay(writer)
        self._relays.add(relay)
        try:
            while await self._handle_request(relay, reader, writer):
                pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._relays.discard(relay)
            self._tasks.discard(task)
            relay.abort()

    async def _handle_request(
        self, relay: Relay, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Handle a request; returns whether the connection can take another."""
        head = await reader.readuntil(b"\r\n\r\n")
        seen = Seen(time.monotonic(), head.split(b" ")[1].decode())
        self.seen.append(seen)
        fault = self.fault
        if fault == "refuse":
            return False
        if fault in REASONS:
            writer.write(refusal(fault))
            await writer.drain()
            return True
        if seen.watching and fault in ("too old", "ended"):
            body = chunk(EXPIRED) if fault == "too old" else b""
            writer.write(STREAM + body + b"0\r\n\r\n")
            await writer.drain()
            return True
        if fault == "silent":
            await asyncio.Event().wait()
        await self._forward(relay, head, writer, fault)
        return False

    async def _forward(
        self, relay: Relay, head: bytes, writer: asyncio.StreamWriter, fault: Fault
    ) -> None:
        upstream, upstream_writer = await asyncio.open_connection(
            "127.0.0.1", self._upstream, ssl=self._context
        )
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection")]
        upstream_writer.write(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]))
        left = self._rng.randrange(20_000) if fault == "cut" else -1
        patience = self._rng.uniform(0.0, 0.5) if fault == "cut" else None
        try:
            while block := await asyncio.wait_for(upstream.read(1 << 16), patience):
                if relay.frozen.is_set():
                    await asyncio.Event().wait()
                if fault == "trickle":
                    for start in range(0, len(block), 200):
                        writer.write(block[start : start + 200])
                        await writer.drain()
                        await asyncio.sleep(0.02)
                    continue
                if left >= 0:
                    writer.write(block[:left])
                    left -= len(block)
                    if left < 0:
                        return
                    continue
                writer.write(block)
                await writer.drain()
            writer.write_eof()
        finally:
            with suppress(OSError):
                upstream_writer.close()


def refusal(code: str) -> bytes:
    body = (
        f'{{"kind":"Status","apiVersion":"v1","status":"Failure","message":"injected {code}",'
        f'"reason":"{REASONS[code]}","code":{code}}}'
    ).encode()
    pause = b"Retry-After: 1\r\n" if code == "429" else b""
    return (
        (
            f"HTTP/1.1 {code} Injected\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n"
        ).encode()
        + pause
        + b"\r\n"
        + body
    )


def chunk(line: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(line), line)
