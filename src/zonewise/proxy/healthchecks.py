"""Health checks of load balancers: has this node endpoints of that Service?

A Service of type LoadBalancer whose external traffic is to stay on the node has a port, the same on
every node, on which a load balancer asks: 200 if there is a ready endpoint here and the proxy
works, else 503. How many there are is in a header, for load balancers that weigh nodes.

A server per Service and family, as kube-proxy has it: a load balancer that asks over IPv6 sends
IPv6, and is told of IPv6 endpoints. Nobody listens in a family that the Service has not. A port
that cannot be had is told by an event on the Service and tried again when anything about health
checks changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from aiohttp import web

from zonewise.api.meta import Key
from zonewise.proxy.monitor import listen
from zonewise.proxy.netlink import HOME, NetworkNamespace
from zonewise.proxy.summary import RoutesSummary
from zonewise.runtime.process.logs import logger
from zonewise.runtime.serving.connection import HttpRequest
from zonewise.runtime.serving.pages import page_server
from zonewise.traffic.routes import Family

HEADER = "X-Load-Balancing-Endpoint-Weight"

_Server: TypeAlias = tuple[Key, Family, int]

_EVERYWHERE: Mapping[Family, str] = {"IPv4": "0.0.0.0", "IPv6": "::"}  # noqa: S104 - load balancers ask

_log = logger("health-checks")


class HealthChecks:
    """The servers, begun and ended by one task, in order.

    ``healthy`` says whether the proxy works. ``refused`` is told of a Service whose port cannot be
    had, and why.
    """

    def __init__(
        self,
        summary: RoutesSummary,
        *,
        healthy: Callable[[], bool],
        refused: Callable[[Key, int, str], None],
        namespace: NetworkNamespace = HOME,
    ) -> None:
        self._namespace = namespace
        self._summary = summary
        self._healthy = healthy
        self._refused = refused
        self._servers: dict[_Server, web.ServerRunner] = {}

    async def run(self) -> None:
        """Keep servers for what is wanted, until cancelled."""
        changed = self._summary.checks_changed
        try:
            while True:
                await changed.wait()
                changed.clear()
                await self._arrange()
        finally:
            for runner in self._servers.values():
                await runner.cleanup()

    async def _arrange(self) -> None:
        wanted = {(key, *one) for key, several in self._summary.checks.items() for one in several}
        for gone in self._servers.keys() - wanted:
            await self._servers.pop(gone).cleanup()
        for server in sorted(wanted - self._servers.keys()):
            await self._start(*server)

    async def _start(self, key: Key, family: Family, port: int) -> None:
        async def answer(_request: HttpRequest) -> web.Response:
            return self._answer(key, family, port)

        runner = await page_server({}, otherwise=answer)
        try:
            await listen(runner, _EVERYWHERE[family], port, self._namespace)
        except OSError as error:
            await runner.cleanup()
            _log.warning(
                "a health check cannot listen", service="/".join(key), family=family, port=port
            )
            self._refused(key, port, error.strerror or str(error))
            return
        self._servers[key, family, port] = runner

    def _answer(self, key: Key, family: Family, port: int) -> web.Response:
        healthy = self._healthy()
        local = self._summary.checks.get(key, {}).get((family, port), 0)
        body = {
            "service": {"namespace": key[0], "name": key[1]},
            "localEndpoints": local,
            "serviceProxyHealthy": healthy,
        }
        return web.json_response(
            body,
            status=200 if local and healthy else 503,
            headers={"X-Content-Type-Options": "nosniff", HEADER: str(local)},
        )
