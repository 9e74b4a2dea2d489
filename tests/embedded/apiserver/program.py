"""``zonewise up --api-only`` as a process, and a client that sends given bytes."""

from __future__ import annotations

import base64
import json
import re
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

START_SECONDS = 60.0
ANSWER_SECONDS = 30.0
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class Answered:
    """An answer; status 0 if the server closed the connection without one."""

    status: int
    head: bytes
    body: bytes

    @property
    def ends(self) -> bool:
        """Whether the connection is closed."""
        return not LENGTH.search(self.head) or b"connection: close" in self.head.lower()

    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


@dataclass(frozen=True)
class Program:
    """A running server."""

    pid: int
    folder: Path
    host: str
    port: int
    authority: str
    token: str

    def context(self) -> ssl.SSLContext:
        """TLS that trusts this server."""
        return ssl.create_default_context(cadata=self.authority)

    def connect(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        """A connection."""
        plain = socket.create_connection((self.host, self.port), timeout=ANSWER_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return (context or self.context()).wrap_socket(plain, server_hostname=self.host)

    def render(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        headers: tuple[tuple[str, str], ...] = (),
        token: str | None = None,
    ) -> bytes:
        """A request as bytes."""
        proof = self.token if token is None else token
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host}"]
        lines += [f"Authorization: Bearer {proof}"] if proof else []
        lines += [f"{name}: {value}" for name, value in headers]
        lines += [f"Content-Length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + body

    def ask(self, method: str, path: str, content: Any = None, token: str | None = None) -> Any:
        """Send a valid request; its decoded answer."""
        body = b"" if content is None else json.dumps(content).encode()
        headers = (("Content-Type", "application/json"),)
        with self.connect() as link:
            answer = say(link, self.render(method, path, body, headers=headers, token=token))
        assert 200 <= answer.status < 300, answer
        return answer.json()

    def memory(self) -> int:
        """KiB the process occupies."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
        raise LookupError("Pss")


def say(link: ssl.SSLSocket, request: bytes) -> Answered:
    """Send bytes and read one answer; a server may close before it has read all."""
    received, bodiless = b"", request.startswith(b"HEAD ")
    with suppress(ConnectionError, ssl.SSLError):
        link.sendall(request)
    try:
        while True:
            head, end, body = received.partition(b"\r\n\r\n")
            length = LENGTH.search(head) if end else None
            if end and (bodiless or length is None or len(body) >= int(length[1])):
                break
            data = link.recv(65536)
            if not data:
                break
            received += data
    except (ConnectionError, ssl.SSLError):
        pass
    head, _, body = received.partition(b"\r\n\r\n")
    return Answered(int(head[9:12]) if head.startswith(b"HTTP/1.") else 0, head, body)


@contextmanager
def running(folder: Path) -> Iterator[Program]:
    """Run a server with its data in ``folder``; it is stopped at the end."""
    arguments = [sys.executable, "-m", "zonewise", "up", "--api-only", "--data", str(folder)]
    log = folder.parent / f"{folder.name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=out)
    try:
        kubeconfig = folder / "kubeconfig"
        deadline = time.monotonic() + START_SECONDS
        while not kubeconfig.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.01)
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        server = urlsplit(cluster["server"])
        yield Program(
            pid=process.pid,
            folder=folder,
            host=server.hostname or "",
            port=server.port or 0,
            authority=base64.b64decode(cluster["certificate-authority-data"]).decode(),
            token=user["token"],
        )
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(30)
    assert process.returncode == 0, log.read_text()
    assert b"Traceback" not in log.read_bytes(), log.read_text()


@contextmanager
def descriptors(soft: int) -> Iterator[None]:
    """How many files this process and those it starts may open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, before[1]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
