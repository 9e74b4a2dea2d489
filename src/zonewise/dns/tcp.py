"""Streams: many questions over one connection, each with its length before it.

A connection may send questions without waiting for answers, cut anywhere; answers go out as they
are ready, in any order (RFC 7766). It may stay open as long as it is used. *Bounded*: so many
connections, of which no client gets more than are left (``zonewise.dns.shares``), so many open
questions each (then it is read no further until some are answered), so many seconds without a
question, and so many bytes that the other side does not take. A client that sends nothing more and
has not read its answers by then is disconnected: waiting for it to read could take forever, and its
connection is one of the few.

*Fair*: connections are served one question each in turn, and after ``TURN`` seconds of that
packets, watches and other tasks run. A client that requests thousands of records over and over,
over many connections, delays a packet by one such answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from time import perf_counter
from typing import cast

from zonewise.dns.responder import Responder
from zonewise.dns.shares import FairShares
from zonewise.dns.subnet import plain
from zonewise.dns.wire import MAX_SIZE
from zonewise.runtime.process.logs import logger

CONNECTIONS = 1000
BACKLOG = 1024
"""Clients that connect at once: one that finds no room here tries again a second later."""

OPEN_QUESTIONS = 100
IDLE = 10.0
UNTAKEN = 512 << 10
TURN = 0.002

_log = logger("dns")


class StreamServer:
    """Answers over the connections of a listening socket; it owns the socket."""

    def __init__(
        self,
        sock: socket.socket,
        responder: Responder,
        *,
        connections: int = CONNECTIONS,
        idle: float = IDLE,
        turn: float = TURN,
    ) -> None:
        self.refused = 0
        self._socket = sock
        self.responder = responder
        self.idle = idle
        self._shares = FairShares(connections)
        self._turn = turn
        self._asking: deque[_Connection] = deque()
        self._turning = False
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return len(self._open)

    async def start(self) -> None:
        """Begin to answer."""
        loop = asyncio.get_running_loop()
        # Serving starts once the server is stored: a cancelled start can then be stopped.
        self._server = await loop.create_server(
            lambda: _Connection(self), sock=self._socket, backlog=BACKLOG, start_serving=False
        )
        await self._server.start_serving()

    async def stop(self) -> None:
        """End every connection and close the socket, whether started or not."""
        if self._server is None:
            self._socket.close()
        else:
            self._server.close()
            for connection in tuple(self._open):
                connection.end()
            await self._server.wait_closed()
            self._server = None

    def take(self, connection: _Connection) -> bool:
        """Whether there is room for another connection of its source."""
        if not self._shares.take(connection.source):
            self.refused += 1
            return False
        self._open.add(connection)
        return True

    def enqueue(self, connection: _Connection) -> None:
        """A connection that is not in the queue has a question."""
        self._asking.append(connection)
        self._go_on()

    def _go_on(self) -> None:
        if self._asking and not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._take_turns)

    def _take_turns(self) -> None:
        until = perf_counter() + self._turn
        while self._asking:
            connection = self._asking.popleft()
            if connection.ask_next():
                self._asking.append(connection)
            if perf_counter() >= until:
                break
        self._turning = False
        self._go_on()

    def forget(self, connection: _Connection) -> None:
        """A connection has ended."""
        if connection in self._open:
            self._open.remove(connection)
            self._shares.give_back(connection.source)


class _Connection(asyncio.Protocol):
    """One client; see the module for what is bounded."""

    def __init__(self, server: StreamServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self.source = ""
        self._buffer = bytearray()
        self._tasks: set[asyncio.Future[bytes]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._full = False
        self._queued = False
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if peer is None:  # closed before it was accepted
            stream.abort()
            return
        self.source = plain(peer[0])
        if not self._server.take(self):
            stream.abort()
            return
        self._transport = stream
        self._restart_timer()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._work()

    def eof_received(self) -> bool:
        self._ended = True
        return self._has_unanswered()  # half closed: open questions are still answered

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

    def ask_next(self) -> bool:
        """Answer one question; whether there is another."""
        end = self._question_end()
        if end:
            question = bytes(self._buffer[2:end])
            del self._buffer[:end]
            self._restart_timer()
            self._ask(question)
        self._queued = bool(self._question_end())
        self._pace()
        self._close_if_done()
        return self._queued

    def _work(self) -> None:
        if not self._queued and self._question_end():
            self._queued = True
            self._server.enqueue(self)
        self._pace()
        self._close_if_done()

    def _question_end(self) -> int:
        """Where the next question ends; 0 if there is none, or it has to wait."""
        buffer = self._buffer
        if self._transport is None or self._busy() or len(buffer) < 2:
            return 0
        end = 2 + int.from_bytes(buffer[:2], "big")
        return end if len(buffer) >= end else 0

    def _close_if_done(self) -> None:
        """Close a half-closed connection when it has its answers."""
        if self._ended and not self._has_unanswered() and self._transport is not None:
            self._transport.close()

    def _has_unanswered(self) -> bool:
        return self._queued or self._full or bool(self._tasks)

    def _busy(self) -> bool:
        return self._full or len(self._tasks) >= OPEN_QUESTIONS

    def _pace(self) -> None:
        """Read on only while there is room; the buffer then holds one question at most."""
        if self._transport is None or self._transport.is_closing():
            return
        if (self._busy() or self._queued) and len(self._buffer) > MAX_SIZE:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _ask(self, question: bytes) -> None:
        try:
            answer = self._server.responder.respond(question, self.source, stream=True)
        except Exception:
            _log.exception("a question could not be answered", question=question.hex())
            self.end()
            return
        if answer is None:
            return  # not a question: no answer; the next message may be one
        if isinstance(answer, bytes):
            self._write(answer)
        else:
            task = asyncio.ensure_future(answer)
            self._tasks.add(task)
            task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Future[bytes]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._write(task.result())
        else:
            _log.error("a question could not be forwarded", error=str(error))
            self.end()
        self._work()

    def _write(self, answer: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > UNTAKEN:
            self.end()
        else:
            self._transport.write(len(answer).to_bytes(2, "big") + answer)

    def _restart_timer(self) -> None:
        """From now on so many seconds may pass without a question."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(self._server.idle, self._expire)

    def _expire(self) -> None:
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            self.end()
        elif self._tasks or self._queued:
            self._restart_timer()
        else:
            self._transport.close()
