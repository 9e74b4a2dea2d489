"""A server of prepared bytes: it costs almost nothing, so what is measured is the client.

Runs as a process of its own (``python -m benchmarks.runtime.server``), prints its port and ends
when its standard input does. Lists are rendered before the first request. A watch is an endless
stream in which each event is one HTTP chunk, as a real API server sends them, with versions that
grow; several events are handed to the kernel at a time, as happens in a burst.
"""

from __future__ import annotations

import socketserver
import sys
import threading
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from benchmarks.runtime.data import (
    ENDPOINTS,
    FIRST_VERSION,
    SLICES,
    end_of_initial_events,
    event,
    list_page,
)

EVENTS_PER_WRITE = 16
PAGE = 500

_pages: dict[tuple[int, int], bytes] = {}
_events: dict[int, list[bytes]] = {}
_initial: list[bytes] = []


def prepare() -> None:
    _pages[0, 0] = list_page(0, SLICES)
    for first in range(0, SLICES, PAGE):
        _pages[first, PAGE] = list_page(first, PAGE)
    added = [event("ADDED", number, endpoints=ENDPOINTS) for number in range(SLICES)]
    for first in range(0, SLICES, EVENTS_PER_WRITE):
        _initial.append(b"".join(map(chunk, added[first : first + EVENTS_PER_WRITE])))
    _initial.append(chunk(end_of_initial_events()))
    for endpoints in (10, 100):
        _events[endpoints] = [event("MODIFIED", n, endpoints=endpoints) for n in range(64)]


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(line: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(line), line)


class Handler(socketserver.StreamRequestHandler):
    """One connection; requests have no bodies."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            target = urlsplit(line.split()[1].decode())
            while self.rfile.readline().strip():
                pass
            query = {name: values[0] for name, values in parse_qs(target.query).items()}
            try:
                if "sendInitialEvents" in query:
                    self.initial_events()
                elif "watch" in query:
                    self.watch(int(query.get("labelSelector", "endpoints=100").split("=")[1]))
                else:
                    self.list(query)
            except (BrokenPipeError, ConnectionResetError):
                return

    def list(self, query: dict[str, str]) -> None:
        body = _pages[int(query.get("continue", 0)), int(query.get("limit", 0))]
        head = (
            f"HTTP/1.1 {HTTPStatus.OK.value} OK\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.request.sendall(head.encode())
        self.request.sendall(body)

    def initial_events(self) -> None:
        """Every object as an event of its own, then the bookmark; the watch stays open."""
        self.request.sendall(STREAM)
        for block in _initial:
            self.request.sendall(block)
        self.rfile.readline()

    def watch(self, endpoints: int) -> None:
        self.request.sendall(STREAM)
        block = bytearray()
        places = []
        lines = _events[endpoints]
        for line in lines:
            block += f"{len(line):x}\r\n".encode()
            offset = line.index(b'"resourceVersion":"') + len(b'"resourceVersion":"')
            places.append(len(block) + offset)
            block += line + b"\r\n"
            if len(places) % EVENTS_PER_WRITE == 0:
                places.append(-len(block))
        version = FIRST_VERSION + 2 * SLICES
        view = memoryview(block)
        while True:
            start = 0
            for position in places:
                if position < 0:
                    self.request.sendall(view[start:-position])
                    start = -position
                else:
                    version += 1
                    view[position : position + 10] = b"%d" % version


class Server(socketserver.ThreadingTCPServer):
    """All connections in threads of their own."""

    daemon_threads = True
    allow_reuse_address = True


def main() -> None:
    prepare()
    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_address[1], flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
