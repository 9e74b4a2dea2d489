"""Whether SQLite would recover every commit that is in a write-ahead log.

When SQLite opens a database it replays the frames of its write-ahead log up to the first one whose
checksum is wrong and silently drops the rest. That is right for a torn tail: the machine stopped
while a transaction was being written, and it was never acknowledged. It is wrong for a damaged byte
before that: commits after it were acknowledged. So the frames are checked before SQLite opens the
file.

The two cases can be distinguished because commits are serial: each is synced before the next one
starts. After the last complete transaction there can be the frames of one more, in any state, and
so at most one frame with a commit mark. Two mean that something in the middle is damaged. (One may
still be a damaged acknowledged commit, the last one; `embedded.apiserver.store.folder` records the
newest acknowledged version.)

A log is used again from its start after a checkpoint, under new salts; frames with other salts are
left over from before and are ignored. A bad header would hide everything, so it is damage too,
unless there is nothing else in the file.

The checksum runs over every byte in Python, about a second for 30 MB; the log is checkpointed at a
fraction of that (`embedded.apiserver.store.log`).
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682
_MASK = 0xFFFFFFFF


class WalDamaged(Exception):
    """The log has commits that SQLite would drop; the message says where it is damaged."""


def inspect(path: Path) -> int:
    """How many frames SQLite will replay; raises ``Damaged`` if it would drop commits."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return 0
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return 0
        magic, _, page_size, _, salt1, salt2, sum1, sum2 = _HEADER.unpack(header)
        order = ">" if magic & 1 else "<"
        sums = _checksum(struct.unpack(order + "6I", header[:24]), 0, 0)
        if magic & ~1 != _MAGIC or sums != (sum1, sum2) or not 512 <= page_size <= 65536:
            if not header.strip(b"\0") and not file.read().strip(b"\0"):
                return 0
            raise WalDamaged("the header of the write-ahead log is not what was written")
        words = struct.Struct(f"{order}{page_size // 4}I")
        head = struct.Struct(order + "2I")
        frames = (size - _HEADER.size) // (_FRAME.size + page_size)
        salts = (salt1, salt2)
        committed = 0
        for number in range(1, frames + 1):
            frame = file.read(_FRAME.size)
            page = file.read(page_size)
            _, pages, *frame_salts, sum1, sum2 = _FRAME.unpack(frame)
            if tuple(frame_salts) != salts:
                break
            sums = _checksum(head.unpack_from(frame), *sums)
            sums = _checksum(words.unpack(page), *sums)
            if sums != (sum1, sum2):
                break
            if pages:
                committed = number
        else:
            return committed
        commits = 0
        for number in range(committed, frames):
            file.seek(_HEADER.size + number * (_FRAME.size + page_size))
            _, pages, *frame_salts, _, _ = _FRAME.unpack(file.read(_FRAME.size))
            commits += tuple(frame_salts) == salts and pages > 0
        if commits > 1:
            raise WalDamaged(
                f"the write-ahead log is good up to frame {committed} of {frames},"
                f" and {commits} commits follow that cannot be read"
            )
        return committed


def _checksum(words: tuple[int, ...], sum1: int, sum2: int) -> tuple[int, int]:
    pairs = iter(words)
    for first, second in zip(pairs, pairs, strict=True):
        sum1 = (sum1 + first + sum2) & _MASK
        sum2 = (sum2 + second + sum1) & _MASK
    return sum1, sum2
