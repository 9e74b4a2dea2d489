"""Which pool a volume is cut from, from where it can be used, and why. Pure.

::

    request + pools -> placement{pool, accessible topology, why, what was tried} or a refusal

A requirement is a list of terms. A pool matches a term if all of its segments are in it. The terms
are walked, the preferred ones first, then the requisite ones; a preferred term outside of the
requisite ones does not count. The first term with a live pool that has room is taken, and of
several pools there the one with the most segments, then with the most room. The answer carries the
pool's own segments, never the rest of the term, or a volume of a zone would be bound to one rack.

*   Terms match, but only pools that are full or dead: RESOURCE_EXHAUSTED, which makes a scheduler
    choose another node.
*   No term matches any pool: a domain that the class does not list yet. The volume is placed as if
    nothing was required, and the reason says so; with ``placement: preferred`` it is refused.
*   Nothing is required, or ``placement: balanced``: the pool with the most free bytes times health,
    with an *empty* topology: usable from everywhere. A request cannot say whether its claim binds
    immediately, so a driver that spread such volumes *and* pinned them would make pods with two
    claims unschedulable.

A copy stays in its source's domain wherever a term allows that, in the source's own pool if it has
room: that pool counts also if the copy's class names fewer or other segments of it. Elsewhere it is
made only with ``crossDomain: copy``.

Ties go by a hash of the seed and the pool's name: with the volume's name as the seed, equal pools
fill evenly, and the same request gets the same pool.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from zonewise.api.reason import Reason
from zonewise.storage import placement_reasons as reasons
from zonewise.storage.domains import DomainLabels, Segments
from zonewise.storage.errors import CsiCode, Refusal
from zonewise.storage.parameters import CrossDomain, PlacementPolicy
from zonewise.storage.pools import Pool


@dataclass(frozen=True, slots=True)
class AccessibilityRequirement:
    """From where a volume must be usable: terms of keys and values, as the request has them."""

    requisite: tuple[Mapping[str, str], ...] = ()
    preferred: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementSource:
    """The pool that a source volume or snapshot is in."""

    pool: str
    segments: Segments = field(default_factory=dict)
    """That pool's domain, short names to values, whatever the source's own topology was."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A requested volume."""

    bytes: int
    requirement: AccessibilityRequirement | None = None
    policy: PlacementPolicy = PlacementPolicy.REQUEST
    default_pool: Pool | None = None
    """The class's, which need not be among the pools."""
    source: PlacementSource | None = None
    cross_domain: CrossDomain = CrossDomain.SAME_DOMAIN
    seed: str = ""
    """Breaks ties: the name of the volume spreads, a constant repeats."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A pool that was considered for a term, and the result."""

    term: Mapping[str, str]
    """Short names to values; empty where no term counted."""
    pool: str
    outcome: Reason


@dataclass(frozen=True, slots=True)
class Placement:
    """The answer: a pool or a refusal, exactly one of them."""

    pool: Pool | None
    accessible: tuple[Mapping[str, str], ...]
    """The topology of the answer in keys on the wire; empty is everywhere. Never an empty term."""
    reason: Reason
    tried: tuple[Tried, ...] = ()
    refusal: Refusal | None = None
    copied: bool = False
    """Whether the source is in another pool, so that the copy must stand on its own."""
    crosses: bool = False
    """Whether the source is in another domain."""


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """What GetCapacity answers, in bytes."""

    available: int
    largest: int
    """The largest single volume that could be made."""


def place(request: PlacementRequest, pools: Iterable[Pool], labels: DomainLabels) -> Placement:
    """Where a volume is put; the order of ``pools`` does not matter."""
    offered = sorted(pools, key=lambda pool: pool.name)
    if request.policy is PlacementPolicy.DEFAULT_POOL:
        default = [] if request.default_pool is None else [request.default_pool]
        return _kept_near(request, _Search(request, default, None, reasons.default_pool), labels)
    terms = _terms(request.requirement, labels)
    if request.policy is PlacementPolicy.BALANCED or terms is None:
        return _kept_near(request, _Search(request, offered, None, reasons.balanced), labels)
    if any(_within(pool.segments, term) for term in terms for pool in offered):
        return _kept_near(request, _Search(request, offered, terms, reasons.balanced), labels)
    unmatched = tuple(Tried(term, "", reasons.no_pool(term, offered)) for term in terms)
    if request.policy is PlacementPolicy.PREFERRED:
        return _refused(reasons.unknown_domain(terms, offered), unmatched)
    found = _kept_near(
        request,
        _Search(request, offered, None, lambda pool: reasons.new_domain(pool, terms, offered)),
        labels,
    )
    return replace(found, tried=unmatched + found.tried)


def still_fits(
    requirement: AccessibilityRequirement | None, pinned_to: Segments, labels: DomainLabels
) -> bool:
    """Whether a volume that can be used from one domain is one that a request could have got.

    ``pinned_to`` is empty for a volume that can be used from everywhere. The order of preferences
    does not count: it changes from one attempt to the next. A preferred term inside of a requisite
    one counts like that, because it may be what the volume was placed by.
    """
    if requirement is None or not pinned_to or not _understood(requirement.requisite, labels):
        return True
    return any(_within(pinned_to, term) for term in _terms(requirement, labels) or ())


def free_space(
    pools: Iterable[Pool],
    term: Mapping[str, str] | None,
    labels: DomainLabels,
    policy: PlacementPolicy = PlacementPolicy.REQUEST,
) -> FreeSpace:
    """How much is free for volumes that can be used from a term; for all of them without one.

    What is usable from everywhere by its class counts in every term, or a scheduler that checks
    capacity would not choose a node there; with ``default-pool`` that pool must be given. A domain
    that the class has no pool in has no room: with others to choose from, its volumes go there.
    """
    said = labels.understood(term) if term else {}
    anywhere = policy in (PlacementPolicy.BALANCED, PlacementPolicy.DEFAULT_POOL) or not said
    free = [one.free for one in pools if one.living and (anywhere or _within(one.segments, said))]
    return FreeSpace(sum(free), max(free, default=0))


@dataclass(frozen=True, slots=True)
class _Search:
    """Some pools, and the terms that are walked; None where every pool will do."""

    request: PlacementRequest
    pools: Sequence[Pool]
    terms: Sequence[Segments] | None
    why: Callable[[Pool], Reason]
    """The reason for a pool that was taken without a term."""

    def found(self, labels: DomainLabels) -> Placement:
        """The pool that is taken, or why none."""
        if self.terms is None:
            return self._everywhere()
        tried: list[Tried] = []
        for term in self.terms:
            matching = [pool for pool in self.pools if _within(pool.segments, term)]
            if not matching:
                tried.append(Tried(term, "", reasons.no_pool(term, self.pools)))
            tried += self._unusable(term, matching)
            if best := self._best(matching, lambda pool: (len(pool.segments), pool.free)):
                why = reasons.matched(best, term)
                tried.append(Tried(term, best.name, why))
                topology = labels.keyed(best.segments)
                return Placement(best, (topology,) if topology else (), why, tuple(tried))
        return _refused(reasons.exhausted(self.request.bytes, self.pools, self.terms), tried)

    def _everywhere(self) -> Placement:
        tried = self._unusable({}, self.pools)
        if best := self._best(self.pools, lambda pool: (pool.worth,)):
            why = self.why(best)
            return Placement(best, (), why, (*tried, Tried({}, best.name, why)))
        return _refused(reasons.exhausted(self.request.bytes, self.pools, ()), tried)

    def _unusable(self, term: Segments, pools: Iterable[Pool]) -> list[Tried]:
        wanted = self.request.bytes
        return [
            Tried(term, pool.name, reasons.unusable(pool, wanted))
            for pool in pools
            if not pool.can_take(wanted)
        ]

    def _best(
        self, pools: Iterable[Pool], rank: Callable[[Pool], tuple[int | Fraction, ...]]
    ) -> Pool | None:
        """The best that is alive and has room; a source's own pool before its neighbours."""
        home = "" if self.request.source is None else self.request.source.pool
        return max(
            (pool for pool in pools if pool.can_take(self.request.bytes)),
            key=lambda pool: (pool.name == home, rank(pool), _draw(self.request.seed, pool.name)),
            default=None,
        )


def _kept_near(request: PlacementRequest, search: _Search, labels: DomainLabels) -> Placement:
    """What a search finds in the domain of the source, and elsewhere only if the class agrees."""
    source = request.source
    if source is None:
        return search.found(labels)
    near = [
        pool
        for pool in search.pools
        if pool.name == source.pool or pool.segments == source.segments
    ]
    found = replace(search, pools=near).found(labels)
    if found.pool is not None:
        return replace(found, copied=found.pool.name != source.pool)
    if request.cross_domain is CrossDomain.SAME_DOMAIN:
        why = reasons.away_from_source(source.pool, source.segments, found.reason)
        return _refused(why, found.tried)
    far = [pool for pool in search.pools if pool not in near]
    elsewhere = replace(search, pools=far).found(labels)
    tried = found.tried + elsewhere.tried
    if elsewhere.pool is None:
        return _refused(elsewhere.reason, tried)
    return replace(elsewhere, tried=tried, copied=True, crosses=True)


def _refused(why: Reason, tried: Iterable[Tried]) -> Placement:
    return Placement(None, (), why, tuple(tried), Refusal(CsiCode.RESOURCE_EXHAUSTED, why))


def _terms(
    requirement: AccessibilityRequirement | None, labels: DomainLabels
) -> list[Segments] | None:
    """The terms in the order they are tried, each once; None if nothing is required.

    A term that says nothing about domains is no term. If that leaves none at all, the requirement
    names an unknown domain, which is not the same as no requirement.
    """
    if requirement is None or not labels.labels:
        return None
    if not (requirement.requisite or requirement.preferred):
        return None
    requisite = _understood(requirement.requisite, labels)
    found: list[Segments] = []
    for term in _understood(requirement.preferred, labels):
        inside = not requisite or any(_within(one, term) for one in requisite)
        if inside and term not in found:
            found.append(term)
    found += [term for term in requisite if term not in found]
    return found


def _understood(terms: Iterable[Mapping[str, str]], labels: DomainLabels) -> list[Segments]:
    return [said for term in terms if (said := labels.understood(term))]


def _within(segments: Segments, term: Segments) -> bool:
    """Whether all of these segments are in a term."""
    return segments.items() <= term.items()


def _draw(seed: str, pool: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{pool}".encode()).digest()
