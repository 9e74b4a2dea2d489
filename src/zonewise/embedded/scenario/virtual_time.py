"""An event loop whose time runs faster than the wall clock.

At a finite speed every wait is that much shorter. At infinite speed no wait takes any time: when
nothing can run, the loop's time jumps to the next timer. What happens, and in which order, is then
the same each time, as long as nothing outside of the loop is awaited (threads, sockets).
"""

from __future__ import annotations

import asyncio
import selectors
import time
from math import inf
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop at a speed: 1 is real time, ``inf`` does not wait."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._start = time.monotonic()
        self._skipped = 0.0
        super().__init__(_ScaledSelector(self))

    def time(self) -> float:
        """Seconds of virtual time since the loop was created."""
        if self._speed == inf:
            return self._skipped
        return (time.monotonic() - self._start) * self._speed

    def real_timeout(self, timeout: float | None) -> float | None:
        """How long to wait really for a timeout in virtual time."""
        if timeout is None:
            return None
        return 0.0 if self._speed == inf else timeout / self._speed

    def advance(self, timeout: float | None) -> None:
        """Count a timeout in which nothing happened."""
        if self._speed == inf and timeout is not None:
            self._skipped += timeout


class _ScaledSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, Any]]:
        events = super().select(self._loop.real_timeout(timeout))
        if not events:
            self._loop.advance(timeout)
        return events
