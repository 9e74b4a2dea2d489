"""Namespaces, links, addresses and routes, brought in line with the plan.

::

    zonewise        192.0.2.1   2001:db8::1     a router with a link to each node
    ├── n1 ── eth0  zonewise-a-1                the node's addresses; its pods' are on ``pods``
    └── n2 ── eth0  zonewise-b-1

A node sends everything that is not its own to the router, and the router has a route for each
address to its node; so a new node is a new link, and nothing changes on other nodes. Pods have no
namespace of their own: their addresses are on the node, and packets from them are routed by the
node's rules as the node's own packets are. That makes a pod as cheap as an address.

The actual state is kept in memory, and only the difference is applied, by a few runs of ``ip`` in a
thread, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from zonewise.api.errors import ConfigError
from zonewise.embedded.network.namespaces import ClusterNamespaces, IpFailed, run_ip
from zonewise.embedded.network.plan import NodeNetwork, plan_routes
from zonewise.proxy.netlink.namespace import NetworkNamespace
from zonewise.runtime.process.logs import logger

GATEWAYS = ("192.0.2.1", "2001:db8::1")
PODS_DEVICE = "pods"
"""The interface that has the addresses of a node's pods."""

_log = logger("network")


class Wiring:
    """The actual state of the network."""

    def __init__(self, instance: ClusterNamespaces) -> None:
        self._instance = instance
        self._links: dict[str, str] = {}
        self._link_count = 0
        self._addresses: dict[str, dict[str, str]] = {}
        self._routes: dict[str, str] = {}

    async def apply(self, networks: Mapping[str, NodeNetwork]) -> set[str]:
        """Apply the plan; returns the nodes that have a network."""
        new = [name for name in networks if name not in self._links]
        if new:
            await self._add_nodes(new)
        for name in self._links.keys() & networks.keys():
            await self._update_addresses(name, networks[name])
        await self._update_routes(plan_routes(networks, self._links))
        removed = [name for name in self._links if name not in networks]
        if removed:
            for name in removed:
                del self._links[name], self._addresses[name]
            namespaces = [self._instance.node(name) for name in removed]
            try:
                await asyncio.to_thread(self._instance.remove, namespaces)
            except IpFailed as error:
                _log.warning("a network namespace could not be deleted", error=str(error))
        return set(self._links)

    async def _add_nodes(self, names: list[str]) -> None:
        fabric = self._instance.fabric
        namespaces = {name: self._instance.node(name) for name in names}
        try:
            await asyncio.to_thread(self._instance.add, namespaces.values())
        except ConfigError as error:
            _log.warning("nodes have no network", nodes=", ".join(names), error=str(error))
            await asyncio.to_thread(self._instance.remove, namespaces.values())
            return
        link_commands = []
        router_commands = []
        for name, namespace in namespaces.items():
            self._link_count += 1
            link = self._links[name] = f"n{self._link_count}"
            self._addresses[name] = {}
            peer = f"peer name {link} netns {fabric.name}"
            link_commands.append(f"link add eth0 netns {namespace.name} type veth {peer}")
            router_commands += [f"addr add {GATEWAYS[0]}/32 dev {link}"]
            router_commands.append(f"addr add {GATEWAYS[1]}/128 dev {link} nodad")
            router_commands.append(f"link set {link} up")
        await _run(link_commands)
        await _run(router_commands, fabric)
        for namespace in namespaces.values():
            # The bridge comes after the link, so that the node's addresses are preferred as source.
            await _run(
                [
                    "link set lo up",
                    "link set eth0 up",
                    f"link add {PODS_DEVICE} type bridge",
                    f"link set {PODS_DEVICE} up",
                ],
                namespace,
            )

    async def _update_addresses(self, name: str, node: NodeNetwork) -> None:
        current = self._addresses[name]
        pods = dict.fromkeys(sorted(node.pods), PODS_DEVICE)
        desired = dict.fromkeys(node.addresses, "eth0") | pods
        commands = [
            f"addr del {_host_cidr(address)} dev {device}"
            for address, device in current.items()
            if desired.get(address) != device
        ]
        for address, device in desired.items():
            if current.get(address) != device:
                options = _address_options(address, device)
                commands.append(f"addr add {_host_cidr(address)} dev {device}{options}")
        if not current:
            for gateway in GATEWAYS:
                if any((":" in address) is (":" in gateway) for address in node.addresses):
                    default = "::/0" if ":" in gateway else "0.0.0.0/0"
                    commands.append(f"route add {default} via {gateway} dev eth0 onlink")
        self._addresses[name] = desired
        await _run(commands, self._instance.node(name))

    async def _update_routes(self, desired: dict[str, str]) -> None:
        commands = []
        for address, route in self._routes.items():
            if desired.get(address) != route:
                commands.append(f"route del {_route_arguments(address, route)}")
        for address, route in desired.items():
            if self._routes.get(address) != route:
                commands.append(f"route add {_route_arguments(address, route)}")
        self._routes = desired
        await _run(commands, self._instance.fabric)


def _route_arguments(address: str, route: str) -> str:
    return f"{_host_cidr(address)} {route}" if route else f"blackhole {_host_cidr(address)}"


def _address_options(address: str, device: str) -> str:
    """Options of an IPv6 address: usable at once, and a pod's is never a default source address."""
    if ":" not in address:
        return ""
    return " nodad preferred_lft 0" if device == PODS_DEVICE else " nodad"


def _host_cidr(address: str) -> str:
    return f"{address}/128" if ":" in address else f"{address}/32"


async def _run(commands: list[str], namespace: NetworkNamespace | None = None) -> None:
    """Run the commands; failures are logged, and the rest of the network works."""
    try:
        await asyncio.to_thread(run_ip, commands, namespace)
    except IpFailed as error:
        _log.warning("a part of the network could not be created", error=str(error))
