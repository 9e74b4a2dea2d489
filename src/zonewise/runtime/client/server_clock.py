"""The API server's time of day, from the ``Date`` of its answers.

Replicas that compare moments they wrote, such as when a disruption was granted, must measure them
on one clock. Their own may be minutes apart; the server's is one for all.

An answer says at which second it was sent, and that was between the moments when we sent the
request and received the answer. So each answer bounds how far the server's time is ahead of the
event loop's, which only grows; what all answers agree on is precise after a few. An answer that
contradicts the others is another server's, or its clock was set: it counts from then on alone.
Until the first answer, the time is this machine's.

One wrong ``Date`` would make a replica take grants for expired, or write some that never expire. So
decisions by such moments use ``reliable_now``, which raises as long as the server's time and this
machine's differ by more than ``OFF_LIMIT``: one of them is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from math import inf

from zonewise.api.errors import ZonewiseError
from zonewise.runtime.process.clock import elapsed
from zonewise.runtime.process.logs import logger

OFF_LIMIT = 60.0
"""Seconds that this machine's clock may differ from the server's."""

_log = logger("clock")


class ClockOff(ZonewiseError):
    """The server's time and this machine's differ too much to decide anything by them."""


class ServerClock:
    """Estimates the server's time; ``wall`` is this machine's."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._least, self._most = -inf, inf
        self._date: tuple[str, float | None] = ("", None)
        self._off = False

    def observe(self, date: str, sent: float, received: float) -> None:
        """An answer with this ``Date`` came; both moments are of the event loop's clock."""
        if date != self._date[0]:
            self._date = (date, _epoch(date))
        second = self._date[1]
        if second is None:
            return
        least, most = second - received, second + 1 - sent
        both = max(least, self._least), min(most, self._most)
        self._least, self._most = both if both[0] <= both[1] else (least, most)
        self._log_change()

    def now(self) -> float:
        """Seconds since 1970 on the server's clock."""
        if self._least == -inf:
            return self._wall()
        return elapsed() + (self._least + self._most) / 2

    def reliable_now(self) -> float:
        """As ``now``; raises ``ClockOff`` while there is a ``problem``."""
        now = self.now()
        off = abs(self._wall() - now)
        if off > OFF_LIMIT:
            raise ClockOff(f"its clock and the API server's differ by {off:.0f} s")
        return now

    def problem(self) -> str | None:
        """Why this machine's clock cannot be relied on; a readiness check."""
        ahead = self._wall() - self.now()
        if abs(ahead) <= OFF_LIMIT:
            return None
        side = "ahead of" if ahead > 0 else "behind"
        return (
            f"the clock of this machine is {abs(ahead):.0f} s {side} the API server's;"
            " set it, for example with NTP"
        )

    def _log_change(self) -> None:
        problem = self.problem()
        if problem is not None and not self._off:
            _log.error(problem)
        elif problem is None and self._off:
            _log.info("the clock of this machine agrees with the API server's again")
        self._off = problem is not None


def _epoch(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
