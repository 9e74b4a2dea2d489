"""What answers for the pods: one process for all of them.

Every port of every pod is a socket of its own, at the pod's address in the namespace of its node.
So the kernel refuses what no pod offers, and answers come from the address that was called. Over
HTTP the answer is a page; any other line over TCP, or datagram over UDP, is answered by a line.

Bounded: a connection that is silent for ``IDLE`` seconds is ended, and so is one that sends a line
without end.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, cast

from zonewise.embedded.network.plan import PodPort
from zonewise.proxy.netlink import NetworkNamespace
from zonewise.runtime.process.logs import logger

IDLE = 60.0
_LINE_LIMIT = 1 << 16
_REQUEST = re.compile(rb"(?P<method>[A-Z]+) \S+ HTTP/1\.[01]\r?\n")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_SCTP = 132

_log = logger("network")

EchoKey = tuple[NetworkNamespace, PodPort]


class _Answer:
    """The answer at one port, which may change while it is open."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.connections: set[asyncio.Transport] = set()
        self.close: Callable[[], None] = lambda: None

    def to(self, peer: Any) -> bytes:
        """The line for a client."""
        return f"{self.text}, asked by {peer[0]}\n".encode()

    def end(self) -> None:
        """Stop answering."""
        self.close()
        for transport in tuple(self.connections):
            transport.abort()


class Echo:
    """All ports that are open."""

    def __init__(self) -> None:
        self._open: dict[EchoKey, _Answer] = {}

    async def apply(self, wanted: Mapping[EchoKey, str]) -> None:
        """Answer at these ports, with these texts, and at no other."""
        for place in [place for place in self._open if place not in wanted]:
            self._open.pop(place).end()
        for place, text in wanted.items():
            known = self._open.get(place)
            if known is not None:
                known.text = text
                continue
            answer = _Answer(text)
            try:
                await _listen(*place, answer)
            except OSError as error:
                # Two pods of the host's network use one port, or the kernel has no SCTP.
                _log.info("a pod cannot listen", pod=text, port=place[1].port, error=str(error))
                continue
            self._open[place] = answer

    def close(self) -> None:
        """Stop answering."""
        for answer in self._open.values():
            answer.end()
        self._open.clear()


async def _listen(namespace: NetworkNamespace, at: PodPort, answer: _Answer) -> None:
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in at.address else socket.AF_INET
    kind = socket.SOCK_DGRAM if at.protocol == "UDP" else socket.SOCK_STREAM
    with namespace.entered():
        made = socket.socket(family, kind, _SCTP if at.protocol == "SCTP" else 0)
    try:
        made.setblocking(False)
        if kind == socket.SOCK_STREAM:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((at.address, at.port))
        if kind == socket.SOCK_DGRAM:
            transport, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(answer), sock=made
            )
            answer.close = transport.close
        else:
            server = await loop.create_server(lambda: _Connection(answer), sock=made, backlog=1000)
            answer.close = server.close
    except BaseException:
        made.close()
        raise


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self._transport is not None:
            self._transport.sendto(self._answer.to(addr), addr)

    def error_received(self, exc: Exception) -> None:
        """The client did not wait for the answer."""


class _Connection(asyncio.Protocol):
    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._transport: asyncio.Transport | None = None
        self._held = b""
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._answer.connections.add(self._transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._answer.connections.discard(self._transport)
        if self._limit is not None:
            self._limit.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._wait()
        self._held += data
        request = _REQUEST.match(self._held)
        if request is not None:
            if _END_OF_HEAD.search(self._held):
                self._page(with_body=request["method"] != b"HEAD")
        else:
            *lines, self._held = self._held.split(b"\n")
            for _ in lines:
                self._transport.write(self._line())
        if len(self._held) > _LINE_LIMIT:
            self._transport.abort()

    def _wait(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        assert self._transport is not None
        self._limit = asyncio.get_running_loop().call_later(IDLE, self._transport.abort)

    def _line(self) -> bytes:
        assert self._transport is not None
        return self._answer.to(self._transport.get_extra_info("peername"))

    def _page(self, *, with_body: bool) -> None:
        assert self._transport is not None
        line = self._line()
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(line)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (line if with_body else b""))
        self._held = b""
        self._transport.close()
