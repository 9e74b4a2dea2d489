"""Who works in a living cluster: parts that share one cache, each with a client of its own.

A part is what a process is on a real cluster: the scheduler, the kubelets, the controller of one
kind. It gets its ``Means`` and runs until it is cancelled. Parts never call each other; they meet
in objects, as everywhere in Kubernetes. So a part that stood still, or began late, finds its work
in the cluster.

*Shared* is what would be the same: every kind is listed, followed and decoded once for all parts.
*Own* are the client (its name is the field manager and the user agent), the recorder and the random
numbers, so that what one part draws never changes what another does. Nothing here knows of the
embedded server: ``connect`` may as well lead to a real one.

A part that ends, or raises, ends the crew: half a cluster that looks whole is worse than none. The
``PartFailed`` that is raised then says which part it was.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from zonewise.api import times
from zonewise.api.errors import ZonewiseError
from zonewise.runtime.cache import Cache
from zonewise.runtime.client import Client
from zonewise.runtime.logs import logger
from zonewise.runtime.recorder import Recorder, RecorderLimits

_log = logger("crew")

EVENTS = RecorderLimits(queue=20_000)


class PartFailed(ZonewiseError):
    """A part ended, which no part may do."""


class Part(Protocol):
    """Something that works until it is cancelled."""

    async def run(self) -> None:
        """Work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a part works with. ``clock`` gives seconds since the epoch, virtual ones in tests."""

    client: Client
    cache: Cache
    recorder: Recorder
    clock: Callable[[], float]
    rng: random.Random


class Crew:
    """The parts of one cluster."""

    def __init__(
        self, connect: Callable[[str], Client], *, clock: Callable[[], float], rng: random.Random
    ) -> None:
        self.cache = Cache(connect("zonewise"))
        self._connect = connect
        self._clock = clock
        self._rng = rng
        self._parts: dict[str, Part] = {}
        self._recorders: list[Recorder] = []

    def means(self, name: str) -> Means:
        """What a part of this name works with."""
        client = self._connect(name)
        recorder = Recorder(
            client,
            controller=name,
            instance=name,
            limits=EVENTS,
            now=lambda: times.from_epoch(self._clock()),
            rng=random.Random(self._rng.getrandbits(64)),
        )
        self._recorders.append(recorder)
        return Means(
            client=client,
            cache=self.cache,
            recorder=recorder,
            clock=self._clock,
            rng=random.Random(self._rng.getrandbits(64)),
        )

    def add(self, name: str, make: Callable[[Means], Part]) -> None:
        """Take a part into the crew; ``run`` starts it."""
        self._parts[name] = make(self.means(name))

    async def run(self) -> None:
        """Work until cancelled; raises what a part raises."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.cache.run(), name="cache")
            for recorder in self._recorders:
                tasks.create_task(recorder.run(), name="events")
            for name, part in self._parts.items():
                tasks.create_task(_endless(name, part), name=name)


async def _endless(name: str, part: Part) -> None:
    try:
        await part.run()
    except Exception as error:
        _log.info("a part of the cluster failed", part=name, exc_info=True)
        what = f"{type(error).__name__}: {error}"
        raise PartFailed(
            f"{name} failed ({what}), a fault in zonewise; -v shows where, please report it"
        ) from error
    raise PartFailed(f"{name} ended by itself, which is a fault in zonewise; please report it")
