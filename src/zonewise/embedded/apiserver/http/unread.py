"""What was written for watchers and what they have not read yet, bounded over all of them.

A watcher that stops reading stops its own stream, but still costs memory: what TLS has encrypted
for it waits for its socket. Each may hold a little; many together may not hold more than ``limit``.
Above that the slowest are ended, those whose bytes have waited without a break for the longest
time, as is a watcher that falls too far behind: it reconnects and resumes.

Sizes are updated when something is written, so the total is never too low and may be too high: it
is recounted before any watcher is ended. Ending goes some way below the limit, so that one count
serves many writes.
"""

from __future__ import annotations

from zonewise.runtime.process.logs import logger
from zonewise.runtime.serving.listener import Encryption

_log = logger("watches")


class Unread:
    """The connections of watchers that have something to read, the longest waiting first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: dict[Encryption, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return len(self._held)

    @property
    def total(self) -> int:
        """Bytes that wait, as far as it was looked at."""
        return self._total

    def look(self, link: Encryption) -> None:
        """Something was written to a watcher."""
        size = link.unsent
        before = self._held.get(link, 0)
        if size == before:
            return
        self._total += size - before
        if size:
            self._held[link] = size
        else:
            del self._held[link]
        if self._total > self._limit:
            self._relieve()

    def waits(self, link: Encryption) -> bool:
        """Whether a watcher has not taken all that was written to it before."""
        if link in self._held:
            self.look(link)
        return link in self._held

    def leave(self, link: Encryption) -> None:
        """A watch has ended."""
        self._total -= self._held.pop(link, 0)

    def _relieve(self) -> None:
        self._held = {link: size for link in self._held if (size := link.unsent)}
        self._total = sum(self._held.values())
        if self._total <= self._limit:
            return
        ended = 0
        while self._total > self._limit * 3 // 4:
            link = next(iter(self._held))
            self.leave(link)
            link.end()
            ended += 1
        _log.info(
            "watches whose clients did not read were closed", ended=ended, limit_bytes=self._limit
        )
