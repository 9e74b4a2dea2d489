"""A program: controllers that share one cache and live and end together.

``program.add(name, HintsController, settings)`` constructs a controller with a context of its own
and runs it with the others: what a manager is to controller-runtime. Controllers never call each
other; they communicate through objects, as everywhere in Kubernetes. So one that was stopped, or
started late, finds its work in the cluster.

*Shared* is what would be the same: every kind is listed, watched and decoded once for all. *Own*
are the client (its name is the field manager and the user agent, where ``connect`` makes one for
each), the recorder and the random numbers, so that what one draws never changes what another does.
Nothing here depends on a kind of cluster: ``connect`` leads to a real API server or to one in this
process, and the clock may be virtual.

*Led*: with an election the stores are filled at once and controllers run only while this replica
leads; ``LeadershipLost`` ends the program, because none of its writes would be sent.

*Ended*: ``stop`` asks the controllers to finish what they are doing; when all have, events are
flushed, the lease is released and the stores end. Cancelling ``run`` ends everything at once.
A controller that raises, or ends without being stopped, ends the program: half of its work
that looks whole is worse than none.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, runtime_checkable

from zonewise.api.errors import ConfigError, LeadershipLost, ZonewiseError
from zonewise.api.values import times
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.watch import DEFAULTS, WatchOptions
from zonewise.runtime.controller.recorder import Recorder, RecorderLimits
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext

if TYPE_CHECKING:
    from zonewise.runtime.election.election import Election
    from zonewise.runtime.monitoring.metrics import Metrics

P = ParamSpec("P")

_log = logger("program")


class ControllerFailed(ZonewiseError):
    """A controller ended without being stopped."""


class Runnable(Protocol):
    """Something that works until it is cancelled, or stopped if it is ``Stoppable``."""

    async def run(self) -> None:
        """Work."""


@runtime_checkable
class Stoppable(Protocol):
    """Something whose ``run`` returns soon after ``stop``."""

    def stop(self) -> None:
        """Finish what has begun, begin nothing more."""


R = TypeVar("R", bound=Runnable)


class Program:
    """Controllers over one cache; without ``connect``, only what needs no cluster.

    Events are reported under the name of each controller, or all under ``reporter``. With
    ``metrics`` controllers and stores are counted there.
    """

    def __init__(
        self,
        connect: Callable[[str], Client] | None,
        *,
        clock: Callable[[], float],
        rng: random.Random,
        reporter: str = "",
        events: RecorderLimits | None = None,
        watch_options: WatchOptions = DEFAULTS,
        transforms: Mapping[type[Any], Callable[[Any], Any]] | None = None,
        metrics: Metrics | None = None,
        election: Election | None = None,
    ) -> None:
        self.election = election
        self.metrics = metrics
        self.runnables: dict[str, Runnable] = {}
        self._connect = connect
        self._clock = clock
        self._rng = rng
        self._reporter = reporter
        self._events = events
        self._cache: Cache | None = None
        if connect is not None:
            client = connect("zonewise")
            self._cache = Cache(client, options=watch_options, transforms=transforms)
        self._recorders: dict[str, Recorder] = {}
        self._stopping = asyncio.Event()
        if metrics is not None:
            metrics.watches(lambda: self._cache.stats if self._cache is not None else ())
            metrics.counts(
                "zonewise_events_dropped",
                "Events that could not be written.",
                "reason",
                self._dropped_events,
            )

    @property
    def cache(self) -> Cache:
        """The stores of all controllers."""
        if self._cache is None:
            raise RuntimeError("this program has no cluster")
        return self._cache

    def context(self, name: str) -> ControllerContext:
        """What a controller of this name works with."""
        if self._connect is None:
            raise RuntimeError("this program has no cluster")
        client = self._connect(name)
        return ControllerContext(
            client=client,
            cache=self.cache,
            recorder=self._recorder(self._reporter or name, client),
            clock=self._clock,
            rng=self._random(),
            metrics=self.metrics,
        )

    def add(
        self,
        name: str,
        make: Callable[Concatenate[ControllerContext, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Construct a controller with a context of its own; ``run`` runs it."""
        return self.run_beside(name, make(self.context(name), *args, **kwargs))

    def run_beside(self, name: str, runnable: R) -> R:
        """Run something that needs no context (a server, a file to follow) with the others."""
        self.runnables[name] = runnable
        return runnable

    def stop(self) -> None:
        """Let the controllers finish what they are doing; ``run`` returns when they have."""
        self._stopping.set()

    async def run(self) -> None:
        """Work until stopped or cancelled; raises what ended it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                stores = None
                if self._cache is not None:
                    stores = tasks.create_task(self._cache.run(), name="cache")
                if self.election is None:
                    await self._work()
                else:
                    await self._lead(self.election)
                if stores is not None:
                    stores.cancel()
        except ExceptionGroup as group:
            error = _first(group)
            raise error from error.__cause__

    async def _lead(self, election: Election) -> None:
        """Work while this replica leads; a follower that is stopped just ends."""
        leading = asyncio.create_task(election.run(self._work), name="election")
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([leading, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not leading.done():
                if not election.leading:
                    leading.cancel()
                await asyncio.wait([leading])
        finally:
            stopping.cancel()
            leading.cancel()
            await asyncio.wait([leading])
        if not leading.cancelled():
            leading.result()

    async def _work(self) -> None:
        """Run the controllers until all have been stopped, then flush events."""
        try:
            async with asyncio.TaskGroup() as tasks:
                endless = [
                    tasks.create_task(recorder.run(), name="events")
                    for recorder in self._recorders.values()
                ]
                stoppable: dict[asyncio.Task[None], Stoppable] = {}
                for name, runnable in self.runnables.items():
                    task = tasks.create_task(self._run_one(name, runnable), name=name)
                    if isinstance(runnable, Stoppable):
                        stoppable[task] = runnable
                    else:
                        endless.append(task)
                await self._stopping.wait()
                for controller in stoppable.values():
                    controller.stop()
                if stoppable:
                    await asyncio.wait(stoppable)
                for recorder in self._recorders.values():
                    await recorder.close()
                for task in endless:
                    task.cancel()
        except ExceptionGroup as group:
            error = _first(group)
            raise error from error.__cause__

    async def _run_one(self, name: str, runnable: Runnable) -> None:
        try:
            await runnable.run()
        except (LeadershipLost, ConfigError):
            raise
        except ZonewiseError as error:
            raise ControllerFailed(f"{name} failed: {error}") from error
        except Exception as error:
            _log.info("a controller failed", controller=name, exc_info=True)
            what = f"{type(error).__name__}: {error}"
            raise ControllerFailed(
                f"{name} failed ({what}), a fault in zonewise; -v shows where, please report it"
            ) from error
        if not self._stopping.is_set():
            raise ControllerFailed(
                f"{name} ended by itself, which is a fault in zonewise; please report it"
            )

    def _recorder(self, reporter: str, client: Client) -> Recorder:
        recorder = self._recorders.get(reporter)
        if recorder is None:
            recorder = self._recorders[reporter] = Recorder(
                client,
                controller=reporter,
                instance=reporter if self.election is None else self.election.identity,
                limits=self._events,
                now=lambda: times.from_epoch(self._clock()),
                rng=self._random(),
            )
        return recorder

    def _dropped_events(self) -> dict[str, int]:
        dropped: Counter[str] = Counter()
        for recorder in self._recorders.values():
            dropped.update(recorder.dropped)
        return dropped

    def _random(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """What ended the program: the others were cancelled because of it."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
