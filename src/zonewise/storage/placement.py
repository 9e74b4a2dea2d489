"""Which pool a volume is cut from, from where it can be used, and why. Pure.

::

    request + pools -> placement{pool, accessible topology, reason, pools tried} or a refusal

A requirement is a list of terms. A pool matches a term if all of its segments are in it. The terms
are walked, the preferred ones first, then the requisite ones; a preferred term outside of the
requisite ones does not count. The first term with a live pool that has room is taken, and of
several pools there the one with the most segments, then with the most room. The answer carries the
pool's own segments, never the rest of the term, or a volume of a zone would be bound to one rack.

*   Terms match, but only pools that are full or dead: RESOURCE_EXHAUSTED, which makes a scheduler
    choose another node.
*   No pool matches the first preferred term, where the pod will run, or any term at all: a domain
    that the class does not list yet. A pool of the other terms, if there is one, would pin the
    volume where its pod is not. So it is placed as if nothing was required, in a pool of the
    requested domains if there is one, and the reason says so; with ``placement: preferred`` the
    walk goes on, and is refused at its end.
*   Nothing is required, or ``placement: balanced``: the pool with the most free bytes times health,
    with an *empty* topology: usable from everywhere. A request cannot say whether its claim binds
    immediately, so a driver that spread such volumes *and* pinned them would make pods with two
    claims unschedulable.

*   ``placement: default-pool``: that pool or none, usable from everywhere.

A copy stays in its source's domain wherever a term allows that, in the source's own pool if it has
room: that pool counts also if the copy's class names fewer or other segments of it. Elsewhere it is
made only with ``crossDomain: copy``; then the first preferred term comes before the source's
domain, and the other terms after it.

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

    required_bytes: int
    requirement: AccessibilityRequirement | None = None
    policy: PlacementPolicy = PlacementPolicy.REQUEST
    default_pool: Pool | None = None
    """The default pool of the class; it need not be among the pools."""
    source: PlacementSource | None = None
    cross_domain: CrossDomain = CrossDomain.SAME_DOMAIN
    seed: str = ""
    """Breaks ties: the name of the volume spreads, a constant repeats."""
    class_name: str = ""
    """For reasons; a driver is not told the name of a class."""


@dataclass(frozen=True, slots=True)
class TriedPool:
    """A pool that was considered for a term, and why it was taken or not."""

    term: Mapping[str, str]
    """Short names to values; empty where no term counted."""
    pool: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Placement:
    """The answer: a pool or a refusal, exactly one of them."""

    pool: Pool | None
    accessible_topology: tuple[Mapping[str, str], ...]
    """Terms with the keys of the wire, none of them empty; no term at all is everywhere."""
    reason: Reason
    tried: tuple[TriedPool, ...] = ()
    refusal: Refusal | None = None
    is_full_copy: bool = False
    """Whether the source is in another pool, so that the copy cannot share data with it."""
    crosses_domains: bool = False
    """Whether the source is in another domain."""


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """What GetCapacity answers, in bytes."""

    available: int
    largest: int
    """The largest single volume that could be made."""


def place_volume(
    request: PlacementRequest, pools: Iterable[Pool], labels: DomainLabels
) -> Placement:
    """Choose the pool of a volume; the order of ``pools`` does not matter."""
    candidates = sorted(pools, key=lambda pool: pool.name)
    if request.policy is PlacementPolicy.DEFAULT_POOL:
        default = [] if request.default_pool is None else [request.default_pool]
        return _find_pool_near_source(
            request, _Search(request, default, None, reasons.default_pool), labels
        )
    terms = _ordered_terms(request.requirement, labels)
    if request.policy is PlacementPolicy.BALANCED or terms is None:
        search = _Search(request, candidates, None, reasons.balanced)
        return _find_pool_near_source(request, search, labels)
    first = _preferred_terms(request.requirement, labels)[:1]
    known = [pool for pool in candidates if _is_in_any(pool, terms)]
    is_new = not any(_is_in_any(pool, first or terms) for pool in candidates)
    if known and (not is_new or request.policy is PlacementPolicy.PREFERRED):
        search = _Search(request, candidates, terms, reasons.balanced)
        return _find_pool_near_source(request, search, labels, first)
    missing = first or terms
    unmatched = tuple(
        TriedPool(term, "", reasons.no_pool(term, candidates))
        for term in (first if known else terms)
    )
    if request.policy is PlacementPolicy.PREFERRED:
        return _refuse(reasons.unknown_domain(terms, candidates, request.class_name), unmatched)
    anywhere = _Search(
        request,
        known or candidates,
        None,
        lambda pool: reasons.new_domain(pool, missing, candidates, request.class_name),
    )
    placement = _find_pool_near_source(request, anywhere, labels)
    return replace(placement, tried=unmatched + placement.tried)


def fits_requirement(
    requirement: AccessibilityRequirement | None, pinned_to: Segments, labels: DomainLabels
) -> bool:
    """Whether a volume that can be used from one domain is one that a request could have got.

    ``pinned_to`` is empty for a volume that can be used from everywhere. The order of preferences
    does not count: it changes from one attempt to the next. A preferred term inside of a requisite
    one counts like that, because it may be what the volume was placed by.
    """
    if requirement is None or not pinned_to or not _domain_terms(requirement.requisite, labels):
        return True
    return any(_is_within(pinned_to, term) for term in _ordered_terms(requirement, labels) or ())


def free_space(
    pools: Iterable[Pool],
    term: Mapping[str, str] | None,
    labels: DomainLabels,
    policy: PlacementPolicy = PlacementPolicy.REQUEST,
) -> FreeSpace:
    """How much is free for volumes that can be used from a term; without a term, in total.

    Volumes that can be used from everywhere by their class count in every term, or a scheduler that
    checks capacity would not choose a node there; with ``default-pool`` that pool must be given.
    For the same reason a domain without a pool of the class has the space that volumes for it are
    cut from, that of all pools; with ``placement: preferred`` it has none, and a scheduler chooses
    another domain.
    """
    candidates = list(pools)
    segments = labels.segments_of(term) if term else {}
    anywhere = policy in (PlacementPolicy.BALANCED, PlacementPolicy.DEFAULT_POOL) or not segments
    if not anywhere and policy is not PlacementPolicy.PREFERRED:
        anywhere = not any(_is_within(pool.segments, segments) for pool in candidates)
    free = [
        pool.free
        for pool in candidates
        if pool.alive and (anywhere or _is_within(pool.segments, segments))
    ]
    return FreeSpace(sum(free), max(free, default=0))


@dataclass(frozen=True, slots=True)
class _Search:
    """Pools to choose from, and the terms to walk; None if nothing is required."""

    request: PlacementRequest
    pools: Sequence[Pool]
    terms: Sequence[Segments] | None
    reason_for: Callable[[Pool], Reason]
    """Gives the reason for a pool that is taken without a term."""

    def find_pool(self, labels: DomainLabels) -> Placement:
        """Choose a pool, or say why there is none."""
        if self.terms is None:
            return self._find_pool_anywhere()
        tried: list[TriedPool] = []
        for term in self.terms:
            matches = [pool for pool in self.pools if _is_within(pool.segments, term)]
            if not matches:
                tried.append(TriedPool(term, "", reasons.no_pool(term, self.pools)))
            tried += self._list_unusable(term, matches)
            if best := self._choose_best(matches, lambda pool: (len(pool.segments), pool.free)):
                reason = reasons.matched(best, term)
                tried.append(TriedPool(term, best.name, reason))
                topology = labels.to_wire(best.segments)
                return Placement(best, (topology,) if topology else (), reason, tuple(tried))
        reason = reasons.exhausted(self.request.required_bytes, self.pools, self.terms)
        return _refuse(reason, tried)

    def _find_pool_anywhere(self) -> Placement:
        tried = self._list_unusable({}, self.pools)
        if best := self._choose_best(self.pools, lambda pool: (pool.effective_free,)):
            reason = self.reason_for(best)
            return Placement(best, (), reason, (*tried, TriedPool({}, best.name, reason)))
        return _refuse(reasons.exhausted(self.request.required_bytes, self.pools, ()), tried)

    def _list_unusable(self, term: Segments, pools: Iterable[Pool]) -> list[TriedPool]:
        required = self.request.required_bytes
        return [
            TriedPool(term, pool.name, reasons.unusable(pool, required))
            for pool in pools
            if not pool.can_take(required)
        ]

    def _choose_best(
        self, pools: Iterable[Pool], rank: Callable[[Pool], tuple[int | Fraction, ...]]
    ) -> Pool | None:
        """The best pool that is alive and has room; the source's own pool comes first."""
        home = "" if self.request.source is None else self.request.source.pool
        return max(
            (pool for pool in pools if pool.can_take(self.request.required_bytes)),
            key=lambda pool: (
                pool.name == home,
                rank(pool),
                _break_tie(self.request.seed, pool.name),
            ),
            default=None,
        )


def _find_pool_near_source(
    request: PlacementRequest,
    search: _Search,
    labels: DomainLabels,
    first: Sequence[Segments] = (),
) -> Placement:
    """Search in the domain of the source first, and elsewhere only if the class allows that.

    ``first`` is the most preferred term: a copy that may leave its source's domain goes there.
    """
    source = request.source
    if source is None:
        return search.find_pool(labels)
    near_pools = [
        pool
        for pool in search.pools
        if pool.name == source.pool or pool.segments == source.segments
    ]
    near = replace(search, pools=near_pools)
    if request.cross_domain is CrossDomain.SAME_DOMAIN:
        placement = near.find_pool(labels)
        if placement.pool is None:
            reason = reasons.away_from_source(source.pool, source.segments, placement.reason)
            return _refuse(reason, placement.tried)
        return replace(placement, is_full_copy=placement.pool.name != source.pool)
    far_pools = [pool for pool in search.pools if pool not in near_pools]
    searches = [near, replace(search, pools=far_pools)]
    if first:
        searches.insert(0, replace(search, terms=first))
    tried: list[TriedPool] = []
    for each in searches:
        placement = each.find_pool(labels)
        tried += [item for item in placement.tried if item not in tried]
        if placement.pool is not None:
            return replace(
                placement,
                tried=tuple(tried),
                is_full_copy=placement.pool.name != source.pool,
                crosses_domains=placement.pool not in near_pools,
            )
    return _refuse(placement.reason, tried)


def _refuse(reason: Reason, tried: Iterable[TriedPool]) -> Placement:
    return Placement(None, (), reason, tuple(tried), Refusal(CsiCode.RESOURCE_EXHAUSTED, reason))


def _ordered_terms(
    requirement: AccessibilityRequirement | None, labels: DomainLabels
) -> list[Segments] | None:
    """The terms in the order they are tried, each once; None if nothing is required.

    A term that names no domain does not count. If no term is left, the requirement names an unknown
    domain, which is not the same as no requirement.
    """
    if requirement is None or not labels.labels:
        return None
    if not (requirement.requisite or requirement.preferred):
        return None
    terms = _preferred_terms(requirement, labels)
    terms += [term for term in _domain_terms(requirement.requisite, labels) if term not in terms]
    return terms


def _preferred_terms(
    requirement: AccessibilityRequirement | None, labels: DomainLabels
) -> list[Segments]:
    """The preferred terms that count, each once."""
    if requirement is None:
        return []
    requisite = _domain_terms(requirement.requisite, labels)
    terms: list[Segments] = []
    for term in _domain_terms(requirement.preferred, labels):
        inside = not requisite or any(_is_within(wider, term) for wider in requisite)
        if inside and term not in terms:
            terms.append(term)
    return terms


def _domain_terms(terms: Iterable[Mapping[str, str]], labels: DomainLabels) -> list[Segments]:
    return [segments for term in terms if (segments := labels.segments_of(term))]


def _is_in_any(pool: Pool, terms: Iterable[Segments]) -> bool:
    """Whether a pool matches one of the terms."""
    return any(_is_within(pool.segments, term) for term in terms)


def _is_within(segments: Segments, term: Segments) -> bool:
    """Whether a term has all of these segments."""
    return segments.items() <= term.items()


def _break_tie(seed: str, pool: str) -> bytes:
    return hashlib.sha256(f"{seed}\0{pool}".encode()).digest()
