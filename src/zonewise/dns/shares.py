"""Slots that many clients share, so that no client can take them all.

A client gets another slot while it has fewer than are free. A single client gets half of them, two
get a third each, and a new client always finds some. So an address that stands for many clients (a
cache on each node, a NAT) has a large share without being known in advance.
"""

from __future__ import annotations


class FairShares:
    """A number of slots, and how many of them each source has."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._taken: dict[str, int] = {}

    def take(self, source: str) -> bool:
        """Take a slot for a source, if it may have another."""
        taken = self._taken.get(source, 0)
        if taken >= self._free:
            return False
        self._taken[source] = taken + 1
        self._free -= 1
        return True

    def give_back(self, source: str) -> None:
        """A source does not need one of its slots any more."""
        left = self._taken[source] - 1
        if left:
            self._taken[source] = left
        else:
            del self._taken[source]
        self._free += 1
