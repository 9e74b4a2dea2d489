"""Names outside of the cluster: forwarded to other servers, in order, with failover.

Servers come from flags, or from ``/etc/resolv.conf``, which is read again when it has changed. Stub
domains have servers of their own. A name of the cluster never gets here.

*Failover.* The first server is asked; if it has not answered after ``PATIENCE`` the next is asked
in parallel, and so on, and the first good answer wins. A server that fails at once (connection
refused, SERVFAIL or REFUSED) is not waited for. Servers that failed lately are asked last. Those
that stay silent are asked once more in the same order, because packets get lost. After ``DEADLINE``
the answer is SERVFAIL, or a stale one.

*Bounded*: so many questions at a time for the servers of each stub domain and for the others, and
so many clients that wait for them; one more is SERVFAIL at once. So silent servers do not block the
others, and no client gets more of either than are left (``zonewise.dns.shares``): names that no
server answers occupy a slot for seconds. The same question of many clients is forwarded once, and
counts for the first of them.

*Loops.* A server that leads back to us would turn one question into thousands. Each server is sent
a random question from time to time; a server that makes it arrive here is not used until one such
question does not arrive, and both are logged. Until then, a question that comes back finds itself
pending and waits for its own answer, so it goes round once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from zonewise.dns.names import ROOT, is_within, labels_of, name_of, parse_domain
from zonewise.dns.outside.received import Received
from zonewise.dns.outside.upstream import Upstream, UpstreamFailed, ask, is_address
from zonewise.dns.outside.upstream_cache import CacheKey, OutsideAnswer, UpstreamCache, cache_key
from zonewise.dns.sections import Sections
from zonewise.dns.shares import FairShares
from zonewise.dns.slices import LongWork
from zonewise.dns.wire import IN, RD, Question, Rcode, RecordType
from zonewise.runtime.process.logs import logger

RESOLV_CONF = Path("/etc/resolv.conf")
PATIENCE = 1.0
DEADLINE = 4.0
REST = 10.0
"""For so many seconds a server that failed is asked after all others."""

CONCURRENT = 1000
WAITING = 10_000
PROBE_EVERY = 60.0
PROBE_AGAIN = 10.0
"""How often servers are probed while one of them leads back to us."""

HIGHEST_CODE = 15
"""Higher codes need EDNS, so they concern only our exchange with a server."""

PROBES = parse_domain("loop.zonewise.invalid")

_log = logger("dns")

Servers = Callable[[], Sequence[Upstream]]


class Forwarder:
    """Forwards to other servers; see the module for order, bounds and loops."""

    def __init__(
        self,
        servers: Servers,
        *,
        stubs: Mapping[bytes, Sequence[Upstream]] | None = None,
        cache: UpstreamCache | None = None,
        concurrent: int = CONCURRENT,
        waiting: int = WAITING,
        patience: float = PATIENCE,
        deadline: float = DEADLINE,
    ) -> None:
        self.cache = UpstreamCache() if cache is None else cache
        self.forwarded = 0
        self.failed = 0
        self.rejected = 0
        self._servers = servers
        self._stubs = dict(stubs or {})
        self._slots = {domain: FairShares(concurrent) for domain in (ROOT, *self._stubs)}
        self._waiting = FairShares(waiting)
        self._patience = patience
        self._deadline = deadline
        self._long = LongWork()
        self._open: dict[CacheKey, asyncio.Task[Received]] = {}
        self._rests: dict[Upstream, float] = {}
        self._probes: dict[bytes, Upstream] = {}
        self._probing: set[asyncio.Task[None]] = set()
        self._next_probe = 0.0
        self.looping: set[Upstream] = set()

    def is_own_probe(self, question: Question) -> bool:
        """Whether a question is our own probe that came back; its server is not used then."""
        upstream = self._probes.pop(question.lower, None)
        if upstream is None:
            return False
        if upstream not in self.looping:
            self.looping.add(upstream)
            _log.error(
                "an upstream leads back to this server and is not used until it no longer does",
                upstream=str(upstream),
            )
        return True

    async def look_up(self, question: Question, source: str) -> OutsideAnswer:
        """The answer for a client, from the cache or from a server; SERVFAIL if there is none."""
        now = asyncio.get_running_loop().time
        self._look_for_loops(now())
        known = self.cache.get(question, now())
        if known is not None:
            return known
        if not self._waiting.take(source):
            self.rejected += 1
            return OutsideAnswer.failed(question, Rcode.SERVFAIL)
        try:
            task = self._open.get(cache_key(question)) or self._begin(question, source)
            if task is None:
                self.rejected += 1
                return OutsideAnswer.failed(question, Rcode.SERVFAIL)
            received = await asyncio.shield(task)
        finally:
            self._waiting.give_back(source)
        known = OutsideAnswer(received.sections)
        if received.rcode == Rcode.SERVFAIL:
            return self.cache.get_stale(question, now()) or known
        return known

    def _begin(self, question: Question, source: str) -> asyncio.Task[Received] | None:
        """Forward a question that is not forwarded yet, if its source may have another slot."""
        domain, key = self._domain(question), cache_key(question)
        slots = self._slots[domain]
        if not slots.take(source):
            return None
        task = self._open[key] = asyncio.create_task(self._forward(question, domain))

        def ended(_: asyncio.Task[Received]) -> None:
            del self._open[key]
            slots.give_back(source)

        task.add_done_callback(ended)
        return task

    async def close(self) -> None:
        """Drop pending questions."""
        tasks = (*self._open.values(), *self._probing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look_for_loops(self, now: float) -> None:
        """Send every server, from time to time while it is used, a random question."""
        if now < self._next_probe:
            return
        self._next_probe = now + (PROBE_AGAIN if self.looping else PROBE_EVERY)
        for upstream in self._all():
            task = asyncio.create_task(self._probe(upstream))
            self._probing.add(task)
            task.add_done_callback(self._probing.discard)

    def _all(self) -> list[Upstream]:
        stubs = (upstream for servers in self._stubs.values() for upstream in servers)
        return list(dict.fromkeys((*self._servers(), *stubs)))

    async def _probe(self, upstream: Upstream) -> None:
        name = name_of((secrets.token_hex(16), *labels_of(PROBES)))
        self._probes[name] = upstream
        try:
            question = Question(0, RD, name, name, RecordType.A, IN)
            await ask(upstream, question, seconds=self._deadline, long=self._long)
        except UpstreamFailed as error:
            _log.debug("an upstream did not answer the loop check", why=str(error))
        finally:
            came_back = self._probes.pop(name, None) is None
        if not came_back and upstream in self.looping:
            self.looping.discard(upstream)
            _log.info("an upstream leads back no longer and is used again", upstream=str(upstream))

    async def _forward(self, question: Question, domain: bytes) -> Received:
        self.forwarded += 1
        loop = asyncio.get_running_loop()
        received = await self._race(question, self._order(domain, loop.time()))
        if received.rcode in (Rcode.NOERROR, Rcode.NXDOMAIN):
            self.cache.put(question, received, loop.time())
        else:
            self.failed += 1
            if received.rcode > HIGHEST_CODE:
                return _failure(question, Rcode.SERVFAIL)
        return received

    def _domain(self, question: Question) -> bytes:
        """The longest stub domain that a name is in; the root if it is in none."""
        stubs = (domain for domain in self._stubs if is_within(question.lower, domain))
        return max(stubs, key=len, default=ROOT)

    def _order(self, domain: bytes, now: float) -> list[Upstream]:
        """The servers of a domain, the most promising first."""
        stub = self._stubs.get(domain)
        servers: Iterable[Upstream] = self._servers() if stub is None else stub
        usable = [upstream for upstream in servers if upstream not in self.looping]
        return sorted(usable, key=lambda upstream: self._rests.get(upstream, 0.0) > now)

    async def _race(self, question: Question, servers: Sequence[Upstream]) -> Received:
        """The first good answer; the last bad one if there is none."""
        worst = _failure(question, Rcode.SERVFAIL if servers else Rcode.REFUSED)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._deadline
        waiting: set[asyncio.Task[Received]] = set()
        left = [*servers, *servers]
        by_task: dict[asyncio.Task[Received], Upstream] = {}
        try:
            while (left or waiting) and loop.time() < end:
                if left:
                    upstream = left.pop(0)
                    silent = any(by_task[task] == upstream for task in waiting)
                    if upstream in by_task.values() and not silent:
                        continue
                    task = asyncio.create_task(
                        ask(
                            upstream, question, seconds=max(0.0, end - loop.time()), long=self._long
                        )
                    )
                    by_task[task] = upstream
                    waiting.add(task)
                pause = self._patience if left else end - loop.time()
                done, waiting = await asyncio.wait(
                    waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and left:
                    for task in waiting:
                        self._rests[by_task[task]] = loop.time() + REST
                for task in done:
                    if task.exception() is not None:
                        self._rests[by_task[task]] = loop.time() + REST
                        continue
                    received = task.result()
                    if received.rcode in (Rcode.NOERROR, Rcode.NXDOMAIN):
                        self._rests.pop(by_task[task], None)
                        return received
                    worst = received
            return worst
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)


def _failure(question: Question, rcode: int) -> Received:
    return Received(Sections.empty(question.name, rcode))


class ResolvConf:
    """The servers of a resolver's file, read again when it has changed."""

    def __init__(self, path: Path = RESOLV_CONF) -> None:
        self._path = path
        self._seen: object = None
        self._servers: tuple[Upstream, ...] = ()

    def __call__(self) -> Sequence[Upstream]:
        """The current servers; the last ones if the file cannot be read."""
        try:
            stat = self._path.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen != self._seen:
                self._servers = read_resolv_conf(self._path.read_text(errors="replace"))
                self._seen = seen
        except OSError as error:
            if self._seen is None:
                self._seen = ()
                why = error.strerror or str(error)
                _log.warning("no upstream servers", file=str(self._path), why=why)
        return self._servers


def read_resolv_conf(text: str) -> tuple[Upstream, ...]:
    """The servers that a ``resolv.conf`` names, each once; invalid addresses are skipped."""
    servers = []
    for line in text.splitlines():
        words = line.split("#")[0].split(";")[0].split()
        if len(words) >= 2 and words[0] == "nameserver" and is_address(words[1]):
            servers.append(Upstream(words[1]))
    return tuple(dict.fromkeys(servers))
