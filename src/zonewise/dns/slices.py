"""Long work in slices, so that packets are answered in between.

A piece of work is a generator that stops wherever others may run. Short work is finished at once.
Of long work one piece at a time goes on by a slice in each turn of the event loop: however many
clients request it, the others wait for one slice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]


def finished(work: Steps[T]) -> T:
    """The result of work that is short."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


class LongWork:
    """Runs pieces of long work one after the other."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def turn(self) -> None:
        """Wait for a turn of the event loop in which no other long work runs."""
        async with self._lock:
            await asyncio.sleep(0)

    async def run(self, work: Steps[T]) -> T:
        """The result of a piece of work; it takes at least one turn of the event loop."""
        async with self._lock:
            while True:
                try:
                    next(work)
                except StopIteration as end:
                    result: T = end.value
                    await asyncio.sleep(0)
                    return result
                await asyncio.sleep(0)
