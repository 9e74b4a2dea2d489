"""Answers while pods and slices change: none is wrong, none is lost, and no memory leaks."""

from __future__ import annotations

import asyncio
import random
import socket

import dns.message
import pytest
from tests.dns.changing_cluster import ZONE, World
from tests.dns.clusters import endpoint, headless, pieces, texts

from zonewise.dns.server import bind
from zonewise.dns.udp import PacketServer

pytestmark = pytest.mark.asyncio

SERVICES = 20
STEPS = 1500


@pytest.mark.slow
async def test_no_answer_is_wrong_while_pods_churn() -> None:
    """After each of many changes, clients in three zones get the current endpoints."""
    rng = random.Random(4)
    world = World("locators")
    for zone in "abc":
        world.node(f"n-{zone}", {ZONE: zone})
        world.pod(f"client-{zone}", f"n-{zone}", f"127.0.0.{ord(zone)}")
    truth: dict[int, dict[str, str]] = {number: {} for number in range(SERVICES)}
    for number in truth:
        world.names.put(headless(f"s{number}", keys=f"{ZONE},*"))
    packets, streams = bind("127.0.0.1", 0)
    streams.close()
    port = packets.getsockname()[1]
    server = PacketServer(packets, world.names.responder)
    server.start()
    clients = {zone: _socket(f"127.0.0.{ord(zone)}") for zone in "abc"}
    try:
        for step in range(STEPS):
            number = rng.randrange(SERVICES)
            _change(world, rng, number, truth[number], step)
            queried = rng.randrange(SERVICES)
            zone = rng.choice("abc")
            query = dns.message.make_query(f"s{queried}.shop.svc.cluster.local", "A", use_edns=0)
            answer = await _ask(clients[zone], port, query)
            assert texts(answer) == _expected(truth[queried], zone), step
        cache = world.names.responder.cache
        assert len(cache.table) <= SERVICES
        assert set(cache._by_token) == {
            token for entry in cache.table.values() for token in entry.basis
        }
        cache.clear()
        assert (cache.size, cache._by_token) == (0, {})
        assert server.unsent == 0
    finally:
        server.stop()
        for sock in clients.values():
            sock.close()


def _change(
    world: World, rng: random.Random, number: int, backends: dict[str, str], step: int
) -> None:
    """Add or delete a pod of a Service, and write its slice anew."""
    if backends and rng.random() < 0.5:
        address = rng.choice(sorted(backends))
        del backends[address]
        world.no_pod(f"p-{address}")
    else:
        address = f"10.{number}.{step // 250}.{step % 250}"
        backends[address] = rng.choice("abc")
        world.pod(f"p-{address}", f"n-{backends[address]}", address)
    rows = [endpoint(backend, nodeName=f"n-{zone}") for backend, zone in sorted(backends.items())]
    world.names.put(pieces(f"s{number}", rows))


def _expected(backends: dict[str, str], zone: str) -> list[str]:
    near = sorted(backend for backend, there in backends.items() if there == zone)
    return near or sorted(backends)


def _socket(source: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.bind((source, 0))
    return sock


async def _ask(sock: socket.socket, port: int, query: dns.message.Message) -> dns.message.Message:
    loop = asyncio.get_running_loop()
    await loop.sock_sendto(sock, query.to_wire(), ("127.0.0.1", port))
    async with asyncio.timeout(180):
        answer = dns.message.from_wire(await loop.sock_recv(sock, 65_535))
    assert query.is_response(answer)
    return answer
