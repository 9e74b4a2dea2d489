"""Fair turns for work in slices, so that no source blocks the event loop for others.

Work that is done on behalf of a source (a namespace, say) is done in slices, each a few
milliseconds without an ``await``. Before each slice ``take`` waits for a turn. Turns go around: one
slice for each that has work, then the next one for each. So a namespace that asks for a thousand
verdicts waits for its own, and another one at most for one slice of each busy namespace. Between
two slices the event loop runs once: connections are read, leases are renewed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Generator, Hashable, Iterator
from typing import TypeVar

T = TypeVar("T")


class FairTurns:
    """Hands out turns, one at a time, in rotation among the sources that wait."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        self._handing: asyncio.Task[None] | None = None

    async def take(self, whose: Hashable) -> None:
        """Wait for a turn; it lasts until the caller's next ``await``."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(whose, deque()).append(turn)
        if self._handing is None:
            self._handing = asyncio.create_task(self._hand_out(), name="turns")
        await turn

    async def slices(self, whose: Hashable, work: Iterator[None]) -> None:
        """Do work that pauses after each slice, a turn for each."""
        await self.take(whose)
        for _ in work:
            await self.take(whose)

    async def _hand_out(self) -> None:
        try:
            while self._waiting:
                whose, turns = self._waiting.popitem(last=False)
                turn = turns.popleft()
                if turns:
                    self._waiting[whose] = turns
                if not turn.done():
                    turn.set_result(None)
                    # What waits for the turn runs before this continues.
                    await asyncio.sleep(0)
        finally:
            self._handing = None


async def in_slices(work: Generator[None, None, T]) -> T:
    """Do work that pauses after each slice, and let the event loop run in each pause."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
        await asyncio.sleep(0)
