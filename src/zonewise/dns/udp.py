"""Packets: one socket, read until it is empty, at most 64 at a time.

The event loop wakes us up when there is something to read; going back to it for every packet would
cost more than answering (research: 28 µs against 7). So one wake-up answers up to ``BATCH`` packets
and then lets other tasks run: watches, streams, answers from upstream. A question whose answer is
kept costs a dictionary look-up and a system call each way.

What cannot be sent at once is dropped, as packets are: the client retries. Answers that have to
wait for upstreams are tasks, bounded by the forwarder.

A client takes an answer only from the address that it asked. A socket that is bound to all of the
machine's addresses would send from the one nearest to the client, so the kernel tells with each
packet to which address it was sent, and the answer goes out from there. That costs two
microseconds, so a socket that is bound to one address goes without.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from time import perf_counter

from zonewise.dns.responder import Responder
from zonewise.dns.subnet import plain
from zonewise.runtime.process.logs import logger

BATCH = 64
PACKET = 65_535
BUFFER = 4 << 20

_log = logger("dns")

_PKTINFO_V4 = 8
"""``IP_PKTINFO``, which the socket module does not have everywhere."""

_V4_INFO, _V6_INFO = 12, 20
_ANY_INTERFACE = bytes(4)

PacketInfo = list[tuple[int, int, bytes]]
"""Ancillary data of a packet: to which address it was sent, or from which it is to go out."""

Observe = Callable[[int, float], None]
"""Called with how many packets a wake-up answered, and how long it took."""


class PacketServer:
    """Answers the packets of a socket, from ``start`` to ``stop``; it owns the socket."""

    def __init__(
        self, sock: socket.socket, responder: Responder, *, observe: Observe | None = None
    ) -> None:
        self.unsent = 0
        self._socket = sock
        self._wide = 0
        self._responder = responder
        self._observe = observe
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin to answer."""
        self._wide = _request_addresses(self._socket)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._drain)

    def stop(self) -> None:
        """Answer nothing any more, and close the socket, whether started or not."""
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop = None
        for task in self._tasks:
            task.cancel()
        self._socket.close()

    def _drain(self) -> None:
        began = perf_counter()
        wide = self._wide
        receive, send = self._socket.recvfrom, self._socket.sendto
        receive_wide, send_wide = self._socket.recvmsg, self._socket.sendmsg
        table = self._responder.cache.table
        locate = self._responder.locate
        way: PacketInfo = []
        count = 0
        while count < BATCH:
            try:
                if wide:
                    data, ways, _, source = receive_wide(PACKET, wide)
                    way = _way_back(ways)
                else:
                    data, source = receive(PACKET)
            except BlockingIOError:
                break
            except OSError:
                continue  # an earlier answer reached a closed port, and the socket reports it now
            count += 1
            entry = table.get(data[2:])
            if entry is not None:
                turns = entry.turns
                if turns is None:
                    host = source[0]
                    if ":" in host:
                        host = plain(host)
                    turns = entry.by_location.get(locate(host).number)
                if turns is not None:
                    entry.tally.hits += 1
                    try:
                        if wide:
                            send_wide((data[:2], turns.next()), way, 0, source)
                        else:
                            send(data[:2] + turns.next(), source)
                    except OSError:
                        self.unsent += 1
                    continue
            self._answer(data, source, way)
        if self._observe is not None and count:
            self._observe(count, perf_counter() - began)

    def _answer(self, data: bytes, source: tuple[str, int], way: PacketInfo) -> None:
        try:
            answer = self._responder.respond(data, plain(source[0]), stream=False)
        except Exception:
            _log.exception("a question could not be answered", question=data.hex())
            return
        if answer is None:
            return
        if isinstance(answer, bytes):
            self._send(answer, source, way)
            return
        task = asyncio.ensure_future(self._send_when_ready(answer, source, way))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_when_ready(
        self, pending: Awaitable[bytes], source: tuple[str, int], way: PacketInfo
    ) -> None:
        try:
            answer = await pending
        except Exception:
            _log.exception("a question could not be forwarded")
            return
        self._send(answer, source, way)

    def _send(self, answer: bytes, source: tuple[str, int], way: PacketInfo) -> None:
        try:
            self._socket.sendmsg((answer,), way, 0, source)
        except OSError:
            self.unsent += 1


def _request_addresses(sock: socket.socket) -> int:
    """Have the kernel report to which address packets were sent, if the socket takes those to any.

    Gives the size of that report; 0 for a socket that has one address.
    """
    if not ipaddress.ip_address(sock.getsockname()[0]).is_unspecified:
        return 0
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        return socket.CMSG_SPACE(_V6_INFO)
    sock.setsockopt(socket.IPPROTO_IP, _PKTINFO_V4, 1)
    return socket.CMSG_SPACE(_V4_INFO)


def _way_back(ways: PacketInfo) -> PacketInfo:
    """An answer goes out from the address its question was sent to, over any interface."""
    if not ways:
        return ways
    level, kind, info = ways[0]
    if level == socket.IPPROTO_IPV6:
        return [(level, kind, info[:16] + _ANY_INTERFACE)]
    return [(level, kind, _ANY_INTERFACE + info[4:])]
