"""Bytes that were written to watchers and not read yet, limited for all of them together.

A watcher that stops reading stops its own stream, but still costs memory: what TLS has encrypted
for it waits for its socket. Each may have a little; many together may not have more than ``limit``.
Above that the slowest are ended, those whose bytes have waited for the longest time, like a watcher
that falls too far behind: it reconnects and resumes.

Sizes are updated when something is written, so the total is never too low and may be too high: it
is recounted before any watcher is ended. Ending goes some way below the limit, so that one count
serves many writes.
"""

from __future__ import annotations

from zonewise.runtime.process.logs import logger
from zonewise.runtime.serving.listener import Encryption

_log = logger("watches")


class UnreadBytes:
    """The connections of watchers that have something to read, the longest waiting first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unread: dict[Encryption, int] = {}
        self._total = 0

    def __len__(self) -> int:
        return len(self._unread)

    @property
    def total(self) -> int:
        """Unread bytes, as of the last updates."""
        return self._total

    def update(self, link: Encryption) -> None:
        """Note that something was written to a watcher."""
        size = link.unsent
        previous = self._unread.get(link, 0)
        if size == previous:
            return
        self._total += size - previous
        if size:
            self._unread[link] = size
        else:
            del self._unread[link]
        if self._total > self._limit:
            self._end_slowest()

    def is_waiting(self, link: Encryption) -> bool:
        """Whether a watcher has not read all that was written to it."""
        if link in self._unread:
            self.update(link)
        return link in self._unread

    def remove(self, link: Encryption) -> None:
        """Remove a watch that has ended."""
        self._total -= self._unread.pop(link, 0)

    def _end_slowest(self) -> None:
        self._unread = {link: size for link in self._unread if (size := link.unsent)}
        self._total = sum(self._unread.values())
        if self._total <= self._limit:
            return
        ended = 0
        while self._total > self._limit * 3 // 4:
            link = next(iter(self._unread))
            self.remove(link)
            link.end()
            ended += 1
        _log.info(
            "watches whose clients did not read were closed", ended=ended, limit_bytes=self._limit
        )
