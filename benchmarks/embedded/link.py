"""A client that costs next to nothing: TLS sockets, one epoll, requests rendered beforehand.

A client library would be slower than either server and hide the difference between them. Each link
is one kept-alive connection with at most one request under way, as a pool's connections are.
"""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

LENGTH = re.compile(rb"\r\nContent-Length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\nTransfer-Encoding: *chunked", re.IGNORECASE)
END = b"\r\n0\r\n\r\n"
READ = 256 * 1024
PATIENCE = 120.0
RETRY_AFTER = 1.0  # what a real server asks for


TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Server:
    """Where a server is, how it is trusted, the token that opens it, and its processes."""

    host: str
    port: int
    authority: str
    token: str
    processes: tuple[int, ...]

    def cpu(self) -> float:
        """Seconds of processor time its processes have used."""
        used = 0
        for pid in self.processes:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
        return used / TICKS

    def context(self) -> ssl.SSLContext:
        """TLS as both servers speak it."""
        return ssl.create_default_context(cadata=self.authority)

    def request(self, method: str, path: str, body: bytes = b"", kind: str = "") -> bytes:
        """A rendered request."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            f"User-Agent: bench/1\r\nAccept: application/json\r\n"
            f"Authorization: Bearer {self.token}\r\n"
        )
        if body:
            head += f"Content-Type: {kind or 'application/json'}\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"\r\n" + body


class Link:
    """One connection."""

    def __init__(self, server: Server, context: ssl.SSLContext) -> None:
        plain = socket.create_connection((server.host, server.port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = context.wrap_socket(plain, server_hostname=server.host)
        self.socket.setblocking(False)
        self.number = self.socket.fileno()
        self.sent_at = 0.0
        self.refused_at = 0.0
        self._request = b""
        self._parts: list[bytes] = []
        self._left = -1  # bytes of the body that are missing; -1 until the head is there
        self._chunked = False

    def send(self, request: bytes) -> None:
        """Begin a request; all of them fit the socket's buffer."""
        self.sent_at = time.perf_counter()
        self._request = request
        self.again()

    def again(self) -> None:
        """Send the last request once more; its time began when it was first sent."""
        request = self._request
        self._parts = []
        self._left = -1
        self._chunked = False
        if self.socket.send(request) != len(request):
            raise RuntimeError("the request did not fit")

    def receive(self) -> bytes | None:
        """Take what has come; the whole answer once it is complete."""
        while True:
            try:
                data = self.socket.recv(READ)
            except ssl.SSLWantReadError:
                return None
            if not data:
                raise RuntimeError(f"the server hung up: {b''.join(self._parts)[:300]!r}")
            self._parts.append(data)
            if self._complete(data):
                return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def _complete(self, data: bytes) -> bool:
        if self._chunked:
            return data.endswith(END) or b"".join(self._parts[-2:]).endswith(END)
        if self._left >= 0:
            self._left -= len(data)
            return self._left <= 0
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        head = whole.find(b"\r\n\r\n")
        if head < 0:
            return False
        self._parts = [whole]
        length = LENGTH.search(whole, 0, head)
        if length:
            self._left = int(length[1]) - (len(whole) - head - 4)
            return self._left <= 0
        if not CHUNKED.search(whole, 0, head):
            raise RuntimeError(f"no length: {whole[:300]!r}")
        self._chunked = True
        return whole.endswith(END)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


@dataclass
class Taken:
    """What a run measured, preparations not counted; ``cpu`` is the server's."""

    seconds: float = 0.0
    cpu: float = 0.0
    latencies: list[float] = field(default_factory=list)


Next = Callable[[int, bytes | None], bytes | None]
"""A link's number and its last answer -> its next request, or None when it is done."""


def ask(server: Server, request: bytes) -> bytes:
    """One request on a connection of its own."""
    return next(each(server, iter([request])))


def each(server: Server, requests: Iterator[bytes]) -> Iterator[bytes]:
    """Requests one after the other on one connection."""
    link = Link(server, server.context())
    poll = select.poll()
    poll.register(link.number, select.POLLIN)
    try:
        for request in requests:
            link.send(request)
            answer = None
            while answer is None:
                poll.poll(PATIENCE * 1000)
                answer = link.receive()
            yield answer
    finally:
        link.close()


def drive(server: Server, connections: int, following: Next) -> Taken:
    """Keep every connection busy until it has no next request."""
    context = server.context()
    links = [Link(server, context) for _ in range(connections)]
    number_of = {link.number: number for number, link in enumerate(links)}
    epoll = select.epoll()
    taken = Taken()
    try:
        for link in links:
            epoll.register(link.number, select.EPOLLIN)
        begin, used = time.perf_counter(), server.cpu()
        busy = 0
        for number, link in enumerate(links):
            request = following(number, None)
            if request is not None:
                link.send(request)
                busy += 1
        refused: list[Link] = []
        while busy:
            ready = epoll.poll(RETRY_AFTER if refused else PATIENCE)
            if not ready and not refused:
                raise RuntimeError("no answer for two minutes")
            while refused and (
                not ready or refused[0].refused_at < time.perf_counter() - RETRY_AFTER
            ):
                refused.pop(0).again()
            for descriptor, _ in ready:
                number = number_of[descriptor]
                link = links[number]
                answer = link.receive()
                if answer is None:
                    continue
                if answer[9:12] == b"429":  # flow control: both servers may ask for patience
                    link.refused_at = time.perf_counter()
                    refused.append(link)
                    continue
                taken.latencies.append(time.perf_counter() - link.sent_at)
                if not 200 <= int(answer[9:12]) < 300:
                    raise RuntimeError(answer[:2000].decode())
                request = following(number, answer)
                if request is None:
                    busy -= 1
                else:
                    link.send(request)
        taken.seconds = time.perf_counter() - begin
        taken.cpu = server.cpu() - used
    finally:
        for link in links:
            link.close()
        epoll.close()
    return taken
