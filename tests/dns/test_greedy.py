"""Askers that take more than their share: of memory, of time and of connections."""

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


def answer(asked: Question, records: int) -> Received:
    """So many addresses."""
    found = Message(
        Rcode.NOERROR,
        tuple(address_record(asked.name, 60, at.to_bytes(4, "big")) for at in range(records)),
    )
    return Received(pack(asked.name, found), shortest=60, answered=True)


async def test_who_does_not_read_loses_its_connection() -> None:
    """Answers that nobody takes do not hold one of the few connections for ever."""
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
    """Somebody who asks for thousands of records again and again keeps nobody waiting."""
    found = names()
    found.put(headless("huge"))
    for part in range(3):
        piece = pieces("huge", [endpoint(f"10.1.{part}.{n}") for n in range(1, 101)])
        piece["metadata"]["name"] = f"huge-{part}"
        found.put(piece)
    wire = dns.message.make_query("huge.shop.svc.cluster.local.", "A").to_wire()
    written: list[int] = []

    async def ask() -> None:
        told = found.responder.respond(wire, "10.0.0.1", stream=True)
        assert told is not None
        assert not isinstance(told, bytes)
        assert len(dns.message.from_wire(await told).answer[0]) == 300
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


async def test_streams_ask_in_turn_and_leave_others_theirs() -> None:
    """Two who send many questions at once get one answer each in turn, and nobody waits for all."""
    found = names()
    query = dns.message.make_query("many.shop.svc.cluster.local.", "SRV").to_wire()
    packets, listening = bind("127.0.0.1", 0)
    packets.close()
    server = StreamServer(listening, found.responder, turn=0.0)
    await server.start()
    streams = [await asyncio.open_connection(*listening.getsockname()) for _ in range(2)]
    at_once: list[int] = []

    async def others() -> None:
        seen = 0
        while seen < 40:
            asked = found.responder.counts.total()
            at_once.append(asked - seen)
            seen = asked
            await asyncio.sleep(0)

    try:
        for _, writer in streams:
            writer.write((len(query).to_bytes(2, "big") + query) * 20)
            writer.write_eof()
        await asyncio.wait_for(others(), 20)
        assert max(at_once) == 1
        for reader, _ in streams:
            told = await asyncio.wait_for(reader.read(), 20)
            size = 2 + int.from_bytes(told[:2], "big")
            assert len(told) == 20 * size
    finally:
        for _, writer in streams:
            writer.close()
        await server.stop()


async def test_a_stream_whose_questions_wait_for_others_is_not_idle() -> None:
    """However long it takes until its turn comes, a connection is kept until it has its answers."""
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
            told = await asyncio.wait_for(reader.read(), 20)
            assert len(told) == 5 * (2 + int.from_bytes(told[:2], "big"))
    finally:
        for _, writer in streams:
            writer.close()
        await server.stop()


async def test_a_packet_is_never_longer_than_a_path_takes() -> None:
    """65,535 bytes do not fit into a packet, so whoever says to take them would get nothing."""
    assert size_limit(question("a.example")) == PACKET_LIMIT
    found = names()
    found.put(headless("huge"))
    for part in range(4):
        piece = pieces("huge", [endpoint(f"10.1.{part}.{n}") for n in range(1, 101)])
        piece["metadata"]["name"] = f"huge-{part}"
        found.put(piece)
    query = dns.message.make_query("huge.shop.svc.cluster.local.", "A", payload=65_535)
    told = found.responder.respond(query.to_wire(), "10.0.0.1", stream=False)
    assert isinstance(told, bytes)
    assert len(told) <= PACKET_LIMIT
    assert dns.message.from_wire(told).flags & dns.flags.TC


async def test_kept_answers_of_others_are_bounded_by_bytes() -> None:
    """Few names with thousands of records each do not fill the memory."""
    cache = UpstreamCache(most_bytes=50_000)
    asked = [question(f"n{at}.example") for at in range(10)]
    for one in asked:
        cache.put(one, answer(one, 1000), 0.0)
    assert len(cache) == 2
    assert cache.get(asked[-1], 1.0) is not None
    assert cache.get(asked[0], 1.0) is None
    cache.put(asked[-1], answer(asked[-1], 1), 0.0)
    cache.put(asked[0], answer(asked[0], 1000), 0.0)
    assert len(cache) == 3


async def test_times_to_live_are_counted_down() -> None:
    """By whole seconds, in every record that is sent."""
    cache = UpstreamCache()
    one = question("n.example")
    cache.put(one, answer(one, 3), 0.0)
    for now, ttl in ((0.0, 60), (5.2, 55), (5.9, 55), (6.0, 54)):
        known = cache.get(one, now)
        assert known is not None
        told = dns.message.from_wire(known.answer(one, 512, b""))
        assert [(len(records), records.ttl) for records in told.answer] == [(3, ttl)]
        assert {record.ttl for record in known.records(one.name)} == {ttl}


async def test_those_who_wait_for_one_answer_are_bounded() -> None:
    """A flood of one question to a server that never answers is not kept in memory."""
    async with other(lambda _: None) as (silent, mute):
        forwarder = Forwarder(lambda: [silent], waiting=4, deadline=0.5)
        async with serving(names(forwards=forwarder)) as number:
            same = [asyncio.create_task(udp(number, "a.example.")) for _ in range(5)]
            await until(lambda: bool(mute.asked))
            assert {(await one).rcode() for one in same} == {dns.rcode.SERVFAIL}
            assert forwarder.rejected == 3
            assert len(mute.asked) == 1


async def test_what_is_no_address_is_no_server() -> None:
    """Garbage in resolv.conf is passed over."""
    text = "nameserver a..b\nnameserver 999.1.1.1\nnameserver fe80::1%eth0\nnameserver 10.0.0.2\n"
    assert read_resolv_conf(text) == (Upstream("fe80::1%eth0"), Upstream("10.0.0.2"))
