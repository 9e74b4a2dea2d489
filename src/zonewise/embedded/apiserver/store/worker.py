"""The thread that waits for the disk, so that the event loop does not.

One thread, one job at a time, in order: that is what makes commits serial. A job's outcome is
handed to the loop first; only then the thread cleans up after it, so nothing waits for that unless
another job is queued already. Its owner submits the next job when the last one is done, so the
queue never holds more than a few.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple


class _Job(NamedTuple):
    run: Callable[[], None]
    done: Callable[[Exception | None], None]
    tidy: Callable[[], None]


class Worker:
    """Runs jobs in a thread of its own and reports their results on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        run: Callable[[], None],
        done: Callable[[Exception | None], None],
        tidy: Callable[[], None],
    ) -> None:
        """Run a job; ``done`` gets its error or None on the loop, ``tidy`` runs after that."""
        self._jobs.put(_Job(run, done, tidy))

    def stop(self) -> None:
        """Finish what was submitted and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            failure: Exception | None = None
            try:
                job.run()
            except Exception as error:
                failure = error
            try:
                self._loop.call_soon_threadsafe(job.done, failure)
            except RuntimeError:
                return  # the loop is closed: there is no one to notify
            job.tidy()
