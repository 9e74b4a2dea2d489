"""One question to one other server.

Every question goes out of a socket of its own, so from a port that the kernel draws, with an id
drawn here: a forged answer has to guess both. The socket is connected, so packets from anywhere
else never arrive; an answer counts only if id and question are those that were sent, and anything
else that arrives is ignored. A failure may come without the question: a server that cannot read it
cannot repeat it. A truncated answer is requested again over TCP, and is used if TCP fails. Servers
without EDNS are asked again without it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
from dataclasses import dataclass

from zonewise.api.errors import ConfigError, ZonewiseError
from zonewise.api.values.numbers import parse_natural
from zonewise.dns.outside.received import Received, is_answer, read_failure, reading
from zonewise.dns.sections import Sections
from zonewise.dns.slices import LongWork, finished
from zonewise.dns.wire import MAX_SIZE, TC, Malformed, Question, Rcode, write_question

PORT = 53
STREAM_PATIENCE = 2.0
"""How many seconds the whole of a truncated answer may take over TCP."""

LONG = 4096
"""Longer answers are read in slices."""

_FAILURES = (Rcode.FORMERR, Rcode.SERVFAIL, Rcode.NOTIMP, Rcode.REFUSED)

_draw = random.SystemRandom()


class UpstreamFailed(ZonewiseError):
    """A server did not answer, or answered another question."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """An upstream server, by address."""

    host: str
    port: int = PORT

    @classmethod
    def parse(cls, text: str, flag: str) -> Upstream:
        """``10.0.0.53``, ``10.0.0.53:53``, ``2001:db8::53`` or ``[2001:db8::53]:53``."""
        bare = text.strip()
        host, port = bare, str(PORT)
        if bare.startswith("["):
            host, _, rest = bare[1:].partition("]")
            port = rest.removeprefix(":") or port
        elif bare.count(":") == 1:
            host, _, port = bare.partition(":")
        number = parse_natural(port) or 0
        if not is_address(host) or not 0 < number < 65_536:
            raise ConfigError(
                f"{flag} {text[:100]!r} is not the address of a server; write it like 10.0.0.53:53"
            )
        return cls(host, number)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_address(host: str) -> bool:
    """Whether a text is an IP address, with an interface or without."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


async def ask(
    upstream: Upstream, question: Question, *, seconds: float, long: LongWork
) -> Received:
    """The answer of a server, in so many seconds or ``UpstreamFailed``."""
    try:
        async with asyncio.timeout(seconds):
            message = await _over_packets(upstream, question, long, edns=True)
            if message.rcode in (Rcode.FORMERR, Rcode.NOTIMP):
                message = await _over_packets(upstream, question, long, edns=False)
            if message.sections.flags & TC:
                try:
                    async with asyncio.timeout(STREAM_PATIENCE):
                        message = await _over_stream(upstream, question, long)
                except (OSError, EOFError, TimeoutError):
                    return message  # a truncated answer is better than none; the client sees TC
    except TimeoutError:
        raise UpstreamFailed(f"{upstream} did not answer in {seconds:g} s") from None
    except OSError as error:
        raise UpstreamFailed(f"{upstream}: {error.strerror or error}") from None
    return message


async def _over_packets(
    upstream: Upstream, question: Question, long: LongWork, *, edns: bool
) -> Received:
    loop = asyncio.get_running_loop()
    packet, identity = _written(question, edns=edns)
    family = socket.AF_INET6 if ":" in upstream.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        await loop.sock_connect(sock, (upstream.host, upstream.port))
        await loop.sock_sendall(sock, packet)
        while True:
            data = await loop.sock_recv(sock, MAX_SIZE)
            message = await _checked(data, question, identity, long)
            if message is not None:
                return message


async def _over_stream(upstream: Upstream, question: Question, long: LongWork) -> Received:
    packet, identity = _written(question, edns=True)
    reader, writer = await asyncio.open_connection(upstream.host, upstream.port)
    try:
        writer.write(len(packet).to_bytes(2, "big") + packet)
        while True:
            length = int.from_bytes(await reader.readexactly(2), "big")
            data = await reader.readexactly(length)
            message = await _checked(data, question, identity, long)
            if message is not None:
                return message
    finally:
        writer.close()


def _written(question: Question, *, edns: bool) -> tuple[bytes, int]:
    identity = _draw.getrandbits(16)
    do = question.edns is not None and question.edns.do
    packet = write_question(
        identity, question.name, question.type, flags=question.flags, do=do, edns=edns
    )
    return packet, identity


async def _checked(
    data: bytes, question: Question, identity: int, long: LongWork
) -> Received | None:
    """The message, if it is the answer to our question."""
    failed = read_failure(data)
    if failed is not None:
        same = failed[0] == identity and failed[1] in _FAILURES
        return Received(Sections.empty(question.name, failed[1])) if same else None
    if not is_answer(data, question, identity):
        return None
    work = reading(data, question)
    try:
        return await long.run(work) if len(data) > LONG else finished(work)
    except Malformed:
        return None
