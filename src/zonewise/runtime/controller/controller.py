"""Reconciles the actual state with what the objects specify, key by key.

A reconciler is a function of a key. It reads stores, decides, writes what differs, and returns None
("done") or seconds ("again after"). It is level-triggered: a key says that something about it may
have changed, never what, so a missed, merged or repeated change does no harm.

*Parallel* are ``workers`` keys at a time, never one key twice. *Ordered* is nothing between keys.
Workers start when every store the controller watches holds a complete list. Keys from that first
list and from a resync have low priority; changes overtake them.

*Retried* with backoff per key is everything a reconciler raises, except ``Terminal``: that key is
not run until one of its objects changes. ``LeadershipLost`` ends the controller, because none of
its writes would be sent. A ``timeout`` bounds one run of one key; one that hangs is cancelled and
retried.

*Stopping*: ``stop`` lets running reconciles finish and starts no more; waiting keys are found again
at the next start. With ``drain`` waiting keys are worked on first. Cancelling ``run`` cancels the
reconciles too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from zonewise.api.errors import Conflict, LeadershipLost, Terminal, ZonewiseError
from zonewise.api.meta import Key, Object
from zonewise.api.unstructured import Unstructured
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.cache.reflector import Reflector
from zonewise.runtime.cache.store import IndexFunction, Store
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.process.logs import logger

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Object | Unstructured)

Result = Literal["done", "again", "error", "terminal"]
Observe = Callable[[Result, float], None]

_log = logger("controller")


@dataclass(slots=True)
class ControllerStats:
    """What a controller did since it started, for metrics."""

    name: str
    done: int = 0
    again: int = 0
    errors: int = 0
    terminal: int = 0


def own_key(item: Object | Unstructured) -> tuple[Key]:
    """An object enqueues its own key."""
    return (item.key,)


async def run_all(*runs: Coroutine[Any, Any, None]) -> None:
    """Run several controllers until all have stopped; what the first raises ends them all."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for run in runs:
                tasks.create_task(run)
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


class Controller(Generic[K]):
    """Runs a reconciler over keys; see the module for what is parallel, ordered and retried."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[float | None]],
        *,
        cache: Cache,
        workers: int = 1,
        resync: float | None = None,
        timeout: float | None = None,
        queue: Queue[K] | None = None,
        observe: Observe | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self.queue: Queue[K] = Queue() if queue is None else queue
        self.stats = ControllerStats(name)
        self._reconcile = reconcile
        self._cache = cache
        self._workers = workers
        self._resync = resync
        self._timeout = timeout
        self._observe = observe
        self._rng = rng or random.SystemRandom()
        self._reflectors: list[Reflector[Any]] = []
        self._sources: list[Callable[[], Iterable[K]]] = []
        self._resting: set[K] = set()
        self._stopping = asyncio.Event()

    def watches(
        self,
        cls: type[T],
        to_keys: Callable[[T], Iterable[K]],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        when: Callable[[T | None, T | None], bool] | None = None,
    ) -> Store[T]:
        """Enqueue keys when objects of a kind change; gives the store they are in.

        ``to_keys`` says which keys an object concerns and is called with the object before and
        after each change. ``when`` may leave out changes that do not matter.
        """
        store = self.reads(
            cls,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            indexes=indexes,
        )
        self._sources.append(lambda: (key for item in store for key in to_keys(item)))
        replaying = True

        def changed(old: T | None, new: T | None) -> None:
            if when is not None and not when(old, new):
                return
            low = replaying or not store.synced
            for item in (old, new):
                if item is not None:
                    for key in to_keys(item):
                        self.enqueue(key, low=low)

        store.on_change(changed)
        replaying = False
        return store

    def reads(
        self,
        cls: type[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
    ) -> Store[T]:
        """The store of a kind, complete before workers begin; its changes enqueue no key.

        Where it takes more than ``watches`` to say which keys a change concerns, and when, a
        listener of the store calls ``enqueue``.
        """
        reflector = self._cache.reflector(
            cls, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        )
        store = reflector.store
        for name, function in (indexes or {}).items():
            store.add_index(name, function)
        self._reflectors.append(reflector)
        return store

    def enqueue(self, key: K, *, after: float = 0.0, low: bool = False) -> None:
        """Request a run of a key, now or later; also one that waits after a ``Terminal``."""
        if self._resting:
            self._resting.discard(key)
        self.queue.add_after(key, after, low=low)

    def stop(self, *, drain: bool = False) -> None:
        """Let running reconciles end, and waiting keys too if they are to be drained."""
        self._stopping.set()
        self.queue.close(drop=not drain)

    async def run(self) -> None:
        """Wait for the stores, then work until stopped; raises ``LeadershipLost``."""
        if not await self._until_synced():
            return
        tasks = [
            asyncio.create_task(self._work(), name=f"{self.name} worker {number}")
            for number in range(self._workers)
        ]
        resync = asyncio.create_task(self._repeat(), name=f"{self.name} resync")
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in (*tasks, resync):
                task.cancel()
            await asyncio.gather(*tasks, resync, return_exceptions=True)

    async def _until_synced(self) -> bool:
        """Wait for the first lists; False if the controller was stopped before."""
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            for reflector in self._reflectors:
                synced = asyncio.create_task(reflector.synced.wait())
                await asyncio.wait([synced, stopping], return_when=asyncio.FIRST_COMPLETED)
                synced.cancel()
        finally:
            stopping.cancel()
        return not self._stopping.is_set()

    async def _repeat(self) -> None:
        """Enqueue every key from time to time, except those that cannot succeed."""
        if self._resync is None:
            return
        while True:
            await asyncio.sleep(self._resync * self._rng.uniform(0.9, 1.1))
            for source in self._sources:
                for key in source():
                    if key not in self._resting:
                        self.queue.add(key, low=True)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while (key := await self.queue.get()) is not None:
            started = loop.time()
            try:
                result = await self._once(key)
            finally:
                self.queue.done(key)
            if self._observe is not None:
                self._observe(result, loop.time() - started)
            # A reconciler that never awaits must not keep the loop from its other tasks.
            await asyncio.sleep(0)

    async def _once(self, key: K) -> Result:
        self._resting.discard(key)
        try:
            async with asyncio.timeout(self._timeout) as limit:
                again = await self._reconcile(key)
        except LeadershipLost:
            raise
        except Terminal as error:
            self.stats.terminal += 1
            self.queue.forget(key)
            self._resting.add(key)
            _log.error(
                "failed, not retried until the object changes",
                **self._log_fields(key),
                error=str(error),
            )
            return "terminal"
        except Exception as error:
            self.stats.errors += 1
            pause = self.queue.retry(key)
            fields = {**self._log_fields(key), "retry_in": round(pause, 3)}
            if isinstance(error, TimeoutError) and limit.expired():
                _log.warning("timed out", **fields, seconds=self._timeout)
            elif isinstance(error, Conflict):
                _log.debug("changed meanwhile", **fields, error=str(error))
            elif isinstance(error, ZonewiseError):
                _log.warning("failed", **fields, error=str(error))
            else:
                _log.exception("failed", **fields)
            return "error"
        self.queue.forget(key)
        if again is None:
            self.stats.done += 1
            return "done"
        self.stats.again += 1
        self.queue.add_after(key, again)
        return "again"

    def _log_fields(self, key: K) -> dict[str, object]:
        name = "/".join(filter(None, key)) if isinstance(key, tuple) else str(key)
        return {"controller": self.name, "key": name, "failures": self.queue.failures(key)}
