"""Servers on the loopback that behave, or misbehave, as a test wants.

Each runs in a thread of its own, so that it serves asynchronous code, a whole program in this
process and a subprocess alike. Ports are free ones; all is closed at the end of the ``with``.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme
import yaml

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.4", "platform": "linux/amd64"}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A request as it arrived; header names are in lower case and may repeat."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    peer: dict[str, Any] | None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name.lower()]

    def header(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)


@dataclass(frozen=True)
class Reply:
    """An answer. ``parts`` are sent as chunks; without them ``body`` is sent with its length."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    parts: Iterator[bytes] | None = None
    cut: bool = False


def api_server(_: Seen) -> Reply:
    return Reply(body=json.dumps(VERSION).encode())


@dataclass(kw_only=True)
class Web:
    """A web server that runs, and what it has seen."""

    url: str
    port: int
    seen: list[Seen]


@contextlib.contextmanager
def web(
    answer: Callable[[Seen], Reply] = api_server, *, tls: ssl.SSLContext | None = None
) -> Iterator[Web]:
    """A web server whose answers a function gives."""
    seen: list[Seen] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                if isinstance(self.connection, ssl.SSLSocket):
                    self.connection.do_handshake()
                super().handle()

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.serve
            raise AttributeError(name)

        def serve(self) -> None:
            peer = None
            if isinstance(self.connection, ssl.SSLSocket):
                peer = self.connection.getpeercert()
            request = Seen(
                method=self.command,
                path=self.path,
                headers=[(key.lower(), value) for key, value in self.headers.items()],
                body=self.rfile.read(int(self.headers.get("Content-Length", "0"))),
                peer=peer,
            )
            seen.append(request)
            reply = answer(request)
            self.send_response(reply.status)
            for key, value in reply.headers.items():
                self.send_header(key, value)
            if reply.parts is None:
                self.send_header("Content-Length", str(len(reply.body) + (100 if reply.cut else 0)))
                self.end_headers()
                self.wfile.write(reply.body)
            else:
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for part in reply.parts:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                if not reply.cut:
                    self.wfile.write(b"0\r\n\r\n")
            if reply.cut:
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 64

        def get_request(self) -> tuple[socket.socket, Any]:
            connection, address = super().get_request()
            if tls is not None:
                connection = tls.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
            return connection, address

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    port = server.server_address[1]
    try:
        yield Web(url=f"{'https' if tls else 'http'}://127.0.0.1:{port}", port=port, seen=seen)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def tcp(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that runs a function for each connection and closes it afterwards."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            talk(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        # Shutting down, unlike closing, wakes threads that wait in accept or recv.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def silent(connection: socket.socket) -> None:
    """Accepts everything and never answers."""
    while connection.recv(1 << 16):
        pass


def closed_port() -> int:
    """A port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def server_tls(
    authority: trustme.CA, *names: str, clients: trustme.CA | None = None
) -> ssl.SSLContext:
    """A server's context with a certificate for these names; may insist on client certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or ("127.0.0.1", "localhost"))).configure_cert(context)
    if clients is not None:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def pem(authority: trustme.CA) -> bytes:
    return authority.cert_pem.bytes()


def write_kubeconfig(
    path: Path,
    *,
    server: str = "https://127.0.0.1:1",
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    context: dict[str, Any] | None = None,
) -> Path:
    """Write a kubeconfig with one context, ``dev``."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "dev",
        "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u", **(context or {})}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(content))
    return path
