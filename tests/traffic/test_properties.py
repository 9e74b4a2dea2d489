"""Properties for every cluster: optimality, limits, fewest moves, order, idempotence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.traffic.clusters import NOTHING, fresh, overloads, per_zone, shares, snapshot

from zonewise.topology.shares import Shares
from zonewise.traffic.allocation import ZonedEndpoint, retain_hints, spread_endpoints
from zonewise.traffic.endpoint import Hint, TrafficEndpoint
from zonewise.traffic.hints import PreviousHints, ServiceSnapshot, decide_hints
from zonewise.traffic.limits import HintCounts, OverloadLimits
from zonewise.traffic.modes import HintRequest, Mode

SMALL = st.lists(st.integers(1, 9), min_size=2, max_size=4)


@st.composite
def clusters(draw: st.DrawFn, most: int = 60) -> ServiceSnapshot:
    """A cluster of two to five zones, with endpoints also in zones that send no traffic."""
    cpu = draw(st.lists(st.integers(1, 40), min_size=2, max_size=5))
    places = "abcdexy"[: len(cpu)] + "xy"
    zones = draw(st.lists(st.sampled_from(places), min_size=1, max_size=most))
    add = draw(st.integers(1, 60))
    limits = OverloadLimits(add, draw(st.integers(add, 100)))
    ends = tuple(TrafficEndpoint(f"e{n:03}", zone=zone) for n, zone in enumerate(zones))
    return ServiceSnapshot(HintRequest(Mode.AUTO, limits), shares(*cpu), ends)


@st.composite
def changes(draw: st.DrawFn) -> tuple[ServiceSnapshot, PreviousHints]:
    """A cluster whose endpoints had hints: some good, some for a zone that is gone, some none."""
    view = draw(clusters())
    zones = [*view.shares.weights, "gone", ""]
    hints = {
        target.name: Hint((zone,) if (zone := draw(st.sampled_from(zones))) else ())
        for target in view.endpoints
    }
    known = {name: hint for name, hint in hints.items() if hint or draw(st.booleans())}
    return view, PreviousHints(known, draw(st.booleans()))


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to give every part at least one."""
    if parts == 1:
        yield (total,)
        return
    for first in range(1, total - parts + 2):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def best(view: ServiceSnapshot) -> tuple[Fraction, Fraction] | None:
    """In-zone and overload of the best of all assignments below the limit, by trying all."""
    there = Counter(target.zone for target in view.endpoints)
    count, zones = len(view.endpoints), list(view.shares.weights)
    limit = Fraction(view.hint_request.limits.add, 100)
    outcomes: list[tuple[Fraction, Fraction]] = []
    if count < len(zones):
        return None
    for quota in compositions(count, len(zones)):
        pairs = [(view.shares.share(z), there[z], n) for z, n in zip(zones, quota, strict=True)]
        overload = max(share * count / n for share, _, n in pairs) - 1
        if overload < limit:
            stays = sum((s * min(Fraction(1), Fraction(e, n)) for s, e, n in pairs), Fraction(0))
            outcomes.append((stays, -overload))
    return max(outcomes) if outcomes else None


@given(clusters(most=14))
def test_fresh_hints_are_the_best_there_are(view: ServiceSnapshot) -> None:
    """No assignment below the limit keeps more in zone, or as much with less overload."""
    decision, optimum = fresh(view), best(view)
    assert decision.hinted == (optimum is not None)
    if optimum is not None:
        result = decision.flow(view)
        assert (result.in_zone, -result.overload) == optimum


@given(changes())
def test_limits_hold_whatever_was_before(case: tuple[ServiceSnapshot, PreviousHints]) -> None:
    """Every ready endpoint has one hint and no zone is above the limit, or there are no hints."""
    view, previous = case
    decision = decide_hints(view, previous)
    if not decision.hinted:
        assert decision.hints == {}
        assert int(decision.reason.numbers["needed"]) > len(view.endpoints)
        return
    assert decision.hints.keys() == {target.name for target in view.endpoints}
    limits = view.hint_request.limits
    worst = max(overloads(view, decision).values())
    assert worst <= Fraction(limits.drop, 100)
    if not previous.hinted:
        assert worst < Fraction(limits.add, 100)
    assert set(view.shares.weights) <= set(per_zone(decision))


@given(changes())
def test_deciding_again_changes_nothing(case: tuple[ServiceSnapshot, PreviousHints]) -> None:
    """The next decision keeps the hints of the last one."""
    view, previous = case
    decision = decide_hints(view, previous)
    assert decide_hints(view, decision.as_previous(view)) == decision


@given(changes(), st.randoms(use_true_random=False))
def test_order_never_matters(case: tuple[ServiceSnapshot, PreviousHints], rng: Random) -> None:
    """Endpoints, zones and earlier hints in another order give the same decision."""
    view, previous = case
    ends, zones, hints = list(view.endpoints), list(view.shares.zones), list(previous.hints.items())
    rng.shuffle(ends)
    rng.shuffle(zones)
    rng.shuffle(hints)
    other = ServiceSnapshot(view.hint_request, Shares(tuple(zones)), tuple(ends))
    assert decide_hints(other, PreviousHints(dict(hints), previous.hinted)) == decide_hints(
        view, previous
    )


@given(changes())
def test_judging_agrees_with_deciding(case: tuple[ServiceSnapshot, PreviousHints]) -> None:
    """If the counts cross no limit, a decision changes no existing hint."""
    view, previous = case
    limits = view.hint_request.limits
    names = {target.name for target in view.endpoints}
    whole = previous.hinted and names == {n for n, h in previous.hints.items() if h}
    hints = previous.hints if whole else {}
    counts = HintCounts.of((t.zone, hints.get(t.name, Hint()).zones) for t in view.endpoints)
    previous = PreviousHints(hints, whole)
    crosses = limits.needs_decision(view.shares, counts, hinted=whole)
    decision = decide_hints(view, previous)
    assert (decision.hints != hints or decision.hinted != whole) == crosses


def fewest_moves(
    ends: Sequence[ZonedEndpoint], weights: Mapping[str, int], minimum: Mapping[str, int]
) -> int:
    """The sum of what zones lack, less what new endpoints bring."""
    have = Counter(end.previous_zone for end in ends)
    lacking = sum(max(0, minimum[zone] - have[zone]) for zone in weights)
    return max(0, lacking - have[""])


@given(changes())
def test_no_hint_moves_without_need(case: tuple[ServiceSnapshot, PreviousHints]) -> None:
    """Within the limit no hint moves; otherwise as many as zones lack, never more."""
    view, previous = case
    limits, count = view.hint_request.limits, len(view.endpoints)
    ends = [
        ZonedEndpoint(t.name, t.zone, (previous.hints.get(t.name, Hint()).zones or ("",))[0])
        for t in view.endpoints
    ]
    keep, aim = (
        limits.minimum_to_keep(view.shares, count),
        limits.minimum_to_add(view.shares, count),
    )
    weights = view.shares.weights
    result = retain_hints(ends, weights, minimum_to_keep=keep, minimum_to_add=aim)
    if result is None:
        assert sum(keep.values()) > count
        return
    moves = sum(bool(end.previous_zone) and result[end.name] != end.previous_zone for end in ends)
    if fewest_moves(ends, weights, keep) == 0:
        assert moves == 0
        return
    target = aim if sum(aim.values()) <= count else keep
    assert moves == fewest_moves(ends, weights, target)
    have = Counter(result.values())
    assert all(have[zone] >= target[zone] for zone in weights)


@given(clusters())
def test_written_hints_are_kept_where_they_fit(view: ServiceSnapshot) -> None:
    """A new start over its own hints gives the same hints."""
    decision = fresh(view)
    again = decide_hints(view, replace(decision.as_previous(view), hinted=False))
    assert again == decision


@given(SMALL, st.integers(1, 40), st.integers(1, 40))
def test_minimum_is_the_smallest(cpu: list[int], count: int, limit: int) -> None:
    """One endpoint less than the minimum would break the limit; the minimum does not."""
    limits, known = OverloadLimits(limit, limit), shares(*cpu)
    for zone, least in limits.minimum_to_add(known, count).items():
        load = known.share(zone) * count * 100
        assert load < least * (100 + limit)
        assert least == 1 or load >= (least - 1) * (100 + limit)
    for zone, least in limits.minimum_to_keep(known, count).items():
        load = known.share(zone) * count * 100
        assert load <= least * (100 + limit)
        assert least == 1 or load > (least - 1) * (100 + limit)


@settings(max_examples=20)
@given(st.integers(200, 1500), st.integers(2, 12))
def test_large_services(count: int, zones: int) -> None:
    """Hundreds of endpoints in one zone of many are spread to all."""
    view = snapshot([1] * min(zones, 10), [count])
    decision = decide_hints(view, NOTHING)
    assert decision.hinted
    assert max(overloads(view, decision).values()) < Fraction(1, 5)


def test_spread_gives_guests_to_the_zone_that_loses_least() -> None:
    """Endpoints that are not needed go to one zone, the one whose in-zone part drops least."""
    ends = [ZonedEndpoint(f"a{n}", "a") for n in range(8)] + [
        ZonedEndpoint(f"b{n}", "b") for n in range(2)
    ]
    ends += [ZonedEndpoint(f"x{n}", "x") for n in range(3)]
    result = spread_endpoints(ends, {"a": 8, "b": 2}, {"a": 8, "b": 2})
    assert Counter(result.values()) == {"a": 8, "b": 5}
