"""Places that many clients share, so that no client can take them all.

A client gets another place while it holds fewer than there are free ones. One client alone gets
half of them, two get a third each, and whoever comes next always finds some. So an address that
stands for many clients (a cache on each node, a NAT) has a large share, and nothing has to be known
of it in advance.
"""

from __future__ import annotations


class FairShares:
    """So many places, and who holds how many of them."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._used = 0
        self._held: dict[str, int] = {}

    def take(self, source: str) -> bool:
        """Take a place for a source, if it may have another."""
        held = self._held.get(source, 0)
        if held >= self._places - self._used:
            return False
        self._held[source] = held + 1
        self._used += 1
        return True

    def give_back(self, source: str) -> None:
        """A source does not need one of its places any more."""
        left = self._held[source] - 1
        if left:
            self._held[source] = left
        else:
            del self._held[source]
        self._used -= 1
