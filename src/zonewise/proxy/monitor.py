"""Health and metrics of a proxy over HTTP, as kube-proxy serves them.

``/healthz`` is for load balancers: is this node to be sent traffic? Not while its rules are out of
date, and not while the node is being deleted. ``/livez`` is for liveness probes: the same without
the node. Both are 503 until the first write. ``/metrics``, ``/proxyMode`` and ``/routes``, which
rule each Service got, are served at another address.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from zonewise.api.errors import ConfigError
from zonewise.api.objects.core import Node
from zonewise.api.values.times import format_micro
from zonewise.proxy.metrics import ProxyMetrics
from zonewise.proxy.netlink.namespace import HOME, NetworkNamespace
from zonewise.proxy.observer import Observer, Sync
from zonewise.runtime.monitoring.metrics import CONTENT_TYPE, Metrics
from zonewise.runtime.serving.address import parse_listen, why_not
from zonewise.runtime.serving.connection import HttpRequest
from zonewise.runtime.serving.pages import PageHandler, page_server

TO_BE_DELETED = "ToBeDeletedByClusterAutoscaler"
OVERDUE = 60.0
"""Seconds after which a change that is not written makes the proxy unhealthy."""


async def listen(
    runner: web.ServerRunner, host: str | None, port: int, namespace: NetworkNamespace = HOME
) -> None:
    """Serve at an address, or at all of both families; ``OSError`` if it cannot be bound."""
    if namespace == HOME:
        await web.TCPSite(runner, host, port).start()
        return
    family = socket.AF_INET6 if host is None or ":" in host else socket.AF_INET
    with namespace.entered():
        address, dual = (host or "::", port), host is None
        listener = socket.create_server(address, family=family, dualstack_ipv6=dual)
    await web.SockSite(runner, listener).start()


class Vitals(Observer):
    """Whether the proxy does its work, and whether its node stays."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        waiting_since: Callable[[], float | None],
        node: Callable[[], Node | None],
    ) -> None:
        self._clock = clock
        self._waiting_since = waiting_since
        self._node = node
        self.last_synced: datetime | None = None
        """When rules were last written."""

    def synced(self, sync: Sync) -> None:
        self.last_synced = datetime.now(UTC)

    @property
    def healthy(self) -> bool:
        """Whether the rules in the kernel are up to date."""
        if self.last_synced is None:
            return False
        since = self._waiting_since()
        return since is None or self._clock() - since < OVERDUE

    @property
    def eligible(self) -> bool:
        """Whether load balancers should send traffic to the node."""
        node = self._node()
        if node is None or node.metadata.deletion_timestamp is not None:
            return False
        return all(taint.key != TO_BE_DELETED for taint in node.spec.taints)


class ProxyMonitor:
    """The two servers; ``async with`` starts and stops them."""

    def __init__(
        self,
        vitals: Vitals,
        metrics: Metrics,
        counts: ProxyMetrics,
        routes: Callable[[], Iterable[dict[str, Any]]],
        *,
        healthz: str,
        metrics_listen: str,
        namespace: NetworkNamespace = HOME,
    ) -> None:
        self._namespace = namespace
        self._vitals = vitals
        self._metrics = metrics
        self._counts = counts
        self._routes = routes
        self._healthz = healthz
        self._metrics_listen = metrics_listen
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> None:
        health: dict[str, PageHandler] = {
            "/healthz": self._health("healthz", node=True),
            "/livez": self._health("livez", node=False),
        }
        pages: dict[str, PageHandler] = {
            "/metrics": self._show_metrics,
            "/proxyMode": self._show_mode,
            "/routes": self._show_routes,
            "/healthz": self._health("livez", node=False),
        }
        try:
            await self._listen(self._healthz, health, "--healthz-bind-address")
            await self._listen(self._metrics_listen, pages, "--metrics-bind-address")
        except BaseException:
            await self._stack.aclose()
            raise

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def _listen(self, address: str, handlers: dict[str, PageHandler], flag: str) -> None:
        if not address:
            return
        host, port = parse_listen(address, flag, "127.0.0.1:10249")
        runner = await page_server(handlers)
        self._stack.push_async_callback(runner.cleanup)
        try:
            # As with kube-proxy, all addresses of IPv6 are those of IPv4, too.
            everywhere = host in ("", "::")
            await listen(runner, None if everywhere else host, port, self._namespace)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {address}: {why_not(error)}; choose another address with {flag}"
            ) from error

    def _health(self, name: str, *, node: bool) -> PageHandler:
        async def answer(_request: HttpRequest) -> web.Response:
            vitals = self._vitals
            good = vitals.healthy and (vitals.eligible or not node)
            now = datetime.now(UTC)
            updated = vitals.last_synced if vitals.last_synced and not vitals.healthy else now
            last, current = format_micro(updated), format_micro(now)
            body: dict[str, Any] = {"lastUpdated": last, "currentTime": current}
            if node:
                body["nodeEligible"] = vitals.eligible
            status = 200 if good else 503
            self._counts.count_request(name, status)
            headers = {"X-Content-Type-Options": "nosniff"}
            return web.json_response(body, status=status, headers=headers)

        return answer

    async def _show_metrics(self, _request: HttpRequest) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    async def _show_mode(self, _request: HttpRequest) -> web.Response:
        return web.Response(text="nftables")

    async def _show_routes(self, _request: HttpRequest) -> web.Response:
        return web.json_response({"routes": list(self._routes())})
