"""Health checks of load balancers: does this node have endpoints of that Service?

A Service of type LoadBalancer whose external traffic is to stay on the node has a port, the same on
every node, that a load balancer probes: 200 if there is a ready endpoint here and the proxy works,
else 503. How many there are is in a header, for load balancers that weigh nodes.

A server per Service and family, as kube-proxy has it: a load balancer that probes over IPv6 sends
IPv6, and gets the state of IPv6 endpoints. There is no listener in a family that the Service does
not have, nor at an address that takes no node ports: other programs may use the port there. The
addresses are read again every ``PERIOD`` seconds, because they change without an event of the API.
A port that cannot be opened is reported by one event on the Service and tried again as often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import TypeAlias

from aiohttp import web

from zonewise.api.errors import ZonewiseError
from zonewise.api.meta import Key
from zonewise.proxy.monitor import listen
from zonewise.proxy.netlink.addresses import interface_addresses
from zonewise.proxy.netlink.namespace import HOME, NetworkNamespace
from zonewise.proxy.summary import RoutesSummary
from zonewise.runtime.process.logs import logger
from zonewise.runtime.serving.address import why_not
from zonewise.runtime.serving.connection import HttpRequest
from zonewise.runtime.serving.pages import page_server
from zonewise.traffic.routes.table import Family

HEADER = "X-Load-Balancing-Endpoint-Weight"

PERIOD = 30.0

NodePortNetworks: TypeAlias = Mapping[Family, Collection[str]]
_Server: TypeAlias = tuple[Key, Family, int, str]

_EVERYWHERE: Mapping[Family, str] = {"IPv4": "0.0.0.0", "IPv6": "::"}  # noqa: S104 - load balancers ask

_log = logger("health-checks")


def listening(
    family: Family, networks: Iterable[str], present: Iterable[IPv4Address | IPv6Address]
) -> set[str]:
    """Where to listen: the addresses of a node within networks, or the one that means all."""
    inside = [ip_network(text) for text in networks]
    if any(not network.prefixlen for network in inside):
        return {_EVERYWHERE[family]}
    return {str(address) for address in present if any(address in network for network in inside)}


class HealthChecks:
    """The servers, begun and ended by one task, in order.

    ``networks`` are where node ports are. ``healthy`` says whether the proxy works. ``refused`` is
    called with a Service whose port cannot be opened, and why.
    """

    def __init__(
        self,
        summary: RoutesSummary,
        *,
        networks: Callable[[], NodePortNetworks],
        healthy: Callable[[], bool],
        refused: Callable[[Key, int, str], None],
        namespace: NetworkNamespace = HOME,
    ) -> None:
        self._namespace = namespace
        self._summary = summary
        self._networks = networks
        self._healthy = healthy
        self._refused = refused
        self._servers: dict[_Server, web.ServerRunner] = {}
        self._failures: dict[_Server, str] = {}
        """Servers that could not be started, and why."""
        self._nowhere: dict[Family, tuple[str, ...]] = {}
        """Families without a single address, and the networks where none was found."""

    async def run(self) -> None:
        """Keep a server for each health check port, until cancelled."""
        changed = self._summary.checks_changed
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PERIOD if self._summary.checks else None):
                        await changed.wait()
                changed.clear()
                await self._arrange()
        finally:
            for runner in self._servers.values():
                await runner.cleanup()

    async def _arrange(self) -> None:
        several = self._summary.checks.items()
        checks = [(key, *check) for key, of_service in several for check in of_service]
        try:
            addresses = self._addresses({family for _, family, _ in checks})
        except (ZonewiseError, OSError) as error:
            _log.warning("the addresses of this node cannot be read", error=str(error))
            return
        desired = {(*check, address) for check in checks for address in addresses[check[1]]}
        for gone in self._servers.keys() - desired:
            await self._servers.pop(gone).cleanup()
        for gone in self._failures.keys() - desired:
            del self._failures[gone]
        for server in sorted(desired - self._servers.keys()):
            await self._start(*server)

    def _addresses(self, families: Collection[Family]) -> dict[Family, set[str]]:
        """Where to listen in these families; a family that has none is logged once."""
        if not families:
            return {}
        networks = self._networks()
        with self._namespace.entered():
            present = interface_addresses()
        addresses = {family: listening(family, networks[family], present) for family in families}
        nowhere = {family: tuple(networks[family]) for family in families if not addresses[family]}
        for family in sorted(nowhere):
            if self._nowhere.get(family) != nowhere[family]:
                _log.warning(
                    "no health check is served: no interface has an address for node ports",
                    family=family,
                    networks=",".join(nowhere[family]),
                )
        self._nowhere = nowhere
        return addresses

    async def _start(self, key: Key, family: Family, port: int, address: str) -> None:
        async def answer(_request: HttpRequest) -> web.Response:
            return self._answer(key, family, port)

        runner = await page_server({}, otherwise=answer)
        try:
            await listen(runner, address, port, self._namespace)
        except OSError as error:
            await runner.cleanup()
            self._report((key, family, port, address), why_not(error))
            return
        self._servers[key, family, port, address] = runner
        self._failures.pop((key, family, port, address), None)

    def _report(self, server: _Server, why: str) -> None:
        if self._failures.get(server) == why:
            return
        self._failures[server] = why
        key, _, port, address = server
        _log.warning("a health check cannot listen", service="/".join(key), at=address, port=port)
        self._refused(key, port, why)

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
