"""On real sockets: our name server, an upstream that answers as a test says, and a client."""

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
    cluster = Names(forwards=forwards)
    cluster.put(
        namespace("shop"),
        service("web", clusterIP="10.96.0.7", ports=[port("http", 80)]),
        service("out", type="ExternalName", externalName="www.example.com"),
        headless("many"),
        pieces("many", [endpoint(f"10.0.0.{at}") for at in range(1, 101)]),
    )
    return cluster


@asynccontextmanager
async def serving(
    cluster: Names, *, idle: float = 10.0, most: int = 100, host: str = "127.0.0.1"
) -> AsyncIterator[int]:
    """Run a server for a cluster; yields its port."""
    packets, listening = bind(host, 0)
    number = packets.getsockname()[1]
    over_packets = PacketServer(packets, cluster.responder)
    over_streams = StreamServer(listening, cluster.responder, connections=most, idle=idle)
    over_packets.start()
    await over_streams.start()
    try:
        yield number
    finally:
        over_packets.stop()
        await over_streams.stop()


class Other(asyncio.DatagramProtocol):
    """An upstream server, over UDP, that answers as a test says."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.queries: list[dns.message.Message] = []
        self.sources: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        if query.question[0].name.to_text().endswith(".invalid."):
            return
        self.queries.append(query)
        self.sources.append(addr[1])
        response = self.reply(query)
        if response is not None:
            self.transport.sendto(
                response if isinstance(response, bytes) else response.to_wire(), addr
            )


@asynccontextmanager
async def other(reply: Reply) -> AsyncIterator[tuple[Upstream, Other]]:
    """Run an upstream server; yields its address and the server."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(
        lambda: Other(reply), local_addr=("127.0.0.1", 0)
    )
    try:
        yield Upstream("127.0.0.1", transport.get_extra_info("sockname")[1]), protocol
    finally:
        transport.close()


def says(*records: str, rcode: dns.rcode.Rcode = dns.rcode.NOERROR, ttl: int = 60) -> Reply:
    """A reply with these records for every name."""

    def reply(query: dns.message.Message) -> dns.message.Message:
        response = dns.message.make_response(query, recursion_available=True)
        response.set_rcode(rcode)
        name = query.question[0].name
        for record in records:
            kind, _, data = record.partition(" ")
            response.answer.append(dns.rrset.from_text(name, ttl, "IN", kind, data))
        return response

    return reply


async def udp(number: int, name: str, kind: str = "A", timeout: float = 10) -> dns.message.Message:
    """Ask a question over UDP."""
    query = dns.message.make_query(name, kind)
    return await dns.asyncquery.udp(query, "127.0.0.1", timeout=timeout, port=number)
