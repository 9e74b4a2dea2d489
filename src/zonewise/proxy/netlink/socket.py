"""A netlink socket: transactions, dumps and single requests.

The kernel works while ``send`` runs, in the caller's thread, and has queued every answer when it
returns. So nothing here waits: after sending, answers are read until there are no more. That also
means that a large transaction blocks the caller for as long as the kernel needs (about 0.3 s for a
hundred thousand elements), which is why only the first write of a program is that large.

*A transaction* is one datagram of many messages between a begin and an end; the kernel takes all of
it or nothing. Its messages are numbered from one, so an error says which message it is about. The
send buffer has to hold the datagram whole; it is enlarged when it must be, which needs
CAP_NET_ADMIN, as everything here does.

*A dump* may be interrupted by a concurrent change; the kernel says so and the dump is made again,
at most ``ATTEMPTS`` times.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Sequence
from typing import Self

from zonewise.api.errors import ZonewiseError
from zonewise.proxy.netlink import wire

ATTEMPTS = 20
NETLINK_ROUTE = 0
NETLINK_NETFILTER = 12
_SOL_NETLINK = 270
_CAP_ACK = 10
_EXT_ACK = 11
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_OVERHEAD = 4096
_READ = 1 << 20

_BATCH_BEGIN = 0x10
_BATCH_END = 0x11
_NFTABLES = 10
_EXT_ACK_MESSAGE = 1


class NetlinkError(ZonewiseError):
    """The kernel refused; ``index`` is the message of the transaction, counted from 0, or -1."""

    def __init__(self, code: int, *, index: int = -1, detail: str = "") -> None:
        self.code = code
        self.index = index
        self.detail = detail
        why = os.strerror(code) + (f" ({detail})" if detail else "")
        super().__init__(f"the kernel refused: {why}")


class Interrupted(ZonewiseError):
    """What is being read changes faster than it can be read."""


class NetlinkSocket:
    """One conversation, with netfilter if nothing else is said, in the namespace it began in."""

    def __init__(
        self, *, protocol: int = NETLINK_NETFILTER, groups: Sequence[int] = (), receive: int = 0
    ) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        try:
            self._socket.setsockopt(_SOL_NETLINK, _CAP_ACK, 1)
            self._socket.setsockopt(_SOL_NETLINK, _EXT_ACK, 1)
            if receive:
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive)
            self._socket.bind((0, sum(1 << (group - 1) for group in groups)))
        except BaseException:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[0]
        self._room = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def fileno(self) -> int:
        """For an event loop."""
        return self._socket.fileno()

    def setsockopt(self, option: int, value: bytes | int) -> None:
        """An option of the socket itself."""
        self._socket.setsockopt(socket.SOL_SOCKET, option, value)

    def transaction(self, messages: Sequence[tuple[int, int, int, bytes]]) -> None:
        """Do all of it or nothing; each message is (type, flags, family, attributes)."""
        if not messages:
            return
        last = len(messages)
        parts = [wire.message(_BATCH_BEGIN, 0, resource=_NFTABLES, sequence=0)]
        for sequence, (kind, flags, family, body) in enumerate(messages, start=1):
            message_flags = flags | wire.NLM_F_ACK if sequence == last else flags
            parts.append(
                wire.message(kind, message_flags, family=family, body=body, sequence=sequence)
            )
        parts.append(wire.message(_BATCH_END, 0, resource=_NFTABLES, sequence=last + 1))
        self._send(b"".join(parts))
        acknowledged = False
        failure: NetlinkError | None = None
        for data in self._answers():
            for answer, answer_flags, sequence, rest in wire.each_message(data):
                if answer != wire.NLMSG_ERROR:
                    continue
                error = _error(rest, answer_flags, index=sequence - 1)
                if error is None:
                    acknowledged = acknowledged or sequence == last
                elif failure is None:
                    failure = error
        if failure is not None:
            raise failure
        if not acknowledged:
            raise NetlinkError(errno.EPROTO, detail="no answer to a transaction")

    def request(self, kind: int, flags: int, family: int, body: bytes) -> None:
        """One message outside of any transaction."""
        self._sequence += 1
        self._send(
            wire.message(
                kind, flags | wire.NLM_F_ACK, family=family, body=body, sequence=self._sequence
            )
        )
        for data in self._answers():
            for answer, answer_flags, _, rest in wire.each_message(data):
                if answer == wire.NLMSG_ERROR:
                    error = _error(rest, answer_flags)
                    if error is not None:
                        raise error

    def dump(self, kind: int, family: int, body: bytes = b"") -> list[memoryview]:
        """All of something, read consistently; each is what follows the second header."""
        for _ in range(ATTEMPTS):
            bodies = self._dump(kind, family, body)
            if bodies is not None:
                return bodies
        raise Interrupted(f"the kernel's tables changed {ATTEMPTS} times while they were read")

    def _dump(self, kind: int, family: int, body: bytes) -> list[memoryview] | None:
        self._sequence += 1
        mine = self._sequence
        self._send(wire.message(kind, wire.NLM_F_DUMP, family=family, body=body, sequence=mine))
        bodies: list[memoryview] = []
        whole = True
        while True:
            data = memoryview(self._socket.recv(_READ))
            for answer, flags, sequence, rest in wire.each_message(data):
                if sequence != mine:
                    continue
                whole = whole and not flags & wire.NLM_F_DUMP_INTR
                if answer == wire.NLMSG_ERROR:
                    error = _error(rest, flags)
                    if error is not None:
                        raise error
                elif answer == wire.NLMSG_DONE:
                    code = -struct.unpack_from("=i", rest)[0] if len(rest) >= 4 else 0
                    if code == errno.EINTR:
                        return None
                    if code:
                        raise NetlinkError(code)
                    return bodies if whole else None
                else:
                    bodies.append(rest[wire.FAMILY.size :])

    def receive(self) -> memoryview | None:
        """A multicast message; None if there is none. ``OSError`` ENOBUFS: some were lost."""
        try:
            return memoryview(self._socket.recv(_READ, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return None

    def _answers(self) -> list[memoryview]:
        answers: list[memoryview] = []
        while True:
            data = self.receive()
            if data is None:
                return answers
            answers.append(data)

    def _send(self, data: bytes) -> None:
        need = len(data) + _OVERHEAD
        if need > self._room:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, need)
            self._room = need
        self._socket.sendto(data, (0, 0))


def _error(body: memoryview, flags: int, *, index: int = -1) -> NetlinkError | None:
    code = -struct.unpack_from("=i", body)[0]
    if code == 0:
        return None
    detail = ""
    if flags & wire.NLM_F_ACK_TLVS:
        start = 4 + wire.HEADER.size
        if not flags & wire.NLM_F_CAPPED:
            start = 4 + ((struct.unpack_from("=I", body, 4)[0] + 3) & ~3)
        reason = wire.attributes(body[start:]).get(_EXT_ACK_MESSAGE)
        detail = wire.read_text(reason) if reason is not None else ""
    return NetlinkError(code, index=index, detail=detail)
