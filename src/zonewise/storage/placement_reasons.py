"""Why a volume is where it is, or nowhere: one function per reason, with numbers and a remedy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zonewise.api.reason import Reason
from zonewise.storage.domains import Segments
from zonewise.storage.pools import Pool

MENTIONED = 5
"""How many of many are named in a sentence."""


def matched(pool: Pool, term: Segments) -> Reason:
    """A term has a pool."""
    place = f"pool {pool.name} is in {domain(pool.segments)}"
    if pool.segments != term:
        place += f", the best match for {domain(term)}"
    return Reason(
        code="DomainMatched",
        message=place,
        object=f"Pool/{pool.name}",
        numbers=_room(pool),
    )


def balanced(pool: Pool) -> Reason:
    """No term counts, so the emptiest and healthiest pool does."""
    return Reason(
        code="Balanced",
        message=f"no domain is required; pool {pool.name} has the most free space for its health,"
        " and the volume can be used from everywhere",
        object=f"Pool/{pool.name}",
        numbers=_room(pool),
    )


def default_pool(pool: Pool) -> Reason:
    """The class asks for its default pool."""
    return Reason(
        code="DefaultPool",
        message=f"the class puts every volume into its default pool {pool.name}; it can be used"
        " from everywhere",
        object=f"Pool/{pool.name}",
        numbers=_room(pool),
    )


def new_domain(pool: Pool, terms: Sequence[Segments], pools: Sequence[Pool]) -> Reason:
    """The class lists none of the requested domains."""
    return Reason(
        code="UnknownDomain",
        message=f"no pool of the class is in {_domains(terms)}{_lacking(terms, pools)}, so pool"
        f" {pool.name} was taken as if no domain was required, and the volume can be used from"
        " everywhere",
        object=f"Pool/{pool.name}",
        numbers=_room(pool) | {"terms": len(terms), "pools": len(pools)},
        fix="Add a pool of that domain to the StorageClass; or set placement: preferred, so that"
        " such volumes are refused.",
    )


def unknown_domain(terms: Sequence[Segments], pools: Sequence[Pool]) -> Reason:
    """The same, for a class that takes preferred pools only."""
    return Reason(
        code="UnknownDomain",
        message=f"no pool of the class is in {_domains(terms)}{_lacking(terms, pools)}, and the"
        " class says placement: preferred",
        numbers={"terms": len(terms), "pools": len(pools)},
        fix="Add a pool of that domain to the StorageClass, or remove placement: preferred.",
    )


def exhausted(wanted: int, pools: Sequence[Pool], terms: Sequence[Segments]) -> Reason:
    """Pools match, and none of them can take the volume; without terms all of them match."""
    fitting = [
        pool
        for pool in pools
        if not terms or any(pool.segments.items() <= term.items() for term in terms)
    ]
    where = f" in {_domains(terms)}" if terms else ""
    if not fitting:
        return Reason(
            code="NoPool",
            message=f"there is no pool{where}",
            numbers={"bytes": wanted, "pools": 0},
            fix="Add a pool to the StorageClass or to the driver's configuration.",
        )
    living = [pool for pool in fitting if pool.living]
    largest = max((pool.free for pool in living), default=0)
    said = _listed([_state(pool) for pool in fitting])
    return Reason(
        code="PoolsExhausted",
        message=f"no pool{where} can take {size(wanted)}: {said}",
        object=f"Pool/{fitting[0].name}" if len(fitting) == 1 else "",
        numbers={
            "bytes": wanted,
            "pools": len(fitting),
            "deadPools": len(fitting) - len(living),
            "largestFree": largest,
        },
        fix="Delete volumes there, enlarge a pool, or add one."
        if living
        else "Bring the pools back to life, or add one.",
    )


def away_from_source(pool: str, segments: Segments, why: Reason) -> Reason:
    """A copy would have to leave its source's domain."""
    return Reason(
        code="SourceElsewhere",
        message=f"the source is in pool {pool} ({domain(segments)}), and a copy stays in that"
        f" domain: {why.message}",
        object=f"Pool/{pool}",
        numbers=why.numbers,
        fix="Use it from that domain, or set crossDomain: copy in the StorageClass.",
    )


def unusable(pool: Pool, wanted: int) -> Reason:
    """A pool that matches and cannot take the volume."""
    if not pool.living:
        return Reason(
            code="PoolDead",
            message=f"pool {pool.name} is not alive",
            object=f"Pool/{pool.name}",
            numbers=_room(pool),
        )
    return Reason(
        code="PoolFull",
        message=f"pool {pool.name} has {size(pool.free)} free, {size(wanted)} are wanted",
        object=f"Pool/{pool.name}",
        numbers=_room(pool) | {"bytes": wanted},
    )


def no_pool(term: Segments, pools: Sequence[Pool]) -> Reason:
    """No pool matches a term; names the key if only that is missing."""
    return Reason(
        code="NoPoolInDomain",
        message=f"no pool is in {domain(term)}{_lacking([term], pools)}",
        numbers={"pools": len(pools)},
    )


def domain(segments: Segments) -> str:
    """A domain in words."""
    return ", ".join(f"{name} {value}" for name, value in segments.items()) or "every domain"


def size(amount: int) -> str:
    """Bytes for people: exact, in the largest unit that has no fraction."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount and amount % 1024 == 0 and len(units) > 1:
        amount //= 1024
        units.pop(0)
    return f"{amount} {units[0]}"


def _lacking(terms: Iterable[Segments], pools: Iterable[Pool]) -> str:
    """Names keys that a pool has, a term has not, and nothing else is between them."""
    for term in terms:
        for pool in pools:
            absent = [name for name in pool.segments if name not in term]
            if absent and all(term.get(n, v) == v for n, v in pool.segments.items()):
                return (
                    f" (pool {pool.name} is in {domain(pool.segments)}, and the term says nothing"
                    f" about {' and '.join(absent)})"
                )
    return ""


def _room(pool: Pool) -> dict[str, int | float | str]:
    state = pool.state
    return {
        "free": pool.free,
        "capacity": state.capacity,
        "promised": state.promised,
        "health": str(state.health),
    }


def _state(pool: Pool) -> str:
    return f"{pool.name} has {size(pool.free)} free" if pool.living else f"{pool.name} is not alive"


def _domains(terms: Sequence[Segments]) -> str:
    return (
        _listed([domain(term) for term in terms], "; ") if terms else "a domain that is asked for"
    )


def _listed(texts: Sequence[str], between: str = ", ") -> str:
    more = len(texts) - MENTIONED
    said = between.join(texts[:MENTIONED])
    return f"{said} and {more} more" if more > 0 else said
