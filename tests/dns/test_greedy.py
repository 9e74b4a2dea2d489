"""Clients that try to take more than their share of memory, time and connections."""

from __future__ import annotations

import asyncio
import socket

import dns.flags
import dns.message
import dns.rcode
import pytest
from tests.dns.clusters import endpoint, headless, pieces
from tests.dns.sockets import names, other, serving, udp
from tests.embedded.virtual_cluster import until

from zonewise.dns.names import parse_domain
from zonewise.dns.outside.forward import Forwarder, read_resolv_conf
from zonewise.dns.outside.received import Received
from zonewise.dns.outside.upstream import Upstream
from zonewise.dns.outside.upstream_cache import UpstreamCache
from zonewise.dns.sections import pack
from zonewise.dns.server import bind
from zonewise.dns.tcp import StreamServer
from zonewise.dns.wire import (
    IN,
    PACKET_LIMIT,
    Edns,
    Message,
    Question,
    Rcode,
    RecordType,
    address_record,
    size_limit,
)

pytestmark = pytest.mark.asyncio


def question(text: str) -> Question:
    """A question for the addresses of a name."""
    name = parse_domain(text)
    return Question(1, 0, name, name, RecordType.A, IN, Edns(65_535))


def answer(query: Question, records: int) -> Received:
    """An answer with as many addresses as ``records`` says."""
    message = Message(
        Rcode.NOERROR,
        tuple(address_record(query.name, 60, at.to_bytes(4, "big")) for at in range(records)),
    )
    return Received(pack(query.name, message), shortest=60, answered=True)


async def test_a_client_that_does_not_read_loses_its_connection() -> None:
    """Answers that a client does not read do not hold a connection for ever."""
    wire = dns.message.make_query("many.shop.svc.cluster.local.", "A").to_wire()
    framed = len(wire).to_bytes(2, "big") + wire
    packets, listening = bind("127.0.0.1", 0)
    packets.close()
    server = StreamServer(listening, names().responder, idle=0.2)
    await server.start()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        try:
            address = listening.getsockname()
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, address)
            sending = asyncio.create_task(loop.sock_sendall(client, framed * 20_000))
            await until(lambda: server.connections == 1)
            await until(lambda: server.connections == 0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        finally:
            await server.stop()


async def test_long_answers_are_written_one_in_a_turn() -> None:
    """A client that asks for thousands of records again and again does not delay others."""
    cluster = names()
    cluster.put(headless("huge"))
    for part in range(3):
        piece = pieces("huge", [endpoint(f"10.1.{part}.{n}") for n in range(1, 101)])
        piece["metadata"]["name"] = f"huge-{part}"
        cluster.put(piece)
    wire = dns.message.make_query("huge.shop.svc.cluster.local.", "A").to_wire()
    written: list[int] = []

    async def ask() -> None:
        response = cluster.responder.respond(wire, "10.0.0.1", stream=True)
        assert response is not None
        assert not isinstance(response, bytes)
        assert len(dns.message.from_wire(await response).answer[0]) == 300
        written.append(1)

    tasks = [asyncio.create_task(ask()) for _ in range(20)]
    turns = 0
    while len(written) < 20:
        before = len(written)
        await asyncio.sleep(0)
        turns += 1
        assert len(written) - before <= 1
    await asyncio.gather(*tasks)
    assert turns >= 20


async def test_streams_are_answered_in_turn() -> None:
    """Two clients that pipeline many questions get one answer each in turn."""
    cluster = names()
    query = dns.message.make_query("many.shop.svc.cluster.local.", "SRV").to_wire()
    packets, listening = bind("127.0.0.1", 0)
    packets.close()
    server = StreamServer(listening, cluster.responder, turn=0.0)
    await server.start()
    streams = [await asyncio.open_connection(*listening.getsockname()) for _ in range(2)]
    at_once: list[int] = []

    async def others() -> None:
        seen = 0
        while seen < 40:
            answered = cluster.responder.counts.total()
            at_once.append(answered - seen)
            seen = answered
            await asyncio.sleep(0)

    try:
        for _, writer in streams:
            writer.write((len(query).to_bytes(2, "big") + query) * 20)
            writer.write_eof()
        await asyncio.wait_for(others(), 20)
        assert max(at_once) == 1
        for reader, _ in streams:
            received = await asyncio.wait_for(reader.read(), 20)
            size = 2 + int.from_bytes(received[:2], "big")
            assert len(received) == 20 * size
    finally:
        for _, writer in streams:
            writer.close()
        await server.stop()


async def test_a_stream_whose_questions_wait_for_others_is_not_idle() -> None:
    """A connection whose questions are still queued stays open until they are answered."""
    query = dns.message.make_query("many.shop.svc.cluster.local.", "SRV").to_wire()
    packets, listening = bind("127.0.0.1", 0)
    packets.close()
    server = StreamServer(listening, names().responder, turn=0.0)
    await server.start()
    streams = [await asyncio.open_connection(*listening.getsockname()) for _ in range(3)]
    await until(lambda: server.connections == 3)
    server.idle = 0.0
    try:
        for _, writer in streams:
            writer.write((len(query).to_bytes(2, "big") + query) * 5)
        for reader, _ in streams:
            received = await asyncio.wait_for(reader.read(), 20)
            assert len(received) == 5 * (2 + int.from_bytes(received[:2], "big"))
    finally:
        for _, writer in streams:
            writer.close()
        await server.stop()


async def test_a_packet_is_never_longer_than_a_path_takes() -> None:
    """65,535 bytes do not fit into a packet, so a client that offers them gets a smaller limit."""
    assert size_limit(question("a.example")) == PACKET_LIMIT
    cluster = names()
    cluster.put(headless("huge"))
    for part in range(4):
        piece = pieces("huge", [endpoint(f"10.1.{part}.{n}") for n in range(1, 101)])
        piece["metadata"]["name"] = f"huge-{part}"
        cluster.put(piece)
    query = dns.message.make_query("huge.shop.svc.cluster.local.", "A", payload=65_535)
    response = cluster.responder.respond(query.to_wire(), "10.0.0.1", stream=False)
    assert isinstance(response, bytes)
    assert len(response) <= PACKET_LIMIT
    assert dns.message.from_wire(response).flags & dns.flags.TC


async def test_cached_answers_of_upstreams_are_bounded_by_bytes() -> None:
    """A few names with thousands of records each do not fill the memory."""
    cache = UpstreamCache(most_bytes=50_000)
    questions = [question(f"n{at}.example") for at in range(10)]
    for query in questions:
        cache.put(query, answer(query, 1000), 0.0)
    assert len(cache) == 2
    assert cache.get(questions[-1], 1.0) is not None
    assert cache.get(questions[0], 1.0) is None
    cache.put(questions[-1], answer(questions[-1], 1), 0.0)
    cache.put(questions[0], answer(questions[0], 1000), 0.0)
    assert len(cache) == 3


async def test_times_to_live_are_counted_down() -> None:
    """The TTL of every record that is sent is less by the whole seconds it was cached."""
    cache = UpstreamCache()
    query = question("n.example")
    cache.put(query, answer(query, 3), 0.0)
    for now, ttl in ((0.0, 60), (5.2, 55), (5.9, 55), (6.0, 54)):
        known = cache.get(query, now)
        assert known is not None
        response = dns.message.from_wire(known.answer(query, 512, b""))
        assert [(len(records), records.ttl) for records in response.answer] == [(3, ttl)]
        assert {record.ttl for record in known.records(query.name)} == {ttl}


async def test_clients_that_wait_for_the_same_answer_are_bounded() -> None:
    """A flood of one question to an upstream that never answers does not fill the memory."""
    async with other(lambda _: None) as (silent, mute):
        forwarder = Forwarder(lambda: [silent], waiting=4, deadline=0.5)
        async with serving(names(forwards=forwarder)) as number:
            same = [asyncio.create_task(udp(number, "a.example.")) for _ in range(5)]
            await until(lambda: bool(mute.queries))
            assert {(await task).rcode() for task in same} == {dns.rcode.SERVFAIL}
            assert forwarder.rejected == 3
            assert len(mute.queries) == 1


async def test_nameserver_lines_without_an_address_are_ignored() -> None:
    """Invalid addresses in resolv.conf are skipped."""
    text = "nameserver a..b\nnameserver 999.1.1.1\nnameserver fe80::1%eth0\nnameserver 10.0.0.2\n"
    assert read_resolv_conf(text) == (Upstream("fe80::1%eth0"), Upstream("10.0.0.2"))
