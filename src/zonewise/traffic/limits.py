"""How much overload is allowed, and how many endpoints a zone needs to stay within it.

Two limits, so that hints do not flap: they are added while every zone's overload is *below*
``add``, and dropped when a zone's is *above* ``drop``. A zone with weight w of W and a of n
endpoints has the overload w·n / (W·a) - 1. Both questions ("is this allowed?", "how many are
needed?") are answered with whole numbers only.

``crosses`` is what a shell asks about every Service when nodes change. It reads nothing but the
number of endpoints per zone, so that ten thousand Services are judged in some hundredths of a
second; only those that cross a limit, in either direction, are decided again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from zonewise.api.errors import ParseError
from zonewise.topology import Shares

OVERLOAD_ANNOTATION = "zonewise.io/overload"

_TEXT = re.compile(r"(\d{1,3})%/(\d{1,3})%", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """Percentages: add hints below ``add``, drop them above ``drop``."""

    add: int = 20
    drop: int = 30

    def __post_init__(self) -> None:
        if not 1 <= self.add <= self.drop <= 100:
            raise ParseError(
                f"overload limits {self.add}%/{self.drop}% are out of range:"
                " the first must be at least 1%, the second at least the first and at most 100%"
            )

    @classmethod
    def parse(cls, text: str) -> Limits:
        """The limits of ``20%/30%``."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ParseError(f"overload limits {text[:64]!r} are not of the form 20%/30%")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.add}%/{self.drop}%"

    def to_add(self, shares: Shares, endpoints: int) -> dict[str, int]:
        """The fewest endpoints with which each zone's overload is below ``add``."""
        scale, load = shares.total * (100 + self.add), endpoints * 100
        return {zone: weight * load // scale + 1 for zone, weight in shares.weights.items()}

    def to_keep(self, shares: Shares, endpoints: int) -> dict[str, int]:
        """The fewest endpoints, at least one, with which each zone's is at most ``drop``."""
        scale, load = shares.total * (100 + self.drop), endpoints * 100
        return {zone: max(1, -(-weight * load // scale)) for zone, weight in shares.weights.items()}

    def within(self, shares: Shares, endpoints: int, per_zone: Mapping[str, int]) -> bool:
        """Whether no zone's overload is above ``drop``; a zone without endpoints is."""
        scale, load = shares.total * (100 + self.drop), endpoints * 100
        return all(
            0 < weight * load <= per_zone.get(zone, 0) * scale
            for zone, weight in shares.weights.items()
        )

    def reachable(self, shares: Shares, endpoints: int) -> bool:
        """Whether some distribution keeps every zone's overload below ``add``."""
        scale, load = shares.total * (100 + self.add), endpoints * 100
        needed = len(shares.weights)
        for weight in shares.weights.values():
            needed += weight * load // scale
        return needed <= endpoints

    def crosses(
        self, shares: Shares, endpoints: int, per_zone: Mapping[str, int], *, hinted: bool
    ) -> bool:
        """Whether new shares ask for another decision about a Service in mode Auto.

        ``endpoints`` are its ready ones, ``per_zone`` how many of them are hinted to each zone.
        """
        if shares.reason is not None:
            return hinted
        if hinted:
            return not self.within(shares, endpoints, per_zone)
        return self.reachable(shares, endpoints)

    def enough(self, shares: Shares, endpoints: int) -> int:
        """The next number of endpoints, from this one up, for which hints can be added.

        It exists: each zone's minimum is at most one more than its part of n / (1 + add), so n
        suffices once n - n / (1 + add) is the number of zones.
        """
        while not self.reachable(shares, endpoints):
            endpoints += 1
        return endpoints


DEFAULT_LIMITS = Limits()
