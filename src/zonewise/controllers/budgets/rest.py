"""Whether a workload is at rest: no pod was added, deleted or moved for a while.

Only then may the baseline follow the existing pods; in the middle of a rollout or an outage it
would lose what was intended. A workload that never rests settles every ten minutes all the same, or
a busy autoscaler would keep a baseline forever. The clock is the leader's own: a new leader starts
waiting again, which is late and never wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

REST_SECONDS = 60.0
AT_LATEST = 600.0


@dataclass(slots=True)
class Rest:
    """The movements of one budget's pods."""

    moves: int
    since: float
    settled: float

    def saw(self, moves: int, now: float) -> None:
        """How often pods have moved until now."""
        if moves != self.moves:
            self.moves = moves
            self.since = now

    def due(self, now: float) -> bool:
        """Whether the baseline may follow the existing pods."""
        return now - self.since >= REST_SECONDS or now - self.settled >= AT_LATEST

    def left(self, now: float) -> float:
        """Seconds until it may, if nothing moves; for one that may, until it is looked at again."""
        if self.due(now):
            return AT_LATEST
        return min(self.since + REST_SECONDS, self.settled + AT_LATEST) - now
