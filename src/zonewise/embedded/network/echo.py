"""Answers for the pods, in one process for all of them.

Every port of every pod is a socket of its own, at the pod's address in the namespace of its node.
So the kernel rejects connections to other ports, and answers come from the address that was called.
Over HTTP the answer is a page; any other line over TCP, or datagram over UDP, is answered by a
line.

Bounded: a connection that is silent for ``IDLE_SECONDS`` is closed, and so is one that sends a line
without end.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable, Mapping
from typing import Any, cast

from zonewise.embedded.network.plan import PodPort
from zonewise.proxy.netlink.namespace import NetworkNamespace
from zonewise.runtime.process.logs import logger

IDLE_SECONDS = 60.0
_LINE_LIMIT = 1 << 16
_REQUEST = re.compile(rb"(?P<method>[A-Z]+) \S+ HTTP/1\.[01]\r?\n")
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_SCTP = 132

_log = logger("network")

EchoKey = tuple[NetworkNamespace, PodPort]


class _PortAnswer:
    """The answer at one port, which may change while it is open."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.connections: set[asyncio.Transport] = set()
        self.close: Callable[[], None] = lambda: None

    def render(self, peer: Any) -> bytes:
        """The line for a client."""
        return f"{self.text}, asked by {peer[0]}\n".encode()

    def stop(self) -> None:
        """Stop answering."""
        self.close()
        for transport in tuple(self.connections):
            transport.abort()


class Echo:
    """The listeners at all ports of pods."""

    def __init__(self) -> None:
        self._listeners: dict[EchoKey, _PortAnswer] = {}

    async def apply(self, answers: Mapping[EchoKey, str]) -> None:
        """Answer at these ports with these texts, and at no others."""
        for key in [key for key in self._listeners if key not in answers]:
            self._listeners.pop(key).stop()
        for key, text in answers.items():
            listener = self._listeners.get(key)
            if listener is not None:
                listener.text = text
                continue
            answer = _PortAnswer(text)
            try:
                await _listen(*key, answer)
            except OSError as error:
                # Two pods in the host network use the same port, or the kernel has no SCTP.
                _log.info("a pod cannot listen", pod=text, port=key[1].port, error=str(error))
                continue
            self._listeners[key] = answer

    def close(self) -> None:
        """Stop answering."""
        for answer in self._listeners.values():
            answer.stop()
        self._listeners.clear()


async def _listen(namespace: NetworkNamespace, pod_port: PodPort, answer: _PortAnswer) -> None:
    loop = asyncio.get_running_loop()
    family = socket.AF_INET6 if ":" in pod_port.address else socket.AF_INET
    kind = socket.SOCK_DGRAM if pod_port.protocol == "UDP" else socket.SOCK_STREAM
    with namespace.entered():
        sock = socket.socket(family, kind, _SCTP if pod_port.protocol == "SCTP" else 0)
    try:
        sock.setblocking(False)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((pod_port.address, pod_port.port))
        if kind == socket.SOCK_DGRAM:
            transport, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(answer), sock=sock
            )
            answer.close = transport.close
        else:
            server = await loop.create_server(lambda: _Connection(answer), sock=sock, backlog=1000)
            answer.close = server.close
    except BaseException:
        sock.close()
        raise


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, answer: _PortAnswer) -> None:
        self._answer = answer
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        if self._transport is not None:
            self._transport.sendto(self._answer.render(addr), addr)

    def error_received(self, exc: Exception) -> None:
        """The client did not wait for the answer."""


class _Connection(asyncio.Protocol):
    def __init__(self, answer: _PortAnswer) -> None:
        self._answer = answer
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._answer.connections.add(self._transport)
        self._restart_idle_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._answer.connections.discard(self._transport)
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._restart_idle_timer()
        self._buffer += data
        request = _REQUEST.match(self._buffer)
        if request is not None:
            if _END_OF_HEAD.search(self._buffer):
                self._write_page(with_body=request["method"] != b"HEAD")
        else:
            *lines, self._buffer = self._buffer.split(b"\n")
            for _ in lines:
                self._transport.write(self._line())
        if len(self._buffer) > _LINE_LIMIT:
            self._transport.abort()

    def _restart_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(IDLE_SECONDS, self._transport.abort)

    def _line(self) -> bytes:
        assert self._transport is not None
        return self._answer.render(self._transport.get_extra_info("peername"))

    def _write_page(self, *, with_body: bool) -> None:
        assert self._transport is not None
        line = self._line()
        head = (
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(line)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + (line if with_body else b""))
        self._buffer = b""
        self._transport.close()
