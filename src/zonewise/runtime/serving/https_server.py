"""The base of our HTTPS servers: bounded connections, bounded headers, bounded bodies.

A server passes a handler; which clients may connect, how a connection is encrypted, how large and
how slow a header may be and how a server ends are the same for the embedded API server and for
webhooks.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from zonewise.runtime.serving.connection import Connections, Handler, HeaderLimits
from zonewise.runtime.serving.listener import Encryption, Listener


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Connections at once, in all and of one address that wait for it, and their headers."""

    connections: int
    per_source: int | None = None
    headers: HeaderLimits = field(default_factory=HeaderLimits)


class HttpsServer:
    """Hands requests to a handler until it is closed; ``options`` are those of ``web.Server``."""

    def __init__(
        self,
        handler: Handler,
        tls: ssl.SSLContext,
        limits: ConnectionLimits,
        *,
        encryption: type[Encryption] = Encryption,
        shutdown_seconds: float,
        **options: Any,
    ) -> None:
        self._handler = handler
        self._options = options
        self._tls = tls
        self._limits = limits
        self._encryption = encryption
        self._shutdown_seconds = shutdown_seconds
        self._listener: Listener | None = None
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Bind and serve; the port that was bound. An ``OSError`` says why it cannot be bound."""
        connections = Connections(
            self._handler,
            self._limits.headers,
            access_log=None,
            lingering_time=0,
            auto_decompress=False,
            **self._options,
        )
        self._runner = web.ServerRunner(
            connections, handle_signals=False, shutdown_timeout=self._shutdown_seconds
        )
        await self._runner.setup()
        self._listener = Listener(
            connections,
            self._tls,
            connections=self._limits.connections,
            handshake_seconds=self._limits.headers.seconds,
            encryption=self._encryption,
            per_source=self._limits.per_source,
        )
        try:
            return await self._listener.start(host, port)
        except OSError:
            await self.close()
            raise

    async def close(self) -> None:
        """Accept nothing more, let requests under way finish for a bounded time, hang up."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
