"""An upstream server for the few names outside of the cluster that questions lead to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

Zone = Mapping[tuple[str, str], Sequence[str]]

TTL = 60


class Outside(asyncio.DatagramProtocol):
    """Answers from a table; a name that is not in it does not exist."""

    def __init__(self, zone: Zone) -> None:
        self._zone = zone
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        self._transport.sendto(answer(dns.message.from_wire(data), self._zone).to_wire(), addr)


def answer(query: dns.message.Message, zone: Zone) -> dns.message.Message:
    """The answer to a question, from the table."""
    response = dns.message.make_response(query, recursion_available=True)
    question = query.question[0]
    kind = dns.rdatatype.to_text(question.rdtype)
    name = question.name.to_text().lower()
    while (name, "CNAME") in zone:
        target = zone[name, "CNAME"][0]
        response.answer.append(dns.rrset.from_text(name, TTL, "IN", "CNAME", target))
        name = target
    if (name, kind) in zone:
        response.answer.append(dns.rrset.from_text(name, TTL, "IN", kind, *zone[name, kind]))
    elif not any(known == name for known, _ in zone):
        response.set_rcode(dns.rcode.NXDOMAIN)
    return response


async def serve(zone: Zone) -> tuple[asyncio.DatagramTransport, int]:
    """Start on a free loopback port."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: Outside(zone), local_addr=("127.0.0.1", 0)
    )
    return transport, transport.get_extra_info("sockname")[1]
