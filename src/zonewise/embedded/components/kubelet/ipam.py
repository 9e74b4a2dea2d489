"""Addresses: a CIDR for each node, an address for each pod.

``NodeCidrAllocator`` divides networks into one CIDR per node; ``AddressPool`` allocates the
addresses of one CIDR. Both are in memory only and are told by the caller what the objects have in
use, so a restart keeps every address. Released addresses are reused last: a client that still uses
the address of a deleted pod should not soon reach another pod.

An allocation is O(1) unless a CIDR is nearly full.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

RESERVED = 2
"""The first addresses of a CIDR are those of the network and of its gateway."""


class AddressPool:
    """The addresses of one network."""

    def __init__(self, network: str) -> None:
        # The API server admits CIDRs with host bits set: 10.0.0.1/24.
        self.network = ipaddress.ip_network(network, strict=False)
        self._first = int(self.network.network_address)
        # The last address of an IPv4 network is its broadcast address.
        self._size = self.network.num_addresses - (self.network.version == 4)
        self._next = min(RESERVED, self._size)
        self._taken: set[int] = set()

    def mark_used(self, address: str) -> None:
        """Mark an address as in use; one of another network is ignored."""
        offset = self._offset(address)
        if offset is not None:
            self._taken.add(offset)

    def allocate(self) -> str | None:
        """A free address, or None."""
        start = min(RESERVED, self._size)
        for _ in range(self._size - start):
            if self._next >= self._size:
                self._next = start
            offset = self._next
            self._next += 1
            if offset not in self._taken:
                self._taken.add(offset)
                return str(self.network.network_address + offset)
            if len(self._taken) >= self._size:
                break
        return None

    def release(self, address: str) -> None:
        """Mark an address as free."""
        offset = self._offset(address)
        if offset is not None:
            self._taken.discard(offset)

    def _offset(self, address: str) -> int | None:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return None
        if parsed.version != self.network.version:
            return None
        offset = int(parsed) - self._first
        return offset if 0 <= offset < self.network.num_addresses else None


class NodeCidrAllocator:
    """The CIDRs of nodes: one of each network per node."""

    def __init__(self, networks: Sequence[str], *, mask_sizes: Sequence[int]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._mask_sizes = [
            max(network.prefixlen, mask_size)
            for network, mask_size in zip(self._networks, mask_sizes, strict=True)
        ]
        self._next = 0
        self._taken: set[int] = set()

    def mark_used(self, cidrs: Sequence[str]) -> None:
        """Mark the CIDRs of a node as in use."""
        self._taken.update(self._numbers(cidrs))

    def allocate(self) -> tuple[str, ...] | None:
        """CIDRs that no node has, one of each network, or None."""
        count = min(
            1 << (mask_size - network.prefixlen)
            for network, mask_size in zip(self._networks, self._mask_sizes, strict=True)
        )
        for _ in range(count):
            number = self._next % count
            self._next = number + 1
            if number not in self._taken:
                self._taken.add(number)
                return tuple(
                    f"{network.network_address + (number << (network.max_prefixlen - size))}/{size}"
                    for network, size in zip(self._networks, self._mask_sizes, strict=True)
                )
        return None

    def release(self, cidrs: Sequence[str]) -> None:
        """Mark the CIDRs of a deleted node as free."""
        self._taken.difference_update(self._numbers(cidrs))

    def _numbers(self, cidrs: Sequence[str]) -> set[int]:
        numbers: set[int] = set()
        for cidr in cidrs:
            try:
                block = ipaddress.ip_network(cidr, strict=False)
            except ValueError:
                continue
            for network, mask_size in zip(self._networks, self._mask_sizes, strict=True):
                if block.version != network.version:
                    continue
                distance = int(block.network_address) - int(network.network_address)
                if 0 <= distance < network.num_addresses:
                    first = distance >> (network.max_prefixlen - mask_size)
                    numbers.update(range(first, first + (1 << max(0, mask_size - block.prefixlen))))
        return numbers
