"""Choices of a Service's own: chains for session affinity and for weights.

Endpoints have slots, as those of every Service have. With weights, endpoints of one weight are a
group of slots, and a rule per group draws from it as often as all of it weighs: of the groups that
are left, so that the last is certain. A change of an endpoint is a change of a slot.

With session affinity a map leads from a client to the id of its endpoint. Endpoints that may still
be used are ``members``; a client whose endpoint is not among them draws another. The map belongs to
the Service port and outlives every change of endpoints. Once it has ``MOST_CLIENTS``, further
clients of this port, and of no other, are not remembered.

The chains are of a few rules, however many endpoints there are, and never change. Their name is a
digest of what they do, another number of endpoints is another chain, and one element leads from the
old to the new. So they are written before anything leads there, and a program that is killed in
between leaves an unused chain.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zonewise.proxy.netlink.draws import Draw
from zonewise.proxy.tables import ruleset
from zonewise.proxy.tables.ruleset import FamilyName, SlotKind

PREFIXES = ("affinity-", "weighted-")
"""What the names of such chains begin with."""
CLIENTS = "clients-"
"""What the names of maps of clients begin with."""

MOST_CLIENTS = 1 << 20
MOST = (1 << 31) - 1
"""The largest sum of weights that is drawn from."""

_OWNER_LENGTH = 80
"""Characters of namespace and name that are shown; the digest is what tells names apart."""
_UNNAMEABLE = re.compile(r"[^a-z0-9./-]")


@dataclass(frozen=True, slots=True)
class Clients:
    """The map that remembers the clients of a Service port."""

    name: str
    seconds: int


@dataclass(frozen=True, slots=True)
class OwnChain:
    """A chain that is a Service's own: what it draws, and where it remembers clients."""

    name: str
    kind: SlotKind
    draws: tuple[Draw, ...]
    clients: Clients | None = None

    def text(self, family: FamilyName) -> str:
        """The chain as input of ``nft -f``."""
        if self.clients is None:
            rules = [ruleset.draw_text(family, self.kind, draw) for draw in self.draws]
        else:
            name = self.clients.name
            rules = [
                ruleset.recall_text(family, self.kind, name),
                ruleset.forget_text(family, name),
                *(ruleset.member_text(family, self.kind, draw, name) for draw in self.draws),
                *(ruleset.member_text(family, self.kind, draw) for draw in self.draws),
            ]
        return ruleset.chain_text(family, self.name, rules)


def own_chain(
    owner: str, kind: SlotKind, counts: Mapping[int, int], clients: Clients | None
) -> OwnChain | None:
    """The chain for groups of so many endpoints each, by weight; None if any slot is as good."""
    if clients is None and len(counts) == 1:
        return None
    draws = tuple(_draws(kind.first, counts))
    word = PREFIXES[0] if clients else PREFIXES[1]
    remembering = clients.name if clients else ""
    parts = (owner, kind.name, remembering, *map(str, draws))
    return OwnChain(f"{word}{digest(*parts)}-{readable(owner)}", kind, draws, clients)


def remembering(owner: str, port: str, protocol: str, seconds: int) -> Clients:
    """The clients of a Service port: whichever way they come in, they keep their endpoint."""
    named = digest(owner, port, protocol, str(seconds))
    return Clients(f"{CLIENTS}{named}-{readable(owner)}", seconds)


def readable(owner: str) -> str:
    """Namespace and name, as far as they can be part of a name in the kernel."""
    return _UNNAMEABLE.sub("_", owner)[:_OWNER_LENGTH]


def digest(*parts: str) -> str:
    """What tells names with equal readable parts apart."""
    return hashlib.sha256("\0".join(parts).encode(errors="replace")).hexdigest()[:16]


def scaled(weights: Sequence[int]) -> tuple[int, ...]:
    """Weights that can be drawn from: alike if they are, and never too large in sum."""
    if len(set(weights)) == 1:
        return (1,) * len(weights)
    while sum(weights) > MOST:
        weights = [max(1, weight // 2) for weight in weights]
    return tuple(weights)


def _draws(first: int, counts: Mapping[int, int]) -> Iterable[Draw]:
    """A draw from each group, and the first slot if two transactions met in one packet."""
    left = sum(weight * count for weight, count in counts.items())
    for group, weight in enumerate(sorted(counts)):
        count = counts[weight]
        below = weight * count
        of = left if below < left else 0
        yield Draw(count, first + group * ruleset.GROUP, below if of else 0, of)
        left -= below
    if counts.keys() != {1} or counts[1] > 1:
        yield Draw(1, first)
