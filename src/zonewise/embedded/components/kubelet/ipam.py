"""Addresses: a range for each node, an address for each pod.

``NodeRanges`` cuts networks into one block per node; ``AddressPool`` hands out the addresses of one
block. Both are in memory only and get from the caller what the objects have in use, so a restart
keeps every address. Freed addresses are reused last: a client that still uses the address of a
deleted pod should not soon reach another pod.

Taking one is O(1) unless a block is nearly full.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

RESERVED = 2
"""The first addresses of a block are its name and its gateway."""


class AddressPool:
    """The addresses of one network."""

    def __init__(self, network: str) -> None:
        # A server lets ranges pass that name an address in them: 10.0.0.1/24.
        self.network = ipaddress.ip_network(network, strict=False)
        self._first = int(self.network.network_address)
        # An IPv4 network's last address is its broadcast.
        self._size = self.network.num_addresses - (self.network.version == 4)
        self._next = min(RESERVED, self._size)
        self._taken: set[int] = set()

    def note(self, address: str) -> None:
        """This address is in use; those of other networks are ignored."""
        offset = self._offset(address)
        if offset is not None:
            self._taken.add(offset)

    def take(self) -> str | None:
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

    def free(self, address: str) -> None:
        """This address is free again."""
        offset = self._offset(address)
        if offset is not None:
            self._taken.discard(offset)

    def _offset(self, address: str) -> int | None:
        try:
            given = ipaddress.ip_address(address)
        except ValueError:
            return None
        if given.version != self.network.version:
            return None
        offset = int(given) - self._first
        return offset if 0 <= offset < self.network.num_addresses else None


class NodeRanges:
    """Blocks of networks, one of each per node."""

    def __init__(self, networks: Sequence[str], *, sizes: Sequence[int]) -> None:
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._sizes = [
            max(network.prefixlen, size)
            for network, size in zip(self._networks, sizes, strict=True)
        ]
        self._next = 0
        self._taken: set[int] = set()

    def note(self, blocks: Sequence[str]) -> None:
        """A node has these blocks."""
        self._taken.update(self._numbers(blocks))

    def take(self) -> tuple[str, ...] | None:
        """Blocks no node has, one of each network, or None."""
        count = min(
            1 << (size - network.prefixlen)
            for network, size in zip(self._networks, self._sizes, strict=True)
        )
        for _ in range(count):
            number = self._next % count
            self._next = number + 1
            if number not in self._taken:
                self._taken.add(number)
                return tuple(
                    f"{network.network_address + (number << (network.max_prefixlen - size))}/{size}"
                    for network, size in zip(self._networks, self._sizes, strict=True)
                )
        return None

    def free(self, blocks: Sequence[str]) -> None:
        """No node has these blocks any more."""
        self._taken.difference_update(self._numbers(blocks))

    def _numbers(self, blocks: Sequence[str]) -> set[int]:
        found: set[int] = set()
        for text in blocks:
            try:
                block = ipaddress.ip_network(text, strict=False)
            except ValueError:
                continue
            for network, size in zip(self._networks, self._sizes, strict=True):
                if block.version != network.version:
                    continue
                distance = int(block.network_address) - int(network.network_address)
                if 0 <= distance < network.num_addresses:
                    first = distance >> (network.max_prefixlen - size)
                    found.update(range(first, first + (1 << max(0, size - block.prefixlen))))
        return found
