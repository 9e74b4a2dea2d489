"""One request and its answer: rate limit, fence, retries, typed errors.

Every request passes here, in this order: the rate limit (waits), the fence (writes only; raises if
this replica no longer leads), the transport. The fence is checked again before each retry, and once
more by the transport when it has credentials and a connection, because all that may take time.

*Retried*: 429, which says that nothing was done, for every verb; and 5xx answers that carry
``Retry-After`` for requests that are safe to repeat. Both at most ``retries`` times, for no longer
than ``PATIENCE`` seconds in total; the server's ``Retry-After`` is a lower bound of each pause, and
jitter is added to it. Not retried: an eviction that a budget refuses (the same 429, but it is an
answer), and requests that got no answer at all: only the caller can decide whether a write without
an answer may be sent again.

Each answer tells the server's time (``zonewise.runtime.client.server_clock``). One of 400 and above
becomes an ``ApiError`` with the server's ``Status``. Warnings that the
server attaches to answers are logged once each.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from zonewise.api.errors import ApiError, ProtocolError, ServerError, TooManyRequests
from zonewise.runtime.client.limiter import Limiter
from zonewise.runtime.client.server_clock import ServerClock
from zonewise.runtime.client.transport import Request, Response, Transport
from zonewise.runtime.process.clock import elapsed
from zonewise.runtime.process.logs import logger

RETRIES = 4
PATIENCE = 30.0
RETRY_AFTER_LIMIT = 300.0
_WARNINGS_KEPT = 256

_log = logger("client")


@dataclass(frozen=True, slots=True)
class RequestResult:
    """A complete answer that is no error."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as plain values."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"the server's answer is not JSON: {error}") from error


class Exchange:
    """Sends requests over a transport; see the module for what happens on the way."""

    def __init__(
        self,
        transport: Transport,
        *,
        limiter: Limiter | None = None,
        fence: Callable[[], None] | None = None,
        retries: int = RETRIES,
        clock: ServerClock | None = None,
    ) -> None:
        self.transport = transport
        self.clock = clock or ServerClock()
        self._rng = random.SystemRandom()
        self._limiter = limiter
        self._fence = fence
        self._retries = retries
        self._warnings: set[str] = set()

    async def send(
        self, request: Request, *, repeatable: bool, final: bool = False, retries: int | None = None
    ) -> RequestResult:
        """Send a request and read its answer; ``final`` takes a 429 as the answer it is."""
        attempts = 1 + (self._retries if retries is None else retries)
        patience = PATIENCE
        while True:
            attempts -= 1
            try:
                return await self._once(request)
            except (TooManyRequests, ServerError) as error:
                if attempts <= 0 or final or not _worth_repeating(error, repeatable):
                    raise
                pause = (error.retry_after or 0.0) + self._rng.uniform(0.1, 1.0)
                patience -= pause
                if patience < 0:
                    raise
            await asyncio.sleep(pause)

    async def open(self, request: Request) -> Response:
        """Send a request and give its answer as a stream, for the caller to read and close."""
        response = await self._send(request)
        if response.status >= 400:
            await self._refuse(response)
        return response

    async def _once(self, request: Request) -> RequestResult:
        response = await self._send(request)
        if response.status >= 400:
            await self._refuse(response)
        try:
            body = await response.read()
        finally:
            await response.close()
        return RequestResult(response.status, response.headers, body)

    async def _send(self, request: Request) -> Response:
        if self._limiter is not None:
            await self._limiter.acquire()
        if self._fence is not None and request.method not in ("GET", "HEAD", "OPTIONS"):
            self._fence()
            request = replace(request, fence=self._fence)
        sent = elapsed()
        response = await self.transport.send(request)
        if date := response.headers.get("Date"):
            self.clock.observe(date, sent, elapsed())
        warning = response.headers.get("Warning")
        if warning and warning not in self._warnings and len(self._warnings) < _WARNINGS_KEPT:
            self._warnings.add(warning)
            _log.warning("warning from the API server", warning=warning[:500], path=request.path)
        return response

    async def _refuse(self, response: Response) -> None:
        try:
            body = await response.read()
        finally:
            await response.close()
        raise ApiError.from_status(
            response.status, body, retry_after=retry_after(response.headers.get("Retry-After"))
        )


def _worth_repeating(error: ApiError, repeatable: bool) -> bool:
    return isinstance(error, TooManyRequests) or (repeatable and error.retry_after is not None)


def retry_after(value: str | None) -> float | None:
    """The pause of a ``Retry-After`` header, in seconds and bounded; None without a number.

    The header may be a date. It would have to be compared with our clock, which may be wrong, so
    the date only means that some pause is requested.
    """
    if not value:
        return None
    text = value.strip()
    if text.isdecimal():
        return min(float(text), RETRY_AFTER_LIMIT)
    try:
        parsedate_to_datetime(text)
    except ValueError:
        return None
    return 1.0
