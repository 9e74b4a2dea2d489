"""The stores a program needs, each filled once however many parts read it.

A cache holds one reflector per scope (kind, namespace, selectors). Controllers that request the
same scope share a store. ``run`` runs all reflectors, those added later too, and raises what the
first of them raises; it ends them all when it is cancelled, and ``release`` ends one. ``synced`` is
the barrier before the first decision: every store requested so far holds a complete list. Kinds
that are many, large and seldom read can be kept ``compact``, and others changed by ``transforms``
before they are held (see
``zonewise.runtime.cache.store``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from zonewise.api.meta import Object
from zonewise.api.unstructured import Unstructured
from zonewise.runtime.cache.reflector import Reflector
from zonewise.runtime.cache.store import IndexFunction, Store
from zonewise.runtime.client.readable import is_readable
from zonewise.runtime.client.scope import Scope
from zonewise.runtime.client.watch import DEFAULTS, WatchOptions, WatchStats

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

T = TypeVar("T", bound=Object | Unstructured)


class Cache:
    """Stores by scope, and the reflectors that fill them."""

    def __init__(
        self,
        client: Client,
        *,
        options: WatchOptions = DEFAULTS,
        compact: Iterable[type[Any]] = (),
        transforms: Mapping[type[Any], Callable[[Any], Any]] | None = None,
    ) -> None:
        self._client = client
        self._options = options
        self._compact = frozenset(compact)
        self._transforms = dict(transforms or {})
        self._reflectors: dict[Scope[Any], Reflector[Any]] = {}
        self._tasks: dict[Reflector[Any], asyncio.Task[None]] = {}
        self._failed: asyncio.Future[None] | None = None

    def reflector(
        self,
        cls: type[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Reflector[T]:
        """The reflector of a scope; it is started by ``run``, or now if that runs already."""
        scope = Scope(cls, namespace, label_selector, field_selector)
        reflector = self._reflectors.get(scope)
        if reflector is None:
            reflector = self._reflectors[scope] = Reflector(
                self._client,
                cls,
                Store(compact=cls in self._compact, transform=self._transforms.get(cls)),
                namespace=namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                options=self._options,
            )
            if self._failed is not None:
                self._start(reflector)
        return cast("Reflector[T]", reflector)

    async def is_readable(self, cls: type[T]) -> bool:
        """Whether the server has a kind and lets us read it."""
        return await is_readable(self._client, cls)

    def release(self, reflector: Reflector[T]) -> None:
        """Follow a scope no longer; who asks for it again gets another store."""
        if self._reflectors.get(reflector.scope) is reflector:
            del self._reflectors[reflector.scope]
        if (task := self._tasks.get(reflector)) is not None:
            task.cancel()

    def store(
        self,
        cls: type[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
    ) -> Store[T]:
        """The store of a scope, with at least these indexes."""
        store = self.reflector(
            cls, namespace=namespace, label_selector=label_selector, field_selector=field_selector
        ).store
        for name, function in (indexes or {}).items():
            store.add_index(name, function)
        return store

    @property
    def stats(self) -> tuple[WatchStats, ...]:
        """What each watch did, for metrics and health."""
        return tuple(reflector.stats for reflector in self._reflectors.values())

    async def run(self) -> None:
        """Keep every store up to date until cancelled."""
        if self._failed is not None:
            raise RuntimeError("this cache runs already")
        self._failed = asyncio.get_running_loop().create_future()
        for reflector in self._reflectors.values():
            self._start(reflector)
        try:
            await self._failed
        finally:
            self._failed = None
            tasks = tuple(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def complete(self) -> bool:
        """Whether every store requested so far holds a complete list."""
        return all(reflector.synced.is_set() for reflector in self._reflectors.values())

    async def synced(self) -> None:
        """Wait until every store requested so far holds a complete list."""
        for reflector in tuple(self._reflectors.values()):
            await reflector.synced.wait()

    def _start(self, reflector: Reflector[Any]) -> None:
        task = asyncio.create_task(reflector.run(), name=f"reflect {reflector.scope}")
        self._tasks[reflector] = task
        task.add_done_callback(lambda ended: self._ended(reflector, ended))

    def _ended(self, reflector: Reflector[Any], task: asyncio.Task[None]) -> None:
        self._tasks.pop(reflector, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)
