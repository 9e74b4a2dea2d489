"""Pools: what volumes are cut from, where they are, and how much is left in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool as a class or the configuration declares it.

    ``segments`` says which domain it belongs to: short label names (``zone``) to values, in the
    order of the domain labels, the largest domain first. None at all means everywhere.
    """

    name: str
    data_pool: str = ""
    segments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolState:
    """What a backend reports about a pool: bytes it can hold, bytes promised, and its health."""

    capacity: int
    promised: int = 0
    health: Fraction = Fraction(1)
    alive: bool = True
    """Whether it can serve at all: a dead zone's pool may well look like the emptiest."""
    limited: bool = True
    """Whether no more than its capacity may be promised; else its volumes are thin."""

    @property
    def limit(self) -> int | None:
        """What may be promised in total; None if that is not enforced here."""
        return self.capacity if self.limited else None


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that can be chosen."""

    spec: PoolSpec
    state: PoolState

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    @property
    def segments(self) -> Mapping[str, str]:
        """The domain it belongs to."""
        return self.spec.segments

    @property
    def free(self) -> int:
        """Bytes not promised yet; none if more is promised than there is."""
        return max(0, self.state.capacity - self.state.promised)

    @property
    def living(self) -> bool:
        """Whether volumes can be made in it now."""
        return self.state.alive and self.state.health > 0

    def can_take(self, size: int) -> bool:
        """Whether a volume of so many bytes can be made in it now."""
        return self.living and self.state.promised + size <= self.state.capacity

    @property
    def worth(self) -> Fraction:
        """What balancing compares: free bytes, discounted by health."""
        return self.free * self.state.health


ABSENT = PoolState(0, health=Fraction(0), alive=False)
"""A pool that a backend does not have."""


def pools_of(specs: Iterable[PoolSpec], states: Mapping[str, PoolState]) -> tuple[Pool, ...]:
    """The pools a backend has, with their state; others are left out."""
    return tuple(Pool(spec, states[spec.name]) for spec in specs if spec.name in states)


def named_pools(specs: Iterable[PoolSpec], states: Mapping[str, PoolState]) -> tuple[Pool, ...]:
    """All of them; one that the backend does not have is dead, and its domain still has a pool."""
    return tuple(Pool(spec, states.get(spec.name, ABSENT)) for spec in specs)
