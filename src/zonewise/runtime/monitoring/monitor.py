"""Metrics and health over HTTP, on one port, for Prometheus and the kubelet.

``/metrics`` is the registry; ``/livez`` and ``/healthz`` say whether a restart is needed and
``/readyz`` whether work is being done. Health answers 200 or 503, in text: with ``?verbose`` every
check, else ``ok`` or the checks that failed.

It listens on the loopback by default, accepts GET and HEAD only, reads no bodies, has no
authentication and changes nothing. Requests are answered in the event loop of the program: if the
loop hangs, so does the probe, which is what a probe is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

from aiohttp import web

from zonewise.api.errors import ConfigError
from zonewise.runtime.monitoring.health import CheckResult, Health
from zonewise.runtime.monitoring.metrics import CONTENT_TYPE, Metrics
from zonewise.runtime.serving.address import LISTEN, parse_listen, why_not
from zonewise.runtime.serving.connection import HttpRequest
from zonewise.runtime.serving.pages import PageHandler, page_server


class Monitor:
    """The small server; ``async with`` starts and stops it."""

    def __init__(self, metrics: Metrics, health: Health, *, listen: str = LISTEN) -> None:
        self._metrics = metrics
        self._health = health
        self._host, self._listen_port = parse_listen(listen)
        self._runner: web.ServerRunner | None = None
        self.port = 0
        """The port it listens on, once started; useful when 0 was requested."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Begin to listen; an address that cannot be bound is a ``ConfigError``."""
        alive, ready = self._serve(self._health.alive), self._serve(self._health.ready)
        runner = await page_server(
            {"/metrics": self._serve_metrics, "/livez": alive, "/healthz": alive, "/readyz": ready}
        )
        try:
            site = web.TCPSite(runner, self._host or None, self._listen_port)
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(
                f"cannot listen on {self._host or '*'}:{self._listen_port} for metrics and health: "
                f"{why_not(error)}; choose another address with --metrics-listen"
            ) from error
        self._runner = runner
        self.port = runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening; answers under way get a second."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _serve_metrics(self, request: HttpRequest) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    def _serve(self, ask: Callable[[], Iterable[CheckResult]]) -> PageHandler:
        async def answer(request: HttpRequest) -> web.Response:
            results = tuple(ask())
            good = all(result.good for result in results)
            reported = results if "verbose" in request.query else [r for r in results if not r.good]
            lines = [f"[+] {r.name}" if r.good else f"[-] {r.name}: {r.reason}" for r in reported]
            text = "\n".join([*lines, "ok" if good else "failed"]) + "\n"
            return web.Response(status=200 if good else 503, text=text)

        return answer
