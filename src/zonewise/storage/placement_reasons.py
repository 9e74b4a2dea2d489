"""Reasons for the placement of a volume, or its refusal, with numbers and a fix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zonewise.api.reason import Reason
from zonewise.storage.domains import Segments
from zonewise.storage.pools import Pool

MENTION_LIMIT = 5
"""How many items of a long list are named in a sentence."""


def matched(pool: Pool, term: Segments) -> Reason:
    """A pool matches a term."""
    message = f"pool {pool.name} is in {describe_domain(pool.segments)}"
    if pool.segments != term:
        message += f", the best match for {describe_domain(term)}"
    return Reason(
        code="DomainMatched",
        message=message,
        object=f"Pool/{pool.name}",
        numbers=_pool_numbers(pool),
    )


def balanced(pool: Pool) -> Reason:
    """Nothing is required, so the pool with the most free space for its health is taken."""
    return Reason(
        code="Balanced",
        message=f"no domain is required; pool {pool.name} has the most free space for its health,"
        " and the volume can be used from everywhere",
        object=f"Pool/{pool.name}",
        numbers=_pool_numbers(pool),
    )


def default_pool(pool: Pool) -> Reason:
    """The class says placement: default-pool."""
    return Reason(
        code="DefaultPool",
        message=f"the class puts every volume into its default pool {pool.name}; it can be used"
        " from everywhere",
        object=f"Pool/{pool.name}",
        numbers=_pool_numbers(pool),
    )


def new_domain(
    pool: Pool, terms: Sequence[Segments], pools: Sequence[Pool], class_name: str = ""
) -> Reason:
    """The class has no pool in the requested domains, so another pool is taken."""
    return Reason(
        code="UnknownDomain",
        message=f"{_no_pool_of_class(terms, pools, class_name)}, so pool {pool.name} was taken as"
        " if no domain was required, and the volume can be used from everywhere",
        object=f"Pool/{pool.name}",
        numbers=_pool_numbers(pool) | {"terms": len(terms), "pools": len(pools)},
        fix="Add a pool of that domain to the StorageClass; or set placement: preferred, so that"
        " pods with such volumes run elsewhere.",
    )


def unknown_domain(
    terms: Sequence[Segments], pools: Sequence[Pool], class_name: str = ""
) -> Reason:
    """The class has no pool in the requested domains, and says placement: preferred."""
    return Reason(
        code="UnknownDomain",
        message=f"{_no_pool_of_class(terms, pools, class_name)}, and the class says placement:"
        " preferred",
        numbers={"terms": len(terms), "pools": len(pools)},
        fix="Add a pool of that domain to the StorageClass, or remove placement: preferred.",
    )


def exhausted(required: int, pools: Sequence[Pool], terms: Sequence[Segments]) -> Reason:
    """No pool that matches can take the volume; without terms every pool matches."""
    matches = [
        pool
        for pool in pools
        if not terms or any(pool.segments.items() <= term.items() for term in terms)
    ]
    where = f" in {_describe_domains(terms)}" if terms else ""
    if not matches:
        return Reason(
            code="NoPool",
            message=f"there is no pool{where}",
            numbers={"bytes": required, "pools": 0},
            fix="Add a pool to the StorageClass or to the driver's configuration.",
        )
    alive = [pool for pool in matches if pool.alive]
    largest = max((pool.free for pool in alive), default=0)
    states = _join([_describe_state(pool) for pool in matches])
    return Reason(
        code="PoolsExhausted",
        message=f"no pool{where} can take {format_size(required)}: {states}",
        object=f"Pool/{matches[0].name}" if len(matches) == 1 else "",
        numbers={
            "bytes": required,
            "pools": len(matches),
            "deadPools": len(matches) - len(alive),
            "largestFree": largest,
        },
        fix="Delete volumes there, enlarge a pool, or add one."
        if alive
        else "Repair the pools, or add one.",
    )


def away_from_source(pool: str, segments: Segments, reason: Reason) -> Reason:
    """A copy would have to leave its source's domain."""
    return Reason(
        code="SourceElsewhere",
        message=f"the source is in pool {pool} ({describe_domain(segments)}), and a copy stays in"
        f" that domain: {reason.message}",
        object=f"Pool/{pool}",
        numbers=reason.numbers,
        fix="Use it from that domain, or set crossDomain: copy in the StorageClass.",
    )


def unusable(pool: Pool, required: int) -> Reason:
    """A pool that matches and cannot take the volume."""
    if not pool.alive:
        return Reason(
            code="PoolDead",
            message=f"pool {pool.name} is not alive",
            object=f"Pool/{pool.name}",
            numbers=_pool_numbers(pool),
        )
    return Reason(
        code="PoolFull",
        message=f"pool {pool.name} has {format_size(pool.free)} free, {format_size(required)} are"
        " requested",
        object=f"Pool/{pool.name}",
        numbers=_pool_numbers(pool) | {"bytes": required},
    )


def no_pool(term: Segments, pools: Sequence[Pool]) -> Reason:
    """No pool matches a term; names the keys if only these are missing."""
    return Reason(
        code="NoPoolInDomain",
        message=f"no pool is in {describe_domain(term)}{_describe_missing_keys([term], pools)}",
        numbers={"pools": len(pools)},
    )


def describe_domain(segments: Segments) -> str:
    """A domain in words."""
    return ", ".join(f"{name} {value}" for name, value in segments.items()) or "every domain"


def format_size(amount: int) -> str:
    """A number of bytes in words: exact, in the largest unit without a fraction."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while amount and amount % 1024 == 0 and len(units) > 1:
        amount //= 1024
        units.pop(0)
    return f"{amount} {units[0]}"


def _no_pool_of_class(terms: Sequence[Segments], pools: Sequence[Pool], class_name: str) -> str:
    missing = _describe_missing_keys(terms, pools)
    name = f"class {class_name}" if class_name else "the class"
    return f"{name} has no pool in {_describe_domains(terms)}{missing}"


def _describe_missing_keys(terms: Iterable[Segments], pools: Iterable[Pool]) -> str:
    """Names the keys of a pool that a term lacks, if the term agrees in all others."""
    for term in terms:
        for pool in pools:
            missing = [name for name in pool.segments if name not in term]
            if missing and all(term.get(n, v) == v for n, v in pool.segments.items()):
                return (
                    f" (pool {pool.name} is in {describe_domain(pool.segments)}, and the term has"
                    f" no {' and no '.join(missing)})"
                )
    return ""


def _pool_numbers(pool: Pool) -> dict[str, int | float | str]:
    state = pool.state
    return {
        "free": pool.free,
        "capacity": state.capacity,
        "promised": state.promised,
        "health": str(state.health),
    }


def _describe_state(pool: Pool) -> str:
    state = f"has {format_size(pool.free)} free" if pool.alive else "is not alive"
    return f"{pool.name} {state}"


def _describe_domains(terms: Sequence[Segments]) -> str:
    return _join([describe_domain(term) for term in terms], "; ") if terms else "a requested domain"


def _join(texts: Sequence[str], separator: str = ", ") -> str:
    more = len(texts) - MENTION_LIMIT
    joined = separator.join(texts[:MENTION_LIMIT])
    return f"{joined} and {more} more" if more > 0 else joined
