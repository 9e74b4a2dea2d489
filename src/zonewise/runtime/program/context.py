"""What a controller is given: client, stores, events, time, randomness, metrics.

Every constructor has the same shape: its context, then its settings, then by keyword what it
shares. A test, a scenario on virtual time or a run beside a real control plane supplies another
context.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.controller.controller import Controller
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.controller.recorder import Recorder

if TYPE_CHECKING:
    from zonewise.runtime.monitoring.metrics import Metrics

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """What a controller works with.

    ``clock`` gives seconds since the epoch, virtual in tests. ``metrics`` may be None.
    """

    client: Client
    cache: Cache
    recorder: Recorder
    clock: Callable[[], float]
    rng: random.Random
    metrics: Metrics | None = None

    def controller(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        workers: int = 1,
        queue: Queue[K] | None = None,
        resync: float | None = None,
        timeout: float | None = None,
    ) -> Controller[K]:
        """A controller over the shared cache; its queue and results are in the metrics."""
        queue = Queue(rng=self.rng) if queue is None else queue
        observe = None
        if self.metrics is not None:
            observe = self.metrics.controller(name)
            self.metrics.queue(name, queue)
        return Controller(
            name,
            reconcile,
            cache=self.cache,
            workers=workers,
            resync=resync,
            timeout=timeout,
            queue=queue,
            observe=observe,
            rng=self.rng,
        )
