"""What strangers and careless clients may do to the server: it serves others, in bounded memory.

Each attack goes beyond a limit in the table of ``docs/embedded-reference.md``.
"""

from __future__ import annotations

import resource
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.embedded.apiserver.program import Program, descriptors, running, say
from tests.system_guard import starts_programs

MIB = 1024  # KiB
SPACE = "/api/v1/namespaces/default/configmaps"
PATIENCE = 60.0


@pytest.fixture
@starts_programs
def program(tmp_path: Path) -> Iterator[Program]:
    """A separate server for each attack, so that its memory shows nothing else."""
    with running(tmp_path / "data") as started:
        started.ask("GET", SPACE)
        yield started


@contextmanager
def many(program: Program, count: int, *, buffer: int = 0) -> Iterator[list[ssl.SSLSocket]]:
    """Many connections, each of which buffers no more than ``buffer`` bytes."""
    context = program.context()
    with ExitStack() as stack:
        stack.enter_context(descriptors(count + 400))
        links = []
        for _ in range(count):
            plain = stack.enter_context(socket.socket())
            if buffer:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            plain.settimeout(PATIENCE)
            plain.connect((program.host, program.port))
            wrapped = context.wrap_socket(plain, server_hostname=program.host)
            links.append(stack.enter_context(wrapped))
        yield links


def settled(program: Program, limit: int) -> int:
    """The memory of the process, once it is below ``limit`` or after a while."""
    deadline = time.monotonic() + PATIENCE
    while (now := program.memory()) > limit and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


@pytest.mark.timeout(600)
def test_headers_that_never_end(program: Program) -> None:
    """60 connections with 120 headers of 65 kB each and no end cost no more than 32 MiB."""
    before = most = program.memory()
    line = b"X-Filler-%d: " + b"x" * 65_000 + b"\r\n"
    with many(program, 60) as links:
        for link in links:
            with suppress(OSError):
                link.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n")
        for number in range(120):
            for link in links:
                with suppress(OSError):
                    link.sendall(line % number)
            most = max(most, program.memory())
        assert program.ask("GET", SPACE)["kind"] == "ConfigMapList"
    assert most - before < 32 * MIB, f"grew by {(most - before) / MIB:.0f} MiB"


@pytest.mark.timeout(600)
def test_watches_that_nobody_reads(program: Program) -> None:
    """600 watches that are never read cost no more than 128 MiB, and nothing when they are gone."""
    before = most = program.memory()
    version = program.ask("GET", SPACE)["metadata"]["resourceVersion"]
    watch = program.render("GET", f"{SPACE}?watch=1&resourceVersion={version}")
    with many(program, 600, buffer=4096) as links:
        for link in links:
            link.sendall(watch)
        for number in range(30):
            data = {"a": f"{number:04}" * 125_000}
            program.ask("POST", SPACE, {"metadata": {"name": f"big-{number}"}, "data": data})
            most = max(most, program.memory())
        assert len(program.ask("GET", SPACE)["items"]) >= 30
    stored = 2 * 30 * 500_000 // 1024
    after = settled(program, before + stored + 64 * MIB)
    assert most - before < stored + 128 * MIB, f"grew by {(most - before) / MIB:.0f} MiB"
    assert after - before < stored + 64 * MIB, f"kept {(after - before) / MIB:.0f} MiB"


@pytest.mark.system
@pytest.mark.timeout(600)
def test_more_connections_than_descriptors(tmp_path: Path) -> None:
    """Without free descriptors the server serves open connections, and logs one line."""
    with running(tmp_path / "data") as program, ExitStack() as stack:
        stack.enter_context(descriptors(1024))
        context = program.context()
        links = [stack.enter_context(program.connect(context)) for _ in range(20)]
        open_files = len(list(Path(f"/proc/{program.pid}/fd").iterdir()))
        resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (open_files + 10, open_files + 10))
        crowd = []
        for _ in range(300):
            late = stack.enter_context(socket.socket())
            late.connect((program.host, program.port))
            crowd.append(late)
        request = program.render("GET", "/version")
        for _ in range(20):
            for link in links:
                assert say(link, request).status == 200
        log = tmp_path / "data.log"
        assert len(log.read_text().splitlines()) < 20
        assert log.read_text().count("no more connections are accepted") == 1
        for connection in (*links[1:], *crowd):
            connection.close()
        assert program.ask("GET", SPACE)["kind"] == "ConfigMapList"
