"""Nodes as the source of automatic takeover: what their conditions say of a domain."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.errors import ConfigError
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels
from zonewise.storage.takeover.automatic import (
    AutomaticDecision,
    AutomaticTakeover,
    decide_automatic,
)
from zonewise.storage.takeover.domain_states import (
    DomainTimes,
    NodeState,
    SourceStates,
    judge_nodes,
    judge_storage,
)
from zonewise.storage.takeover.stand_ins import TakeoverMap

LABELS = parse_domain_labels("e.io/zone", "csi.zonewise.io")
PAUSE = 120.0
BY_ALL = AutomaticTakeover(("all",), PAUSE, ("nodes",))
TAKEN = TakeoverMap({"a": ("all",)})


def zone(name: str, *nodes: float) -> list[NodeState]:
    """Nodes of a zone: above zero Ready since then, below not Ready since the opposite."""
    return [NodeState({"zone": name}, time > 0, abs(time)) for time in nodes]


def decide(
    nodes: list[NodeState],
    now: float,
    taken: TakeoverMap = TakeoverMap(),  # noqa: B008
    given_back: float | None = None,
    **sources: SourceStates | None,
) -> AutomaticDecision:
    """Decide by nodes, and other sources if given; all that is taken was taken automatically."""
    return decide_automatic(
        BY_ALL,
        {**sources, "nodes": judge_nodes(nodes, PAUSE)},
        taken,
        taken.targets.keys(),
        {} if given_back is None else {"a": given_back},
        now,
    )


def codes(decision: AutomaticDecision) -> list[str]:
    """The codes of what is done, and of what is not."""
    return [reason.code for reason in (*decision.reasons, *decision.holds)]


def test_a_zone_without_a_ready_node_is_taken_over_after_the_delay() -> None:
    """The delay runs since the last of its nodes became not Ready, whoever has been watching."""
    nodes = [*zone("a", -1000, -1050), *zone("b", 1, 2), *zone("c", 3, 4)]
    early = decide(nodes, 1169)
    assert (early.changes, early.retry_after, codes(early)) == ({}, 1, ["TakeoverPending"])
    assert decide(nodes, 1170).changes == {"a": ("all",)}
    assert decide(nodes, 9999, TAKEN).changes == {}


def test_a_node_that_never_was_ready_does_not_restart_the_delay() -> None:
    """An autoscaler that adds dead nodes to a lost zone, however often, does not keep it from being
    taken over; a zone that has only such nodes is lost since the first of them.
    """
    others = [*zone("b", 1, 2), *zone("c", 3, 4)]
    added = [NodeState({"zone": "a"}, False, 1100 + 10 * n, 1090 + 10 * n) for n in range(5)]
    replaced = [*zone("a", -1000), *added, *others]
    assert codes(decide(replaced, 1119)) == ["TakeoverPending"]
    assert decide(replaced, 1120).changes == {"a": ("all",)}
    assert decide([*added, *others], 1219).changes == {}
    assert decide([*added, *others], 1220).changes == {"a": ("all",)}
    ran = NodeState({"zone": "a"}, False, 1110, 900)
    assert decide([*replaced, ran], 1229).changes == {}
    assert decide([*replaced, ran], 1230).changes == {"a": ("all",)}


def test_one_ready_node_keeps_a_zone() -> None:
    """A zone of which any node is Ready has not failed, however many others are lost."""
    nodes = [*zone("a", -1, -1, -1, 5), *zone("b", 1), *zone("c", 1)]
    decision = decide(nodes, 9999)
    assert (decision.changes, codes(decision)) == ({}, [])


def test_a_broken_view_takes_nothing_over_and_says_why() -> None:
    """With less than half of the other zones' nodes Ready, nothing is taken over."""
    nodes = [*zone("a", -1, -1), *zone("b", -1, -1), *zone("c", -1, 5)]
    decision = decide(nodes, 9999)
    assert decision.changes == {}
    assert codes(decision) == ["TooFewNodesReady", "TooFewNodesReady"]
    message = decision.holds[0].message
    assert "only 1 of 4 nodes of other domains are Ready" in message
    assert "takeover set a" in decision.holds[0].fix


def test_a_repaired_view_restarts_the_delay() -> None:
    """Nodes that come back one after the other let no slow zone be taken over at once."""
    nodes = [*zone("a", -1000, -1000), *zone("b", 5000, 5001), *zone("c", -1000, -1000)]
    assert codes(decide(nodes, 5002)) == ["TakeoverPending", "TakeoverPending"]
    assert decide(nodes, 5120).changes == {}
    assert decide(nodes, 5121).changes == {"a": ("all",), "c": ("all",)}


def test_exactly_half_of_the_others_is_enough() -> None:
    """Half of the nodes of all other zones suffice; so a cluster of two zones is served, too."""
    assert decide([*zone("a", -1), *zone("b", -1, 5)], 999).changes == {"a": ("all",)}
    nodes = [*zone("a", -1), *zone("b", -1, -1, 5)]
    assert decide(nodes, 999).changes == {}
    assert codes(decide(zone("a", -1), 999)) == ["TooFewNodesReady"]


def test_a_zone_is_given_back_when_half_of_its_nodes_stay_ready() -> None:
    """The delay runs since half of its nodes are Ready; a node that is lost for good is no reason
    to keep the zone.
    """
    others = [*zone("b", 1, 2), *zone("c", 3)]
    few = decide([*zone("a", 2000, -1, -1), *others], 9999, TAKEN)
    assert (few.changes, codes(few)) == ({}, ["StillDown"])
    nodes = [*zone("a", 2000, 2100, -1, -1), *others]
    early = decide(nodes, 2219, TAKEN)
    assert (early.changes, early.retry_after, codes(early)) == ({}, 1, ["GivebackPending"])
    assert decide(nodes, 2220, TAKEN).changes == {"a": None}
    gone = decide(others, 9999, TAKEN)
    assert (gone.changes, codes(gone)) == ({}, ["DomainUnknown"])


def test_all_sources_agree_before_a_zone_is_given_back() -> None:
    """One source is enough to take over; all must be well, and answer, to give back."""
    up = judge_storage(DomainTimes({}, dict.fromkeys("abc", 1.0)), 60)
    down = judge_storage(DomainTimes({"a": 1.0}, dict.fromkeys("bc", 1.0)), 60)
    lost = [*zone("a", -1000), *zone("b", 1), *zone("c", 1)]
    well = [*zone("a", 1000), *zone("b", 1), *zone("c", 1)]
    assert decide(lost, 2000, ceph=up).changes == {"a": ("all",)}
    assert decide(lost, 2000, ceph=None).changes == {"a": ("all",)}
    assert decide(well, 2000, ceph=down).changes == {"a": ("all",)}
    assert codes(decide(well, 2000, TAKEN, ceph=down)) == ["StillDown"]
    assert codes(decide(well, 2000, TAKEN, ceph=None)) == ["SourceSilent"]
    assert decide(well, 2000, TAKEN, ceph=up).changes == {"a": None}


def test_what_a_person_gave_back_has_a_whole_delay() -> None:
    """A zone that is still down is taken again only when the delay has passed since then."""
    nodes = [*zone("a", -1000), *zone("b", 1), *zone("c", 1)]
    early = decide(nodes, 5119, given_back=5000)
    assert (early.changes, early.given_back) == ({}, {"a": 5000})
    assert decide(nodes, 5120, given_back=5000).changes == {"a": ("all",)}
    well = [*zone("a", 2000), *zone("b", 1), *zone("c", 1)]
    assert decide(well, 5001, given_back=5000).given_back == {}


def test_domains_of_several_levels() -> None:
    """A zone has its short name, or the full one where two regions have a zone of that name; one
    whose region is taken over is not taken again.
    """

    def node(region: str, name: str, ready: bool = True) -> NodeState:
        return NodeState({"region": region, "zone": name}, ready, 1)

    nodes = [node("r1", "a", False), node("r1", "b"), node("r2", "a"), node("r2", "c")]
    assert set(judge_nodes(nodes, PAUSE).domains) == {"r1/a", "b", "r2/a", "c"}
    assert decide(nodes, 999).changes == {"r1/a": ("all",)}
    assert decide(nodes, 999, TakeoverMap({"r1": ("r2",)})).changes == {}


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.booleans(), st.integers(1, 1000)),
        min_size=1,
        max_size=24,
    ),
    st.integers(1, 3000),
)
def test_taking_over_needs_a_dead_zone_and_a_good_view(
    described: list[tuple[str, bool, int]], now: int
) -> None:
    """Whatever the nodes are: a zone that is taken over had no Ready node for the whole delay, and
    half of all others were Ready for as long.
    """
    nodes = [NodeState({"zone": name}, ready, since) for name, ready, since in described]
    for name in decide(nodes, now).changes:
        own = [node for node in nodes if node.domain["zone"] == name]
        others = [node for node in nodes if node.domain["zone"] != name]
        assert all(not node.ready and node.since + PAUSE <= now for node in own)
        steady = [node for node in others if node.ready and node.since + PAUSE <= now]
        assert others and len(steady) * 2 >= len(others)


def test_the_shortest_delay_of_nodes_is_two_minutes_unless_set() -> None:
    """A shorter pause is Ceph's alone; ``nodes-pause`` says otherwise."""

    def parse(**members: object) -> AutomaticTakeover:
        value = {"version": 2, "automatic-takeover": {"by": ["all"], "pause": "1m", **members}}
        parsed = parse_configuration(json.dumps(value), LABELS).automatic_takeover
        assert parsed is not None
        return parsed

    assert parse(sources=["ceph", "nodes"]).pause_of_nodes == 120
    assert parse(sources=["nodes"], pause="5m").pause_of_nodes == 300
    assert parse(**{"sources": ["nodes"], "nodes-pause": "45s"}).pause_of_nodes == 45
    assert parse().sources == ()
    for members, words in (
        ({"sources": []}, "automatic-takeover.sources: names no source"),
        ({"sources": ["node"]}, "'node' is not a source; there are ceph and nodes"),
        ({"sources": ["nodes", "nodes"]}, "twice"),
        ({"nodes-pause": "1s"}, "automatic-takeover.nodes-pause: '1s' is shorter than 30s"),
    ):
        with pytest.raises(ConfigError, match=words):
            parse(**members)
