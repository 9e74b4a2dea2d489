"""The name server: sockets, names of the cluster and other names, put together.

``DnsServer`` runs in the event loop of the cache it reads. It answers from the moment it is
started; names of the cluster are SERVFAIL until the first lists are complete (``synced``), and from
then on are answered whatever happens to the API server. A relist, a change of ``resolv.conf`` or a
lost connection never reverts that.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zonewise.api.errors import ConfigError
from zonewise.api.objects.discovery import LeanEndpointSlice
from zonewise.dns.directory import ChangeToken, Directory
from zonewise.dns.kept import KeptAnswers
from zonewise.dns.metrics import DnsMetrics, Durations
from zonewise.dns.names import parse_domain
from zonewise.dns.outside.cache import AnswerCache
from zonewise.dns.outside.forward import RESOLV_CONF, Forwarder, ResolvConf
from zonewise.dns.outside.upstream import Upstream
from zonewise.dns.responder import Responder
from zonewise.dns.sources import Feed, Sources
from zonewise.dns.subnet import IPNetwork, plain
from zonewise.dns.tcp import BACKLOG, CONNECTIONS, StreamServer
from zonewise.dns.udp import BUFFER, PacketServer
from zonewise.dns.zone import DnsCluster, Domains
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.process.files import raise_file_limit
from zonewise.topology.locators import LabelMaps, Locators

TRIES = 20


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


class DnsServer:
    """A name server over the stores of a cache."""

    def __init__(
        self,
        settings: DnsSettings,
        cache: Cache,
        *,
        maps: LabelMaps | None = None,
        slices: type[LeanEndpointSlice] = LeanEndpointSlice,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._cache = cache
        self._slices = slices
        self._maps = LabelMaps() if maps is None else maps
        self._clock = clock
        self._serial = int(clock())
        self._synced = False
        self._kept = KeptAnswers()
        self._packets: PacketServer | None = None
        self._streams: StreamServer | None = None
        self.port = 0
        """Where it listens, once started."""
        servers = (
            (lambda: settings.upstreams) if settings.upstreams else ResolvConf(settings.resolv_conf)
        )
        self._forwarder = Forwarder(
            servers, stubs=settings.stubs, cache=AnswerCache(stale=settings.stale)
        )
        self._directory = Directory(self._changed)
        self.responder = Responder(
            cluster=self._cluster(Locators(maps=self._maps)),
            forwards=self._forwarder,
            synced=lambda: self._synced,
            trusted=settings.trusted,
            kept=self._kept,
        )

    @property
    def synced(self) -> bool:
        """Whether the first lists are complete."""
        return self._synced

    def problem(self) -> str | None:
        """Why names of the cluster are not answered yet; a readiness check."""
        return None if self._synced else "the first lists are not complete yet"

    async def start(self) -> DnsMetrics:
        """Begin to listen; gives what can be counted."""
        settings = self._settings
        packets, streams = bind(settings.host, settings.port)
        self.port = packets.getsockname()[1]
        durations = Durations()
        self._packets = PacketServer(packets, self.responder, observe=durations)
        # Half of the files are for upstreams and the API server, whatever clients do.
        most = min(CONNECTIONS, raise_file_limit() // 2)
        self._streams = StreamServer(streams, self.responder, connections=most)
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
        """Read places from these sources; returns when the first lists are complete."""
        locators = Locators(nodes=sources.nodes or not sources.locators, maps=self._maps)
        self.responder.cluster = self._cluster(locators)
        Feed(
            self._cache,
            sources,
            directory=self._directory,
            locators=locators,
            changed=self._changed,
            slices=self._slices,
        )
        await self._cache.synced()
        self._kept.clear()
        self._synced = True

    async def stop(self) -> None:
        """Stop listening; pending forwarded questions are dropped."""
        if self._packets is not None:
            self._packets.stop()
        if self._streams is not None:
            await self._streams.stop()
        await self._forwarder.close()

    def _cluster(self, locators: Locators) -> DnsCluster:
        settings = self._settings
        return DnsCluster(
            Domains(settings.domains),
            self._directory,
            locators,
            lambda: self._serial,
            own_addresses(settings.host),
        )

    def _changed(self, tokens: Iterable[ChangeToken]) -> None:
        self._kept.drop(tokens)
        self._serial = int(self._clock())


def own_addresses(host: str) -> tuple[str, ...]:
    """The addresses clients reach us at: the one we listen on, or all of this machine's.

    A loopback address is not reachable from elsewhere, so it is left out.
    """
    found: Iterable[str] = [host]
    if not host or ipaddress.ip_address(host).is_unspecified:
        try:
            entries = socket.getaddrinfo(socket.gethostname(), None)
        except OSError:
            return ()
        found = (str(entry[4][0]) for entry in entries)
    known = dict.fromkeys(map(plain, found))
    return tuple(one for one in known if not ipaddress.ip_address(one).is_loopback)


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
