"""Where volumes are put: the scenarios of the design, and properties of every placement."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.placement_cases import decided, pool_of
from tests.storage.placement_model import Case, drawn_case

from zonewise.storage.domains import build_domain_labels, parse_domain_labels
from zonewise.storage.errors import CsiCode
from zonewise.storage.parameters import CrossDomain, PlacementPolicy
from zonewise.storage.placement import (
    AccessibilityRequirement,
    FreeSpace,
    Placement,
    PlacementRequest,
    PlacementSource,
    fits_requirement,
    free_space,
    place_volume,
)
from zonewise.storage.pools import Pool, PoolSpec, PoolState

DRIVER = "csi.zonewise.io"
LABELS = parse_domain_labels("example.com/region;example.com/zone;example.com/rack", DRIVER)
KEY = f"topology.{DRIVER}"
GI = 2**30


def pool(
    name: str,
    *,
    free: int = 10 * GI,
    health: Fraction = Fraction(1),
    alive: bool = True,
    **segments: str,
) -> Pool:
    """A pool in a domain."""
    return Pool(PoolSpec(name, "", segments), PoolState(free, 0, health, alive))


def term(**segments: str) -> dict[str, str]:
    """A term with the driver's keys."""
    return {f"{KEY}/{name}": value for name, value in segments.items()}


ZONES = (pool("a", zone="a"), pool("b", zone="b"), pool("c", zone="c"))
A, B, C = term(zone="a"), term(zone="b"), term(zone="c")


def request(
    *,
    requisite: tuple[Mapping[str, str], ...] = (),
    preferred: tuple[Mapping[str, str], ...] = (),
    size: int = GI,
    policy: PlacementPolicy = PlacementPolicy.REQUEST,
    seed: str = "",
) -> PlacementRequest:
    """A request for a volume."""
    return PlacementRequest(size, AccessibilityRequirement(requisite, preferred), policy, seed=seed)


def name(placement: Placement) -> str:
    """The pool that was chosen."""
    assert placement.pool is not None, placement.reason
    return placement.pool.name


def test_the_first_preference() -> None:
    """The pod's zone is first in the preference; the answer has its pool and its zone only."""
    got = place_volume(request(requisite=(A, B, C), preferred=(B, C, A)), ZONES, LABELS)
    assert name(got) == "b"
    assert got.accessible_topology == (B,)
    assert got.reason.code == "DomainMatched"
    assert [tried.pool for tried in got.tried] == ["b"]


def test_the_second_preference() -> None:
    """Where no term is preferred, or the class is strict, a zone without a pool is passed over."""
    strict = request(requisite=(A, B), preferred=(B, A), policy=PlacementPolicy.PREFERRED)
    for passing_over in (strict, request(requisite=(B, A))):
        got = place_volume(passing_over, ZONES[:1], LABELS)
        assert (name(got), got.accessible_topology) == ("a", (A,))
        assert [(tried.pool, tried.reason.code) for tried in got.tried] == [
            ("", "NoPoolInDomain"),
            ("a", "DomainMatched"),
        ]


def test_the_pods_zone_has_no_pool() -> None:
    """A pod in a zone that the class does not know gets a volume that it can use there, from the
    best pool of the requested zones.
    """
    pools = [*ZONES[:2], pool("big", free=99 * GI, zone="d")]
    got = place_volume(request(requisite=(A, B, C), preferred=(C, A, B)), pools, LABELS)
    assert name(got) in ("a", "b")
    assert (got.accessible_topology, got.reason.code) == ((), "UnknownDomain")
    assert got.reason.message.startswith("the class has no pool in zone c, so pool ")
    named = replace(request(requisite=(C,), preferred=(C,)), class_name="fast")
    assert "class fast has no pool in zone c" in place_volume(named, pools, LABELS).reason.message
    strictly = request(requisite=(C,), preferred=(C,))
    assert name(place_volume(strictly, pools, LABELS)) == "big"


def test_only_requisite() -> None:
    """Without preferences the requisite terms are walked in their order."""
    assert name(place_volume(request(requisite=(C, A)), ZONES, LABELS)) == "c"


@pytest.mark.parametrize("full", [pool("b", free=0, zone="b"), pool("b", alive=False, zone="b")])
def test_a_full_or_dead_pool_is_passed_over(full: Pool) -> None:
    """The next term is used if a zone's pool is full or dead, and the reason names it."""
    got = place_volume(request(requisite=(A, B), preferred=(B, A)), [ZONES[0], full], LABELS)
    assert name(got) == "a"
    assert got.tried[0].pool == "b"
    assert got.tried[0].reason.code == ("PoolFull" if full.alive else "PoolDead")


def test_only_full_pools() -> None:
    """If all matching pools are full or dead, the error makes the scheduler choose again."""
    pools = [pool("a", free=GI - 1, zone="a"), ZONES[1], pool("x", alive=False, zone="a")]
    got = place_volume(request(requisite=(A,), preferred=(A,)), pools, LABELS)
    assert got.refusal is not None
    assert got.refusal.code is CsiCode.RESOURCE_EXHAUSTED
    assert got.reason == got.refusal.reason
    assert got.reason.code == "PoolsExhausted"
    assert got.reason.numbers == {
        "bytes": GI,
        "pools": 2,
        "deadPools": 1,
        "largestFree": GI - 1,
    }
    assert got.reason.message == (
        "no pool in zone a can take 1 GiB: a has 1073741823 bytes free, x is not alive"
    )
    assert got.reason.fix


def test_a_new_zone() -> None:
    """A zone that the class does not know is placed as if nothing was required, with a reason."""
    got = place_volume(request(requisite=(term(zone="new"),)), ZONES, LABELS)
    assert got.accessible_topology == ()
    assert got.reason.code == "UnknownDomain"
    assert "zone new" in got.reason.message
    strict = request(requisite=(term(zone="new"),), policy=PlacementPolicy.PREFERRED)
    refused = place_volume(strict, ZONES, LABELS)
    assert refused.refusal is not None
    assert refused.refusal.code is CsiCode.RESOURCE_EXHAUSTED


def test_unknown_preferences() -> None:
    """With unknown preferences only, any pool can be used."""
    got = place_volume(request(preferred=(term(zone="x"), term(zone="y"))), ZONES, LABELS)
    assert got.accessible_topology == ()


def test_a_preference_outside_of_what_is_required() -> None:
    """A preferred term that is not a requisite one does not count."""
    assert name(place_volume(request(requisite=(C,), preferred=(A, C)), ZONES, LABELS)) == "c"


def test_fewer_keys_than_nodes_have() -> None:
    """Terms of allowedTopologies with the zone only are enough for pools of a zone."""
    zone = {"example.com/zone": "b"}
    got = place_volume(request(requisite=(zone,), preferred=(zone,)), ZONES, LABELS)
    assert got.accessible_topology == (B,)


def test_a_missing_key_is_named() -> None:
    """A pool that declares more than a term says does not match, and the missing key is named."""
    pools = [pool("b", region="r1", zone="b")]
    got = place_volume(request(requisite=(B,)), pools, LABELS)
    assert got.accessible_topology == ()
    assert "pool b is in region r1, zone b, and the term has no region" in str(got.reason)


def test_a_volume_is_not_bound_to_a_rack() -> None:
    """Terms have racks, the pool has a zone: the volume can be used in the whole zone."""
    got = place_volume(request(requisite=(term(region="r", zone="b", rack="7"),)), ZONES, LABELS)
    assert got.accessible_topology == (B,)


def test_the_same_zone_name_in_two_regions() -> None:
    """Region and zone together tell two zones of one name apart."""
    pools = [pool("p1", region="r1", zone="a"), pool("p2", region="r2", zone="a")]
    got = place_volume(request(requisite=(term(region="r2", zone="a", rack="1"),)), pools, LABELS)
    assert name(got) == "p2"
    assert list(got.accessible_topology[0].items()) == [
        (f"{KEY}/region", "r2"),
        (f"{KEY}/zone", "a"),
    ]


def test_the_nearest_pool_then_the_emptiest() -> None:
    """Of several pools for a term the one with more segments wins, then the one with more room."""
    wide = pool("wide", free=90 * GI, region="r")
    small, large = pool("s", region="r", zone="a"), pool("l", free=20 * GI, region="r", zone="a")
    here = request(requisite=(term(region="r", zone="a"),))
    assert name(place_volume(here, [wide, small, large], LABELS)) == "l"
    full = replace(large, state=PoolState(GI, GI))
    assert name(place_volume(here, [wide, small, full], LABELS)) == "s"
    assert name(place_volume(here, [wide, full], LABELS)) == "wide"


def test_empty_terms() -> None:
    """Terms that are empty or have only other keys are ignored; no answer has an empty term."""
    got = place_volume(request(requisite=({}, {"kubernetes.io/os": "linux"}, C)), ZONES, LABELS)
    assert got.accessible_topology == (C,)
    got = place_volume(request(requisite=({},), preferred=({},)), ZONES, LABELS)
    assert got.accessible_topology == ()
    assert got.pool is not None


def test_a_pool_of_no_domain() -> None:
    """A pool without segments is the last choice for every term; its volumes go anywhere."""
    wide = pool("wide", free=99 * GI)
    assert name(place_volume(request(requisite=(A,)), [wide, *ZONES], LABELS)) == "a"
    got = place_volume(request(requisite=(term(zone="new"),)), [wide, *ZONES], LABELS)
    assert (name(got), got.accessible_topology) == ("wide", ())


@pytest.mark.parametrize("requirement", [None, AccessibilityRequirement()])
def test_nothing_is_required(requirement: AccessibilityRequirement | None) -> None:
    """Without a requirement, free bytes times health decide, and the topology is empty."""
    pools = [
        pool("a", free=10 * GI, zone="a"),
        pool("b", free=15 * GI, health=Fraction(1, 2), zone="b"),
        pool("c", free=99 * GI, alive=False, zone="c"),
        pool("d", free=99 * GI, health=Fraction(0), zone="d"),
    ]
    got = place_volume(PlacementRequest(GI, requirement), pools, LABELS)
    assert (name(got), got.accessible_topology) == ("a", ())
    got = place_volume(PlacementRequest(12 * GI, requirement), pools, LABELS)
    assert name(got) == "b"


def test_balanced_by_choice() -> None:
    """A class with the policy balanced ignores where its pods are, and pins nothing."""
    pools = [*ZONES, pool("big", free=99 * GI, zone="d")]
    got = place_volume(request(requisite=(A,), policy=PlacementPolicy.BALANCED), pools, LABELS)
    assert (name(got), got.accessible_topology) == ("big", ())


def test_the_default_pool() -> None:
    """A class may use only its default pool, which is reachable from everywhere."""
    base = request(requisite=(A,), policy=PlacementPolicy.DEFAULT_POOL)
    got = place_volume(replace(base, default_pool=pool("d", zone="z")), ZONES, LABELS)
    assert (name(got), got.accessible_topology, got.reason.code) == ("d", (), "DefaultPool")
    full = place_volume(replace(base, default_pool=pool("d", free=0)), ZONES, LABELS)
    assert full.refusal is not None


def test_equal_pools_fill_evenly() -> None:
    """Three hundred volumes spread over three equal pools, in the same way in every run."""

    def run(size: int) -> list[str]:
        promised: Counter[str] = Counter()
        chosen = []
        for number in range(300):
            pools = [
                replace(free_pool, state=PoolState(1000 * GI, promised[free_pool.name] * size))
                for free_pool in ZONES
            ]
            got = name(place_volume(PlacementRequest(GI, seed=f"pvc-{number}"), pools, LABELS))
            promised[got] += 1
            chosen.append(got)
        return chosen

    assert set(Counter(run(GI)).values()) == {100}
    # Even where nothing is promised, the names alone spread them.
    assert min(Counter(run(0)).values()) > 70
    assert run(0) == run(0)
    assert len({tuple(run(0)[n : n + 3]) for n in range(0, 300, 3)}) > 10


def test_without_domain_labels() -> None:
    """A driver without domain labels places as if nothing was required, whatever is requested."""
    bare = build_domain_labels((), DRIVER)
    strict = request(requisite=(A,), policy=PlacementPolicy.PREFERRED)
    got = place_volume(strict, ZONES, bare)
    assert (got.accessible_topology, got.refusal) == ((), None)


def test_no_pool_at_all() -> None:
    """A class without pools is refused with that reason."""
    got = place_volume(PlacementRequest(1), [], LABELS)
    assert got.reason.code == "NoPool"


def copy_of(where: str) -> PlacementRequest:
    """A request for a copy of what is in a pool of a zone."""
    base = request(requisite=(A, B, C), preferred=(B, C, A))
    return replace(base, source=PlacementSource(where, {"zone": where}))


def test_a_copy_stays_with_its_source() -> None:
    """A copy is made in its source's pool if a term allows it, even if another is preferred."""
    got = place_volume(copy_of("a"), [*ZONES, pool("a2", free=99 * GI, zone="a")], LABELS)
    assert (name(got), got.accessible_topology, got.is_full_copy, got.crosses_domains) == (
        "a",
        (A,),
        False,
        False,
    )


def test_a_copy_in_the_neighbour_pool() -> None:
    """If its source's pool is full, a copy goes to another pool of the same domain."""
    got = place_volume(copy_of("a"), [pool("a", free=0, zone="a"), pool("a2", zone="a")], LABELS)
    assert (name(got), got.is_full_copy, got.crosses_domains) == ("a2", True, False)


def test_a_copy_by_a_class_that_says_less_of_the_pool() -> None:
    """The domain of the source's pool counts, whatever segments the copy's class gives it."""
    whole = PlacementSource("a", {"region": "r", "zone": "a"})
    for copying in (copy_of("a"), replace(copy_of("a"), requirement=None)):
        got = place_volume(replace(copying, source=whole), ZONES, LABELS)
        assert (name(got), got.is_full_copy, got.crosses_domains) == ("a", False, False)


def test_a_copy_leaves_its_domain_only_if_it_may() -> None:
    """Outside of its source's domain a copy is refused, or made independent."""
    only_b = replace(copy_of("a"), requirement=AccessibilityRequirement((B,), (B,)))
    got = place_volume(only_b, ZONES, LABELS)
    assert got.refusal is not None
    assert (got.refusal.code, got.reason.code) == (CsiCode.RESOURCE_EXHAUSTED, "SourceElsewhere")
    assert "crossDomain: copy" in got.reason.fix
    got = place_volume(replace(only_b, cross_domain=CrossDomain.COPY), ZONES, LABELS)
    assert (name(got), got.accessible_topology, got.is_full_copy, got.crosses_domains) == (
        "b",
        (B,),
        True,
        True,
    )


def test_a_copy_that_may_leave_goes_where_its_pod_is() -> None:
    """With crossDomain: copy the most preferred zone comes before the source's, and the source's
    before all others.
    """
    may_leave = replace(copy_of("a"), cross_domain=CrossDomain.COPY)
    got = place_volume(may_leave, ZONES, LABELS)
    assert (name(got), got.accessible_topology, got.is_full_copy, got.crosses_domains) == (
        "b",
        (B,),
        True,
        True,
    )
    got = place_volume(may_leave, [ZONES[0], pool("b", free=0, zone="b"), ZONES[2]], LABELS)
    assert (name(got), got.is_full_copy, got.crosses_domains) == ("a", False, False)
    assert [tried.pool for tried in got.tried if tried.pool] == ["b", "a"]
    home = replace(may_leave, requirement=AccessibilityRequirement((A, B, C), (A, B, C)))
    wide = [*ZONES, pool("a2", free=99 * GI, zone="a")]
    assert (name(place_volume(home, wide, LABELS))) == "a"
    nowhere = replace(may_leave, requirement=None)
    assert name(place_volume(nowhere, ZONES, LABELS)) == "a"


def test_a_copy_where_nothing_is_required() -> None:
    """A copy without a requirement stays in its domain, and can be used from everywhere."""
    pools = [*ZONES, pool("big", free=99 * GI, zone="d")]
    got = place_volume(replace(copy_of("a"), requirement=None), pools, LABELS)
    assert (name(got), got.accessible_topology) == ("a", ())


@pytest.mark.parametrize(
    ("requisite", "pinned", "fits"),
    [
        ((A, B), {"zone": "a"}, True),
        ((B,), {"zone": "a"}, False),
        ((B,), {}, True),
        ((), {"zone": "a"}, True),
        (({"other": "x"},), {"zone": "a"}, True),
        ((term(region="r", zone="a"),), {"zone": "a"}, True),
        ((A,), {"region": "r", "zone": "a"}, False),
    ],
)
def test_what_a_repeated_request_accepts(
    requisite: tuple[dict[str, str], ...], pinned: dict[str, str], fits: bool
) -> None:
    """An existing volume fits a request if it can be used from its requisite terms."""
    requirement = AccessibilityRequirement(requisite, (B,))
    assert fits_requirement(requirement, pinned, LABELS) is fits
    assert fits_requirement(None, pinned, LABELS)


def test_free_space() -> None:
    """Capacity is the free space of living pools of a term, or of all pools."""
    pools = [*ZONES, pool("b2", free=GI, zone="b"), pool("x", alive=False, zone="b")]
    assert free_space(pools, B, LABELS) == FreeSpace(11 * GI, 10 * GI)
    assert free_space(pools, None, LABELS) == FreeSpace(31 * GI, 10 * GI)


def test_free_space_of_a_zone_without_a_pool() -> None:
    """It is that of all pools, which volumes for it are cut from; a strict class has none there,
    and a zone whose pools are dead has none at all.
    """
    new = term(zone="new")
    assert free_space(ZONES, new, LABELS) == FreeSpace(30 * GI, 10 * GI)
    assert free_space(ZONES, new, LABELS, PlacementPolicy.PREFERRED) == FreeSpace(0, 0)
    dead = pool("x", alive=False, zone="new")
    assert free_space([*ZONES, dead], new, LABELS) == FreeSpace(0, 0)


def test_free_space_counts_what_can_be_used_from_everywhere() -> None:
    """A class whose volumes are usable from everywhere has the same capacity in every domain."""
    pools = [*ZONES, pool("x", alive=False, zone="x")]
    everywhere = FreeSpace(30 * GI, 10 * GI)
    for zone in "abx":
        assert free_space(pools, term(zone=zone), LABELS, PlacementPolicy.BALANCED) == everywhere
    default = free_space(ZONES[:1], B, LABELS, PlacementPolicy.DEFAULT_POOL)
    assert default == FreeSpace(10 * GI, 10 * GI)
    assert free_space(pools, B, LABELS, PlacementPolicy.PREFERRED) == default


def test_a_repeated_request_finds_what_its_own_preference_placed() -> None:
    """A preferred term inside of a requisite one places a volume, and so it still fits."""
    requirement = AccessibilityRequirement((term(zone="b"),), (term(region="r1", zone="b"),))
    placement = place_volume(
        PlacementRequest(GI, requirement),
        [pool("b", region="r1", zone="b"), pool("c", zone="c")],
        LABELS,
    )
    assert placement.pool is not None and placement.accessible_topology
    assert fits_requirement(requirement, placement.pool.segments, LABELS)
    assert not fits_requirement(requirement, {"zone": "c"}, LABELS)


CASES = st.integers(10_000, 10**9).map(drawn_case)


@given(CASES, st.randoms())
def test_the_order_of_pools_does_not_matter(case: Case, rng: random.Random) -> None:
    """The same request and pools in any order get exactly the same answer."""
    first = decided(case, "seed")
    shuffled = case | {"pools": rng.sample(case["pools"], len(case["pools"]))}
    assert decided(shuffled, "seed") == first


@given(CASES)
def test_every_answer(case: Case) -> None:
    """No answer has an empty term, a foreign segment, a dead or overfull pool, or no reason."""
    got = decided(case)
    assert (got.pool is None) == (got.refusal is not None)
    assert got.reason.message
    assert {} not in got.accessible_topology
    assert len(got.accessible_topology) <= 1
    if got.pool is None:
        assert got.accessible_topology == ()
        return
    offered = [pool_of(described) for described in [*case["pools"], case["default"]] if described]
    assert got.pool in offered
    assert got.pool.can_take(case["bytes"])
    own = {f"topology.{case['driver']}/{key}": zone for key, zone in got.pool.segments.items()}
    assert all(dict(segments) == own for segments in got.accessible_topology)
    assert got.tried[-1].pool == got.pool.name
