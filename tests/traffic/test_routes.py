"""Which endpoints a proxy uses, with every fallback, and the loads of all proxies together."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from tests.traffic.clusters import shares

from zonewise.api.objects.discovery import (
    EndpointConditions,
    EndpointHints,
    ForNode,
    ForZone,
    LeanEndpoint,
)
from zonewise.traffic.endpoint import Hint, TrafficEndpoint, read_as_proxy, read_as_writer
from zonewise.traffic.routes.choice import (
    ClientLocation,
    RouteRule,
    Selection,
    choose_by_hints,
    choose_local,
)
from zonewise.traffic.routes.flow import compute_flow


def target(name: str, *zones: str, **facts: Any) -> TrafficEndpoint:
    """An endpoint in the zone its name begins with, for some zones."""
    plain = TrafficEndpoint(name, zone=name[0], node=f"n-{name[0]}", hint=Hint(zones))
    return replace(plain, **facts)


def names(selection: Selection[TrafficEndpoint]) -> list[str]:
    """The names of the chosen endpoints."""
    return [entry.name for entry in selection.endpoints]


ABC = (target("a1", "a"), target("b1", "b"), target("c1", "c"))


@pytest.mark.parametrize(
    ("targets", "location", "rule", "chosen"),
    [
        (ABC, ClientLocation("a"), RouteRule.SAME_ZONE, ["a1"]),
        (ABC, ClientLocation(), RouteRule.LOCATION_UNKNOWN, ["a1", "b1", "c1"]),
        (ABC, ClientLocation("d"), RouteRule.NO_HINT_FOR_LOCATION, ["a1", "b1", "c1"]),
        (
            (*ABC, target("d1")),
            ClientLocation("a"),
            RouteRule.PARTLY_HINTED,
            ["a1", "b1", "c1", "d1"],
        ),
        ((target("a1"), target("b1")), ClientLocation("a"), RouteRule.UNHINTED, ["a1", "b1"]),
        ((*ABC, target("d1", ready=False)), ClientLocation("a"), RouteRule.SAME_ZONE, ["a1"]),
        (
            (target("a1", "a", ready=False), target("b1", "b"), target("c1", "c")),
            ClientLocation("a"),
            RouteRule.NO_HINT_FOR_LOCATION,
            ["b1", "c1"],
        ),
        (
            (target("x1", "a", "b"), target("c1", "c")),
            ClientLocation("b"),
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
            ClientLocation("a"),
            RouteRule.TERMINATING,
            ["b1", "b2"],
        ),
        ((), ClientLocation("a"), RouteRule.NOTHING, []),
    ],
)
def test_zone_rule_and_fallbacks(
    targets: tuple[TrafficEndpoint, ...],
    location: ClientLocation,
    rule: RouteRule,
    chosen: list[str],
) -> None:
    """Each fallback gives its endpoints and the rule that was used."""
    selection = choose_by_hints(targets, location)
    assert (selection.rule, names(selection)) == (rule, chosen)
    again = choose_by_hints(targets[::-1], location)
    assert (again.rule, again.endpoints[::-1]) == (rule, selection.endpoints)


def test_node_rule() -> None:
    """Node hints count if all have one and one names this node; otherwise the zone rule."""
    a = target("a1", hint=Hint(("a",), ("n1",)))
    b = target("a2", hint=Hint(("a",), ("n2",)))
    c = target("b1", hint=Hint(("b",), ("n3",)))
    assert choose_by_hints((a, b, c), ClientLocation("a", "n1")) == Selection(
        RouteRule.SAME_NODE, (a,)
    )
    assert choose_by_hints((a, b, c), ClientLocation("a", "n9")) == Selection(
        RouteRule.SAME_ZONE, (a, b)
    )
    bare = target("b2", "b")
    assert choose_by_hints((a, b, bare), ClientLocation("a", "n1")) == Selection(
        RouteRule.SAME_ZONE, (a, b)
    )
    zoneless = target("z1", hint=Hint((), ("n4",)))
    assert choose_by_hints((a, zoneless), ClientLocation("a", "n1")) == Selection(
        RouteRule.SAME_NODE, (a,)
    )
    assert choose_by_hints((a, zoneless), ClientLocation("a", "n9")).rule is RouteRule.PARTLY_HINTED


@pytest.mark.parametrize(
    ("hints", "location", "rule"),
    [
        ([("n1",), ("n2",)], ClientLocation("a", "n9"), RouteRule.NO_HINT_FOR_LOCATION),
        ([("n1",), ("n2",)], ClientLocation("", "n9"), RouteRule.NO_HINT_FOR_LOCATION),
        ([("n1",), ("n2",)], ClientLocation("a"), RouteRule.LOCATION_UNKNOWN),
        ([("n1",), ()], ClientLocation("a", "n9"), RouteRule.PARTLY_HINTED),
        ([("n9",), ()], ClientLocation("a", "n9"), RouteRule.PARTLY_HINTED),
    ],
)
def test_node_hints_alone(
    hints: list[tuple[str, ...]], location: ClientLocation, rule: RouteRule
) -> None:
    """With node hints only, all are used if one is missing or none is for this node."""
    targets = tuple(target(f"e{n}", hint=Hint((), nodes)) for n, nodes in enumerate(hints))
    assert choose_by_hints(targets, location) == Selection(rule, targets)


def test_local_policy() -> None:
    """Local traffic stays on the node, whatever the hints; terminating endpoints are the last
    resort.
    """
    here = target("a1", "b")
    gone = target("a2", "a", ready=False, terminating=True)
    assert choose_local((here, gone, *ABC[1:]), ClientLocation("a", "n-a")) == Selection(
        RouteRule.LOCAL, (here,)
    )
    assert choose_local((gone, *ABC[1:]), ClientLocation("a", "n-a")) == Selection(
        RouteRule.TERMINATING, (gone,)
    )
    assert choose_local(ABC, ClientLocation("d", "n-d")) == Selection(RouteRule.NOTHING)
    assert choose_local([TrafficEndpoint("x")], ClientLocation()) == Selection(RouteRule.NOTHING)


def test_a_missing_ready_is_true_for_proxies_only() -> None:
    """Without ``ready`` an endpoint gets no hint; a proxy uses it as ready."""
    endpoint = LeanEndpoint(addresses=("10.0.0.1", "10.0.0.2"), zone="a", node_name="n")
    assert (read_as_writer(endpoint).ready, read_as_proxy(endpoint).ready) == (False, True)
    assert (read_as_writer(endpoint).serving, read_as_proxy(endpoint).serving) == (False, True)
    leaving = LeanEndpoint(
        addresses=None,
        conditions=EndpointConditions(ready=False, serving=True, terminating=True),
        hints=EndpointHints(for_zones=(ForZone(name="a"),), for_nodes=(ForNode(name="n"),)),
    )
    expected = TrafficEndpoint("", "", "", False, True, True, Hint(("a",), ("n",)))
    assert read_as_writer(leaving) == read_as_proxy(leaving) == expected
    assert leaving.hints is not None
    assert expected.hint.to_object() == leaving.hints
    assert Hint().to_object() is None


def test_flow_adds_what_every_zone_sends() -> None:
    """A zone that falls back to all endpoints adds to the load of all."""
    known = (target("a1", "a"), target("b1", "b"))
    result = compute_flow(known, shares(1, 1, 2))
    assert result.in_zone == Fraction(1, 2)
    assert result.overload == 0
    uneven = compute_flow(known, shares(3, 1, 4))
    assert uneven.overload == Fraction(1, 4)
    nobody = compute_flow((), shares(1, 1))
    assert nobody.in_zone == 0 and nobody.unanswered == 1 and nobody.unanswered_senders == 2
    unsent = compute_flow(known, shares())
    assert unsent.in_zone == unsent.unanswered == unsent.unanswered_senders == 0


def test_flow_without_hints_is_even() -> None:
    """Without hints every endpoint has the same load, and traffic stays in zone by chance."""
    result = compute_flow((target("a1"), target("a2"), target("b1")), shares(1, 1))
    assert (result.in_zone, result.overload) == (Fraction(1, 2), Fraction(0))


def test_shared_endpoints_are_measured() -> None:
    """Hints for several zones: four endpoints serve three equal zones without overload."""
    known = (
        target("a1", "a", "c"),
        target("a2", "a", "c"),
        target("b1", "b", "c"),
        target("b2", "b", "c"),
    )
    assert compute_flow(known, shares(1, 1, 1)).overload == 0
