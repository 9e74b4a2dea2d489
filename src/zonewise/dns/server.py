"""The name server: sockets, names of the cluster and other names, put together.

``DnsServer`` runs in the event loop of the cache it reads. It answers from the moment it is
started; names of the cluster are SERVFAIL until the first lists are complete (``synced``), and from
then on are answered whatever happens to the API server. A relist, a change of ``resolv.conf`` or a
lost connection never reverts that.

``NameServer`` is the same as part of a program: it finds out what it may read and follows that, and
when it is stopped it keeps answering for ``lameduck`` seconds, until no client is sent to it any
more.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zonewise.api.errors import ConfigError
from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.dns.cluster_cache import ClusterCache
from zonewise.dns.directory import ChangeToken, Directory
from zonewise.dns.metrics import DnsMetrics, Durations
from zonewise.dns.names import parse_domain
from zonewise.dns.outside.forward import RESOLV_CONF, Forwarder, ResolvConf
from zonewise.dns.outside.upstream import Upstream
from zonewise.dns.outside.upstream_cache import UpstreamCache
from zonewise.dns.responder import Responder
from zonewise.dns.sources import Feed, Sources
from zonewise.dns.subnet import IPNetwork, plain
from zonewise.dns.tcp import BACKLOG, CONNECTIONS, StreamServer
from zonewise.dns.udp import BUFFER, PacketServer
from zonewise.dns.zone import DnsCluster, Domains
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.process.logs import logger
from zonewise.runtime.process.memory import freeze_heap
from zonewise.runtime.process.process import raise_file_limit
from zonewise.runtime.program.context import ControllerContext
from zonewise.topology.locator_index import LabelInterner, LocatorIndex

TRIES = 20
MAX_NOTES = 1000
"""How many Services are named in the log as needing labels of Nodes."""

_log = logger("dns")


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsSettings:
    """What may be chosen. No ``upstreams`` means those of ``resolv_conf``."""

    host: str = "127.0.0.1"
    port: int = 53
    domains: tuple[bytes, ...] = (parse_domain("cluster.local"),)
    upstreams: tuple[Upstream, ...] = ()
    resolv_conf: Path = RESOLV_CONF
    stubs: Mapping[bytes, Sequence[Upstream]] = field(default_factory=dict)
    trusted: tuple[IPNetwork, ...] = ()
    stale: float = 0.0
    gates: Mapping[str, bool] = field(default_factory=FeatureGates)


class DnsServer:
    """A name server over the stores of a cache."""

    def __init__(
        self,
        settings: DnsSettings,
        cache: Cache,
        *,
        maps: LabelInterner | None = None,
        slices: type[LeanEndpointSlice] = LeanEndpointSlice,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._cache = cache
        self._slices = slices
        self._maps = LabelInterner() if maps is None else maps
        self._clock = clock
        self._serial = int(clock())
        self._synced = False
        self._noted: set[Key] = set()
        self._answers = ClusterCache()
        self._packets: PacketServer | None = None
        self._streams: StreamServer | None = None
        self.port = 0
        """Where it listens, once started."""
        servers = (
            (lambda: settings.upstreams) if settings.upstreams else ResolvConf(settings.resolv_conf)
        )
        self._forwarder = Forwarder(
            servers, stubs=settings.stubs, cache=UpstreamCache(stale=settings.stale)
        )
        self._directory = Directory(self._changed, settings.gates)
        self.responder = Responder(
            cluster=self._cluster(LocatorIndex(interner=self._maps)),
            forwards=self._forwarder,
            synced=lambda: self._synced,
            trusted=settings.trusted,
            cache=self._answers,
        )

    @property
    def synced(self) -> bool:
        """Whether the first lists are complete."""
        return self._synced

    def problem(self) -> str | None:
        """Why names of the cluster are not answered yet; a readiness check."""
        return None if self._synced else "the first lists are not complete yet"

    async def start(self) -> DnsMetrics:
        """Begin to listen; gives what can be counted. ``close`` also ends a start that failed."""
        settings = self._settings
        # Half of the files are for upstreams and the API server, whatever clients do.
        most = min(CONNECTIONS, raise_file_limit() // 2)
        durations = Durations()
        packets, streams = bind(settings.host, settings.port)
        self._streams = StreamServer(streams, self.responder, connections=most)
        self._packets = PacketServer(packets, self.responder, observe=durations)
        self.port = packets.getsockname()[1]
        self._packets.start()
        await self._streams.start()
        return DnsMetrics(
            server=f"dns://{settings.host}:{self.port}",
            family="1" if packets.family == socket.AF_INET else "2",
            responder=self.responder,
            packets=self._packets,
            streams=self._streams,
            durations=durations,
            forwarder=self._forwarder,
        )

    async def follow(self, sources: Sources) -> None:
        """Read locations from these sources; returns when the first lists are complete."""
        follow = sources.nodes or not sources.locators
        locators = LocatorIndex(follow_nodes=follow, interner=self._maps)
        note = self._note_nodes if sources.locators and sources.nodes else None
        self.responder.cluster = self._cluster(locators, note)
        Feed(
            self._cache,
            sources,
            directory=self._directory,
            locators=locators,
            changed=self._changed,
            slices=self._slices,
        )
        await self._cache.synced()
        self._answers.clear()
        self._synced = True

    async def close(self) -> None:
        """Stop listening; pending forwarded questions are dropped."""
        if self._packets is not None:
            self._packets.stop()
        if self._streams is not None:
            await self._streams.stop()
        await self._forwarder.close()

    def _note_nodes(self, service: Key) -> None:
        """Log once that labels for a Service's topology keys are read from Nodes."""
        if service not in self._noted and len(self._noted) < MAX_NOTES:
            self._noted.add(service)
            _log.info(
                "labels of nodes are read from Nodes: slices and PodLocators leave some out",
                service="/".join(service),
            )

    def _cluster(
        self, locators: LocatorIndex, note: Callable[[Key], None] | None = None
    ) -> DnsCluster:
        settings = self._settings
        return DnsCluster(
            Domains(settings.domains),
            self._directory,
            locators,
            lambda: self._serial,
            own_addresses(settings.host),
            note,
        )

    def _changed(self, tokens: Iterable[ChangeToken]) -> None:
        self._answers.drop(tokens)
        self._serial = int(self._clock())


class NameServer:
    """Answers questions about the cluster.

    ``sources`` says where locations are read from; without, that is found out. ``slices`` is the
    class under which the cache holds EndpointSlices.
    """

    def __init__(
        self,
        context: ControllerContext,
        settings: DnsSettings,
        *,
        maps: LabelInterner | None = None,
        slices: type[LeanEndpointSlice] = LeanEndpointSlice,
        sources: Sources | None = None,
        lameduck: float = 0.0,
    ) -> None:
        self._context = context
        self._sources = sources
        self._lameduck = lameduck
        self._stopping = asyncio.Event()
        self.listening = asyncio.Event()
        self.server = DnsServer(settings, context.cache, maps=maps, slices=slices)

    async def run(self) -> None:
        """Answer until stopped."""
        try:
            counts = await self.server.start()
            if self._context.metrics is not None:
                self._context.metrics.registry.register(counts)
            self.listening.set()
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._follow())
                await self._stopping.wait()
                await asyncio.sleep(self._lameduck)
                following.cancel()
        finally:
            await self.server.close()

    def stop(self) -> None:
        """End after ``lameduck`` seconds."""
        self._stopping.set()

    def problem(self) -> str | None:
        """Why names of the cluster are not answered yet; a readiness check."""
        return self.server.problem()

    async def _follow(self) -> None:
        sources = self._sources
        if sources is None:
            sources = await Sources.find(self._context.client)
            _log.info(
                "locations are read", from_locators=sources.locators, with_nodes=sources.nodes
            )
        await self.server.follow(sources)
        freeze_heap()


def own_addresses(host: str) -> tuple[str, ...]:
    """The addresses clients reach us at: the one we listen on, or all of this machine's.

    A loopback address is not reachable from elsewhere, so it is left out.
    """
    hosts: Iterable[str] = [host]
    if not host or ipaddress.ip_address(host).is_unspecified:
        try:
            entries = socket.getaddrinfo(socket.gethostname(), None)
        except OSError:
            return ()
        hosts = (str(entry[4][0]) for entry in entries)
    known = dict.fromkeys(map(plain, hosts))
    return tuple(address for address in known if not ipaddress.ip_address(address).is_loopback)


def bind(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """A packet socket and a stream socket on the same port; a free one for 0."""
    for left in reversed(range(TRIES if port == 0 else 1)):
        packets = _bound(host, port, socket.SOCK_DGRAM)
        try:
            return packets, _bound(host, packets.getsockname()[1], socket.SOCK_STREAM)
        except ConfigError:
            packets.close()
            if not left:
                raise
    raise AssertionError("unreachable")


def _bound(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    wide = host in ("", "::")
    family = (
        socket.AF_INET6
        if ":" in host or (wide and socket.has_dualstack_ipv6())
        else (socket.AF_INET)
    )
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not wide))
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        sock.bind(("" if wide else host, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        why = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"cannot listen on {host or '*'}:{port} for questions: {why}; stop what listens there "
            "or choose another --listen"
        ) from error
    return sock
