"""Changes as they happen: one stream of events, and a watch that survives its streams.

``WatchStream`` is one HTTP answer. It reads blocks of any size, splits them at newlines and decodes
each line straight into a typed object just before the reader gets it: what is decoded, used and
freed one by one stays in the processor's cache. A line that spans blocks is joined once; one longer
than ``line_limit`` is refused, so memory is bounded whatever the server sends. Silence ends a
stream: API servers send a bookmark about every minute, so no complete line for ``silence`` seconds
means that the peer is dead (half-open socket, lost NAT entry) or sends nothing useful (a trickle of
bytes). One timer per stream checks that, not one per block.

``Watch`` spans many streams. It starts each where the last one ended: at the version of the last
event or bookmark that was handed out. Events of one stream come in the order in which the server
made them; ``Store`` drops what a resumed stream repeats. Streams that end because the requested
time is over are followed at once; that time is random so that many watches do not end together. All
other ends (cut, silent, refused, 429, 5xx, ended early) are failures and are paced by
``zonewise.runtime.client.pace``. What a new stream cannot fix is raised as ``Gone``: the version is
too old (HTTP 410 or an ERROR event), or the server does not accept it. Then only a new list helps.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from zonewise.api.codec import Decoder, decoder
from zonewise.api.errors import (
    ApiError,
    BadRequest,
    ConnectionFailed,
    Gone,
    ParseError,
    ProtocolError,
    ServerError,
    Status,
    ZonewiseError,
)
from zonewise.api.meta import Object
from zonewise.api.struct import Struct
from zonewise.api.unstructured import Unstructured
from zonewise.runtime.client.pace import Pace
from zonewise.runtime.client.scope import Scope
from zonewise.runtime.client.transport import Response
from zonewise.runtime.client.versions import newer
from zonewise.runtime.process.logs import logger

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

T = TypeVar("T", bound=Object | Unstructured)

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_log = logger("watch")


class WatchEvent(Struct, Generic[T]):
    """``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``, and the object after (or before) it."""

    type: str
    object: T


class _Line(Struct):
    type: str = ""
    object: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How watches behave; times in seconds.

    ``lifetime`` is the range from which each stream's timeout is drawn. ``silence`` must be well
    above the time between two bookmarks, which is one minute for Kubernetes. ``turn`` is how long
    objects that arrived together are processed before other tasks run.
    """

    lifetime: tuple[float, float] = (300.0, 600.0)
    silence: float = 150.0
    line_limit: int = 64 << 20
    base: float = 2.0
    cap: float = 30.0
    watch_list: bool = True
    turn: float = float("inf")


DEFAULTS = WatchOptions()

_EARLY = 5.0
"""A stream that ends this much before the requested time did not end because of it."""


@dataclass(slots=True)
class WatchStats:
    """What one watch did since it started; metrics and health read it on request.

    ``last_byte`` and ``started`` are moments of the event loop's clock.
    """

    resource: str
    namespace: str = ""
    started: float = 0.0
    last_byte: float = 0.0
    connected: bool = False
    synced: bool = False
    objects: int = 0
    events: int = 0
    bytes: int = 0
    relists: int = 0
    restarts: int = 0
    too_old: int = 0
    failures: int = 0
    last_error: str = ""

    def age(self, now: float) -> float:
        """Seconds since the last byte arrived, or since the start if none has yet."""
        return max(0.0, now - max(self.last_byte, self.started))


class WatchStream(Generic[T]):
    """One HTTP answer as typed events: ``batch`` until it gives None, then ``close``."""

    def __init__(
        self,
        response: Response,
        cls: type[T],
        *,
        seconds: float,
        options: WatchOptions = DEFAULTS,
        stats: WatchStats | None = None,
    ) -> None:
        event: Any = WatchEvent
        self._decoder: Decoder[WatchEvent[T]] = decoder(event[cls])
        self._response = response
        self._chunks = response.chunks()
        self._options = options
        self._stats = stats or WatchStats(cls.resource.qualified)
        self._tail: list[bytes] = []
        self._tail_size = 0
        self._error: ZonewiseError | None = None
        self._batch: Iterator[WatchEvent[T]] | None = None
        self.version = ""
        """The version of the last event that was taken."""
        self._loop = asyncio.get_running_loop()
        self._opened = self._spoke = self._loop.time()
        self._seconds = seconds
        self._reader: asyncio.Task[Any] | None = None
        self._timed_out = False
        self._timer = self._loop.call_later(options.silence, self._check_silence)

    async def batch(self) -> Iterator[WatchEvent[T]] | None:
        """The next events; None when the server has ended the stream.

        Events are decoded while they are taken; those of a batch that was left are in the next one.
        An ERROR event is raised as the ``ApiError`` it is, after the events before it.
        """
        while self._batch is None:
            if self._error is not None:
                raise self._error
            block = await self._read()
            if block is None:
                return None
            self._batch = self._cut(block)
        return self._batch

    @property
    def lived(self) -> float:
        """For how many seconds it has been open."""
        return self._loop.time() - self._opened

    @property
    def expired(self) -> bool:
        """Whether it has been open for as long as was requested."""
        return self.lived >= self._seconds - _EARLY

    async def close(self) -> None:
        """End the stream."""
        self._timer.cancel()
        await self._response.close()

    async def _read(self) -> bytes | None:
        task = asyncio.current_task()
        assert task is not None
        if not self._tail:
            self._spoke = self._loop.time()
        self._reader = task
        cancelling = task.cancelling()
        try:
            block = await anext(self._chunks)
        except StopAsyncIteration:
            return None
        except asyncio.CancelledError:
            if self._timed_out and task.uncancel() <= cancelling:
                raise ConnectionFailed(
                    f"the watch was silent for {self._options.silence:g} s"
                ) from None
            raise
        finally:
            self._reader = None
        self._stats.last_byte = self._loop.time()
        self._stats.bytes += len(block)
        return block

    def _check_silence(self) -> None:
        """End a read that waits for too long; without a waiting reader nothing is late."""
        left = self._spoke + self._options.silence - self._loop.time()
        if left > 0 or self._reader is None:
            self._timer = self._loop.call_later(max(left, 1.0), self._check_silence)
            return
        self._timed_out = True
        self._reader.cancel()

    def _cut(self, block: bytes) -> Iterator[WatchEvent[T]] | None:
        """The events that are complete with this block; what follows them is kept."""
        end = block.rfind(b"\n") + 1
        if end == 0:
            self._keep(block)
            return None
        start = 0
        first = b""
        if self._tail:
            start = block.find(b"\n") + 1
            self._keep(block[:start])
            first = b"".join(self._tail)
            self._tail.clear()
            self._tail_size = 0
        if end < len(block):
            self._keep(block[end:])
        self._spoke = self._stats.last_byte
        return self._decode(first, block, start, end)

    def _keep(self, piece: bytes) -> None:
        self._tail.append(piece)
        self._tail_size += len(piece)
        if self._tail_size > self._options.line_limit:
            raise ProtocolError(
                f"the watch sent a line of more than {self._options.line_limit >> 20} MiB"
            )

    def _decode(self, first: bytes, block: bytes, start: int, end: int) -> Iterator[WatchEvent[T]]:
        decode = self._decoder.decode
        stats = self._stats
        view = memoryview(block)
        line: bytes | memoryview = first
        while True:
            if line:
                try:
                    event = decode(line)
                except ParseError as error:
                    if bytes(line).strip() and not self._is_error(line):
                        self._error = ProtocolError(
                            f"the watch sent something that is not an event: {error}"
                        )
                else:
                    if event.type != "ERROR" or not self._is_error(line):
                        yield event
                        stats.events += 1
                        self.version = event.object.metadata.resource_version
                if self._error is not None:
                    break
            if start >= end:
                break
            stop = block.find(b"\n", start)
            line = view[start:stop]
            start = stop + 1
        self._batch = None

    def _is_error(self, line: bytes | memoryview) -> bool:
        """Whether a line is an ERROR event; then its status is what the stream ends with."""
        try:
            head = decoder(_Line).decode(line)
            if head.type != "ERROR":
                return False
            status = decoder(Status).decode(bytes(head.object))
        except ParseError:
            return False
        self._error = ApiError.from_status(status.code or 500, status)
        return True


async def open_stream(
    client: Client,
    scope: Scope[T],
    *,
    resource_version: str,
    seconds: float,
    initial_events: bool = False,
    options: WatchOptions = DEFAULTS,
    stats: WatchStats | None = None,
) -> WatchStream[T]:
    """Begin one stream of changes after a version.

    With ``initial_events`` the stream begins with every existing object, followed by a bookmark
    with the annotation ``k8s.io/initial-events-end``.
    """
    query = scope.query(
        watch="true", allowWatchBookmarks="true", timeoutSeconds=str(max(1, round(seconds)))
    )
    if resource_version:
        query["resourceVersion"] = resource_version
    if initial_events:
        query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    response = await client.open(scope.path, query, scope.headers(stream=True))
    return WatchStream(response, scope.cls, seconds=seconds, options=options, stats=stats)


class Watch(Generic[T]):
    """A watch that survives lost connections; ``batch`` again and again, until it raises."""

    def __init__(
        self,
        client: Client,
        scope: Scope[T],
        *,
        resource_version: str,
        stream: WatchStream[T] | None = None,
        options: WatchOptions = DEFAULTS,
        pace: Pace | None = None,
        stats: WatchStats | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.resource_version = resource_version
        self._client = client
        self._scope = scope
        self._stream = stream
        self._options = options
        self._rng = rng or random.SystemRandom()
        self._pace = pace or Pace(base=options.base, cap=options.cap, rng=self._rng)
        self._stats = stats or WatchStats(scope.cls.resource.qualified, scope.namespace or "")
        self._lived = 0.0
        self._stats.connected = stream is not None

    async def batch(self) -> Iterator[WatchEvent[T]]:
        """The next events, bookmarks among them; raises ``Gone`` when a new list is needed."""
        while True:
            try:
                if self._stream is None:
                    self._stream = await self._open()
            except (Gone, BadRequest) as error:
                raise self._gone(error) from error
            except ZonewiseError as error:
                if isinstance(error, ServerError) and _version_too_large(error):
                    raise self._gone(error) from error
                await self._failed(error)
                continue
            try:
                events = await self._stream.batch()
            except ApiError as error:
                raise self._gone(error) from error
            except ZonewiseError as error:
                await self._failed(error)
                continue
            if events is not None:
                self._stats.last_error = ""
                return events
            await self._ended(early=not self._stream.expired)

    @property
    def lived(self) -> float:
        """For how many seconds the last stream was open; 0 if it could not be opened."""
        return self._lived if self._stream is None else self._stream.lived

    async def close(self) -> None:
        """End the stream that is open, if one is."""
        self._stats.connected = False
        self._lived = 0.0
        if self._stream is not None:
            stream, self._stream = self._stream, None
            self._lived = stream.lived
            if newer(stream.version, self.resource_version):
                self.resource_version = stream.version
            await stream.close()

    async def _open(self) -> WatchStream[T]:
        await self._pace.turn()
        stream = await open_stream(
            self._client,
            self._scope,
            resource_version=self.resource_version,
            seconds=self._rng.uniform(*self._options.lifetime),
            options=self._options,
            stats=self._stats,
        )
        self._stats.connected = True
        return stream

    async def _ended(self, *, early: bool) -> None:
        await self.close()
        self._stats.restarts += 1
        if early:
            await self._pace.rest(lived=self._lived)

    async def _failed(self, error: ZonewiseError) -> None:
        await self.close()
        self._stats.restarts += 1
        note_failure(self._stats, self._scope, error)
        retry_after = getattr(error, "retry_after", None)
        await self._pace.rest(lived=self._lived, retry_after=retry_after)

    def _gone(self, error: ApiError) -> Gone:
        if isinstance(error, Gone):
            self._stats.too_old += 1
            return error
        note_failure(self._stats, self._scope, error)
        status = msgspec.structs.replace(error.status, code=410)
        return Gone(status, retry_after=error.retry_after)


def note_failure(stats: WatchStats, scope: Scope[Any], error: ZonewiseError) -> None:
    """Count a failure, and log it unless it is the one that was logged last."""
    stats.failures += 1
    sentence = str(error)
    if sentence != stats.last_error:
        stats.last_error = sentence
        _log.warning("watch interrupted", watch=str(scope), error=sentence)


def _version_too_large(error: ServerError) -> bool:
    # A server that was restored from a backup, or one that is far behind the others.
    causes = error.details.causes or ()
    return any(cause.reason == "ResourceVersionTooLarge" for cause in causes)


async def watch(
    client: Client, scope: Scope[T], *, resource_version: str, options: WatchOptions = DEFAULTS
) -> AsyncIterator[WatchEvent[T]]:
    """Changes after a version, one by one and without bookmarks; raises ``Gone``."""
    going = Watch(client, scope, resource_version=resource_version, options=options)
    try:
        while True:
            for event in await going.batch():
                if event.type != "BOOKMARK":
                    yield event
    finally:
        await going.close()
