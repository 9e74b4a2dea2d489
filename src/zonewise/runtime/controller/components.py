"""The components of a cluster: they share one cache, each with a client of its own.

A component is what a process is on a real cluster: the scheduler, the kubelets, the controller of
one kind. It gets its ``ComponentContext`` and runs until it is cancelled. Components never call
each other; they communicate through objects, as everywhere in Kubernetes. So one that was stopped,
or started late, finds its work in the cluster.

*Shared* is what would be the same: every kind is listed, followed and decoded once for all. *Own*
are the client (its name is the field manager and the user agent), the recorder and the random
numbers, so that what one draws never changes what another does. Nothing here depends on the
embedded server: ``connect`` may as well lead to a real one.

A component that ends, or raises, ends the group: half a cluster that looks whole is worse than
none. The ``ComponentFailed`` that is raised then says which one it was.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from zonewise.api.errors import ZonewiseError
from zonewise.api.values import times
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.controller.recorder import Recorder, RecorderLimits
from zonewise.runtime.process.logs import logger

_log = logger("components")

EVENTS = RecorderLimits(queue=20_000)


class ComponentFailed(ZonewiseError):
    """A component ended, which none may do."""


class Component(Protocol):
    """Something that works until it is cancelled."""

    async def run(self) -> None:
        """Work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentContext:
    """What a component works with; ``clock`` gives seconds since the epoch, virtual in tests."""

    client: Client
    cache: Cache
    recorder: Recorder
    clock: Callable[[], float]
    rng: random.Random


class ComponentGroup:
    """The components of one cluster."""

    def __init__(
        self, connect: Callable[[str], Client], *, clock: Callable[[], float], rng: random.Random
    ) -> None:
        self.cache = Cache(connect("zonewise"))
        self._connect = connect
        self._clock = clock
        self._rng = rng
        self._parts: dict[str, Component] = {}
        self._recorders: list[Recorder] = []

    def context(self, name: str) -> ComponentContext:
        """What a component of this name works with."""
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
        return ComponentContext(
            client=client,
            cache=self.cache,
            recorder=recorder,
            clock=self._clock,
            rng=random.Random(self._rng.getrandbits(64)),
        )

    def add(self, name: str, make: Callable[[ComponentContext], Component]) -> None:
        """Add a component; ``run`` starts it."""
        self._parts[name] = make(self.context(name))

    async def run(self) -> None:
        """Work until cancelled; raises what a component raises."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.cache.run(), name="cache")
            for recorder in self._recorders:
                tasks.create_task(recorder.run(), name="events")
            for name, part in self._parts.items():
                tasks.create_task(_endless(name, part), name=name)


async def _endless(name: str, part: Component) -> None:
    try:
        await part.run()
    except Exception as error:
        _log.info("a component of the cluster failed", part=name, exc_info=True)
        what = f"{type(error).__name__}: {error}"
        raise ComponentFailed(
            f"{name} failed ({what}), a fault in zonewise; -v shows where, please report it"
        ) from error
    raise ComponentFailed(f"{name} ended by itself, which is a fault in zonewise; please report it")
