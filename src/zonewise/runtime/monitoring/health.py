"""Whether the program is alive and whether it is ready: named checks with reasons.

A check is a function that returns None when healthy, else one sentence. Checks run on request, in
the event loop, so they must be quick and read only what is in memory; nothing is cached. A check
that raises counts as failed, with the exception as its reason.

*Alive* is false when only a restart can help: a watch without a byte for much longer than the
silence that the reflector itself tolerates is a reflector that hangs. *Ready* is false while caches
are not filled, certificates are missing or the program is stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from zonewise.runtime.client.watch import WatchStats

Check = Callable[[], str | None]

STALE_AFTER = 600.0
"""Seconds without a byte after which a watch is taken for dead; four times its own patience."""

_REASON_LIMIT = 300


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; an empty reason means healthy."""

    name: str
    reason: str

    @property
    def good(self) -> bool:
        """Whether the check passed."""
        return not self.reason


class Health:
    """The checks of a program."""

    def __init__(self) -> None:
        self._alive: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def add_alive(self, name: str, check: Check) -> None:
        """A check whose failure requires a restart."""
        self._alive[name] = check

    def add_ready(self, name: str, check: Check) -> None:
        """A check whose failure requires waiting."""
        self._ready[name] = check

    def alive(self) -> tuple[CheckResult, ...]:
        """Run the checks of liveness."""
        return _run(self._alive)

    def ready(self) -> tuple[CheckResult, ...]:
        """Run the readiness checks; what is not alive is not ready either."""
        return _run(self._alive | self._ready)


def fresh_watches(
    stats: Callable[[], Iterable[WatchStats]],
    clock: Callable[[], float],
    *,
    limit: float = STALE_AFTER,
) -> Check:
    """A check that fails when a watch has been silent for too long; names the worst one.

    A watch that has not begun yet is not silent: a follower may begin its watches when it leads.
    """

    def check() -> str | None:
        now = clock()
        begun = [watch for watch in stats() if watch.started or watch.last_byte]
        stale = [(watch.age(now), watch) for watch in begun if watch.age(now) > limit]
        if not stale:
            return None
        age, worst = max(stale, key=lambda pair: pair[0])
        scope = f" in namespace {worst.namespace}" if worst.namespace else ""
        why = f": {worst.last_error}" if worst.last_error else ""
        return f"the watch of {worst.resource}{scope} received nothing for {age:.0f} s{why}"

    return check


def synced_watches(stats: Callable[[], Iterable[WatchStats]]) -> Check:
    """A check that fails until every watch has delivered its first complete list."""

    def check() -> str | None:
        waiting = sorted({watch.resource for watch in stats() if not watch.synced})
        return f"still reading {', '.join(waiting)}" if waiting else None

    return check


def _run(checks: dict[str, Check]) -> tuple[CheckResult, ...]:
    return tuple(CheckResult(name, _ask(check)) for name, check in checks.items())


def _ask(check: Check) -> str:
    try:
        reason = check()
    except Exception as error:
        reason = f"the check itself failed: {type(error).__name__}: {error}"
    return " ".join((reason or "").split())[:_REASON_LIMIT]
