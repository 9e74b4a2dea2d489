"""Which endpoints a proxy uses: the proxy table of KEP-2433 and every fallback."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from tests.traffic.clusters import shares

from zonewise.api import (
    EndpointConditions,
    EndpointHints,
    FeatureGates,
    ForNode,
    ForZone,
    LeanEndpoint,
    Service,
    ServiceSpec,
)
from zonewise.traffic import (
    Hint,
    Paths,
    Place,
    Rule,
    Selection,
    Target,
    as_obeyed,
    as_written,
    flow,
    local,
    nearby,
    routes,
)

ON = FeatureGates()
OFF = FeatureGates({"TopologyAwareHints": False})


def target(name: str, *zones: str, **facts: Any) -> Target:
    """An endpoint in the zone its name begins with, for some zones."""
    made = Target(name, zone=name[0], node=f"n-{name[0]}", hint=Hint(zones))
    return replace(made, **facts)


def service(**spec: object) -> Service:
    """A Service with some fields."""
    return Service(spec=msgspec.structs.replace(ServiceSpec(), **spec))


def names(selection: Selection | None) -> list[str]:
    """The names of the chosen."""
    assert selection is not None
    return [entry.name for entry in selection.targets]


ABC = (target("a1", "a"), target("b1", "b"), target("c1", "c"))


@pytest.mark.parametrize(
    ("policy", "gates", "zone", "filtered"),
    [
        ("PreferZone", ON, "a", True),
        ("PreferZone", OFF, "a", False),
        ("PreferZone", ON, "d", False),
    ],
)
def test_the_proxy_table(policy: str, gates: FeatureGates, zone: str, filtered: bool) -> None:
    """Endpoints are filtered with the gate on and a hint for this zone, else not."""
    result = routes(ABC, Place(zone), Paths.of(service(traffic_policy=policy), gates))
    assert names(result.cluster) == (["a1"] if filtered else ["a1", "b1", "c1"])


def test_the_proxy_table_local() -> None:
    """trafficPolicy Local: hints filter nothing, only the node counts."""
    paths = Paths.of(service(traffic_policy="Local"), ON)
    result = routes((*ABC, target("a2", "b")), Place("a", "n-a"), paths)
    assert result.cluster is None
    assert names(result.local) == ["a1", "a2"]


@pytest.mark.parametrize(
    ("targets", "place", "rule", "chosen"),
    [
        (ABC, Place("a"), Rule.SAME_ZONE, ["a1"]),
        (ABC, Place(), Rule.PLACE_UNKNOWN, ["a1", "b1", "c1"]),
        (ABC, Place("d"), Rule.NOT_FOR_HERE, ["a1", "b1", "c1"]),
        ((*ABC, target("d1")), Place("a"), Rule.PARTLY_HINTED, ["a1", "b1", "c1", "d1"]),
        ((target("a1"), target("b1")), Place("a"), Rule.UNHINTED, ["a1", "b1"]),
        ((*ABC, target("d1", ready=False)), Place("a"), Rule.SAME_ZONE, ["a1"]),
        (
            (target("a1", "a", ready=False), target("b1", "b"), target("c1", "c")),
            Place("a"),
            Rule.NOT_FOR_HERE,
            ["b1", "c1"],
        ),
        ((target("x1", "a", "b"), target("c1", "c")), Place("b"), Rule.SAME_ZONE, ["x1"]),
        (
            (
                target("b1", "b", ready=False, terminating=True),
                target("b2", "b", ready=False, terminating=True),
                target("b3", "b", ready=False, terminating=True, serving=False),
                target("b4", "b", ready=False),
            ),
            Place("a"),
            Rule.TERMINATING,
            ["b1", "b2"],
        ),
        ((), Place("a"), Rule.NOTHING, []),
    ],
)
def test_zone_rule_and_fallbacks(
    targets: tuple[Target, ...], place: Place, rule: Rule, chosen: list[str]
) -> None:
    """Each fallback gives its set and says which rule it was."""
    selection = nearby(targets, place)
    assert (selection.rule, names(selection)) == (rule, chosen)
    assert nearby(targets[::-1], place) == selection


def test_node_rule() -> None:
    """Node hints on all win if one names this node; else, or if one is missing, the zone rule."""
    a = target("a1", hint=Hint(("a",), ("n1",)))
    b = target("a2", hint=Hint(("a",), ("n2",)))
    c = target("b1", hint=Hint(("b",), ("n3",)))
    assert nearby((a, b, c), Place("a", "n1")) == Selection(Rule.SAME_NODE, (a,))
    assert nearby((a, b, c), Place("a", "n9")) == Selection(Rule.SAME_ZONE, (a, b))
    bare = target("b2", "b")
    assert nearby((a, b, bare), Place("a", "n1")) == Selection(Rule.SAME_ZONE, (a, b))
    zoneless = target("z1", hint=Hint((), ("n4",)))
    assert nearby((a, zoneless), Place("a", "n1")) == Selection(Rule.SAME_NODE, (a,))
    assert nearby((a, zoneless), Place("a", "n9")).rule is Rule.PARTLY_HINTED


def test_local_policy() -> None:
    """Local traffic stays on the node, hinted elsewhere or not; terminating ones are the rest."""
    here = target("a1", "b")
    gone = target("a2", "a", ready=False, terminating=True)
    assert local((here, gone, *ABC[1:]), Place("a", "n-a")) == Selection(Rule.LOCAL, (here,))
    assert local((gone, *ABC[1:]), Place("a", "n-a")) == Selection(Rule.TERMINATING, (gone,))
    assert local(ABC, Place("d", "n-d")) == Selection(Rule.NOTHING)
    assert local([Target("x")], Place()) == Selection(Rule.NOTHING)


def test_internal_local_drops_or_rejects() -> None:
    """No local endpoint: drop if there are some anywhere, reject if there are none."""
    paths = Paths.of(service(internal_traffic_policy="Local"), ON)
    assert paths == Paths(cluster=False, local=True)
    assert routes(ABC, Place("d", "n-d"), paths).anywhere
    nothing = routes([target("a1", "a", ready=False)], Place("d", "n-d"), paths)
    assert (names(nothing.local), nothing.anywhere) == ([], False)


def test_external_local_has_both_kinds() -> None:
    """eTP Local: outside packets stay local, pods use the hinted set; no endpoint twice."""
    paths = Paths.of(service(type="LoadBalancer", external_traffic_policy="Local"), ON)
    assert paths == Paths(cluster=True, local=True)
    lent = target("a2", "b")
    result = routes((*ABC, lent), Place("a", "n-a"), paths)
    assert names(result.cluster) == ["a1"]
    assert names(result.local) == ["a1", "a2"]
    assert [entry.name for entry in result.reachable] == ["a1", "a2"]
    only = routes(ABC, Place("a", "n-a"), Paths())
    assert only.local is None


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
    expected = Target("", "", "", False, True, True, Hint(("a",), ("n",)))
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
    assert flow((), shares(1, 1)) == flow(known, shares())


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
