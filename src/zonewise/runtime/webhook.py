"""An HTTPS server that answers API servers' questions before they write.

Handlers are found by path. Each call is decoded, handed to its handler within the time the API
server has left for it (``?timeout=``, less a little for the way back), and answered. At most
``concurrent`` handlers run at a time; ``waiting`` more calls may wait for their turn, the next one
is turned away, so that a burst costs time and never memory. Bodies are bounded.

A handler that raises, or is not done in time, makes the *call* fail with one sentence; whether the
write goes on then is what the webhook configuration's ``failurePolicy`` says. What the exception
was goes to the log, not to the user. A handler says no by returning ``Denied``, never by raising.

TLS shows the newest certificate to each new connection and leaves open ones alone
(``zonewise.runtime.servercontext``). The server asks no client certificate: API servers have none
to show by default, and an answer to a stranger tells nothing that the stranger did not send.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Self
from weakref import WeakKeyDictionary

import msgspec
from aiohttp import web

from zonewise.api.errors import ConfigError, ParseError, Status, ZonewiseError
from zonewise.runtime.admission import Allowed, Answer, Handler, decode, encode
from zonewise.runtime.logs import logger
from zonewise.runtime.monitor import parse_listen
from zonewise.runtime.servercontext import ServerContext

Outcome = Literal["allowed", "denied", "failed", "late", "busy", "bad"]
Observe = Callable[[str, Outcome, float], None]

LISTEN = ":9443"
HANDSHAKE_TIMEOUT = 10.0
_WAY_BACK = 0.2
_GO_DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?", re.ASCII)

_log = logger("webhook")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookLimits:
    """What one server takes.

    A body holds the new and the old object, of 3 MiB at most each. A connection is closed after
    ``calls``, so that API servers spread over replicas that came later.
    """

    body: int = 8 << 20
    deadline: float = 10.0
    concurrent: int = 32
    waiting: int = 256
    calls: int = 1000


class Failed(Exception):
    """A call that gets no answer to its question, with the HTTP status and a sentence."""

    def __init__(self, code: int, outcome: Outcome, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.outcome = outcome


class Desk:
    """Takes calls and hands them to handlers; knows nothing of HTTP or TLS."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        limits: WebhookLimits | None = None,
        observe: Observe | None = None,
    ) -> None:
        self.limits = limits or WebhookLimits()
        self._handlers = dict(handlers)
        self._observe = observe
        self._turns = asyncio.Semaphore(self.limits.concurrent)
        self._inside = 0

    async def answer(self, path: str, body: bytes, *, timeout: float | None = None) -> bytes:
        """Answer one call, or raise ``Failed``."""
        begin = time.perf_counter()
        outcome: Outcome = "failed"
        try:
            seconds = self._seconds(timeout)
            try:
                async with asyncio.timeout(seconds):
                    answer, encoded = await self._answer(path, body)
            except TimeoutError:
                raise Failed(
                    504, "late", f"{path} did not decide within {seconds:g} s; try again"
                ) from None
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

    async def _answer(self, path: str, body: bytes) -> tuple[Answer, bytes]:
        handler = self._handlers.get(path)
        if handler is None:
            raise Failed(404, "bad", f"there is no webhook at {path}")
        try:
            request = decode(body)
        except ParseError as error:
            raise Failed(400, "bad", str(error)) from error
        if self._inside >= self.limits.concurrent + self.limits.waiting:
            raise Failed(503, "busy", "too many calls wait already; try again")
        self._inside += 1
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
        finally:
            self._inside -= 1

    def _seconds(self, timeout: float | None) -> float:
        if timeout is None:
            return self.limits.deadline
        return min(self.limits.deadline, max(timeout - _WAY_BACK, timeout / 2))


class WebhookServer:
    """The HTTPS server; ``async with`` starts and stops it. ``tls.use`` gives it certificates."""

    def __init__(self, desk: Desk, *, tls: ServerContext, listen: str = LISTEN) -> None:
        self.tls = tls
        self._desk = desk
        self._host, self._wanted = parse_listen(listen)
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._calls: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self.port = 0
        """The port it listens on, once started; useful when 0 was asked for."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to listen; an address that cannot be had is a ``ConfigError``."""
        app = web.Application(client_max_size=self._desk.limits.body)
        app.router.add_post("/{path:.*}", self._serve)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=self._desk.limits.deadline)
        await runner.setup()
        assert runner.server is not None
        try:
            self._server = await asyncio.get_running_loop().create_server(
                runner.server,
                self._host or None,
                self._wanted,
                ssl=self.tls.listening,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT,
                ssl_shutdown_timeout=1.0,
            )
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(
                f"cannot listen on {self._host or '*'}:{self._wanted} for webhooks: "
                f"{error.strerror or error}; choose another address"
            ) from error
        self._runner = runner
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, let calls under way end, close idle connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve(self, request: web.Request) -> web.Response:
        response = await self._respond(request)
        if request.transport is not None:
            count = self._calls.get(request.transport, 0) + 1
            self._calls[request.transport] = count
            if count >= self._desk.limits.calls:
                response.force_close()
        return response

    async def _respond(self, request: web.Request) -> web.Response:
        try:
            if request.content_type != "application/json":
                raise Failed(415, "bad", "the body must be application/json")
            timeout = parse_duration(request.query.get("timeout", ""))
            limits = self._desk.limits
            try:
                async with asyncio.timeout(limits.deadline):
                    body = await request.read()
            except TimeoutError:
                raise Failed(408, "late", "the body did not come in time") from None
            except web.HTTPRequestEntityTooLarge:
                raise Failed(413, "bad", f"the body has more than {limits.body} bytes") from None
            answer = await self._desk.answer(request.path, body, timeout=timeout)
        except Failed as failure:
            status = Status(status="Failure", message=str(failure), code=failure.code)
            named = {"apiVersion": "v1", "kind": "Status", **msgspec.to_builtins(status)}
            return _json(msgspec.json.encode(named), failure.code)
        return _json(answer, 200)


def parse_duration(text: str) -> float | None:
    """Seconds of what Go writes for a webhook's time, ``10s`` or ``1m30s``; None for nonsense."""
    match = _GO_DURATION.fullmatch(text)
    if not text or match is None:
        return None
    minutes, seconds, milliseconds = (float(part or 0) for part in match.groups())
    return minutes * 60 + seconds + milliseconds / 1000 or None


def _json(body: bytes, status: int) -> web.Response:
    return web.Response(body=body, status=status, content_type="application/json")
