"""How soon to try again, so that an overloaded server can recover.

Two rules, for each watch on its own:

*Jittered exponential backoff.* After a failure the watch waits a random time between zero and a
window. The window starts at ``base``, doubles up to ``cap``, and halves for every second that the
attempt had lasted, so a connection that works for a while soon resets it while one that is accepted
and cut at once does not. The whole window is random: fifty watches that lose their server in the
same instant reconnect spread evenly over it, never together. ``Retry-After`` comes before the
window.

*A budget.* However attempts fail, and in whatever order, requests take tokens from a bucket of
``BURST`` that fills with ``RATE`` per second. Over any 30 seconds that is at most one request per
second: 15 from the bucket, 15 that were refilled meanwhile.
"""

from __future__ import annotations

import asyncio
import random

from zonewise.runtime.client.limiter import Limiter

RATE = 0.5
BURST = 15


class Pace:
    """The pace of one watch; ``turn`` before each request, ``rest`` after each failure."""

    def __init__(
        self, *, base: float = 2.0, cap: float = 30.0, rng: random.Random | None = None
    ) -> None:
        self._base = base
        self._cap = cap
        self._window = base
        self._rng = rng or random.SystemRandom()
        self._budget = Limiter(RATE, BURST)

    async def turn(self) -> None:
        """Wait until the budget allows one more request."""
        await self._budget.acquire()

    def pause(self, *, lived: float = 0.0, retry_after: float | None = None) -> float:
        """How long to wait after an attempt that lasted for so many seconds."""
        # Beyond a minute the exponent no longer changes the result, only overflows.
        window = max(self._base, self._window * 0.5 ** min(lived, 60.0))
        self._window = min(self._cap, 2 * window)
        return (retry_after or 0.0) + self._rng.uniform(0.0, window)

    async def rest(self, *, lived: float = 0.0, retry_after: float | None = None) -> float:
        """Wait as ``pause`` says; gives the seconds waited."""
        seconds = self.pause(lived=lived, retry_after=retry_after)
        await asyncio.sleep(seconds)
        return seconds
