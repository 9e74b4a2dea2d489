"""Name servers on real sockets: ours, another one that answers as a test says, and a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import dns.rrset
from tests.dns.clusters import Names, endpoint, headless, namespace, pieces, port, service

from zonewise.dns.outside.upstream import Upstream
from zonewise.dns.responder import Forwards
from zonewise.dns.server import bind
from zonewise.dns.tcp import StreamServer
from zonewise.dns.udp import PacketServer

WEB = "web.shop.svc.cluster.local."
Reply = Callable[[dns.message.Message], dns.message.Message | bytes | None]


def names(*, forwards: Forwards | None = None) -> Names:
    """A small cluster."""
    found = Names(forwards=forwards)
    found.put(
        namespace("shop"),
        service("web", clusterIP="10.96.0.7", ports=[port("http", 80)]),
        service("out", type="ExternalName", externalName="www.example.com"),
        headless("many"),
        pieces("many", [endpoint(f"10.0.0.{at}") for at in range(1, 101)]),
    )
    return found


@asynccontextmanager
async def serving(
    found: Names, *, idle: float = 10.0, most: int = 100, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """The port of a server for a cluster."""
    packets, listening = bind(host, 0)
    number = packets.getsockname()[1]
    over_packets = PacketServer(packets, found.responder)
    over_streams = StreamServer(listening, found.responder, connections=most, idle=idle)
    over_packets.start()
    await over_streams.start()
    try:
        yield number
    finally:
        over_packets.stop()
        await over_streams.stop()


class Other(asyncio.DatagramProtocol):
    """Another server, over packets, that answers as a test says."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.asked: list[dns.message.Message] = []
        self.sources: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        if query.question[0].name.to_text().endswith(".invalid."):
            return
        self.asked.append(query)
        self.sources.append(addr[1])
        told = self.reply(query)
        if told is not None:
            self.transport.sendto(told if isinstance(told, bytes) else told.to_wire(), addr)


@asynccontextmanager
async def other(reply: Reply) -> AsyncIterator[tuple[Upstream, Other]]:
    """Another server, and its address."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: Other(reply), local_addr=("127.0.0.1", 0)
    )
    try:
        yield Upstream("127.0.0.1", transport.get_extra_info("sockname")[1]), protocol
    finally:
        transport.close()


def says(*records: str, rcode: dns.rcode.Rcode = dns.rcode.NOERROR, ttl: int = 60) -> Reply:
    """A reply with these records for whatever name is asked."""

    def reply(query: dns.message.Message) -> dns.message.Message:
        found = dns.message.make_response(query, recursion_available=True)
        found.set_rcode(rcode)
        name = query.question[0].name
        for record in records:
            kind, _, data = record.partition(" ")
            found.answer.append(dns.rrset.from_text(name, ttl, "IN", kind, data))
        return found

    return reply


async def udp(number: int, name: str, kind: str = "A", timeout: float = 10) -> dns.message.Message:
    """A question in a packet."""
    query = dns.message.make_query(name, kind)
    return await dns.asyncquery.udp(query, "127.0.0.1", timeout=timeout, port=number)
