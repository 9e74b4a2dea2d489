"""Which replica leads, decided by a Lease, and why a former leader cannot write any more.

One Lease object is the lock. The replica that writes its name into it, by a patch that carries the
resourceVersion it has read, leads until the lease expires; it renews long before that. The API
server refuses all but one of several writers of the same version, so there is never a tie.

**Clocks.** No replica compares its clock with another's. A follower notes when *it* saw the record
change last, and takes the lease over when nothing has changed for the duration the holder has
written, on its own clock. The leader counts from the moment *before* it sent the renewal. With

    deadline = moment before the renewal was sent + duration - margin

and a follower that cannot have seen the renewal earlier than it was sent, no follower takes over
before ``deadline + margin``. The margin is for what is still in flight: bytes of a write that left
before the deadline have that long to be accepted. The clock is CLOCK_BOOTTIME, which keeps running
while a process is stopped or a machine is suspended.

**Fencing.** The client calls ``fence`` just before it sends a write, and controllers give every
write the resourceVersion of what they have read. Three safeguards, each for what the one before
cannot catch: leading ends ``stop`` seconds before the deadline if no renewal succeeds (the work is
cancelled and has ended before the deadline); from then on ``fence`` refuses, also when the process
was stopped meanwhile; and a process that is stopped *between* the check and the sending is ended by
the kernel when it resumes (``zonewise.runtime.election.deadman``). A write that was sent in time
and arrives after all of that, later than the margin allows for, is checked by resourceVersion: if
the new leader has changed the object it is refused.

**Shutdown.** The work ends first, renewals continue meanwhile, then the lease is released by
clearing its holder, so the next replica need not wait for it to expire. If the work had to be
cancelled while a write was under way, that write gets the margin to arrive before the lease is
released. A deleted Lease is lost, and followers still wait out its duration.

Requests of the election are bounded in time and are never retried faster than ``retry``, with
jitter. The election's client has no fence and should have no rate limit: a renewal must not queue
behind the leader's own work.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from zonewise.api.errors import (
    ConfigError,
    Conflict,
    LeadershipLost,
    NotFound,
    Terminal,
    ZonewiseError,
)
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.coordination import Lease, LeaseSpec
from zonewise.api.values.times import format_micro
from zonewise.runtime.process.logs import logger

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

SHORTEST = 0.05
"""No request is worth starting with less time than this, and no wait is shorter."""

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_log = logger("election")


def boottime() -> float:
    """Seconds on the clock that keeps running while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def utcnow() -> datetime:
    """The wall clock, which is only ever shown to people here."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """How long a lease lasts and when its holder does what; all in seconds.

    ``duration`` is whole, as the API stores it. ``margin`` is kept between the leader's deadline
    and the end of the lease, ``stop`` between giving up and the deadline.
    """

    duration: int = 15
    margin: float = 3.0
    stop: float = 2.0
    renew: float = 3.0
    retry: float = 2.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        usable = self.duration - self.margin - self.stop
        if self.duration < 1 or min(self.margin, self.stop, self.renew, self.retry) <= 0:
            raise ConfigError("every time of a lease must be above zero, and its duration whole")
        if self.renew * (1 + self.jitter) * 2 > usable:
            raise ConfigError(
                f"a lease of {self.duration} s leaves {usable:g} s for renewals every "
                f"{self.renew:g} s; at least two must fit, make the lease longer"
            )


class Switch(Protocol):
    """What ends the process at a deadline: ``zonewise.runtime.election.deadman.Deadman``."""

    def arm(self, deadline: float) -> None:
        """End the process then, unless armed again."""
        ...

    def disarm(self) -> None:
        """Cancel the deadline."""
        ...


@dataclass(frozen=True, slots=True)
class _Seen:
    """A record of the lease, and when this replica saw it change to that."""

    spec: LeaseSpec
    at: float


class Election:
    """One replica's part in the election of a leader; gives ``fence`` to the client that writes."""

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        namespace: str,
        identity: str | None = None,
        timing: LeaseTiming | None = None,
        deadman: Switch | None = None,
        on_change: Callable[[bool], None] | None = None,
        clock: Callable[[], float] = boottime,
        now: Callable[[], datetime] = utcnow,
        rng: random.Random | None = None,
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.identity = identity or unique_identity()
        self.timing = timing or LeaseTiming()
        self._client = client
        self._deadman = deadman
        self._on_change = on_change
        self._clock = clock
        self._now = now
        self._rng = rng or random.SystemRandom()
        self._version = ""
        self._seen: _Seen | None = None
        self._open = False
        self._deadline = float("-inf")
        self._last_write = float("-inf")

    @property
    def leading(self) -> bool:
        """Whether this replica may write now."""
        return self._open and self._clock() < self._deadline

    @property
    def leader(self) -> str:
        """The last observed holder of the lease; "" if there was none."""
        return (self._seen.spec.holder_identity or "") if self._seen else ""

    @property
    def remaining(self) -> float:
        """How long this replica may still write without another renewal."""
        return max(0.0, self._deadline - self._clock()) if self._open else 0.0

    def fence(self) -> None:
        """Let a write pass that is about to be sent, or raise ``LeadershipLost``."""
        now = self._clock()
        if not self._open or now >= self._deadline:
            raise LeadershipLost(
                f"{self.identity} no longer holds lease {self.namespace}/{self.name}; "
                "the write was not sent"
            )
        self._last_write = now

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, do the work while it lasts, release it.

        Returns when ``lead`` returns and raises what it raises. Raises ``LeadershipLost`` if the
        lease was lost; a caller that wants to follow again calls ``run`` again. When cancelled it
        cancels ``lead``, waits for it and releases the lease.
        """
        await self._acquire()
        self._announce(leading=True)
        work = asyncio.create_task(_call(lead), name=f"lead {self.name}")
        renewal = asyncio.create_task(self._renew(), name=f"renew {self.name}")
        cut = False
        try:
            await asyncio.wait([work, renewal], return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                if not work.done():
                    cut = True
                    work.cancel()
                    await asyncio.wait([work])
            finally:
                renewing = not renewal.done()
                renewal.cancel()
                self._close(disarm=work.done())
            failure = None if work.cancelled() else work.exception()
            await asyncio.wait([renewal])
            if renewing:
                await self._release(settle=cut)
            elif failure is not None:
                _log.warning("the work failed", lease=self.name, error=_sentence(failure))
        if not renewing:
            renewal.result()
        if failure is not None:
            raise failure

    async def _acquire(self) -> None:
        """Return once the lease is ours."""
        while True:
            pause = self._jittered(self.timing.retry)
            try:
                async with asyncio.timeout(self.timing.renew):
                    pause = await self._attempt(pause)
            except Terminal:
                raise
            except (ZonewiseError, TimeoutError) as error:
                _log.warning("cannot reach the lease", lease=self.name, error=_sentence(error))
            if self._open:
                return
            await asyncio.sleep(pause)

    async def _attempt(self, pause: float) -> float:
        """Try once to take the lease; how long to wait before the next try."""
        try:
            lease = await self._client.get(Lease, self.name, self.namespace)
        except NotFound:
            left = self._observe(None)
            if left > 0:
                return min(pause, left + SHORTEST)
            await self._create()
            return 0.0
        left = self._observe(lease.spec)
        if left > 0:
            return min(pause, left + SHORTEST)
        self._version = lease.metadata.resource_version
        await self._take(lease.spec)
        return 0.0

    def _observe(self, spec: LeaseSpec | None) -> float:
        """Record what the lease says now; returns how long another replica still holds it."""
        now = self._clock()
        if spec is not None and (self._seen is None or self._seen.spec != spec):
            if self.leader != (spec.holder_identity or ""):
                _log.info("leader seen", lease=self.name, leader=spec.holder_identity or "none")
            self._seen = _Seen(spec, now)
        if self._seen is None or self.leader in ("", self.identity):
            return 0.0
        duration = self._seen.spec.lease_duration_seconds or self.timing.duration
        return self._seen.at + duration - now

    async def _create(self) -> None:
        sent = self._clock()
        transitions = (self._seen.spec.lease_transitions or 0) + 1 if self._seen else 0
        meta = ObjectMeta(name=self.name, namespace=self.namespace)
        try:
            lease = await self._client.create(
                Lease(metadata=meta, spec=self._spec(transitions=transitions, taken=True))
            )
        except Conflict:
            return
        self._hold(lease, sent)

    async def _take(self, former: LeaseSpec) -> None:
        transitions = (former.lease_transitions or 0) + (former.holder_identity != self.identity)
        sent = self._clock()
        try:
            taken = await self._patch(self._spec(transitions=transitions, taken=True))
        except (Conflict, NotFound):
            return
        self._hold(taken, sent)

    async def _renew(self) -> None:
        """Renew until cancelled; raises ``LeadershipLost`` when that is not possible any more."""
        pause = self._jittered(self.timing.renew)
        while True:
            give_up = self._deadline - self.timing.stop
            await asyncio.sleep(max(0.0, min(pause, give_up - self._clock())))
            left = give_up - self._clock()
            if left <= SHORTEST:
                raise self._lost("it could not be renewed in time")
            pause = self._jittered(self.timing.renew)
            try:
                async with asyncio.timeout(min(left, self.timing.renew)):
                    await self._renew_once()
            except LeadershipLost:
                raise
            except (ZonewiseError, TimeoutError) as error:
                _log.warning("cannot renew the lease", lease=self.name, error=_sentence(error))
                pause = self._jittered(min(self.timing.renew, self.timing.retry) / 2)

    async def _renew_once(self) -> None:
        sent = self._clock()
        try:
            renewed = await self._patch(self._spec())
        except NotFound:
            raise self._lost("it was deleted") from None
        except Conflict:
            # Our own renewal without an answer, or a changed label, or a takeover.
            await self._look_again()
            sent = self._clock()
            renewed = await self._patch(self._spec())
        self._hold(renewed, sent)

    async def _look_again(self) -> None:
        try:
            lease = await self._client.get(Lease, self.name, self.namespace)
        except NotFound:
            raise self._lost("it was deleted") from None
        self._observe(lease.spec)
        if self.leader != self.identity:
            raise self._lost(f"{self.leader or 'no process'} holds it now")
        self._version = lease.metadata.resource_version

    def _hold(self, lease: Lease, sent: float) -> None:
        """Lead until the deadline that follows from when the request was sent."""
        self._version = lease.metadata.resource_version
        self._seen = _Seen(lease.spec, self._clock())
        self._deadline = sent + self.timing.duration - self.timing.margin
        if self._deadman is not None:
            self._deadman.arm(self._deadline)
        self._open = True

    def _close(self, *, disarm: bool) -> None:
        """Stop writing; the process may continue only if nothing is left that could write."""
        self._open = False
        if self._deadman is not None and disarm:
            self._deadman.disarm()
        self._announce(leading=False)

    def _lost(self, why: str) -> LeadershipLost:
        self._open = False
        sentence = f"lost lease {self.namespace}/{self.name}: {why}"
        _log.warning(sentence)
        return LeadershipLost(sentence)

    async def _release(self, *, settle: bool) -> None:
        if settle:
            arrived = self._last_write + self.timing.margin
            await asyncio.sleep(max(0.0, arrived - self._clock()))
        now = format_micro(self._now())
        gone = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now}
        try:
            async with asyncio.timeout(self.timing.renew):
                try:
                    await self._patch(gone)
                except Conflict:
                    # A renewal that was cut off has arrived: the lease is ours in a new version.
                    lease = await self._client.get(Lease, self.name, self.namespace)
                    if lease.spec.holder_identity == self.identity:
                        self._version = lease.metadata.resource_version
                        await self._patch(gone)
        except (ZonewiseError, TimeoutError) as error:
            _log.warning("the lease was not released", lease=self.name, error=_sentence(error))

    async def _patch(self, spec: LeaseSpec | dict[str, Any]) -> Lease:
        body = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        return await self._client.patch(Lease, self.name, self.namespace, body, kind="merge")

    def _spec(self, *, transitions: int | None = None, taken: bool = False) -> LeaseSpec:
        now = format_micro(self._now())
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self.timing.duration,
            acquire_time=now if taken else None,
            renew_time=now,
            lease_transitions=transitions,
        )

    def _announce(self, *, leading: bool) -> None:
        _log.info("leading" if leading else "no longer leading", lease=self.name)
        if self._on_change is not None:
            self._on_change(leading)

    def _jittered(self, seconds: float) -> float:
        return seconds * (1 + self.timing.jitter * self._rng.uniform(-1, 1))


def lease_namespace(given: str | None = None, *, default: str = "default") -> str:
    """Where the lease is: ``--lease-namespace``, else the pod's namespace, else ``default``."""
    if given:
        return given
    if pod := os.environ.get("POD_NAMESPACE"):
        return pod
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or default
    except OSError:
        return default


def unique_identity() -> str:
    """A name that no other replica and no former life of this one has."""
    return f"{socket.gethostname()}_{uuid.uuid4().hex[:12]}"


async def _call(lead: Callable[[], Awaitable[None]]) -> None:
    await lead()


def _sentence(error: BaseException) -> str:
    return str(error) or "no answer in time"
