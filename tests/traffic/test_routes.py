"""Which endpoints a proxy uses, with every fallback, and what all proxies do together."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from tests.traffic.clusters import shares

from zonewise.api import (
    EndpointConditions,
    EndpointHints,
    ForNode,
    ForZone,
    LeanEndpoint,
)
from zonewise.traffic import (
    Hint,
    ProxyLocation,
    RouteRule,
    Selection,
    TrafficEndpoint,
    as_obeyed,
    as_written,
    flow,
    local,
    nearby,
)


def target(name: str, *zones: str, **facts: Any) -> TrafficEndpoint:
    """An endpoint in the zone its name begins with, for some zones."""
    made = TrafficEndpoint(name, zone=name[0], node=f"n-{name[0]}", hint=Hint(zones))
    return replace(made, **facts)


def names(selection: Selection[TrafficEndpoint]) -> list[str]:
    """The names of the chosen."""
    return [entry.name for entry in selection.targets]


ABC = (target("a1", "a"), target("b1", "b"), target("c1", "c"))


@pytest.mark.parametrize(
    ("targets", "place", "rule", "chosen"),
    [
        (ABC, ProxyLocation("a"), RouteRule.SAME_ZONE, ["a1"]),
        (ABC, ProxyLocation(), RouteRule.PLACE_UNKNOWN, ["a1", "b1", "c1"]),
        (ABC, ProxyLocation("d"), RouteRule.NOT_FOR_HERE, ["a1", "b1", "c1"]),
        (
            (*ABC, target("d1")),
            ProxyLocation("a"),
            RouteRule.PARTLY_HINTED,
            ["a1", "b1", "c1", "d1"],
        ),
        ((target("a1"), target("b1")), ProxyLocation("a"), RouteRule.UNHINTED, ["a1", "b1"]),
        ((*ABC, target("d1", ready=False)), ProxyLocation("a"), RouteRule.SAME_ZONE, ["a1"]),
        (
            (target("a1", "a", ready=False), target("b1", "b"), target("c1", "c")),
            ProxyLocation("a"),
            RouteRule.NOT_FOR_HERE,
            ["b1", "c1"],
        ),
        (
            (target("x1", "a", "b"), target("c1", "c")),
            ProxyLocation("b"),
            RouteRule.SAME_ZONE,
            ["x1"],
        ),
        (
            (
                target("b1", "b", ready=False, terminating=True),
                target("b2", "b", ready=False, terminating=True),
                target("b3", "b", ready=False, terminating=True, serving=False),
                target("b4", "b", ready=False),
            ),
            ProxyLocation("a"),
            RouteRule.TERMINATING,
            ["b1", "b2"],
        ),
        ((), ProxyLocation("a"), RouteRule.NOTHING, []),
    ],
)
def test_zone_rule_and_fallbacks(
    targets: tuple[TrafficEndpoint, ...], place: ProxyLocation, rule: RouteRule, chosen: list[str]
) -> None:
    """Each fallback gives its set and says which rule it was."""
    selection = nearby(targets, place)
    assert (selection.rule, names(selection)) == (rule, chosen)
    again = nearby(targets[::-1], place)
    assert (again.rule, again.targets[::-1]) == (rule, selection.targets)


def test_node_rule() -> None:
    """Node hints on all win if one names this node; else, or if one is missing, the zone rule."""
    a = target("a1", hint=Hint(("a",), ("n1",)))
    b = target("a2", hint=Hint(("a",), ("n2",)))
    c = target("b1", hint=Hint(("b",), ("n3",)))
    assert nearby((a, b, c), ProxyLocation("a", "n1")) == Selection(RouteRule.SAME_NODE, (a,))
    assert nearby((a, b, c), ProxyLocation("a", "n9")) == Selection(RouteRule.SAME_ZONE, (a, b))
    bare = target("b2", "b")
    assert nearby((a, b, bare), ProxyLocation("a", "n1")) == Selection(RouteRule.SAME_ZONE, (a, b))
    zoneless = target("z1", hint=Hint((), ("n4",)))
    assert nearby((a, zoneless), ProxyLocation("a", "n1")) == Selection(RouteRule.SAME_NODE, (a,))
    assert nearby((a, zoneless), ProxyLocation("a", "n9")).rule is RouteRule.PARTLY_HINTED


@pytest.mark.parametrize(
    ("hints", "place", "rule"),
    [
        ([("n1",), ("n2",)], ProxyLocation("a", "n9"), RouteRule.NOT_FOR_HERE),
        ([("n1",), ("n2",)], ProxyLocation("", "n9"), RouteRule.NOT_FOR_HERE),
        ([("n1",), ("n2",)], ProxyLocation("a"), RouteRule.PLACE_UNKNOWN),
        ([("n1",), ()], ProxyLocation("a", "n9"), RouteRule.PARTLY_HINTED),
        ([("n9",), ()], ProxyLocation("a", "n9"), RouteRule.PARTLY_HINTED),
    ],
)
def test_node_hints_alone(
    hints: list[tuple[str, ...]], place: ProxyLocation, rule: RouteRule
) -> None:
    """Where there are only node hints, all used is for want of a hint or of one for this node."""
    targets = tuple(target(f"e{n}", hint=Hint((), nodes)) for n, nodes in enumerate(hints))
    assert nearby(targets, place) == Selection(rule, targets)


def test_local_policy() -> None:
    """Local traffic stays on the node, hinted elsewhere or not; terminating ones are the rest."""
    here = target("a1", "b")
    gone = target("a2", "a", ready=False, terminating=True)
    assert local((here, gone, *ABC[1:]), ProxyLocation("a", "n-a")) == Selection(
        RouteRule.LOCAL, (here,)
    )
    assert local((gone, *ABC[1:]), ProxyLocation("a", "n-a")) == Selection(
        RouteRule.TERMINATING, (gone,)
    )
    assert local(ABC, ProxyLocation("d", "n-d")) == Selection(RouteRule.NOTHING)
    assert local([TrafficEndpoint("x")], ProxyLocation()) == Selection(RouteRule.NOTHING)


def test_a_missing_ready_is_read_by_who_reads() -> None:
    """Nobody vouches for it when hints are written; a proxy takes it as ready."""
    endpoint = LeanEndpoint(addresses=("10.0.0.1", "10.0.0.2"), zone="a", node_name="n")
    assert (as_written(endpoint).ready, as_obeyed(endpoint).ready) == (False, True)
    assert (as_written(endpoint).serving, as_obeyed(endpoint).serving) == (False, True)
    told = LeanEndpoint(
        addresses=None,
        conditions=EndpointConditions(ready=False, serving=True, terminating=True),
        hints=EndpointHints(for_zones=(ForZone(name="a"),), for_nodes=(ForNode(name="n"),)),
    )
    expected = TrafficEndpoint("", "", "", False, True, True, Hint(("a",), ("n",)))
    assert as_written(told) == as_obeyed(told) == expected
    assert told.hints is not None
    assert expected.hint.written() == told.hints
    assert Hint().written() is None


def test_flow_adds_what_every_zone_sends() -> None:
    """A zone that falls back to all endpoints adds to everybody's load."""
    known = (target("a1", "a"), target("b1", "b"))
    result = flow(known, shares(1, 1, 2))
    assert result.in_zone == Fraction(1, 2)
    assert result.overload == 0
    uneven = flow(known, shares(3, 1, 4))
    assert uneven.overload == Fraction(1, 4)
    nobody = flow((), shares(1, 1))
    assert nobody.in_zone == 0 and nobody.unanswered == 1 and nobody.silent == 2
    unsent = flow(known, shares())
    assert unsent.in_zone == unsent.unanswered == unsent.silent == 0


def test_flow_without_hints_is_even() -> None:
    """Without hints every endpoint has the same load and traffic stays by chance."""
    result = flow((target("a1"), target("a2"), target("b1")), shares(1, 1))
    assert (result.in_zone, result.overload) == (Fraction(1, 2), Fraction(0))


def test_shared_endpoints_are_measured() -> None:
    """Hints for several zones: four endpoints serve three equal zones without overload."""
    known = (
        target("a1", "a", "c"),
        target("a2", "a", "c"),
        target("b1", "b", "c"),
        target("b2", "b", "c"),
    )
    assert flow(known, shares(1, 1, 1)).overload == 0
