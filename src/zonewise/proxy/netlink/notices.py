"""Changes of our tables by other programs: the kernel's commit notices.

Every commit to nf_tables is announced to a multicast group. A filter in the kernel leaves out those
of one socket, ours, so that writing a hundred thousand elements wakes nothing. What others write is
only searched for the table's name, because a busy firewall may write a lot. Too much at once
overflows the socket, and then anything may have changed.
"""

from __future__ import annotations

import errno
import struct
from array import array
from collections.abc import Collection
from enum import IntEnum

from zonewise.proxy.netlink import nftables, wire
from zonewise.proxy.netlink.socket import NetlinkSocket

_SO_ATTACH_FILTER = 26
_PORT = 12
_BUFFER = 4 << 20


class Touched(IntEnum):
    """How much of a table others changed."""

    NOTHING = 0
    ELEMENTS = 1
    RULES = 2


class Notices:
    """Commits to a table except by one socket of ours and the processes in ``own``.

    A netlink program is known by its process id unless it requests another port; so are the ``nft``
    processes that this program runs.
    """

    def __init__(self, table: str, *, but: int, own: Collection[int] = ()) -> None:
        self._name = wire.text(1, table)
        self._own = own
        self.socket = NetlinkSocket(groups=(nftables.GROUP,), receive=_BUFFER)
        _leave_out(self.socket, but)

    def close(self) -> None:
        """Stop listening."""
        self.socket.close()

    def touched(self) -> Touched:
        """What others changed since the last call; a lost notice may have been anything."""
        touched = Touched.NOTHING
        while True:
            try:
                data = self.socket.receive()
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                touched = Touched.RULES
                continue
            if data is None:
                return touched
            if wire.HEADER.unpack_from(data)[4] not in self._own and self._name in bytes(data):
                touched = max(touched, self._classify_changes(data))

    def _classify_changes(self, data: memoryview) -> Touched:
        kinds = (kind for kind, _, _, body in wire.each_message(data) if self._name in bytes(body))
        others = any(kind not in nftables.ELEMENT_MESSAGES for kind in kinds)
        return Touched.RULES if others else Touched.ELEMENTS


def _leave_out(socket: NetlinkSocket, port: int) -> None:
    """Drop datagrams whose first message was caused by that port.

    Messages of one commit all have the same cause. A filter reads numbers in network byte order; a
    message's port is in the host's.
    """
    swapped = struct.unpack(">I", struct.pack("=I", port))[0]
    program = (
        (0x20, 0, 0, _PORT),  # load the word at the port
        (0x15, 0, 1, swapped),  # if it is ours
        (0x06, 0, 0, 0),  # keep nothing
        (0x06, 0, 0, 0xFFFFFFFF),  # else keep all
    )
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = array("B", code)
    socket.setsockopt(_SO_ATTACH_FILTER, struct.pack("@HP", len(program), buffer.buffer_info()[0]))
