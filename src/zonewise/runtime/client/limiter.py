"""How fast a client may send: a token bucket in front of every request.

A shared server must not be flooded, and a controller that starts with ten thousand keys would.
``rate`` requests per second are allowed in the long run, ``burst`` at once after a pause. Waiters
are served in order of arrival: each reserves its slot when it calls, so none overtakes and no lock
is held while sleeping. One that is cancelled gives its slot back to later callers.

The bucket is stored as the one moment at which it would be full again, so there is nothing to
refill and nothing that runs in the background.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Limiter:
    """At most ``rate`` acquisitions per second, and ``burst`` at once."""

    def __init__(
        self, rate: float, burst: int = 1, *, clock: Callable[[], float] | None = None
    ) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"a limiter needs rate > 0 and burst >= 1, not {rate} and {burst}")
        self._interval = 1.0 / rate
        self._depth = burst * self._interval
        self._clock = clock
        self._full_at = float("-inf")

    def reserve(self) -> float:
        """Take one token now, and say how many seconds to wait before using it."""
        now = self._now()
        self._full_at = max(self._full_at, now) + self._interval
        return max(0.0, self._full_at - self._depth - now)

    async def acquire(self) -> float:
        """Wait for one token; gives the seconds waited."""
        wait = self.reserve()
        if wait > 0:
            try:
                await asyncio.sleep(wait)
            except asyncio.CancelledError:
                self._full_at -= self._interval
                raise
        return wait

    def _now(self) -> float:
        return self._clock() if self._clock else asyncio.get_running_loop().time()
