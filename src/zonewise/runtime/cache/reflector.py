"""Keeps a store equal to the server: list, then watch, forever.

One task per reflector does everything in sequence, so changes reach the store in the server's
order. First all objects are read; ``synced`` is set when they are in the store. Then changes are
applied as they arrive, as many at once as a ``turn`` has time for. When a stream breaks, the watch
resumes where it was and nothing is listed again. When the server no longer has that version
(``Gone``), everything is listed again and the store computes the difference, deletions included.

*Reading all objects* is done over the watch itself (WatchList) where the server can: it streams the
objects and a bookmark marks the end, so neither side ever holds the whole list as text, and the
stream continues as the watch. A server that refuses the request as such (400, 405, 415, 422) is
asked for pages instead, and the client remembers that for the resource. Both are consistent reads.

*Failures* never end a reflector: it keeps trying, paced by ``zonewise.runtime.client.pace``, and
reports to ``stats`` and the log. The exception are refusals that a retry cannot fix (a malformed
selector, a kind that cannot be watched) before the first list succeeded: those are the caller's
mistake and are raised. What listeners or index functions of the store raise is raised too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from math import isfinite
from time import perf_counter
from typing import TYPE_CHECKING, Generic, TypeVar

from zonewise.api.errors import (
    BadRequest,
    Gone,
    Invalid,
    MethodNotAllowed,
    ProtocolError,
    Terminal,
    UnsupportedMediaType,
    ZonewiseError,
)
from zonewise.api.meta import Object
from zonewise.api.unstructured import Unstructured
from zonewise.runtime.cache.store import Relist, Store
from zonewise.runtime.client.pace import Pace
from zonewise.runtime.client.scope import PAGE, Scope
from zonewise.runtime.client.versions import older
from zonewise.runtime.client.watch import (
    DEFAULTS,
    INITIAL_EVENTS_END,
    Watch,
    WatchEvent,
    WatchOptions,
    WatchStats,
    WatchStream,
    note_failure,
    open_stream,
)
from zonewise.runtime.process.logs import logger
from zonewise.runtime.process.memory import paused

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

T = TypeVar("T", bound=Object | Unstructured)
S = TypeVar("S")

_UNSUPPORTED = (BadRequest, MethodNotAllowed, UnsupportedMediaType, Invalid)

_log = logger("reflector")


class Reflector(Generic[T]):
    """Feeds one store; ``run`` it as a task, and wait for ``synced`` before reading the store."""

    def __init__(
        self,
        client: Client,
        cls: type[T],
        store: Store[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        options: WatchOptions = DEFAULTS,
        rng: random.Random | None = None,
    ) -> None:
        self.store = store
        self.scope = Scope(cls, namespace, label_selector, field_selector)
        self.synced = asyncio.Event()
        self.stats = WatchStats(cls.resource.qualified, namespace or "")
        self._client = client
        self._options = options
        self._rng = rng or random.SystemRandom()
        self._pace = Pace(base=options.base, cap=options.cap, rng=self._rng)
        # Set after a WatchList broke off: a server that ignores the request for one would never
        # mark its end, so the next attempt reads pages.
        self._distrust = False

    async def run(self) -> None:
        """Follow the server until cancelled."""
        self.stats.started = asyncio.get_running_loop().time()
        while True:
            watch = Watch(
                self._client,
                self.scope,
                stream=await self._read_all(),
                resource_version=self.store.resource_version,
                options=self._options,
                pace=self._pace,
                stats=self.stats,
                rng=self._rng,
            )
            try:
                while True:
                    await self._in_turns(await watch.batch(), self._apply)
                    self.stats.objects = len(self.store)
            except Gone as error:
                _log.info("listing again", watch=str(self.scope), reason=str(error))
                pause = error.retry_after
            finally:
                await watch.close()
            await self._pace.rest(lived=watch.lived, retry_after=pause)

    async def _in_turns(self, items: Iterable[S], take: Callable[[S], bool | None]) -> None:
        """Process what arrived together, until ``take`` has enough.

        After each ``turn``, other tasks run.
        """
        turn = self._options.turn
        until = perf_counter() + turn
        for item in items:
            if take(item):
                break
            if perf_counter() >= until:
                await asyncio.sleep(0)
                until = perf_counter() + turn

    def _apply(self, event: WatchEvent[T]) -> None:
        match event.type:
            case "ADDED" | "MODIFIED":
                self.store.apply(event.object)
            case "DELETED":
                self.store.remove(event.object)
            case "BOOKMARK":
                self.store.bookmark(event.object.metadata.resource_version)
            case other:
                _log.warning("unknown watch event", watch=str(self.scope), type=other[:50])

    async def _read_all(self) -> WatchStream[T] | None:
        """Bring the store up to date; the stream that continues from there, if there is one."""
        while True:
            await self._pace.turn()
            try:
                if self._streams_lists():
                    return await self._read_stream()
                await self._read_pages()
            except Terminal as error:
                if not self.synced.is_set():
                    raise
                failure: ZonewiseError = error
            except ZonewiseError as error:
                failure = error
            else:
                return None
            note_failure(self.stats, self.scope, failure)
            await self._pace.rest(retry_after=getattr(failure, "retry_after", None))

    def _streams_lists(self) -> bool:
        resource = self.scope.cls.resource
        refused = resource in self._client.refused_watch_list
        return self._options.watch_list and not refused and not self._distrust

    async def _read_stream(self) -> WatchStream[T] | None:
        try:
            stream = await open_stream(
                self._client,
                self.scope,
                resource_version="",
                seconds=self._rng.uniform(*self._options.lifetime),
                initial_events=True,
                options=self._options,
                stats=self.stats,
            )
        except _UNSUPPORTED as error:
            self._client.refused_watch_list.add(self.scope.cls.resource)
            _log.debug("no WatchList", watch=str(self.scope), reason=str(error))
            await self._pace.turn()
            await self._read_pages()
            return None
        try:
            await self._collect(stream)
        except BaseException:
            self._distrust = True
            await stream.close()
            raise
        return stream

    async def _collect(self, stream: WatchStream[T]) -> None:
        """Take in the initial events, up to the bookmark that ends them."""
        relist = self.store.relist()
        complete = False

        def take(event: WatchEvent[T]) -> bool:
            nonlocal complete
            if event.type in ("ADDED", "MODIFIED"):
                relist.put(event.object)
            elif event.type == "DELETED":
                relist.drop(event.object.key)
            elif INITIAL_EVENTS_END in event.object.metadata.annotations:
                self._finish(relist, event.object.metadata.resource_version)
                complete = True
            return complete

        while not complete:
            events = await stream.batch()
            if events is None:
                raise ProtocolError("the watch ended before it had sent all objects")
            with paused():
                await self._in_turns(events, take)

    async def _read_pages(self) -> None:
        try:
            await self._take_pages(limit=PAGE)
        except Gone:
            await self._take_pages(limit=0)

    async def _take_pages(self, *, limit: int) -> None:
        relist = self.store.relist()
        version = ""
        # Decoding a page takes longer than all the rest, so it has to be part of the turns.
        one_by_one = self.store.compact or isfinite(self._options.turn)
        async for at, items in self._client.pages(
            self.scope, limit=limit, one_by_one=one_by_one, retries=0
        ):
            version = at
            self.stats.last_byte = asyncio.get_running_loop().time()
            with paused():
                await self._in_turns(items, relist.put)
        self._distrust = False
        self._finish(relist, version)

    def _finish(self, relist: Relist[T], version: str) -> None:
        if not version:
            raise ProtocolError(f"the list of {self.scope} has no version to watch from")
        if older(version, self.store.resource_version):
            _log.warning(
                "the server's version went back, as after a restored backup",
                watch=str(self.scope),
                version=version,
                before=self.store.resource_version,
            )
        relist.finish(version)
        self.stats.relists += 1
        self.stats.objects = len(self.store)
        self.stats.last_error = ""
        self.stats.synced = True
        self.synced.set()
