"""A TLS listener that clients cannot exhaust.

Connections are counted. Where there are as many as are allowed, or as many as the limit of open
files leaves beside what the program itself opens, no more are accepted: new clients wait in the
kernel's backlog, connected ones are served, and accepting resumes when a connection ends. When the
system still refuses (out of files or memory), accepting pauses for a moment. It is logged once a
minute, however often it happens.

Where ``per_source`` is given, clients are not known and one must not keep out others. When there is
no room, the connection that has waited longest for its client is closed, of the address that has
the most of them; and that of the same address, if one has more than ``per_source``. A connection
whose request is being answered is never closed. So quick clients are served: API servers whose
calls all come from one address, too, however many those are.

When many connections have ended, the memory of their buffers is given back to the system.

asyncio's own accept loop does neither: it accepts every client, and without descriptors it logs a
traceback for each place in its backlog, again and again.
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable
from math import ceil

from zonewise.runtime.process.logs import logger
from zonewise.runtime.process.memory import give_back
from zonewise.runtime.serving.connection import SLOW, Connection

QUEUE = 1024
"""Connections that the kernel keeps for us while we do not accept."""
TURN = 64
"""Connections accepted at once, before others have their turn on the loop."""
OWN_FILES = 128
"""Descriptors left for what the program opens itself: its data, its log, its own calls."""
PAUSE = 1.0
ENDED = 64
"""Connections that have ended before their memory is given back, ``TIDY`` seconds later."""
TIDY = 2.0
QUIET = 60.0
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
SHUTDOWN_SECONDS = 1.0
ENCRYPTION = "encryption"
"""Under this name a connection's ``get_extra_info`` has its ``Encryption``."""

_log = logger("listener")


class Encryption(SSLProtocol):
    """TLS for one connection.

    asyncio gives each a buffer of 256 KiB to receive into, all of it touched. Requests are small,
    and thousands of watchers never send a second one. Record 008 has the numbers.
    """

    max_size = 8 * 1024

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.Protocol,
        tls: ssl.SSLContext,
        waiter: asyncio.Future[None],
        *,
        handshake_seconds: float,
        source: str,
        left: Callable[[Encryption], None],
    ) -> None:
        super().__init__(
            loop,
            protocol,
            tls,
            waiter,
            server_side=True,
            ssl_handshake_timeout=ceil(handshake_seconds),
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )
        self.source = source
        """The address of the client."""
        self._left = left
        self._began = loop.time()
        self._served = protocol if isinstance(protocol, Connection) else None
        self._socket_transport: asyncio.Transport | None = None
        self._extra[ENCRYPTION] = self

    @property
    def unsent(self) -> int:
        """Bytes that were written and that the socket has not taken yet."""
        inner = self._socket_transport
        if inner is None:
            return 0
        return self._app_transport.get_write_buffer_size() + inner.get_write_buffer_size()

    def waiting(self, now: float) -> float | None:
        """For how long we wait for the client; None if it is our turn, or not slow yet."""
        if self._served is not None and self._served.transport is not None:
            return self._served.waiting(now)
        seconds = now - self._began
        return seconds if seconds >= SLOW else None

    def end(self) -> None:
        """Hang up at once; what was not sent is dropped."""
        if self._socket_transport is not None:
            self._socket_transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The beginning: the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self._socket_transport = transport
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection ended, for whatever reason."""
        super().connection_lost(exc)
        self._socket_transport = None
        self._extra.pop(ENCRYPTION, None)
        self._left(self)


class Listener:
    """Accepts connections; ``make`` gives each its protocol."""

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        *,
        connections: int,
        handshake_seconds: float,
        encryption: type[Encryption] = Encryption,
        per_source: int | None = None,
        pause: float = PAUSE,
    ) -> None:
        self._make = make
        self._tls = tls
        self._connections = connections
        self._handshake_seconds = handshake_seconds
        self._encryption = encryption
        self._per_source = per_source
        self._pause = pause
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._encryptions: set[Encryption] = set()
        self._sources: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._paused = False
        self._logged_at = -QUIET
        self._ended = 0
        self.open = 0
        """How many connections there are."""

    async def start(self, host: str, port: int) -> int:
        """Listen on all addresses of ``host`` (empty: all of this machine); the port.

        Raises ``OSError`` if one of them cannot be bound.
        """
        addresses = await self._loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        try:
            for family, kind, protocol, _, address in dict.fromkeys(addresses):
                listening = socket.socket(family, kind, protocol)
                self._sockets.append(listening)
                listening.setblocking(False)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.bind((address[0], port, *address[2:]))
                port = int(listening.getsockname()[1])
                listening.listen(QUEUE)
        except BaseException:
            self.close()
            raise
        self._resume()
        return port

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        self._halt()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    @property
    def room(self) -> int:
        """How many connections there may be now."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self._connections
        return min(self._connections, max(files - OWN_FILES, files // 2))

    def _accept(self, listening: socket.socket) -> None:
        for turn in range(TURN):
            room = self.room
            if turn and self.open >= room:
                return  # The loop calls again if another client waits, and only then.
            if self.open >= room and not self._make_room():
                self._halt()
                if self._per_source is not None:
                    self._timer = self._loop.call_later(self._pause, self._resume)
                self._log_error(
                    "no more connections are accepted until some of them end", limit=room
                )
                return
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                self._halt()
                self._timer = self._loop.call_later(self._pause, self._resume)
                self._log_error("connections cannot be accepted now", error=error.strerror)
                return
            accepted.setblocking(False)
            source = str(address[0])
            self.open += 1
            self._sources[source] += 1
            if self._per_source is not None and self._sources[source] > self._per_source:
                self._make_room(source)
            task = self._loop.create_task(self._connect(accepted, source))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    def _make_room(self, source: str = "") -> bool:
        """Close the longest idle connection, of one address or of that with the most."""
        if self._per_source is None:
            return False
        now = self._loop.time()
        closable = [
            ((self._sources[encryption.source], waited), encryption)
            for encryption in self._encryptions
            if (not source or encryption.source == source)
            and (waited := encryption.waiting(now)) is not None
        ]
        if not closable:
            return False
        _, longest = max(closable, key=lambda pair: pair[0])
        self._log_error("idle connections are closed to make room", source=longest.source)
        self._leave(longest)
        longest.end()
        return True

    async def _connect(self, accepted: socket.socket, source: str) -> None:
        waiter = self._loop.create_future()
        waiter.add_done_callback(_ignore_failure)
        encryption: Encryption | None = None

        def begin() -> Encryption:
            nonlocal encryption
            encryption = self._encryption(
                self._loop,
                self._make(),
                self._tls,
                waiter,
                handshake_seconds=self._handshake_seconds,
                source=source,
                left=self._leave,
            )
            self._encryptions.add(encryption)
            return encryption

        try:
            await self._loop.connect_accepted_socket(begin, accepted)
        except OSError:  # closed before it began
            accepted.close()
            if encryption is None:
                self._forget(source)
            else:
                self._leave(encryption)

    def _leave(self, encryption: Encryption) -> None:
        """A connection has ended, or is about to because room was needed."""
        if encryption in self._encryptions:
            self._encryptions.remove(encryption)
            self._forget(encryption.source)

    def _forget(self, source: str) -> None:
        self.open -= 1
        self._sources[source] -= 1
        if not self._sources[source]:
            del self._sources[source]
        self._ended += 1
        if self._ended == ENDED:
            self._loop.call_later(TIDY, self._tidy)
        if self._paused and self.open < self.room:
            self._resume()

    def _tidy(self) -> None:
        self._ended = 0
        give_back()

    def _halt(self) -> None:
        self._paused = True
        for listening in self._sockets:
            self._loop.remove_reader(listening)

    def _resume(self) -> None:
        self._paused = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _log_error(self, event: str, **facts: object) -> None:
        now = self._loop.time()
        if now >= self._logged_at + QUIET:
            self._logged_at = now
            _log.error(event, connections=self.open, **facts)


def _ignore_failure(waiter: asyncio.Future[None]) -> None:
    """A failed handshake is ignored: the connection is closed."""
    if not waiter.cancelled():
        waiter.exception()
