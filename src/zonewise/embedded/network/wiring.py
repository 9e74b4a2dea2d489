"""Namespaces, wires, addresses and routes, made equal to the plan.

::

    zonewise        192.0.2.1   2001:db8::1     a router with a wire to each node
    ├── n1 ── eth0  zonewise-a-1                the node's addresses; its pods' are on ``pods``
    └── n2 ── eth0  zonewise-b-1

A node sends everything that is not its own to the router, and the router has a route for each
address to its node; so a new node is a new link, and nothing changes on other nodes. Pods have no
namespace of their own: their addresses are the node's, and what starts at one of them is routed by
the node's rules as what a node sends is. That makes a pod as cheap as an address.

The actual state is kept in memory, and only the difference is applied, by a few runs of ``ip``.
They are in a thread, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from zonewise.api.errors import ConfigError
from zonewise.embedded.network.instance import Instance, IpFailed, run_ip
from zonewise.embedded.network.plan import NodeNetwork, routes
from zonewise.proxy.netlink import NetworkNamespace
from zonewise.runtime.process.logs import logger

GATEWAYS = ("192.0.2.1", "2001:db8::1")
PODS = "pods"
"""The interface that has the addresses of a node's pods."""

_log = logger("network")


class Wiring:
    """The actual state."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._wires: dict[str, str] = {}
        self._count = 0
        self._held: dict[str, dict[str, str]] = {}
        self._routes: dict[str, str] = {}

    async def apply(self, wanted: Mapping[str, NodeNetwork]) -> set[str]:
        """Apply the plan; returns the nodes that exist."""
        new = [name for name in wanted if name not in self._wires]
        if new:
            await self._add(new)
        for name in self._wires.keys() & wanted.keys():
            await self._address(name, wanted[name])
        await self._route(routes(wanted, self._wires))
        gone = [name for name in self._wires if name not in wanted]
        if gone:
            for name in gone:
                del self._wires[name], self._held[name]
            spaces = [self._instance.node(name) for name in gone]
            try:
                await asyncio.to_thread(self._instance.remove, spaces)
            except IpFailed as error:
                _log.warning("a network namespace is left", error=str(error))
        return set(self._wires)

    async def _add(self, names: list[str]) -> None:
        fabric = self._instance.fabric
        spaces = {name: self._instance.node(name) for name in names}
        try:
            await asyncio.to_thread(self._instance.add, spaces.values())
        except ConfigError as error:
            _log.warning("nodes have no network", nodes=", ".join(names), error=str(error))
            await asyncio.to_thread(self._instance.remove, spaces.values())
            return
        wires = []
        ends = []
        for name, space in spaces.items():
            self._count += 1
            wire = self._wires[name] = f"n{self._count}"
            self._held[name] = {}
            wires.append(
                f"link add eth0 netns {space.name} type veth peer name {wire} netns {fabric.name}"
            )
            ends += [f"addr add {GATEWAYS[0]}/32 dev {wire}"]
            ends += [f"addr add {GATEWAYS[1]}/128 dev {wire} nodad", f"link set {wire} up"]
        await _run(wires)
        await _run(ends, fabric)
        for space in spaces.values():
            # The bridge is made after the link: where an address is chosen, the node's are first.
            await _run(
                [
                    "link set lo up",
                    "link set eth0 up",
                    f"link add {PODS} type bridge",
                    f"link set {PODS} up",
                ],
                space,
            )

    async def _address(self, name: str, node: NodeNetwork) -> None:
        held = self._held[name]
        wanted = dict.fromkeys(node.addresses, "eth0") | dict.fromkeys(sorted(node.pods), PODS)
        commands = [
            f"addr del {_host(address)} dev {device}"
            for address, device in held.items()
            if wanted.get(address) != device
        ]
        for address, device in wanted.items():
            if held.get(address) != device:
                commands.append(f"addr add {_host(address)} dev {device}{_manner(address, device)}")
        if not held:
            for gateway in GATEWAYS:
                if any((":" in address) is (":" in gateway) for address in node.addresses):
                    everything = "::/0" if ":" in gateway else "0.0.0.0/0"
                    commands.append(f"route add {everything} via {gateway} dev eth0 onlink")
        self._held[name] = wanted
        await _run(commands, self._instance.node(name))

    async def _route(self, wanted: dict[str, str]) -> None:
        commands = []
        for address, way in self._routes.items():
            if wanted.get(address) != way:
                commands.append(f"route del {_way(address, way)}")
        for address, way in wanted.items():
            if self._routes.get(address) != way:
                commands.append(f"route add {_way(address, way)}")
        self._routes = wanted
        await _run(commands, self._instance.fabric)


def _way(address: str, way: str) -> str:
    return f"{_host(address)} {way}" if way else f"blackhole {_host(address)}"


def _manner(address: str, device: str) -> str:
    """Options of an IPv6 address: usable at once, and a pod's is never a default source address."""
    if ":" not in address:
        return ""
    return " nodad preferred_lft 0" if device == PODS else " nodad"


def _host(address: str) -> str:
    return f"{address}/128" if ":" in address else f"{address}/32"


async def _run(commands: list[str], namespace: NetworkNamespace | None = None) -> None:
    """Run the commands; failures are logged, and the rest of the network works."""
    try:
        await asyncio.to_thread(run_ip, commands, namespace)
    except IpFailed as error:
        _log.warning("a part of the network could not be made", error=str(error))
