"""Which pods of a DaemonSet are created and deleted, and on which nodes it runs."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.embedded.components.workloads.statefulsets.numbered_pods import NOW, make_pod

from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Node, NodeSpec, Taint
from zonewise.api.objects.pod import Pod
from zonewise.api.values.numbers import scale_int_or_percent
from zonewise.embedded.components.workloads.daemonsets.placement import (
    DaemonFit,
    node_of,
    placement_of,
)
from zonewise.embedded.components.workloads.daemonsets.plan import (
    DaemonNode,
    DaemonSetCounts,
    DaemonSetPlan,
    DaemonSetRule,
    count,
    decide,
)

YES, NO, NO_MORE = DaemonFit(True, True), DaemonFit(False, False), DaemonFit(False, True)
PLAIN = DaemonSetRule(revision="r1")
NEXT = DaemonSetRule(revision="r2")
SURGE = DaemonSetRule(revision="r2", surge=1, unavailable=0)


def daemon_node(node: str, *pods: Pod, fit: DaemonFit = YES) -> DaemonNode:
    """A node with pods."""
    return DaemonNode(node, fit, pods)


def pod(node: str, **fields: Any) -> Pod:
    """A node's pod."""
    return make_pod(f"agent-{node}-{fields.get('revision', 'r1')}", node=node, **fields)


def going(decision: DaemonSetPlan) -> list[tuple[str, str]]:
    """The pods that are deleted for other reasons than an update."""
    return [(removal.pod.metadata.name, removal.cause) for removal in decision.removals]


def replaced(decision: DaemonSetPlan) -> list[str]:
    """The pods that are deleted for an update."""
    return [pod.metadata.name for pod in decision.outdated[: decision.allowed]]


def test_nodes_get_what_they_should_have() -> None:
    """A missing pod is created, a misplaced one deleted, one that may continue stays."""
    decision = decide(
        PLAIN,
        [
            daemon_node("a"),
            daemon_node("b", pod("b")),
            daemon_node("c", pod("c"), fit=NO),
            daemon_node("d", pod("d"), fit=NO_MORE),
            daemon_node("e", fit=NO_MORE),
        ],
        now=NOW,
    )
    assert decision.creations == ["a"]
    assert [pod.metadata.name for pod in decision.misplaced] == ["agent-c-r1"]
    assert going(decision) == []


def test_a_terminating_pod_keeps_its_node() -> None:
    """Without surge a new pod is created when the old one is gone; with surge at once."""
    leaving = [daemon_node("a", pod("a", leaving=True))]
    assert decide(PLAIN, leaving, now=NOW).creations == []
    assert decide(SURGE, leaving, now=NOW).creations == ["a"]


def test_of_two_pods_the_older_stays() -> None:
    """A bound pod counts as older than a pending one, then age decides."""
    two = daemon_node("a", pod("a", created="2025-01-02T00:00:00Z"), make_pod("b-1", node="a"))
    assert going(decide(PLAIN, [two], now=NOW)) == [("agent-a-r1", "surplus")]


def test_finished_pods_go_and_failed_ones_may_have_to_wait() -> None:
    """Failed and succeeded pods are deleted; during the pause of a node its failed pod stays."""
    spots = [
        daemon_node("a", pod("a", phase="Failed")),
        daemon_node("b", pod("b", phase="Succeeded")),
    ]
    assert going(decide(PLAIN, spots, now=NOW)) == [
        ("agent-a-r1", "failed"),
        ("agent-b-r1", "succeeded"),
    ]
    resting = decide(PLAIN, spots, now=NOW, backing_off={"a"})
    assert going(resting) == [("agent-b-r1", "succeeded")]
    assert resting.backing_off == ["a"]


def test_a_pod_for_a_node_that_is_gone_is_deleted_if_it_was_never_bound() -> None:
    """Bound pods of lost nodes are left to the pod garbage collector."""
    decision = decide(PLAIN, [], now=NOW, stranded=[make_pod("x"), make_pod("y", node="lost")])
    assert [pod.metadata.name for pod in decision.misplaced] == ["x"]
    assert going(decision) == []


def test_an_update_stays_within_max_unavailable() -> None:
    """Available pods are deleted up to maxUnavailable; unavailable ones at once."""
    spots = [daemon_node(name, pod(name)) for name in "abcd"]
    assert replaced(decide(NEXT, spots, now=NOW)) == ["agent-a-r1"]
    two = replace(NEXT, unavailable="50%")
    assert replaced(decide(two, spots, now=NOW)) == ["agent-a-r1", "agent-b-r1"]
    broken = [*spots[:3], daemon_node("d", pod("d", ready=False))]
    assert replaced(decide(NEXT, broken, now=NOW)) == ["agent-d-r1"]
    young = [*spots[1:], daemon_node("a", pod("a", revision="r2", ready=False))]
    assert replaced(decide(NEXT, young, now=NOW)) == []
    assert decide(replace(NEXT, on_delete=True), spots, now=NOW).allowed == 0


def test_an_update_waits_until_nothing_is_to_be_repaired() -> None:
    """A missing pod is created before the update continues."""
    spots = [daemon_node("a", pod("a")), daemon_node("b")]
    decision = decide(NEXT, spots, now=NOW)
    assert (decision.creations, decision.allowed) == (["b"], 0)


def test_a_surge_makes_the_new_pod_first() -> None:
    """Up to maxSurge new pods run beside old ones, which are deleted when those are available."""
    spots = [daemon_node(name, pod(name)) for name in "abc"]
    assert decide(SURGE, spots, now=NOW).creations == ["a"]
    young = [daemon_node("a", pod("a"), pod("a", revision="r2", ready=False)), *spots[1:]]
    waiting = decide(SURGE, young, now=NOW)
    assert (waiting.creations, waiting.allowed) == ([], 0)
    both = [daemon_node("a", pod("a"), pod("a", revision="r2")), *spots[1:]]
    assert replaced(decide(SURGE, both, now=NOW)) == ["agent-a-r1"]
    neither = [
        daemon_node("a", pod("a", ready=False), pod("a", revision="r2", ready=False)),
        *spots[1:],
    ]
    assert replaced(decide(SURGE, neither, now=NOW)) == ["agent-a-r1"]


def test_a_broken_old_pod_gets_its_successor_beyond_the_surge() -> None:
    """A pod that is unavailable does not count against the surge."""
    spots = [
        daemon_node("a", pod("a")),
        daemon_node("b", pod("b", ready=False)),
        daemon_node("c", pod("c")),
    ]
    assert sorted(decide(SURGE, spots, now=NOW).creations) == ["a", "b"]


def test_with_surge_a_leftover_goes_when_enough_others_are_available() -> None:
    """A node that may get no new pod keeps its old one until the others are available."""
    left = daemon_node("z", pod("z"), fit=NO_MORE)
    new = [
        daemon_node("a", pod("a", revision="r2")),
        daemon_node("b", pod("b", revision="r2", ready=False)),
    ]
    assert replaced(decide(SURGE, [left, *new], now=NOW)) == []
    up = [daemon_node("a", pod("a", revision="r2")), daemon_node("b", pod("b", revision="r2"))]
    assert replaced(decide(SURGE, [left, *up], now=NOW)) == ["agent-z-r1"]


def test_a_status_counts_by_the_oldest_pod_of_a_node() -> None:
    """Nodes are counted, not pods; misscheduled nodes have a pod and should not."""
    spots = [
        daemon_node("a", pod("a"), pod("a", revision="r2", created="2025-02-01T00:00:00Z")),
        daemon_node("b", pod("b", revision="r2", ready=False)),
        daemon_node("c"),
        daemon_node("d", pod("d"), fit=NO_MORE),
    ]
    assert count(NEXT, spots, now=NOW) == DaemonSetCounts(
        desired=3, current=2, misscheduled=1, ready=1, available=1, updated=1
    )


def test_a_pod_of_the_present_generation_is_updated() -> None:
    """The label of the generation counts as well as that of the revision."""
    labels = {"pod-template-generation": "7"}
    labelled = msgspec.structs.replace(
        pod("a"), metadata=msgspec.structs.replace(pod("a").metadata, labels=labels)
    )
    assert replace(NEXT, generation="7").updated(labelled)
    assert not replace(NEXT, generation="8").updated(labelled)


def template(**spec: Any) -> bytes:
    """A pod template."""
    body = {"metadata": {}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}
    return msgspec.json.encode(body)


def node(name: str, *taints: tuple[str, str], **labels: str) -> Node:
    """A node."""
    return Node(
        metadata=ObjectMeta(name=name, labels=labels),
        spec=NodeSpec(taints=tuple(Taint(key=key, effect=effect) for key, effect in taints)),
    )


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("spec", "where", "fit"),
    [
        ({}, node("a"), YES),
        ({}, node("a", ("busy", "NoSchedule")), NO_MORE),
        ({}, node("a", ("busy", "NoExecute")), NO),
        ({}, node("a", ("busy", "PreferNoSchedule")), YES),
        ({}, node("a", ("node.kubernetes.io/unschedulable", "NoSchedule")), YES),
        ({}, node("a", ("node.kubernetes.io/not-ready", "NoExecute")), YES),
        ({}, node("a", ("node.kubernetes.io/network-unavailable", "NoSchedule")), NO_MORE),
        (
            {"hostNetwork": True},
            node("a", ("node.kubernetes.io/network-unavailable", "NoSchedule")),
            YES,
        ),
        ({"tolerations": [{"operator": "Exists"}]}, node("a", ("busy", "NoExecute")), YES),
        ({"nodeName": "b"}, node("a"), NO),
        ({"nodeSelector": {"color": "blue"}}, node("a", color="blue"), YES),
        ({"nodeSelector": {"color": "blue"}}, node("a"), NO),
        (
            {
                "affinity": {
                    "nodeAffinity": {
                        REQUIRED: {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "color", "operator": "Exists"}]}
                            ]
                        }
                    }
                }
            },
            node("a"),
            NO,
        ),
    ],
)
def test_which_nodes_get_a_pod(spec: dict[str, Any], where: Node, fit: DaemonFit) -> None:
    """Selector, affinity and taints decide; daemons tolerate the taints of unhealthy nodes."""
    assert placement_of(template(**spec)).fit(where) == fit


def test_a_pod_has_the_affinity_of_its_node() -> None:
    """The required node affinity is replaced, everything else of the affinity stays."""
    affinity = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
            REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": []}]},
        },
        "podAntiAffinity": {},
    }
    spec = msgspec.json.decode(placement_of(template(affinity=affinity)).spec_for("a"))
    own = spec["affinity"]["nodeAffinity"]
    name = {"key": "metadata.name", "operator": "In", "values": ["a"]}
    assert own[REQUIRED] == {"nodeSelectorTerms": [{"matchFields": [name]}]}
    assert own["preferredDuringSchedulingIgnoredDuringExecution"]
    assert spec["affinity"]["podAntiAffinity"] == {}
    assert node_of(msgspec.convert({"spec": spec}, Pod)) == "a"


def test_an_own_toleration_is_not_repeated() -> None:
    """A toleration of the template that a daemon has anyway is there only once."""
    own = {
        "key": "node.kubernetes.io/not-ready",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 5,
    }
    tolerations = placement_of(template(tolerations=[own])).tolerations
    assert len(tolerations) == 6
    assert tolerations[0].toleration_seconds is None


Crowd = dict[str, list[tuple[str, str]]]
FIELDS: dict[str, dict[str, Any]] = {
    "up": {},
    "down": {"ready": False},
    "failed": {"phase": "Failed"},
    "leaving": {"leaving": True},
}
NODES = "abcde"
PODS = st.tuples(st.sampled_from(sorted(FIELDS)), st.sampled_from(["r1", "r2"]))
CROWDS = st.dictionaries(st.sampled_from(NODES), st.lists(PODS, max_size=2))
RULES = st.builds(
    DaemonSetRule,
    revision=st.just("r2"),
    unavailable=st.sampled_from([1, 2, "50%"]),
    surge=st.just(0),
) | st.builds(
    DaemonSetRule,
    revision=st.just("r2"),
    unavailable=st.just(0),
    surge=st.sampled_from([1, 2, "50%"]),
)


def build_nodes(crowd: Crowd) -> list[DaemonNode]:
    """Nodes with pods in these states and revisions."""
    return [
        DaemonNode(
            name,
            YES,
            tuple(
                make_pod(f"{name}{number}", node=name, revision=revision, **FIELDS[state])
                for number, (state, revision) in enumerate(crowd.get(name, []))
            ),
        )
        for name in NODES
    ]


def carried_out(crowd: Crowd, decision: DaemonSetPlan) -> Crowd:
    """The pods after a decision."""
    gone = {removal.pod.metadata.name for removal in decision.removals}
    gone |= set(replaced(decision))
    after = {
        name: [
            ("leaving", revision) if f"{name}{number}" in gone else (state, revision)
            for number, (state, revision) in enumerate(crowd.get(name, []))
        ]
        for name in NODES
    }
    for name in decision.creations:
        after[name].append(("down", "r2"))
    return after


def without(crowd: Crowd) -> int:
    """The number of nodes without an available pod."""
    return sum(all(state != "up" for state, _ in crowd.get(name, [])) for name in NODES)


@given(rule=RULES, crowd=CROWDS)
def test_an_update_never_leaves_more_nodes_without_than_allowed(
    rule: DaemonSetRule, crowd: Crowd
) -> None:
    """Taking down available pods leaves at most maxUnavailable nodes without one."""
    decision = decide(rule, build_nodes(crowd), now=NOW)
    after = without(carried_out(crowd, decision))
    if decision.allowed and after > without(crowd) and rule.surge == 0:
        assert after <= scale_int_or_percent(rule.unavailable, len(NODES), round_up=True)
    if rule.surge and not decision.removals:
        assert after <= without(crowd)


@given(rule=RULES, crowd=CROWDS, seed=st.integers())
def test_any_order_of_nodes_gives_the_same_decision(
    rule: DaemonSetRule, crowd: Crowd, seed: int
) -> None:
    """A decision does not depend on the order of nodes."""
    spots = build_nodes(crowd)
    mixed = random.Random(seed).sample(spots, len(spots))
    assert decide(rule, spots, now=NOW) == decide(rule, mixed, now=NOW)


@settings(max_examples=60, deadline=None)
@given(rule=RULES, crowd=CROWDS, seed=st.integers())
def test_every_crowd_converges(rule: DaemonSetRule, crowd: Crowd, seed: int) -> None:
    """Whatever fails meanwhile, in the end every node has one updated pod that is available."""
    rng = random.Random(seed)
    for turn in range(150):
        crowd = carried_out(crowd, decide(rule, build_nodes(crowd), now=NOW))
        calm = turn > 20
        for name, pods in crowd.items():
            living: list[tuple[str, str]] = []
            for state, revision in pods:
                chance = rng.random()
                if state == "leaving" and chance < 0.5:
                    continue
                if state == "down" and chance < 0.5:
                    living.append(("up", revision))
                elif state == "up" and chance < 0.1 and not calm:
                    living.append((rng.choice(["down", "failed"]), revision))
                else:
                    living.append((state, revision))
            crowd[name] = living
    assert crowd == {name: [("up", "r2")] for name in NODES}
