"""Choices of a Service's own: chains for session affinity and for weights.

With session affinity each endpoint has a chain and a set of its clients; a client in no set draws
one. With weights, and without affinity, one rule draws a number and rewrites to the endpoint whose
interval it falls into: as many numbers as the endpoint weighs.

Such chains never change. Their name is a digest of what they do, another choice of endpoints is
another chain, and one element leads from the old to the new. So they are written before anything
leads there, and a program that is killed in between leaves an unused chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from zonewise.proxy.tables.ruleset import TABLE, FamilyName, chain_text, protocol_word

PREFIXES = ("affinity-", "endpoint-", "weighted-")
"""What the names of such chains begin with."""

MOST = (1 << 31) - 1
"""The largest sum of weights that is drawn from."""


@dataclass(frozen=True, slots=True)
class Sticky:
    """A Service port with session affinity: a choice between endpoints that remember clients."""

    name: str
    protocol: str
    seconds: int
    endpoints: tuple[tuple[str, str], ...]
    """The chain of each endpoint, and what it rewrites to: ``10.244.1.5:8080``."""
    weights: tuple[int, ...]
    """How often each is chosen for a client in no set."""

    @property
    def chains(self) -> tuple[str, ...]:
        """Every chain it needs; its own is the first."""
        return (self.name, *(name for name, _ in self.endpoints))

    @property
    def sets(self) -> tuple[str, ...]:
        """Every set it needs."""
        return tuple(clients(name) for name, _ in self.endpoints)

    def text(self, family: FamilyName, known: Iterable[str] = ()) -> str:
        """All of it for ``nft -f``, but for chains that are known."""
        there = set(known)
        word = protocol_word(family)
        kind = "ipv4_addr" if family == "IPv4" else "ipv6_addr"
        parts = []
        for name, target in self.endpoints:
            if name in there:
                continue
            parts.append(
                f"add set {word} {TABLE} {clients(name)} {{ type {kind}; flags dynamic,timeout; "
                f"timeout {self.seconds}s; }}\n"
                + chain_text(
                    family,
                    name,
                    (
                        f"update @{clients(name)} {{ {word} saddr }}",
                        f"meta l4proto {self.protocol} dnat to {target}",
                    ),
                )
            )
        if self.name not in there:
            rules = [f"{word} saddr @{clients(name)} goto {name}" for name, _ in self.endpoints]
            drawn = _drawn(self.weights, [f"goto {name}" for name, _ in self.endpoints])
            rules.append(f"numgen random mod {sum(self.weights)} vmap {drawn}")
            parts.append(chain_text(family, self.name, rules))
        return "".join(parts)


@dataclass(frozen=True, slots=True)
class Weighted:
    """A choice between endpoints that weigh differently."""

    name: str
    protocol: str
    endpoints: tuple[str, ...]
    """What each rewrites to: ``10.244.1.5 . 8080``."""
    weights: tuple[int, ...]

    @property
    def chains(self) -> tuple[str, ...]:
        """Every chain it needs."""
        return (self.name,)

    @property
    def sets(self) -> tuple[str, ...]:
        """It needs no set that has a name."""
        return ()

    def text(self, family: FamilyName, known: Iterable[str] = ()) -> str:
        """It for ``nft -f``, unless it is known."""
        if self.name in known:
            return ""
        word = protocol_word(family)
        draw = f"numgen random mod {sum(self.weights)} map {_drawn(self.weights, self.endpoints)}"
        rule = f"meta l4proto {self.protocol} dnat {word} to {draw}"
        return chain_text(family, self.name, (rule,))


EndpointChoice: TypeAlias = Sticky | Weighted


def scaled(weights: Sequence[int]) -> tuple[int, ...]:
    """Weights that can be drawn from: alike if they are, and never too large in sum."""
    if len(set(weights)) == 1:
        return (1,) * len(weights)
    while sum(weights) > MOST:
        weights = [max(1, weight // 2) for weight in weights]
    return tuple(weights)


def _drawn(weights: Sequence[int], leads: Sequence[str]) -> str:
    """A map from numbers to what is drawn with them."""
    parts = []
    first = 0
    for weight, lead in zip(weights, leads, strict=True):
        last = first + weight - 1
        parts.append(f"{first if first == last else f'{first}-{last}'} : {lead}")
        first += weight
    return f"{{ {', '.join(parts)} }}"


def clients(chain: str) -> str:
    """The set of clients that keep an endpoint."""
    return "clients" + chain.removeprefix("endpoint")
