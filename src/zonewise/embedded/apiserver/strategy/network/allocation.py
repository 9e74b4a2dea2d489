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
from typing import Any

Obj = dict[str, Any]
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

AddressHolder = tuple[str, str]

API_SERVER: AddressHolder = ("default", "kubernetes")
"""The Service of the API server itself, at the first address of the range."""

PORTS = range(30000, 32768)
TRIES = 64


class Exhausted(Exception):
    """Nothing is free any more."""


class Allocation:
    """What is held, and by which Service (namespace, name)."""

    def __init__(self, networks: Iterable[str], rng: random.Random) -> None:
        self._networks: dict[str, IPNetwork] = {
            f"IPv{network.version}": network for network in map(ipaddress.ip_network, networks)
        }
        self._rng = rng
        self._addresses: dict[str, AddressHolder] = {}
        self._ports: dict[tuple[int, str], AddressHolder] = {}
        self._held: dict[AddressHolder, tuple[tuple[str, ...], tuple[tuple[int, str], ...]]] = {}

    def hold(self, holder: AddressHolder, spec: Obj | None) -> None:
        """A Service now holds what its spec says, or (None) nothing."""
        addresses, ports = self._held.pop(holder, ((), ()))
        for address in addresses:
            self._addresses.pop(address, None)
        for port in ports:
            self._ports.pop(port, None)
        if spec is None:
            return
        addresses = tuple(one for one in spec.get("clusterIPs") or () if one != "None")
        ports = tuple(ports_of(spec))
        self._held[holder] = (addresses, ports)
        self._addresses.update(dict.fromkeys(addresses, holder))
        self._ports.update(dict.fromkeys(ports, holder))

    @property
    def families(self) -> tuple[str, ...]:
        """The families this cluster has, the first one first."""
        return tuple(self._networks)

    def first(self) -> str:
        """The address of the API server itself."""
        return str(next(iter(self._networks.values()))[1])

    def fault(self, address: str, family: str, holder: AddressHolder) -> str:
        """Why an address cannot be taken, or nothing."""
        network = self._networks.get(family)
        if network is None or ipaddress.ip_address(address) not in network:
            return "the provided network does not match the current range"
        mine = holder == API_SERVER
        taken = (address == self.first() and not mine) or (
            self._addresses.get(address, holder) != holder
        )
        return "provided IP is already allocated" if taken else ""

    def address(self, family: str) -> str:
        """A free address."""
        network = self._networks[family]
        size = min(network.num_addresses, 2**24) - 2
        reserved = min(max(16, size // 16), 256)
        for _ in range(TRIES if reserved < size else 0):
            found = str(network[self._rng.randrange(reserved, size) + 1])
            if found not in self._addresses:
                return found
        for index in range(2, size + 1):
            found = str(network[index])
            if found not in self._addresses:
                return found
        raise Exhausted(f"every address of {network} is in use")

    def port_fault(self, port: int, protocol: str, holder: AddressHolder) -> str:
        """Why a node port cannot be taken, or nothing."""
        if port not in PORTS:
            return (
                "provided port is not in the valid range. The range of valid ports is"
                f" {PORTS.start}-{PORTS.stop - 1}"
            )
        taken = self._ports.get((port, protocol), holder) != holder
        return "provided port is already allocated" if taken else ""

    def port(self, also_taken: set[int]) -> int:
        """A node port that is free in every protocol."""
        used = {port for port, _ in self._ports} | also_taken
        if len(used) >= len(PORTS):
            raise Exhausted("every node port is in use")
        while True:
            found = self._rng.choice(PORTS)
            if found not in used:
                return found


def ports_of(spec: Obj) -> Iterator[tuple[int, str]]:
    """The node ports a Service holds."""
    for port in spec.get("ports") or ():
        if port.get("nodePort"):
            yield port["nodePort"], port.get("protocol", "TCP")
    if spec.get("healthCheckNodePort"):
        yield spec["healthCheckNodePort"], "TCP"
