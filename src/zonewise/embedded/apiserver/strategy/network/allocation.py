"""Cluster addresses and node ports of Services.

What is in use is what the stored Services hold, so nothing has to be repaired or released: an
address is free the moment its Service is deleted. A Service holds its own from the moment its write
begins; the state's events then confirm or correct that. Addresses are chosen at random from the
upper part of the range first, as a real server does, so that fixed ones in the lower part rarely
clash.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterable, Iterator

from zonewise.embedded.apiserver.strategy.addresses import IPNetwork
from zonewise.embedded.apiserver.strategy.base import Obj
from zonewise.traffic.host_key import NODE_PORTS

AddressHolder = tuple[str, str]

API_SERVER: AddressHolder = ("default", "kubernetes")
"""The Service of the API server itself, at the first address of the range."""

TRIES = 64
PORT_TAKEN = "provided port is already allocated"


class Exhausted(Exception):
    """Nothing is free any more."""


class Allocation:
    """Which addresses and node ports are in use, and by which Service (namespace, name)."""

    def __init__(self, networks: Iterable[str], rng: random.Random) -> None:
        self._networks: dict[str, IPNetwork] = {
            f"IPv{network.version}": network for network in map(ipaddress.ip_network, networks)
        }
        self._rng = rng
        self._addresses: dict[str, AddressHolder] = {}
        self._ports: dict[tuple[int, str], AddressHolder] = {}
        self._by_holder: dict[
            AddressHolder, tuple[tuple[str, ...], tuple[tuple[int, str], ...]]
        ] = {}

    def hold(self, holder: AddressHolder, spec: Obj | None) -> None:
        """A Service now holds what its spec says, or (None) nothing."""
        addresses, ports = self._by_holder.pop(holder, ((), ()))
        for address in addresses:
            self._addresses.pop(address, None)
        for port in ports:
            self._ports.pop(port, None)
        if spec is None:
            return
        addresses = tuple(address for address in spec.get("clusterIPs") or () if address != "None")
        ports = tuple(node_ports_of(spec))
        self._by_holder[holder] = (addresses, ports)
        self._addresses.update(dict.fromkeys(addresses, holder))
        self._ports.update(dict.fromkeys(ports, holder))

    @property
    def families(self) -> tuple[str, ...]:
        """The families this cluster has, the first one first."""
        return tuple(self._networks)

    def api_server_address(self) -> str:
        """The address of the API server itself."""
        return str(next(iter(self._networks.values()))[1])

    def address_error(self, address: str, family: str, holder: AddressHolder) -> str:
        """Why a Service cannot have an address; empty if it can."""
        network = self._networks.get(family)
        if network is None or ipaddress.ip_address(address) not in network:
            return "the provided network does not match the current range"
        is_taken = self._addresses.get(address, holder) != holder or (
            address == self.api_server_address() and holder != API_SERVER
        )
        return "provided IP is already allocated" if is_taken else ""

    def choose_address(self, family: str) -> str:
        """A free address."""
        network = self._networks[family]
        size = min(network.num_addresses, 2**24) - 2
        reserved = min(max(16, size // 16), 256)
        for _ in range(TRIES if reserved < size else 0):
            address = str(network[self._rng.randrange(reserved, size) + 1])
            if address not in self._addresses:
                return address
        for index in range(2, size + 1):
            address = str(network[index])
            if address not in self._addresses:
                return address
        raise Exhausted(f"every address of {network} is in use")

    def port_error(self, port: int, protocol: str, holder: AddressHolder) -> str:
        """Why a Service cannot have a node port; empty if it can."""
        if port not in NODE_PORTS:
            return (
                "provided port is not in the valid range. The range of valid ports is"
                f" {NODE_PORTS.start}-{NODE_PORTS.stop - 1}"
            )
        is_taken = self._ports.get((port, protocol), holder) != holder
        return PORT_TAKEN if is_taken else ""

    def choose_port(self, also_taken: set[int]) -> int:
        """A node port that is free in every protocol."""
        used = {port for port, _ in self._ports} | also_taken
        if len(used) >= len(NODE_PORTS):
            raise Exhausted("every node port is in use")
        while True:
            port = self._rng.choice(NODE_PORTS)
            if port not in used:
                return port


def node_ports_of(spec: Obj) -> Iterator[tuple[int, str]]:
    """The node ports a Service holds."""
    for port in spec.get("ports") or ():
        if port.get("nodePort"):
            yield port["nodePort"], port.get("protocol", "TCP")
    if spec.get("healthCheckNodePort"):
        yield spec["healthCheckNodePort"], "TCP"
