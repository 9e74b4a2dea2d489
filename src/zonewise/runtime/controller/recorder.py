"""Events about objects (events.k8s.io/v1), recorded without ever blocking the caller.

``Recorder.event`` puts an event in a bounded queue and returns; it never waits and never raises.
One task, ``run``, sends them one after the other. What cannot be sent is dropped and counted by
reason in ``dropped``; events are best effort, not a reliable record.

*Aggregated*: the same event again (same objects, type, reason, action and note) becomes a series:
one Event whose ``series.count`` grows. Repetitions are counted at once and written at most every
``refresh`` seconds, so a fault that repeats a thousand times a second costs one write per period. A
series without a repetition for ``forget`` seconds ends; the next such event starts a new one.

*Shared*: an event that is to be sent ``once``, whichever replica sees the fault and however often a
program restarts, is named by its content. If it exists it has been sent; it never becomes a series.

*Transitions* are events that say which state an object is in now. Each is an Event of its own, even
if its words were sent before: in a series it would wait for ``refresh``, and until then the newest
Event of the object would be about the state before. Names grow with time, so what kubectl lists
last is the newest. A transition that is over the limit of its object is held back for ``patience``
seconds at most and then sent, unless a newer one of the same object and action has come, which is
sent instead at that time; the one that is replaced is counted as dropped. So however often a state
changes, the newest Event is about the state of at most ``patience`` seconds ago. One that the
server does not accept now, or that a full queue leaves no room for, is held back for ``refresh``.

*Limited*: each object has a token bucket (``burst`` events at once, then one every ``refill``
seconds) for new events; repetitions, and transitions that were held back, cost none. The number of
series and buckets kept in memory is bounded, oldest first out.

*Retried*: an event the server could not accept now, a few times with jittered pauses, while others
wait behind it; the queue's bound decides which are dropped. Permanent refusals, a terminating
namespace, and the loss of leadership drop the event at once.

Names and texts are cut to what the API allows: reason and action to 128 bytes, the note to 1,024.
At shutdown ``close`` gives what is left some seconds, then drops it.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from zonewise.api.errors import (
    AlreadyExists,
    ApiError,
    ConnectionFailed,
    NotFound,
    ParseError,
    ServerError,
    TooManyRequests,
    ZonewiseError,
)
from zonewise.api.meta import Object, ObjectMeta, ObjectReference
from zonewise.api.objects.events import Event, EventSeries, event_name_suffix
from zonewise.api.unstructured import Unstructured
from zonewise.api.values.times import format_micro
from zonewise.runtime.election.election import utcnow
from zonewise.runtime.process.logs import logger

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

EventType = Literal["Normal", "Warning"]
_Refusal = Literal["shutdown", "full", "limit"]

NOTE_LIMIT = 1024
WORD_LIMIT = 128
NAME_LIMIT = 253
_SUFFIX = 21
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TICK = 1e-6
"""How early a timer may fire: sums of times are rounded, and clocks have a resolution."""
_NOT_IN_NAMES = re.compile(r"[^a-z0-9.-]")

_log = logger("recorder")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderLimits:
    """How many events are sent; times in seconds."""

    queue: int = 1000
    series: int = 4096
    refresh: float = 60.0
    forget: float = 360.0
    burst: int = 25
    refill: float = 300.0
    patience: float = 30.0
    attempts: int = 4
    pause: float = 1.0


@dataclass(frozen=True, slots=True)
class _Subject:
    """What makes two events the same."""

    regarding: ObjectReference
    related: ObjectReference | None
    type: str
    reason: str
    action: str
    note: str
    suffix: str = ""
    """The suffix of the Event's name, if other programs send it too."""
    moment: datetime | None = None
    """When it occurred, if it is a transition; no two of one recorder are alike."""

    @property
    def state(self) -> _State:
        """The state that a transition is about."""
        return self.regarding, self.action


_State: TypeAlias = tuple[ObjectReference, str]
"""Something that transitions change: of an object, under one action."""


@dataclass(slots=True)
class _Series:
    """One Event in the cluster, or about to be, and how often it occurred so far."""

    name: str
    first: datetime
    last: datetime
    count: int = 1
    reported: int = 0
    queued: bool = True
    last_seen: float = 0.0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled: float


class Recorder:
    """Records events about objects; see the module for what is aggregated, limited and dropped."""

    def __init__(
        self,
        client: Client,
        *,
        controller: str,
        instance: str,
        limits: RecorderLimits | None = None,
        now: Callable[[], datetime] = utcnow,
        rng: random.Random | None = None,
    ) -> None:
        self.dropped = {"limit": 0, "full": 0, "refused": 0, "failed": 0, "shutdown": 0}
        """How many events were not sent, by reason."""
        self._client = client
        self._controller = _cut(controller, WORD_LIMIT)
        self._instance = _cut(instance, WORD_LIMIT)
        self._limits = limits or RecorderLimits()
        self._now = now
        self._rng = rng or random.SystemRandom()
        self._series: OrderedDict[_Subject, _Series] = OrderedDict()
        self._buckets: OrderedDict[ObjectReference, _Bucket] = OrderedDict()
        self._queue: deque[_Subject] = deque()
        self._later: deque[tuple[float, _Subject]] = deque()
        self._newest: OrderedDict[_State, _Subject] = OrderedDict()
        self._postponed: dict[_State, float] = {}
        """When the newest transitions that could not be sent may be."""
        self._last = datetime.min.replace(tzinfo=UTC)
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._started = False
        self._closing = False

    def event(
        self,
        regarding: Object | Unstructured | ObjectReference,
        reason: str,
        action: str,
        note: str,
        *,
        type: EventType = "Normal",
        related: Object | Unstructured | ObjectReference | None = None,
        once: bool = False,
        transition: bool = False,
    ) -> None:
        """Record an event about an object; returns at once, whatever happens."""
        try:
            objects = reference(regarding), reference(related) if related is not None else None
        except ParseError:
            self.dropped["refused"] += 1
            return
        subject = _Subject(
            *objects,
            type,
            _cut(reason, WORD_LIMIT) or "Unknown",
            _cut(action, WORD_LIMIT) or "Unknown",
            _cut(note, NOTE_LIMIT),
            event_name_suffix(objects[0].uid, reason, note) if once else "",
            self._next_moment() if transition else None,
        )
        now = asyncio.get_running_loop().time()
        if transition:
            self._tell(subject, now)
            return
        series = self._series.get(subject)
        if series is not None and now - series.last_seen <= self._limits.forget:
            self._repeat(subject, series, now)
        elif why := self._begin(subject, now):
            self.dropped[why] += 1

    async def run(self) -> None:
        """Send events until cancelled, or until ``close``d and done."""
        self._started = True
        try:
            while True:
                subject = self._next()
                if subject is not None:
                    await self._send_event(subject)
                elif self._closing:
                    return
                else:
                    await self._pause()
        finally:
            self._ended.set()

    async def close(self, *, within: float = 2.0) -> None:
        """Send what waits, series counts included, for at most this long; drop the rest.

        ``run`` ends then.
        """
        self._closing = True
        for _, subject in self._later:
            self._enqueue(subject)
        self._later.clear()
        for state in self._postponed:
            self._start(self._newest[state], asyncio.get_running_loop().time())
        self._postponed.clear()
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(within if self._queue or self._started else 0):
                await self._ended.wait()
        self.dropped["shutdown"] += len(self._queue)
        self._queue.clear()

    def _next_moment(self) -> datetime:
        """Now, and later than any moment before."""
        self._last = max(self._now(), self._last + _MICROSECOND)
        return self._last

    def _tell(self, subject: _Subject, now: float) -> None:
        """Begin a transition, or hold it back until it may be sent."""
        state = subject.state
        due = self._postponed.pop(state, None)
        if due is not None:
            self.dropped["limit"] += 1
        self._newest[state] = subject
        self._newest.move_to_end(state)
        while len(self._newest) > self._limits.series:
            oldest, _ = self._newest.popitem(last=False)
            if self._postponed.pop(oldest, None) is not None:
                self.dropped["limit"] += 1
        self._send_or_hold(state, now, due)

    def _send_or_hold(self, state: _State, now: float, due: float | None) -> None:
        """Send the newest transition, or hold it back, no longer than one before it was to be."""
        subject = self._newest[state]
        why = self._begin(subject, now, limited=due is None or due > now + _TICK)
        if why == "limit":
            bucket = self._buckets[subject.regarding]
            wait = min((1 - bucket.tokens) * self._limits.refill, self._limits.patience)
            self._hold(subject, min(now + wait, due or now + wait))
        elif why == "full":
            self._hold(subject, now + self._limits.refresh)
        elif why:
            self.dropped[why] += 1

    def _keep(self, subject: _Subject) -> None:
        """Hold back a transition that failed, which costs nothing as nothing was written."""
        self._series.pop(subject, None)
        if subject.regarding in self._buckets:
            self._buckets[subject.regarding].tokens += 1
        self._hold(subject, asyncio.get_running_loop().time() + self._limits.refresh)

    def _hold(self, subject: _Subject, until: float) -> None:
        self._postponed[subject.state] = until
        self._wake.set()

    def _begin(self, subject: _Subject, now: float, *, limited: bool = True) -> _Refusal | None:
        """Send a new event, if it is allowed; else the reason why not."""
        if self._closing:
            return "shutdown"
        if len(self._queue) >= self._limits.queue:
            return "full"
        if limited and not self._allowed(subject.regarding, now):
            return "limit"
        self._start(subject, now)
        return None

    def _start(self, subject: _Subject, now: float) -> None:
        moment = subject.moment or self._next_moment()
        # As a series may be written again and again, its name does not depend on its content.
        suffix = subject.suffix or _name_suffix(moment)
        name = f"{_stem(subject.regarding.name)}.{suffix}"
        self._series[subject] = _Series(name, moment, moment, last_seen=now)
        self._series.move_to_end(subject)
        self._queue.append(subject)
        self._wake.set()
        while len(self._series) > self._limits.series:
            self._series.popitem(last=False)

    def _repeat(self, subject: _Subject, series: _Series, now: float) -> None:
        series.count += 1
        series.last = self._now()
        series.last_seen = now
        self._series.move_to_end(subject)
        if not series.queued and not subject.suffix:
            series.queued = True
            self._later.append((now + self._limits.refresh, subject))
            self._wake.set()

    def _enqueue(self, subject: _Subject) -> None:
        if len(self._queue) < self._limits.queue:
            self._queue.append(subject)
        else:
            self.dropped["full"] += 1
            if subject in self._series:
                self._series[subject].queued = False

    def _allowed(self, regarding: ObjectReference, now: float) -> bool:
        bucket = self._buckets.get(regarding)
        if bucket is None:
            bucket = self._buckets[regarding] = _Bucket(float(self._limits.burst), now)
            while len(self._buckets) > self._limits.series:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(regarding)
        gained = (now - bucket.filled) / self._limits.refill
        bucket.tokens = min(self._limits.burst, bucket.tokens + gained)
        bucket.filled = now
        if bucket.tokens < 1 - _TICK:
            return False
        bucket.tokens -= 1
        return True

    def _next(self) -> _Subject | None:
        now = asyncio.get_running_loop().time()
        while self._later and self._later[0][0] <= now + _TICK:
            self._enqueue(self._later.popleft()[1])
        ready = [(state, due) for state, due in self._postponed.items() if due <= now + _TICK]
        for state, due in ready:
            del self._postponed[state]
            self._send_or_hold(state, now, due)
        return self._queue.popleft() if self._queue else None

    async def _pause(self) -> None:
        self._wake.clear()
        first = (self._later[0][0],) if self._later else ()
        due = min((*self._postponed.values(), *first), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await self._wake.wait()

    async def _send_event(self, subject: _Subject) -> None:
        series = self._series.get(subject)
        if series is None:
            self.dropped["full"] += 1
            return
        series.queued = False
        for attempt in range(self._limits.attempts):
            try:
                await self._send(subject, series)
            except (ConnectionFailed, ServerError, TooManyRequests) as error:
                if attempt + 1 == self._limits.attempts or self._closing:
                    if self._newest.get(subject.state) is subject and not self._closing:
                        self._keep(subject)
                    else:
                        self._drop(subject, series, "failed", error)
                    return
                pause = self._limits.pause * 2**attempt * self._rng.uniform(0.5, 1.5)
                await asyncio.sleep(max(pause, getattr(error, "retry_after", None) or 0.0))
            except ZonewiseError as error:
                self._drop(subject, series, "refused", error)
                return
            else:
                return

    async def _send(self, subject: _Subject, series: _Series) -> None:
        count = series.count
        if series.reported:
            namespace = subject.regarding.namespace or "default"
            body = {"series": _counted(series)}
            try:
                await self._client.patch(Event, series.name, namespace, body, kind="merge")
            except NotFound:
                # The server deletes events after an hour; the series continues as a new one.
                series.reported = 0
        if not series.reported:
            try:
                await self._client.create(self._event(subject, series))
            except AlreadyExists:
                if not subject.suffix:
                    raise
        series.reported = count

    def _event(self, subject: _Subject, series: _Series) -> Event:
        return Event(
            metadata=ObjectMeta(
                name=series.name, namespace=subject.regarding.namespace or "default"
            ),
            event_time=format_micro(series.first),
            series=_counted(series) if series.count > 1 and not subject.suffix else None,
            reporting_controller=self._controller,
            reporting_instance=self._instance,
            action=subject.action,
            reason=subject.reason,
            regarding=subject.regarding,
            related=subject.related,
            note=subject.note,
            type=subject.type,
        )

    def _drop(
        self, subject: _Subject, series: _Series, why: str, error: ZonewiseError | ApiError
    ) -> None:
        self.dropped[why] += 1
        if not series.reported:
            self._series.pop(subject, None)
        _log.debug(
            "event could not be written",
            object=f"{subject.regarding.namespace}/{subject.regarding.name}",
            reason=subject.reason,
            error=str(error),
        )


def reference(item: Object | Unstructured | ObjectReference) -> ObjectReference:
    """A pointer to an object, as events carry it: to all its versions, so that events repeat."""
    if isinstance(item, ObjectReference):
        return msgspec.structs.replace(item, resource_version="")
    meta = item.metadata
    return ObjectReference(
        api_version=item.resource.api_version,
        kind=item.resource.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
    )


def _name_suffix(moment: datetime) -> str:
    """A suffix that sorts by time, and that no other program gives."""
    microseconds = (moment - _EPOCH) // _MICROSECOND
    return f"{microseconds:013x}{secrets.token_hex(4)}"


def _counted(series: _Series) -> EventSeries:
    return EventSeries(count=series.count, last_observed_time=format_micro(series.last))


def _stem(name: str) -> str:
    """An object's name as the beginning of another's; some kinds allow more than most."""
    labels = _NOT_IN_NAMES.sub("-", name.lower())[: NAME_LIMIT - _SUFFIX - 1].split(".")
    return ".".join(filter(None, (label.strip("-") for label in labels))) or "event"


def _cut(text: str, limit: int) -> str:
    """The text within so many bytes of UTF-8, never half a character."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit:
        return data.decode("utf-8")
    return data[: limit - len("…".encode())].decode("utf-8", "ignore") + "…"
