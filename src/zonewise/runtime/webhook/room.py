"""Room for large bodies: bytes that those under way may have together.

A body gets room for what it announces before it is read, so that many at once do not wait for each
other's rest. Callers are not known, and announcing costs nothing, so none may keep out others: room
goes first to the source that has the least with it, and a body that is not there ``PATIENCE``
seconds after it got its room is given up as soon as a call has to wait whose source has no more.
Bodies of API servers arrive in milliseconds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

PATIENCE = 1.0


class Share:
    """The room of one body."""

    def __init__(self, size: int, source: str) -> None:
        self.size = size
        self.source = source
        self.turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        """Done at the moment when it has its room."""
        self._arriving: asyncio.Timeout | None = None

    async def wait_for_body(self, body: Awaitable[bytes]) -> bytes:
        """Wait for the body; ``TimeoutError`` if it is given up for another one."""
        try:
            async with asyncio.timeout(None) as self._arriving:
                return await body
        finally:
            self._arriving = None

    def slow(self, now: float) -> bool:
        """Whether the body should have arrived by now."""
        return self._arriving is not None and now - self.turn.result() >= PATIENCE

    def give_up(self) -> None:
        """Stop waiting for the body."""
        if self._arriving is not None:
            self._arriving.reschedule(asyncio.get_running_loop().time())
            self._arriving = None


class Room:
    """Shares of so many bytes; without room a call waits its turn."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._bytes_by_source: Counter[str] = Counter()
        """Bytes by source."""
        self._shares: list[Share] = []
        self._waiting: list[Share] = []

    @asynccontextmanager
    async def of(self, size: int, source: str) -> AsyncIterator[Share]:
        """Room for so many bytes, as long as the context lasts; for none there always is."""
        share = Share(size, source)
        if not size:
            yield share
            return
        self._waiting.append(share)
        self._admit()
        try:
            while not share.turn.done():
                self._make_room(share)
                await asyncio.wait([share.turn], timeout=PATIENCE)
            yield share
        finally:
            if share.turn.done():
                self._return(share)
            else:
                self._waiting.remove(share)
            self._admit()

    def _admit(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._waiting:
            share = min(
                self._waiting, key=lambda share: self._bytes_by_source[share.source] + share.size
            )
            if share.size > self._free:
                return
            self._waiting.remove(share)
            self._free -= share.size
            self._bytes_by_source[share.source] += share.size
            self._shares.append(share)
            share.turn.set_result(now)

    def _return(self, share: Share) -> None:
        self._shares.remove(share)
        self._free += share.size
        self._bytes_by_source[share.source] -= share.size
        if not self._bytes_by_source[share.source]:
            del self._bytes_by_source[share.source]

    def _make_room(self, waiting: Share) -> None:
        """Give up slow bodies of sources that have no less, until there is room."""
        now = asyncio.get_running_loop().time()
        least = self._bytes_by_source[waiting.source]
        slow = [
            share
            for share in self._shares
            if share.slow(now) and self._bytes_by_source[share.source] >= least
        ]
        slow.sort(key=lambda share: self._bytes_by_source[share.source], reverse=True)
        missing = waiting.size - self._free
        for share in slow:
            if missing <= 0:
                return
            share.give_up()
            missing -= share.size
