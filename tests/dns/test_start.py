"""A start of the server that does not end in serving leaves no socket open."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zonewise.dns import server
from zonewise.dns.server import DnsSettings, NameServer
from zonewise.runtime.program.context import ControllerContext

pytestmark = pytest.mark.asyncio


class RefusingRegistry:
    """A registry that has these metrics already."""

    def register(self, _: object) -> None:
        """Refuse, as prometheus_client does."""
        raise ValueError("duplicated timeseries")


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """The sockets that servers bind from now on."""
    bound: list[socket.socket] = []
    bind = server.bind

    def bind_and_note(host: str, port: int) -> tuple[socket.socket, socket.socket]:
        pair = bind(host, port)
        bound.extend(pair)
        return pair

    monkeypatch.setattr(server, "bind", bind_and_note)
    return bound


def name_server(metrics: object = None) -> NameServer:
    """A server on a free port; nothing is read before it serves."""
    context = cast("ControllerContext", SimpleNamespace(cache=None, client=None, metrics=metrics))
    return NameServer(context, DnsSettings(port=0))


async def test_a_start_that_is_cancelled_closes_its_sockets(sockets: list[socket.socket]) -> None:
    """A start that is cancelled closes its sockets, even between binding them and serving."""
    names = name_server()
    running = asyncio.create_task(names.run())
    await asyncio.sleep(0)
    assert sockets
    assert not names.listening.is_set()
    running.cancel()
    await asyncio.wait([running])
    assert [sock.fileno() for sock in sockets] == [-1, -1]


async def test_a_start_whose_metrics_are_refused_closes_its_sockets(
    sockets: list[socket.socket],
) -> None:
    """A start whose metrics are refused raises the error and closes its sockets."""
    with pytest.raises(ValueError, match="duplicated"):
        await name_server(SimpleNamespace(registry=RefusingRegistry())).run()
    assert [sock.fileno() for sock in sockets] == [-1, -1]


async def test_a_start_that_fails_after_binding_closes_its_sockets(
    sockets: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start closes its sockets if the kernel refuses an option of the UDP socket."""

    def refuse(_: Any) -> int:
        raise OSError("no such option")

    monkeypatch.setattr("zonewise.dns.udp._request_addresses", refuse)
    with pytest.raises(OSError, match="no such option"):
        await name_server().run()
    assert [sock.fileno() for sock in sockets] == [-1, -1]
