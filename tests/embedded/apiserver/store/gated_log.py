"""A clock that a test moves, and a log whose commits wait for the test."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from zonewise.embedded.apiserver.store.compaction import Record
from zonewise.embedded.apiserver.store.limits import StoreLimits
from zonewise.embedded.apiserver.store.log import Log, WriteFailed
from zonewise.embedded.apiserver.store.state import State


class Ticks:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Gate(Log):
    """A log whose commits wait for a test, and fail if it says so."""

    def prepare(self) -> None:
        self.allowed = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.commits: list[list[int]] = []
        self.trouble: WriteFailed | None = None

    def append(self, records: Sequence[Record], *, ceiling: int | None = None) -> None:
        self.entered.release()
        self.allowed.acquire()
        if self.trouble is not None:
            raise self.trouble
        super().append(records, ceiling=ceiling)
        self.commits.append([record.rv for record in records])

    async def enter(self) -> None:
        """Wait until the worker holds a commit."""
        await asyncio.to_thread(self.entered.acquire)


def gated(
    path: Path, limits: StoreLimits | None = None, clock: Ticks | None = None, permits: int = 0
) -> tuple[State, Gate]:
    """A state on such a log."""
    log, recovered = Gate.open(path)
    assert isinstance(log, Gate)
    log.prepare()
    if permits:
        log.allowed.release(permits)
    return State(log, recovered, clock=clock or time.monotonic, limits=limits), log
