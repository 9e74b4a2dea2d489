"""Streams: many questions over one connection, each with its length before it.

A connection may send questions without waiting for answers, cut anywhere; answers go out as they
are ready, in any order (RFC 7766). It may live as long as it is used. *Bounded*: so many
connections, so many open questions each (then it is read no further until some are answered), so
many seconds without a question, and so many bytes that the other side does not take. Whoever asks
nothing more and has not taken its answers by then is cut off: waiting for it to read could be for
ever, and its connection is one of the few.

*Fair*: after so many questions of one connection everybody else has a turn.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from typing import cast

from zonewise.dns.responder import Responder
from zonewise.dns.subnet import plain
from zonewise.dns.wire import MAX_SIZE
from zonewise.runtime.process.logs import logger

CONNECTIONS = 1000
OPEN_QUESTIONS = 100
IDLE = 10.0
UNTAKEN = 512 << 10
BATCH = 64

_log = logger("dns")


class StreamServer:
    """Answers over connections that come in on a socket; it owns the socket."""

    def __init__(
        self,
        sock: socket.socket,
        responder: Responder,
        *,
        connections: int = CONNECTIONS,
        idle: float = IDLE,
    ) -> None:
        self.refused = 0
        self._socket = sock
        self.responder = responder
        self.idle = idle
        self._most = connections
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._open)

    async def start(self) -> None:
        """Begin to answer."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), sock=self._socket)

    async def stop(self) -> None:
        """End every connection."""
        if self._server is not None:
            self._server.close()
            for connection in tuple(self._open):
                connection.end()
            await self._server.wait_closed()
            self._server = None

    def take(self, connection: _Connection) -> bool:
        """Whether there is room for another connection."""
        if len(self._open) >= self._most:
            self.refused += 1
            return False
        self._open.add(connection)
        return True

    def forget(self, connection: _Connection) -> None:
        """A connection has ended."""
        self._open.discard(connection)


class _Connection(asyncio.Protocol):
    """One client; see the module for what is bounded."""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._source = ""
        self._buffer = bytearray()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._full = False
        self._again = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        if not self._server.take(self):
            stream.abort()
            return
        self._transport = stream
        self._source = plain(transport.get_extra_info("peername")[0])
        self._rest()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._work()

    def eof_received(self) -> bool:
        return bool(self._tasks)  # half closed: what is asked is still answered

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._transport = None

    def pause_writing(self) -> None:
        self._full = True
        self._pace()

    def resume_writing(self) -> None:
        self._full = False
        self._work()

    def end(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _work(self) -> None:
        buffer = self._buffer
        count = 0
        while self._transport is not None and not self._busy():
            if len(buffer) < 2:
                break
            length = int.from_bytes(buffer[:2], "big")
            if len(buffer) < 2 + length:
                break
            if count == BATCH:
                if not self._again:
                    self._again = True
                    asyncio.get_running_loop().call_soon(self._go_on)
                break
            count += 1
            question = bytes(buffer[2 : 2 + length])
            del buffer[: 2 + length]
            self._rest()
            self._ask(question)
        self._pace()

    def _go_on(self) -> None:
        self._again = False
        self._work()

    def _busy(self) -> bool:
        return self._full or len(self._tasks) >= OPEN_QUESTIONS

    def _pace(self) -> None:
        """Read on only while there is room; the buffer then holds one question at most."""
        if self._transport is None or self._transport.is_closing():
            return
        if (self._busy() or self._again) and len(self._buffer) > MAX_SIZE:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _ask(self, question: bytes) -> None:
        try:
            told = self._server.responder.respond(question, self._source, stream=True)
        except Exception:
            _log.exception("a question could not be answered", question=question.hex())
            self.end()
            return
        if told is None:
            self.end()  # over a stream a message that is no question is a mistake worth ending
        elif isinstance(told, bytes):
            self._tell(told)
        else:
            task = asyncio.ensure_future(self._later(told))
            self._tasks.add(task)
            task.add_done_callback(self._answered)

    async def _later(self, told: Awaitable[bytes]) -> None:
        self._tell(await told)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a question could not be forwarded", error=str(task.exception()))
            self.end()
        self._work()

    def _tell(self, told: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > UNTAKEN:
            self.end()
        else:
            self._transport.write(len(told).to_bytes(2, "big") + told)

    def _rest(self) -> None:
        """From now on so many seconds may pass without a question."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._server.idle, self._tired)

    def _tired(self) -> None:
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            self.end()
        elif self._tasks:
            self._rest()
        else:
            self._transport.close()
