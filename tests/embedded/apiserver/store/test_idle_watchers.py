"""Thousands of watchers that mostly wait."""

from __future__ import annotations

import resource
import select
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.embedded.apiserver.program import Program, descriptors, running

pytestmark = pytest.mark.system

WATCHERS = 2000
KIB_EACH = 64
PATH = "/api/v1/namespaces/default/configmaps"
PATIENCE = 60.0


def receive(links: dict[int, ssl.SSLSocket], mark: bytes) -> None:
    """Read all links until each has received ``mark``."""
    waiting = set(links)
    tails = dict.fromkeys(links, b"")
    with select.epoll() as epoll:
        for number in links:
            epoll.register(number, select.EPOLLIN)
        while waiting:
            ready = epoll.poll(PATIENCE)
            assert ready, f"{len(waiting)} of {len(links)} watchers got nothing"
            for number, _ in ready:
                try:
                    data = links[number].recv(65536)
                except ssl.SSLWantReadError:
                    continue
                assert data, "the server hung up"
                tails[number] = tails[number][-len(mark) :] + data
                if mark in tails[number]:
                    waiting.discard(number)


@pytest.mark.timeout(600)
def test_idle_watchers(tmp_path: Path) -> None:
    """Each of 2,000 idle watchers over TLS costs at most 64 KiB, and one write reaches them all."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < WATCHERS + 200:
        pytest.fail(f"{WATCHERS} connections need more open files: raise the hard limit")
    with ExitStack() as stack:
        with descriptors(1024):  # the usual limit: the server raises its own
            program = stack.enter_context(running(tmp_path / "data"))
        stack.enter_context(descriptors(WATCHERS + 200))
        before = program.memory()
        links = opened(stack, program)
        receive(links, b"\r\n\r\n")
        grown = program.memory() - before
        program.ask("POST", PATH, {"metadata": {"name": "seen-by-all"}})
        receive(links, b'"name":"seen-by-all"')
    assert grown <= WATCHERS * KIB_EACH, f"{grown / WATCHERS:.1f} KiB for each watcher"


def opened(stack: ExitStack, program: Program) -> dict[int, ssl.SSLSocket]:
    """The watchers' connections, each with a watch."""
    context = program.context()
    version = program.ask("GET", PATH)["metadata"]["resourceVersion"]
    request = program.render("GET", f"{PATH}?watch=1&resourceVersion={version}")
    links: dict[int, ssl.SSLSocket] = {}
    for _ in range(WATCHERS):
        link = stack.enter_context(program.connect(context))
        link.sendall(request)
        link.setblocking(False)
        links[link.fileno()] = link
    return links
