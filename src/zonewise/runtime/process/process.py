"""A program that runs until it is stopped.

``run(main)`` owns the event loop. ``main`` gets a ``Process`` and runs beside the tasks it gives to
``Process.spawn``. The program ends when one of these happens, whichever is first:

* ``main`` returns: done.
* SIGTERM or SIGINT: ``Process.stopping`` is set. ``main`` is expected to await it, or to do its
  work inside ``Process.until_stop``, and to shut down gracefully (stop its controllers, release its
  lease, flush its events).
* a spawned task fails, or ends although it is not allowed to: a program that has lost one of its
  parts must not look healthy, so it is stopped with a sentence that names the part.

From then on the time is bounded: ``main`` has ``grace`` seconds, then it is cancelled, and what
ignores the cancellation for ``ABANDON`` seconds more is left behind. Spawned parts end after
``main`` has ended, the last one first, because later parts may need earlier ones; those that can
stop gracefully are asked to and get what is left of ``grace``, the others are cancelled. What
``main`` opens for them, a client above all, has to outlive them: inside of it, ``Process.parts``
ends them before it is closed. A second signal ends the program at once.

Readiness: ``Process.ready`` turns true when ``main`` says so and false for good when the program
begins to stop, so that it is removed from a Service before it exits.

The answer of ``run`` is the exit code: 0 after a signal or a return, 1 after a crash. What ``main``
itself raises is raised to the caller, which can tell whether the work could start at all.

*Open files*, sockets among them: systems start programs with a low limit of 1024, for the sake of
those that cannot have more, and let them raise it. A server that takes a thousand connections needs
more than that: at the limit it could not open a socket of its own any more, neither to an upstream
nor to the API server.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from zonewise.api.errors import ZonewiseError
from zonewise.runtime.process.logs import logger

GRACE = 20.0
ABANDON = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_log = logger("process")


class Process:
    """The running program, for ``main``: its tasks, and whether it is to stop."""

    def __init__(self, *, grace: float = GRACE) -> None:
        self.stopping = asyncio.Event()
        self.reason = ""
        self.stopped_at = 0.0
        self.crashed = False
        self._grace = grace
        self._ready = False
        self._tasks: dict[asyncio.Task[None], Callable[[], None] | None] = {}

    @property
    def ready(self) -> bool:
        """Whether the program does its work now."""
        return self._ready and not self.stopping.is_set()

    @ready.setter
    def ready(self, value: bool) -> None:
        self._ready = value

    def problem(self) -> str | None:
        """Why the program does not do its work now; a readiness check."""
        if self.stopping.is_set():
            return f"the program stops: {self.reason}"
        return None if self._ready else "the program is still starting"

    def stop(self, reason: str) -> None:
        """Begin to stop; the first reason counts."""
        if not self.stopping.is_set():
            self.reason = reason
            self.stopped_at = asyncio.get_running_loop().time()
            self.stopping.set()

    def spawn(
        self,
        work: Coroutine[Any, Any, None],
        *,
        name: str,
        endless: bool = True,
        stop: Callable[[], None] | None = None,
    ) -> asyncio.Task[None]:
        """Run a part of the program beside ``main``; if it fails the program stops.

        An ``endless`` part also may not return before the program stops. ``stop`` asks the part to
        end by itself, as ``Controller.stop`` does; without it the part is cancelled.
        """
        task = asyncio.create_task(self._watch(work, name, endless), name=name)
        self._tasks[task] = stop
        task.add_done_callback(self._forget)
        return task

    @asynccontextmanager
    async def parts(self) -> AsyncIterator[None]:
        """All parts that were spawned have ended when this is left, and the program stops."""
        try:
            yield
        finally:
            await self.end_tasks()

    async def until_stop(
        self, work: Coroutine[Any, Any, None], *, stop: Callable[[], None] | None = None
    ) -> None:
        """Do some work until it ends or the program is to stop; then end it and wait for it.

        ``stop`` asks the work to end by itself; without it the work is cancelled.
        """
        task = asyncio.create_task(work)
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            if stop is not None and not task.done():
                stop()
                await asyncio.wait([task])
        finally:
            stopping.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _watch(self, work: Coroutine[Any, Any, None], name: str, endless: bool) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except ZonewiseError as error:
            self._crash(f"{name} failed: {error}")
        except Exception as error:
            _log.exception("a part of the program crashed", part=name)
            self._crash(f"{name} crashed: {type(error).__name__}: {error}")
        else:
            if endless and not self.stopping.is_set():
                self._crash(f"{name} ended, which it must not do before the program does")

    def _crash(self, sentence: str) -> None:
        self.crashed = True
        _log.error(sentence)
        self.stop(sentence)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]

    async def end_tasks(self) -> None:
        """Stop, and end what was spawned, the last first, each after the one before it has ended.

        All together get what is left of ``grace``, and each that is cancelled at least ``ABANDON``.
        """
        self.stop("the program ended")
        loop = asyncio.get_running_loop()
        deadline = self.stopped_at + self._grace
        for task, stop in reversed(self._tasks.copy().items()):
            if stop is not None:
                stop()
                await asyncio.wait([task], timeout=max(0.0, deadline - loop.time()))
            task.cancel()
            await asyncio.wait([task], timeout=max(ABANDON, deadline - loop.time()))
            if not task.done():
                _log.error("a part of the program did not stop in time", part=task.get_name())


Main = Callable[[Process], Awaitable[None]]


def run(main: Main, *, grace: float = GRACE) -> int:
    """Run a program to its end and give its exit code."""
    with asyncio.Runner() as runner:
        return runner.run(supervise(main, grace=grace))


async def supervise(main: Main, *, grace: float = GRACE) -> int:
    """What ``run`` does, inside a loop that is there already."""
    process = Process(grace=grace)
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, _signalled, process, number)
    try:
        await _lead(process, main, grace)
    finally:
        await process.end_tasks()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return 1 if process.crashed else 0


async def _lead(process: Process, main: Main, grace: float) -> None:
    working = asyncio.create_task(_call(main, process), name="main")
    stopping = asyncio.create_task(process.stopping.wait(), name="stopping")
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            _log.info("stopping", reason=process.reason)
            await asyncio.wait([working], timeout=grace)
        if not working.done():
            _log.warning("the work did not end in time and is cancelled", seconds=grace)
            working.cancel()
            await asyncio.wait([working], timeout=ABANDON)
    except asyncio.CancelledError:
        working.cancel()
        await asyncio.wait([working], timeout=ABANDON)
        raise
    finally:
        stopping.cancel()
        with suppress(asyncio.CancelledError):
            await stopping
    if working.done() and not working.cancelled():
        working.result()


async def _call(main: Main, process: Process) -> None:
    await main(process)


def _signalled(process: Process, number: signal.Signals) -> None:
    if process.stopping.is_set():
        sys.stderr.write(f"{number.name} again: leaving at once\n")
        sys.stderr.flush()
        os._exit(128 + number)
    process.stop(f"received {number.name}")


ENOUGH = 16_384


def raise_file_limit() -> int:
    """Raise the limit as far as allowed and useful; gives what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        return ENOUGH if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return limit
