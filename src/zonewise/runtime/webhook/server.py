"""An HTTPS server that answers admission requests of API servers.

Handlers are found by path. Each call is decoded, handed to its handler within the time the API
server has left for it (``?timeout=``, less a little for the response), and answered. At most
``concurrent`` handlers run at a time; ``waiting`` more calls may wait for their turn, the next one
is turned away, so that a burst costs time and never memory. A call is counted before its body is
read. Bodies are bounded, and so are all of them together: a large one is read when there is room
for it among those that are under way (``zonewise.runtime.webhook.room``); small ones, which nearly
all are, need no more room than their number allows and never wait for large ones.

A client that does not finish a request is disconnected (``zonewise.runtime.serving.connection``),
and there are never more connections than descriptors; where there is no room for another one, the
idlest of the greediest address is closed (``zonewise.runtime.serving.listener``).

A handler in ``instead`` is a gate, and a call that fails would open it wherever the configuration
ignores failures. Its calls do not wait for a turn (it bounds its own work), and what it cannot
answer, in time or at all, is answered with what is given: a burst of 500 deletions is answered with
"retry", never let through. It has ``judging`` seconds, and no more than half of those the API
server waits: an answer that a busy machine sends too late is a failure, too.

A handler that raises, or is not done in time, makes the *call* fail with one sentence; whether the
write continues then is what the webhook configuration's ``failurePolicy`` says. What the exception
was goes to the log, not to the user. A handler refuses by returning ``Denied``, never by raising.

TLS shows the newest certificate to each new connection and leaves open ones alone
(``zonewise.runtime.webhook.server_context``). Client certificates are requested only if the context
says so: API servers have none by default. Without them anybody who reaches the port can call, so
handlers must not trust what a request says.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web

from zonewise.api.errors import ConfigError, ParseError, Status, ZonewiseError
from zonewise.runtime.process.logs import logger
from zonewise.runtime.serving.address import parse_listen, why_not
from zonewise.runtime.serving.connection import (
    BodyIncomplete,
    BodyTooLarge,
    HeaderLimits,
    HttpRequest,
)
from zonewise.runtime.serving.https_server import ConnectionLimits, HttpsServer
from zonewise.runtime.serving.listener import Encryption
from zonewise.runtime.webhook.admission import AdmissionAnswer, Allowed, Handler, decode, encode
from zonewise.runtime.webhook.room import Room
from zonewise.runtime.webhook.server_context import ServerContext

ReviewOutcome = Literal["allowed", "denied", "failed", "late", "busy", "bad"]
Observe = Callable[[str, ReviewOutcome, float], None]

LISTEN = ":9443"
SMALL = 64 << 10
"""Bodies up to this size need no room of their own."""
_WAY_BACK = 0.2
_GO_DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?", re.ASCII)

_log = logger("webhook")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookLimits:
    """What one server takes.

    A body holds the new and the old object, of 3 MiB at most each; ``bodies`` is what all large
    ones under way may have together. A connection is closed after ``calls``, so that API servers
    spread over replicas that were added later. One address may have ``per_source`` connections that
    wait for it, and all of them that are being answered: API servers may share one.
    """

    body: int = 8 << 20
    bodies: int = 24 << 20
    deadline: float = 10.0
    judging: float = 5.0
    concurrent: int = 32
    waiting: int = 256
    gated: int = 4096
    calls: int = 1000
    connections: int = 1000
    per_source: int = 500
    headers: HeaderLimits = field(default_factory=lambda: HeaderLimits(seconds=10.0))


class Failed(Exception):
    """A call that gets no answer to its question, with the HTTP status and a sentence."""

    def __init__(self, code: int, outcome: ReviewOutcome, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Incoming:
    """A body that is still to be read, the most that it may have, and the address it is from."""

    size: int
    read: Callable[[], Awaitable[bytes]]
    source: str = ""


class AdmissionDispatcher:
    """Takes calls and hands them to handlers; independent of HTTP and TLS."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        limits: WebhookLimits | None = None,
        instead: Mapping[str, AdmissionAnswer] | None = None,
        observe: Observe | None = None,
    ) -> None:
        self.limits = limits or WebhookLimits()
        self._instead = dict(instead or {})
        self._gated = 0
        self._handlers = dict(handlers)
        self._observe = observe
        self._turns = asyncio.Semaphore(self.limits.concurrent)
        self._room = Room(self.limits.bodies)
        self._inside = 0

    async def answer(
        self, path: str, body: bytes | Incoming, *, timeout: float | None = None
    ) -> bytes:
        """Answer one call, or raise ``Failed``; its body may not have been read then."""
        begin = time.perf_counter()
        outcome: ReviewOutcome = "failed"
        try:
            if path in self._instead:
                seconds = self.limits.judging
                seconds = seconds if timeout is None else min(seconds, timeout / 2)
                answer, encoded, outcome = await self._gate(path, body, seconds)
                return encoded
            answer, encoded = await self._counted(path, body, self._seconds(timeout))
            outcome = "allowed" if isinstance(answer, Allowed) else "denied"
        except Failed as failure:
            outcome = failure.outcome
            raise
        else:
            return encoded
        finally:
            if self._observe is not None:
                known = path if path in self._handlers else "(unknown)"
                self._observe(known, outcome, time.perf_counter() - begin)

    async def _gate(
        self, path: str, body: bytes | Incoming, seconds: float
    ) -> tuple[AdmissionAnswer, bytes, ReviewOutcome]:
        """Answer a call that must not fail: what goes wrong is answered ``instead``.

        An answer names the call it is for, so even a call too many is read, in the same room as all
        bodies are. One whose body does not arrive fails: no answer can name it.
        """
        ends = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(ends):
                content = await self._read(body)
            request = decode(content)
        except TimeoutError:
            raise Failed(408, "late", "the body did not arrive in time") from None
        except ParseError as error:
            raise Failed(400, "bad", str(error)) from error
        outcome: ReviewOutcome
        answer: AdmissionAnswer = self._instead[path]
        if self._gated >= self.limits.gated:
            return answer, encode(request, answer), "busy"
        self._gated += 1
        try:
            async with asyncio.timeout_at(ends):
                answer = await self._handlers[path](request)
            outcome = "allowed" if isinstance(answer, Allowed) else "denied"
        except TimeoutError:
            outcome = "late"
        except ZonewiseError as error:
            about = f"{request.operation} {request.kind.kind} {request.namespace}/{request.name}"
            _log.warning("a gate failed", path=path, about=about, error=str(error))
            outcome = "failed"
        except Exception:
            about = f"{request.operation} {request.kind.kind} {request.namespace}/{request.name}"
            _log.exception("a gate failed", path=path, about=about)
            outcome = "failed"
        finally:
            self._gated -= 1
        return answer, encode(request, answer), outcome

    async def _read(self, body: bytes | Incoming) -> bytes:
        if isinstance(body, bytes):
            return body
        async with self._room.of(body.size if body.size > SMALL else 0, body.source) as share:
            return await share.wait_for_body(body.read())

    async def _counted(
        self, path: str, body: bytes | Incoming, seconds: float
    ) -> tuple[AdmissionAnswer, bytes]:
        handler = self._handlers.get(path)
        if handler is None:
            raise Failed(404, "bad", f"there is no webhook at {path}")
        if self._inside >= self.limits.concurrent + self.limits.waiting:
            raise Failed(503, "busy", "too many calls wait already; try again")
        late = Failed(503, "busy", "there was no room for a body of this size; try again")
        self._inside += 1
        try:
            async with asyncio.timeout(seconds):
                if isinstance(body, bytes):
                    body = _as_incoming(body)
                size = body.size if body.size > SMALL else 0
                async with self._room.of(size, body.source) as share:
                    late = Failed(408, "late", "the body did not arrive in time")
                    content = await share.wait_for_body(body.read())
                    late = Failed(
                        504, "late", f"{path} did not decide within {seconds:g} s; try again"
                    )
                    return await self._answer(path, handler, content)
        except TimeoutError:
            raise late from None
        finally:
            self._inside -= 1

    async def _answer(
        self, path: str, handler: Handler, body: bytes
    ) -> tuple[AdmissionAnswer, bytes]:
        try:
            request = decode(body)
        except ParseError as error:
            raise Failed(400, "bad", str(error)) from error
        try:
            async with self._turns:
                answer = await handler(request)
                return answer, encode(request, answer)
        except ZonewiseError as error:
            about = f"{request.operation} {request.kind.kind} {request.namespace}/{request.name}"
            _log.warning("a webhook failed", path=path, about=about, error=str(error))
            raise Failed(500, "failed", f"{path} could not decide: {error}") from error
        except Exception as error:
            about = f"{request.operation} {request.kind.kind} {request.namespace}/{request.name}"
            _log.exception("a webhook crashed", path=path, about=about)
            raise Failed(500, "failed", f"{path} failed; its log says why") from error

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self.limits.deadline
        return min(self.limits.deadline, max(timeout - _WAY_BACK, timeout / 2))


class BodyEncryption(Encryption):
    """TLS for connections that receive megabytes."""

    max_size = SMALL


class WebhookServer:
    """The HTTPS server; ``async with`` starts and stops it. ``tls.use`` gives it certificates."""

    def __init__(
        self, dispatcher: AdmissionDispatcher, *, tls: ServerContext, listen: str = LISTEN
    ) -> None:
        self.tls = tls
        self._dispatcher = dispatcher
        self._host, self._listen_port = parse_listen(listen)
        self._server: HttpsServer | None = None
        self._calls: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self.port = 0
        """The port it listens on, once started; useful when 0 was requested."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to listen; an address that cannot be bound is a ``ConfigError``."""
        limits = self._dispatcher.limits
        server = HttpsServer(
            self._serve,
            self.tls.listening,
            ConnectionLimits(
                connections=limits.connections, per_source=limits.per_source, headers=limits.headers
            ),
            encryption=BodyEncryption,
            shutdown_seconds=limits.deadline,
        )
        try:
            self.port = await server.start(self._host, self._listen_port)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._host or '*'}:{self._listen_port} for webhooks: "
                f"{why_not(error)}; choose another address"
            ) from error
        self._server = server

    async def stop(self) -> None:
        """Stop listening, let calls under way end, close idle connections."""
        if self._server is not None:
            await self._server.close()
            self._server = None

    async def _serve(self, request: HttpRequest) -> web.Response:
        response = await self._respond(request)
        if request.left_unread():
            response.force_close()
        if request.transport is not None:
            count = self._calls.get(request.transport, 0) + 1
            self._calls[request.transport] = count
            if count >= self._dispatcher.limits.calls:
                response.force_close()
        return response

    async def _respond(self, request: HttpRequest) -> web.Response:
        limit = self._dispatcher.limits.body
        try:
            if request.method != "POST":
                raise Failed(405, "bad", "the method must be POST")
            if request.content_type != "application/json":
                raise Failed(415, "bad", "the body must be application/json")
            size = limit if request.content_length is None else request.content_length
            if size > limit:
                raise Failed(413, "bad", str(BodyTooLarge(limit)))
            timeout = parse_duration(request.query.get("timeout", ""))
            body = Incoming(size, lambda: _read(request, limit), request.remote or "")
            answer = await self._dispatcher.answer(request.path, body, timeout=timeout)
        except Failed as failure:
            status = Status(status="Failure", message=str(failure), code=failure.code)
            named = {"apiVersion": "v1", "kind": "Status", **msgspec.to_builtins(status)}
            return _json(msgspec.json.encode(named), failure.code)
        return _json(answer, 200)


def _as_incoming(body: bytes) -> Incoming:
    async def read() -> bytes:
        return body

    return Incoming(len(body), read)


def parse_duration(text: str) -> float | None:
    """Seconds of a timeout as Go writes it, ``10s`` or ``1m30s``; None for anything else."""
    match = _GO_DURATION.fullmatch(text)
    if not text or match is None:
        return None
    minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    return minutes * 60 + seconds + milliseconds / 1000 or None


async def _read(request: HttpRequest, limit: int) -> bytes:
    try:
        return await request.read_body(limit)
    except BodyTooLarge as error:
        raise Failed(413, "bad", str(error)) from None
    except BodyIncomplete as error:
        raise Failed(400, "bad", str(error)) from None


def _json(body: bytes, status: int) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
