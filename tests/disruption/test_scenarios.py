"""The scenarios that were agreed on, by number; R = 9, zones a, b, c with three Ready pods each."""

from __future__ import annotations

from typing import Any

import pytest
from tests.disruption.clusters import (
    EXISTS,
    NOW,
    NS,
    ZONE,
    allowed,
    code,
    deployment,
    namespace_budgets,
    node,
    pdb,
    per_zone,
    pod,
    spread,
    tdb,
    zones,
)

from zonewise.api import Object, Pod, convert, unstructured
from zonewise.api.objects.apps import DaemonSet, StatefulSet
from zonewise.api.objects.budgets import Grant
from zonewise.api.resource import Resource
from zonewise.api.values import times
from zonewise.disruption.baseline import fit_baseline, settle_baseline
from zonewise.disruption.ledger import Ledger
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owner_views import StatefulSetScale
from zonewise.disruption.owners import ScaleOwner, owner_of
from zonewise.disruption.verdict import VerdictRound

ONE_EACH = per_zone(maxUnavailable=1)
BUT_A = per_zone(
    term=({"key": ZONE, "operator": "NotIn", "values": ["a"]}, EXISTS), maxUnavailable=0
)
ZERO = {"maxUnavailable": 0}
ALL = {"a": 3, "b": 3, "c": 3}


def named(namespace: NamespaceBudgets, name: str) -> Pod:
    """A pod of the book."""
    return next(
        candidate for candidate in namespace.pods.values() if candidate.metadata.name == name
    )


def granted(*names: str, age: float = 0.0) -> Ledger:
    """A ledger with these pods."""
    time = times.format_time(times.from_epoch(NOW - age))
    return Ledger({f"uid-{name}": Grant(uid=f"uid-{name}", pod=name, time=time) for name in names})


def test_1_one_pod_of_each_zone() -> None:
    """Story 2: each zone allows one pod at once, and no second one."""
    namespace = namespace_budgets(spread(**ALL), tdb(**ONE_EACH))
    assert allowed(namespace) == {"a": 1, "b": 1, "c": 1}
    verdicts = VerdictRound(namespace, NOW)
    for zone in "abc":
        item = named(namespace, f"{zone}-0")
        assert verdicts.judge(item).charged
        verdicts.charge(item)
    refused = verdicts.judge(named(namespace, "a-1"))
    assert [(blocker.budget, blocker.domain) for blocker in refused.blockers] == [("web", "a")]
    assert "domain a" in refused.reason.message


def test_2_one_pod_of_all() -> None:
    """Story 3: a budget without a term allows one pod in total."""
    namespace = namespace_budgets(spread(**ALL), tdb(maxUnavailable=1))
    assert allowed(namespace) == {"*": 1}
    namespace.ledger = granted("a-0")
    assert code(namespace, "b-0") == "Blocked"


def test_3_one_zone_is_open() -> None:
    """Story 1: zones b and c are closed, zone a has no limit."""
    namespace = namespace_budgets(spread(**ALL), tdb(**BUT_A))
    assert allowed(namespace) == {"a": None, "b": 0, "c": 0}
    assert [code(namespace, f"{zone}-0") for zone in "abc"] == ["Uncovered", "Blocked", "Blocked"]


def test_4_both_must_agree() -> None:
    """Under stories 1 and 3 pods of zone a go one by one, and each blocking budget is named."""
    namespace = namespace_budgets(spread(**ALL), tdb("one", **BUT_A), tdb("all", maxUnavailable=1))
    assert code(namespace, "a-0") == "Allowed"
    namespace.ledger = granted("a-0")
    assert code(namespace, "a-1") == "Blocked"
    blockers = namespace.judge(named(namespace, "b-0"), NOW).blockers
    assert [(blocker.budget, blocker.domain) for blocker in blockers] == [
        ("all", "*"),
        ("one", "b"),
    ]


def test_7_moving_the_open_zone() -> None:
    """A closed zone stays closed to updates however many new pods surge into it."""
    old = [pod(f"o{zone}{n}", f"n-{zone}") for zone in "bc" for n in range(3)]
    new = [pod(f"n{zone}{n}", f"n-{zone}", owner="web-2") for zone in "abc" for n in range(2)]
    namespace = namespace_budgets(
        [*old, *new],
        tdb(domains=ALL, **BUT_A),
        owners=deployment(9, revisions=2),
    )
    assert allowed(namespace) == {"a": None, "b": 2, "c": 2}
    assert code(namespace, "ob0") == "Blocked"
    assert code(namespace, "nb0") == "Allowed"


def test_10_scaled_to_nothing() -> None:
    """A workload with zero replicas expects no pods, so all may go."""
    namespace = namespace_budgets(spread(**ALL), tdb(**ONE_EACH), replicas=0)
    assert allowed(namespace) == ALL


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        (6, {"a": 0, "b": 0, "c": 0}),
        (5, {"a": 0, "b": 0, "c": 1}),
        (3, {"a": 1, "b": 1, "c": 1}),
        (0, {"a": 2, "b": 2, "c": 2}),
    ],
)
def test_11_no_number_holds_more_than_is_expected(replicas: int, expected: dict[str, int]) -> None:
    """minAvailable 2 in each zone protects six pods; a scale-down below it ends all the same."""
    namespace = namespace_budgets(
        spread(a=2, b=2, c=2), tdb(**per_zone(minAvailable=2)), replicas=replicas
    )
    assert allowed(namespace) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, {"a": 1, "b": 1, "c": 1}),
        ({"expectedPods": "ReplicasPerDomain"}, {"a": 4, "b": 0, "c": 0}),
    ],
)
def test_12_13_uneven(spec: dict[str, Any], expected: dict[str, int]) -> None:
    """With six, two and one pods each zone allows one; counted literally by the KEP the small zones
    are blocked.
    """
    assert allowed(namespace_budgets(spread(a=6, b=2, c=1), tdb(**ONE_EACH, **spec))) == expected


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        (6, {"a": 0, "b": 0, "c": 0}),
        (5, {"a": 1, "b": 1, "c": 0}),
        (3, {"a": 2, "b": 2, "c": 0}),
        (0, {"a": 3, "b": 3, "c": 0}),
    ],
)
def test_13_even_shares_hold_no_scale_down(replicas: int, expected: dict[str, int]) -> None:
    """An exclusive budget that expects even shares waits for pods of zone c, which has none; a
    scale-down does not.
    """
    spec = {"expectedPods": "ReplicasPerDomain", "crossDomain": "Exclusive", **ONE_EACH}
    namespace = namespace_budgets(spread(a=3, b=3), tdb(domains=ALL, **spec), replicas=replicas)
    assert allowed(namespace) == expected


@pytest.mark.parametrize(
    ("percent", "expected"),
    [
        ("25%", {"a": 1, "b": 1, "c": 1}),
        ("50%", {"a": 2, "b": 2, "c": 2}),
        ("1%", {"a": 1, "b": 1, "c": 1}),
        ("0%", {"a": 0, "b": 0, "c": 0}),
        ("100%", {"a": 4, "b": 3, "c": 3}),
    ],
)
def test_14_percentages_round_up(percent: str, expected: dict[str, int]) -> None:
    """A percentage of a zone's expected pods is rounded up."""
    namespace = namespace_budgets(
        spread(a=4, b=3, c=3), tdb(**per_zone(maxUnavailable=percent)), replicas=10
    )
    assert allowed(namespace) == expected


def test_15_at_least_half() -> None:
    """With at least half of three pods required, two must stay."""
    namespace = namespace_budgets(spread(**ALL), tdb(**per_zone(minAvailable="50%")))
    assert allowed(namespace) == {"a": 1, "b": 1, "c": 1}


def test_16_fewer_pods_than_zones() -> None:
    """A zone without pods allows none."""
    namespace = namespace_budgets(spread(a=1, b=1), tdb(**ONE_EACH), replicas=2)
    assert allowed(namespace) == {"a": 1, "b": 1, "c": 0}


def test_17_a_surge() -> None:
    """Three surplus pods may go as well when they are Ready, and not while they are unready."""
    pods = spread(a=4, b=4, c=4)
    budget = tdb(domains=ALL, **ONE_EACH)
    assert allowed(namespace_budgets(pods, budget)) == {"a": 2, "b": 2, "c": 2}
    unready = [*spread(**ALL), *(pod(f"{z}-new", f"n-{z}", ready=False) for z in "abc")]
    assert allowed(namespace_budgets(unready, budget)) == {"a": 1, "b": 1, "c": 1}


def test_18_a_replacement_without_a_node() -> None:
    """Zone a gave its pod; the replacement that is Pending may be deleted freely."""
    pods = [*spread(a=2, b=3, c=3), pod("new", "", ready=False, phase="Pending")]
    namespace = namespace_budgets(pods, tdb(domains=ALL, **ONE_EACH))
    assert allowed(namespace) == {"a": 0, "b": 1, "c": 1}
    assert code(namespace, "new") == "Free"


def test_19_20_a_zone_is_out() -> None:
    """Zones are independent of each other, unless they are to be disturbed one at a time."""
    pods = [*spread(b=3, c=3), *(pod(f"a-{n}", "n-a", ready=False) for n in range(3))]
    assert allowed(namespace_budgets(pods, tdb(**ONE_EACH))) == {"a": 0, "b": 1, "c": 1}
    alone = namespace_budgets(
        pods, tdb(**ONE_EACH, crossDomain="Exclusive", unhealthyPodEvictionPolicy="AlwaysAllow")
    )
    assert allowed(alone) == {"a": 0, "b": 0, "c": 0}
    assert (code(alone, "a-0"), code(alone, "b-0")) == ("Unready", "Blocked")


def test_21_pods_have_moved() -> None:
    """After an outage zones that took pods over keep them, and none is stuck. Before the workload
    has settled, five and four are expected; the remembered numbers alone would let zone b fall to
    two of five.
    """
    namespace = namespace_budgets(spread(b=5, c=4), tdb(domains=ALL, **ONE_EACH))
    assert allowed(namespace) == {"a": 0, "b": 1, "c": 1}
    assert settle_baseline(9, ALL, {"b": 5, "c": 4}, "abc") == {"a": 0, "b": 5, "c": 4}


def test_23_a_node_without_the_label() -> None:
    """Pods on a node without the label are not covered, but they count in all sums."""
    nodes = zones("a", "b", "c") | {"n-x": node("n-x")}
    namespace = namespace_budgets(
        [*spread(**ALL), pod("x-0", "n-x")], tdb(**ONE_EACH), nodes=nodes, replicas=10
    )
    standing = namespace.state(next(iter(namespace.budgets)), NOW)
    assert (standing.uncovered_pods, code(namespace, "x-0")) == (1, "Uncovered")
    assert allowed(namespace) == {"a": 1, "b": 1, "c": 1}


def test_24_a_node_is_gone() -> None:
    """A pod whose node is gone is in the domain of its own label; without one it is not covered."""
    labelled = pod("gone", "n-gone", labels={ZONE: "a"})
    namespace = namespace_budgets([*spread(a=2, b=3, c=3), labelled], tdb(**ONE_EACH))
    assert namespace.state(next(iter(namespace.budgets)), NOW).domains["a"].present == 3
    lost = namespace_budgets([*spread(a=2, b=3, c=3), pod("gone", "n-gone")], tdb(**ONE_EACH))
    assert code(lost, "gone") == "Uncovered"


def test_25_a_node_moves() -> None:
    """A node with a new label takes its pods along, and no number becomes negative."""
    nodes = zones("a", "b", "c")
    namespace = namespace_budgets(spread(**ALL), tdb(domains=ALL, **ONE_EACH), nodes=nodes)
    nodes["n-a"] = node("n-a", "b")
    namespace.nodes_changed()
    assert allowed(namespace) == {"a": 0, "b": 1, "c": 1}


def test_26_a_term_that_groups_by_nothing() -> None:
    """The selected nodes are one domain; others are not covered."""
    term = ({"key": ZONE, "operator": "In", "values": ["a", "b"]},)
    namespace = namespace_budgets(spread(**ALL), tdb(**per_zone(term=term, maxUnavailable=1)))
    assert allowed(namespace) == {"*": 1}
    assert code(namespace, "c-0") == "Uncovered"


def test_27_two_keys() -> None:
    """Domains are named by their values in the order of the keys."""
    nodes = {
        f"n-{zone}": node(f"n-{zone}", zone, **{"topology.kubernetes.io/region": "eu"})
        for zone in "abc"
    }
    region = {"key": "topology.kubernetes.io/region", "operator": "Exists"}
    namespace = namespace_budgets(
        spread(**ALL), tdb(**per_zone(term=(region, EXISTS), maxUnavailable=1)), nodes=nodes
    )
    assert allowed(namespace) == {"eu/a": 1, "eu/b": 1, "eu/c": 1}
    keys = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
    other = namespace_budgets(spread(**ALL), tdb(topologyKeys=keys, maxUnavailable=1), nodes=nodes)
    assert set(allowed(other)) == {"a/eu", "b/eu", "c/eu"}


def test_28_29_zones_and_racks() -> None:
    """A grant needs both budgets, and a refusal by one does not charge the other."""
    nodes = {f"n-{z}": node(f"n-{z}", z, **{"example.com/rack": "r"}) for z in "abc"}
    rack = {"key": "example.com/rack", "operator": "Exists"}
    namespace = namespace_budgets(
        spread(**ALL),
        tdb("zone", **ONE_EACH),
        tdb("rack", **per_zone(term=(rack,), maxUnavailable=2)),
        nodes=nodes,
    )
    verdicts = VerdictRound(namespace, NOW)
    for name in ("a-0", "b-0"):
        verdicts.charge(named(namespace, name))
    refused = verdicts.judge(named(namespace, "c-0"))
    assert [blocker.budget for blocker in refused.blockers] == ["rack"]
    assert verdicts.state(("TopologyDisruptionBudget", NS, "zone")).allowed("c") == 1
    assert [blocker.budget for blocker in verdicts.judge(named(namespace, "a-1")).blockers] == [
        "rack",
        "zone",
    ]


def test_33_the_plain_budget_is_asked_too() -> None:
    """A plain budget that allows nothing blocks before anything is granted, even a second time."""
    closed = pdb(maxUnavailable=1, status={"desiredHealthy": 9, "currentHealthy": 9})
    namespace = namespace_budgets(spread(**ALL), tdb(**ONE_EACH), closed, ledger=granted("a-0"))
    assert [code(namespace, "a-0"), code(namespace, "b-0")] == ["Blocked", "Blocked"]
    (blocker,) = namespace.judge(named(namespace, "b-0"), NOW).blockers
    assert (blocker.kind, blocker.domain) == ("PodDisruptionBudget", "*")


def test_34_a_grant_that_was_not_used() -> None:
    """A grant that was not used charges the budget for two minutes and no longer."""
    for age, expected in ((119.0, 0), (121.0, 1)):
        namespace = namespace_budgets(
            spread(**ALL), tdb(**ONE_EACH), ledger=granted("a-0", age=age)
        )
        assert allowed(namespace)["a"] == expected


def test_35_a_name_comes_again() -> None:
    """A pod of the same name with another uid is another pod."""
    namespace = namespace_budgets(spread(**ALL), tdb(**ONE_EACH))
    namespace.ledger = Ledger({"uid-before": Grant(uid="uid-before", pod="a-0", time="")})
    assert code(namespace, "a-0") == "Allowed"


def test_36_asked_twice() -> None:
    """A second request for a pod is the same grant and charges nothing."""
    namespace = namespace_budgets(spread(**ALL), tdb(**ONE_EACH), ledger=granted("a-0"))
    verdict = namespace.judge(named(namespace, "a-0"), NOW)
    assert (verdict.reason.code, verdict.allowed, verdict.charged) == ("Granted", True, False)


@pytest.mark.parametrize(
    "item",
    [
        pod("x", "n-a", phase="Pending"),
        pod("x", "n-a", phase="Succeeded"),
        pod("x", "n-a", phase="Failed"),
        pod("x", "n-a", leaving=True),
        pod("x"),
    ],
)
def test_38_pods_that_may_go_freely(item: Pod) -> None:
    """Pending, finished and terminating pods are not protected."""
    assert code(namespace_budgets([item, *spread(**ALL)], tdb(maxUnavailable=0)), "x") == "Free"


def test_39_unready_pods() -> None:
    """Unready pods may be evicted if enough are healthy or the policy allows it; controllers may
    always delete them.
    """
    pods = [*spread(a=2, b=3, c=3), pod("x", "n-a", ready=False)]
    assert code(namespace_budgets(pods, tdb(**ONE_EACH)), "x") == "Unready"
    strict = namespace_budgets(pods, tdb(**per_zone(maxUnavailable=0)))
    assert code(strict, "x") == "Blocked"
    assert code(strict, "x", evicting=False) == "Unready"
    free = tdb(**per_zone(maxUnavailable=0), unhealthyPodEvictionPolicy="AlwaysAllow")
    assert code(namespace_budgets(pods, free), "x") == "Unready"


def test_49_daemons_expect_their_nodes() -> None:
    """A DaemonSet expects a pod on every eligible node of a zone and has no baseline."""
    nodes = {f"n-{zone}{n}": node(f"n-{zone}{n}", zone) for zone in "abc" for n in range(3)}
    daemon = convert(DaemonSet, {"metadata": {"name": "d", "namespace": NS, "uid": "uid-d"}})
    pods = [pod(f"d-{name}", name, owner="d", kind="DaemonSet") for name in sorted(nodes)]
    namespace = namespace_budgets(
        pods[1:], tdb(domains={"a": 9}, **ONE_EACH), nodes=nodes, owners=[owner_of(daemon)]
    )
    assert allowed(namespace) == {"a": 0, "b": 1, "c": 1}
    assert namespace.state(next(iter(namespace.budgets)), NOW).replicas == 9


@pytest.mark.parametrize(
    "spec",
    [
        {"maxUnavailable": 1, "minAvailable": 1},
        {},
        {"maxUnavailable": -1},
        {"maxUnavailable": "101%"},
        {"maxUnavailable": "many"},
        per_zone(term=({"key": ZONE, "operator": "Near"},), maxUnavailable=1),
    ],
)
def test_55_an_invalid_budget(spec: dict[str, Any]) -> None:
    """An invalid budget allows nothing and says what is wrong with it."""
    namespace = namespace_budgets(spread(**ALL), tdb(**spec))
    assert code(namespace, "a-0") == "Blocked"
    assert namespace.state(next(iter(namespace.budgets)), NOW).reason().code == "InvalidBudget"


def test_55_an_empty_term() -> None:
    """An empty term selects no node, so nothing is covered."""
    namespace = namespace_budgets(spread(**ALL), tdb(nodeSelectorTerm={}, maxUnavailable=0))
    assert code(namespace, "a-0") == "Uncovered"


def test_60_a_budget_that_only_observes() -> None:
    """A budget that only observes blocks no pod and charges no grant."""
    namespace = namespace_budgets(spread(**ALL), tdb(maxUnavailable=0, mode="Observe"))
    verdict = namespace.judge(named(namespace, "a-0"), NOW)
    assert (verdict.reason.code, verdict.charged) == ("Uncovered", False)
    assert allowed(namespace) == {"*": 0}


@pytest.mark.parametrize("key", [ZONE, "failure-domain.beta.kubernetes.io/zone"])
@pytest.mark.parametrize("labelled", [ZONE, "failure-domain.beta.kubernetes.io/zone"])
def test_61_old_and_new_keys(key: str, labelled: str) -> None:
    """The old and the new key of zones are equivalent; the old one is reported."""
    nodes = {f"n-{zone}": node(f"n-{zone}", **{labelled: zone}) for zone in "abc"}
    budget = tdb(**per_zone(term=({"key": key, "operator": "Exists"},), maxUnavailable=1))
    assert allowed(namespace_budgets(spread(**ALL), budget, nodes=nodes)) == {
        "a": 1,
        "b": 1,
        "c": 1,
    }
    assert bool(budget.old_keys) == (key != ZONE)


def test_two_plain_budgets_are_one_too_many() -> None:
    """Two plain budgets of a pod block it, as on a real server; if one of its budgets has a term,
    all are checked.
    """
    fine = {"disruptionsAllowed": 1}
    two = [pdb("p1", maxUnavailable=1, status=fine), pdb("p2", maxUnavailable=1, status=fine)]
    assert code(namespace_budgets(spread(**ALL), *two), "a-0") == "Blocked"
    assert code(namespace_budgets(spread(**ALL), *two, pdb("p3", **ONE_EACH)), "a-0") == "Allowed"


def test_a_plain_budget_costs_no_grant() -> None:
    """A plain budget costs no grant, since the server itself charges it."""
    namespace = namespace_budgets(
        spread(**ALL), pdb(maxUnavailable=1, status={"disruptionsAllowed": 1})
    )
    verdict = namespace.judge(named(namespace, "a-0"), NOW)
    assert (verdict.reason.code, verdict.charged) == ("Allowed", False)


def test_which_object_has_the_number_of_replicas() -> None:
    """A Rollout above a ReplicaSet counts; jobs and pods without an owner count themselves."""
    rollout = unstructured(Resource("argoproj.io", "v1alpha1", "Rollout", "rollouts"))(
        {"metadata": {"name": "web", "namespace": NS, "uid": "uid-web"}, "spec": {"replicas": 9}}
    )
    _, small = deployment(9)
    assert small.controller is not None
    owners = [
        owner_of(rollout),
        ScaleOwner(
            key=small.key,
            uid=small.uid,
            replicas=3,
            controller=convert(
                type(small.controller),
                {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web"},
            ),
        ),
        ScaleOwner(key=("batch", "Job", NS, "j")),
    ]
    job = {"ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j",
                                "controller": True}]}  # fmt: skip
    extra = convert(
        Pod, {"metadata": {"name": "j", "namespace": NS, "labels": {"app": "web"}, **job}}
    )
    alone = pod("alone", "n-a", owner="")
    namespace = namespace_budgets(
        [*spread(a=3), extra, alone], tdb(maxUnavailable=1), owners=owners
    )
    assert namespace.state(next(iter(namespace.budgets)), NOW).replicas == 11


def test_an_owner_that_is_not_there() -> None:
    """While the owner of a pod is missing the expected number is unknown, so no pod may go, unless
    the pod is terminating.
    """
    lost = pod("lost", "n-a", owner="other", kind="Thing")
    namespace = namespace_budgets([*spread(**ALL), lost], tdb(**ONE_EACH))
    standing = namespace.state(next(iter(namespace.budgets)), NOW)
    assert (standing.reason().code, standing.replicas) == ("UnknownScale", None)
    assert allowed(namespace) == {"a": 0, "b": 0, "c": 0}
    leaving = pod("lost", "n-a", owner="other", kind="Thing", leaving=True)
    assert allowed(namespace_budgets([*spread(**ALL), leaving], tdb(**ONE_EACH))) == dict.fromkeys(
        "abc", 1
    )


def test_old_revisions_of_a_stateful_set() -> None:
    """A pod of another revision than the update revision is outdated."""
    group = convert(
        StatefulSet,
        {
            "metadata": {"name": "db", "namespace": NS, "uid": "uid-db"},
            "spec": {"replicas": 3},
            "status": {"updateRevision": "db-2"},
        },
    )
    pods = [
        pod(f"db-{n}", "n-a", owner="db", kind="StatefulSet",
            labels={"controller-revision-hash": f"db-{1 + n // 2}"})
        for n in range(4)
    ]  # fmt: skip
    namespace = namespace_budgets(pods, tdb(**per_zone(maxUnavailable=0)), owners=[owner_of(group)])
    assert [code(namespace, f"db-{n}") for n in range(4)] == [
        "Blocked",
        "Blocked",
        "Allowed",
        "Allowed",
    ]


@pytest.mark.parametrize("read", [StatefulSet, StatefulSetScale])
def test_a_budget_that_holds_updates_lets_a_stateful_set_shrink(read: type[Object]) -> None:
    """Under a budget that holds updates only a StatefulSet's pods beyond its replicas may go: the
    set deletes its highest ordinals, whatever their domain, and no update does.
    """
    group = convert(
        read,
        {
            "metadata": {"name": "db", "namespace": NS, "uid": "uid-db"},
            "spec": {"replicas": 2, "ordinals": {"start": 5}},
        },
    )
    pods = [
        pod(f"db-{5 + n}", f"n-{zone}", owner="db", kind="StatefulSet")
        for n, zone in enumerate("cba")
    ]
    closed = tdb(**per_zone(maxUnavailable=0, holds="Updates"))
    namespace = namespace_budgets(pods, closed, owners=[owner_of(group)])
    assert allowed(namespace) == {"a": 0, "b": 0, "c": 1}
    assert [code(namespace, f"db-{n}", evicting=False) for n in (6, 7)] == ["Blocked", "Uncovered"]
    always = tdb(**per_zone(maxUnavailable=0))
    namespace = namespace_budgets(pods, always, owners=[owner_of(group)])
    assert code(namespace, "db-7", evicting=False) == "Blocked"


def test_a_percentage_of_no_expected_pod_holds_evictions() -> None:
    """Half of nothing is nothing, so an old pod is not evicted where none is expected; its
    controller may delete it while it is not Ready, or the rollout would never end.
    """
    group = convert(
        StatefulSet,
        {
            "metadata": {"name": "db", "namespace": NS, "uid": "uid-db"},
            "spec": {"replicas": 1},
            "status": {"updateRevision": "db-2"},
        },
    )
    marks = {zone: {"controller-revision-hash": f"db-{n}"} for n, zone in ((2, "a"), (1, "b"))}
    pods = [
        pod(f"db-{zone}", f"n-{zone}", owner="db", kind="StatefulSet", ready=zone == "a",
            labels=marks[zone])
        for zone in "ab"
    ]  # fmt: skip
    half = tdb(**per_zone(maxUnavailable="50%"), domains={"a": 1})
    namespace = namespace_budgets(pods, half, owners=[owner_of(group)])
    broken = named(namespace, "db-b")
    assert namespace.judge(broken, NOW).reason.code == "Blocked"
    assert namespace.judge(broken, NOW, evicting=False).reason.code == "Unready"


def test_a_baseline_of_another_budget_is_ignored() -> None:
    """A baseline whose fingerprint has another selector or grouping is void."""
    budget = tdb(**ONE_EACH, domains={"a": 9})
    assert budget.baseline == {"a": 9}
    assert fit_baseline(9, {"a": 9}, "abc") == {"a": 9, "b": 0, "c": 0}
    assert tdb(maxUnavailable=1, domains={"a": 9}).baseline is None


def test_a_newer_grant_was_made_elsewhere() -> None:
    """A gate that has an older state of a budget than the last grant waits."""
    namespace = namespace_budgets(spread(**ALL), tdb(**ONE_EACH))
    namespace.ledger = Ledger({}, {"TopologyDisruptionBudget/web": "7"})
    assert code(namespace, "a-0") == "Blocked"


def test_a_budget_that_guards_nothing_says_that_all_may_go() -> None:
    """The code and the sentence about a budget whose term selects no node agree that all may go."""
    namespace = namespace_budgets(spread(**ALL), tdb(maxUnavailable=1, nodeSelectorTerm={}))
    reason = namespace.state(next(iter(namespace.budgets)), NOW).reason()
    assert reason.code == "SufficientPods"
    assert reason.message.endswith("any, nothing is guarded")
    assert code(namespace, "a-0") == "Uncovered"


def test_a_budget_with_an_invalid_selector_says_that_it_blocks_no_pod() -> None:
    """A budget with an invalid selector says that it selects no pod, not that it allows no
    disruption.
    """
    wrong = tdb(maxUnavailable=0, selector={"matchLabels": {"a b": "c"}})
    namespace = namespace_budgets(spread(**ALL), wrong)
    assert wrong.invalid_reason is not None
    assert wrong.invalid_reason.fix == "Until it is corrected it selects no pod."
    assert code(namespace, "a-0") == "Uncovered"


def test_a_refusal_by_an_invalid_budget_is_a_sentence() -> None:
    """A refusal by an invalid budget says what is wrong and what to do, with one full stop."""
    term = ({"key": "z", "operator": "Gt", "values": ["x"]},)
    namespace = namespace_budgets(spread(**ALL), tdb(**per_zone(term=term, maxUnavailable=1)))
    message = namespace.judge(named(namespace, "a-0"), NOW).reason.message
    assert message.endswith("or deleted it allows no disruption")


def test_a_ledger_of_another_cluster_says_what_to_do() -> None:
    """Versions that are ahead for ever block every grant; the refusal says how to end that."""
    ahead = Ledger({}, {"TopologyDisruptionBudget/web": "9" * 30}, "1")
    namespace = namespace_budgets(spread(**ALL), tdb(**ONE_EACH), ledger=ahead)
    assert (
        "delete the DisruptionLedger"
        in namespace.judge(named(namespace, "a-0"), NOW).reason.message
    )


def test_a_budget_that_never_allows_anything_says_so() -> None:
    """With ``maxUnavailable: 0`` waiting does not help, and the fix is another budget."""
    namespace = namespace_budgets(spread(a=3, b=3, c=3), tdb(**per_zone(maxUnavailable=0)))
    fix = namespace.judge(namespace.pods["uid-a-0"], NOW).reason.fix
    assert "so it never allows a disruption. Change or delete the budget." in fix
    assert "once enough pods are healthy" not in fix
    status = {"expectedPods": 9, "desiredHealthy": 9, "currentHealthy": 9}
    plain = namespace_budgets(spread(a=3, b=3, c=3), pdb(status=status))
    assert "needs all 9 pods it expects" in plain.judge(plain.pods["uid-a-0"], NOW).reason.fix
    surge = namespace_budgets(spread(a=3, b=3, c=3), pdb(status=status, maxUnavailable=0))
    fix = surge.judge(surge.pods["uid-a-0"], NOW).reason.fix
    assert "allows a disruption only while there are more pods than requested" in fix
    assert "never" not in fix
    waits = namespace_budgets(spread(a=2, b=3, c=3), tdb(**per_zone(maxUnavailable=1)))
    waits.put_pod(pod("a-9", "n-a", ready=False))
    assert "once enough pods are healthy" in waits.judge(waits.pods["uid-a-0"], NOW).reason.fix


def test_never_is_not_said_while_a_surge_leaves_spare_pods() -> None:
    """Pods of an old revision are blocked, and the numbers say that the domain has a spare pod."""
    namespace = namespace_budgets(
        [pod("a-0", "n-a"), *(pod(f"a-{n}", "n-a", owner="web-2") for n in (1, 2))],
        tdb(**per_zone(maxUnavailable=0), domains={"a": 2}),
        owners=deployment(2, revisions=2),
    )
    fix = namespace.judge(namespace.pods["uid-a-0"], NOW).reason.fix
    assert "never" not in fix
    assert "needs all 2 pods of domain a; 1 spare now" in fix


@pytest.mark.parametrize(
    ("spec", "subject"), [(per_zone(maxUnavailable=0), "pod of domain a"), (ZERO, "pod")]
)
def test_a_closed_domain_says_what_is_counted(spec: dict[str, Any], subject: str) -> None:
    """The refusal counts Ready pods of old revisions, and names the domain if there are several."""
    pods = [pod("a-0", "n-a"), *(pod(f"a-{n}", "n-a", owner="web-2") for n in (1, 2))]
    namespace = namespace_budgets(
        pods, tdb(**spec), nodes=zones("a"), owners=deployment(3, revisions=2)
    )
    assert namespace.judge(named(namespace, "a-0"), NOW).reason.message == (
        f"the budget web: no {subject} may be unavailable, and this one is of an old revision: 1"
        " pod of an old revision is Ready, 3 expected"
    )


def test_a_budget_that_needs_more_pods_than_it_expects_says_how_many() -> None:
    """More pods would help, so both solutions are named."""
    status = {"expectedPods": 1, "desiredHealthy": 5, "currentHealthy": 1}
    namespace = namespace_budgets(spread(a=1), pdb("cart-min", minAvailable=5, status=status))
    assert namespace.judge(namespace.pods["uid-a-0"], NOW).reason.fix == (
        "Waiting does not help: PodDisruptionBudget cart-min needs 5 healthy pods and expects 1, so"
        " with 1 pod it never allows a disruption. Change or delete the budget, or run more pods."
    )
    domains = namespace_budgets(spread(a=1), tdb(**per_zone(minAvailable=5)), replicas=1)
    fix = domains.judge(domains.pods["uid-a-0"], NOW).reason.fix
    assert "needs 5 healthy pods in domain a and expects 1, so with 1 pod it never" in fix


def test_of_two_plain_budgets_the_one_that_never_allows_is_removed() -> None:
    """If the other one stays the pod can go; if both never allow, one must be changed as well."""
    never = {"expectedPods": 9, "desiredHealthy": 9, "currentHealthy": 9}
    some = {"expectedPods": 9, "desiredHealthy": 8, "currentHealthy": 9, "disruptionsAllowed": 1}
    namespace = namespace_budgets(spread(a=9), pdb("shut", status=never), pdb("some", status=some))
    fix = namespace.judge(namespace.pods["uid-a-0"], NOW).reason.fix
    assert fix.startswith("Delete PodDisruptionBudget shut, or narrow")
    assert fix.endswith("shut never allows a disruption, and some may stay.")
    both = namespace_budgets(spread(a=9), pdb("shut", status=never), pdb("tight", status=never))
    fix = both.judge(both.pods["uid-a-0"], NOW).reason.fix
    assert fix.startswith("Delete PodDisruptionBudget tight, or narrow")
    assert fix.endswith("and change shut too: none of them allows a disruption.")


def test_budgets_of_two_kinds_on_a_pod_are_named_with_their_kind() -> None:
    """A refusal by budgets of two kinds names their kinds, since both may have the same name."""
    status = {"expectedPods": 9, "desiredHealthy": 9, "currentHealthy": 9}
    namespace = namespace_budgets(
        spread(a=9), pdb("web", status=status), tdb(**per_zone(maxUnavailable=0))
    )
    message = namespace.judge(namespace.pods["uid-a-0"], NOW).reason.message
    assert message.startswith("PodDisruptionBudget web: needs 9")
    assert "; TopologyDisruptionBudget web: needs 9" in message
    status = {"expectedPods": 9, "desiredHealthy": 8, "currentHealthy": 9, "disruptionsAllowed": 1}
    agrees = namespace_budgets(
        spread(a=9), pdb("web", status=status), tdb(**per_zone(maxUnavailable=0))
    )
    message = agrees.judge(agrees.pods["uid-a-0"], NOW).reason.message
    assert message.startswith("TopologyDisruptionBudget web: needs 9")


def test_a_plain_budget_that_cannot_be_counted_says_why() -> None:
    """Its numbers are 0 and mean nothing, so the reason is named, and what counts the pods; one
    that expects nothing is said to.
    """
    failed = {
        "type": "DisruptionAllowed",
        "status": "False",
        "reason": "SyncFailed",
        "message": "daemonsets.apps does not implement the scale subresource",
        "lastTransitionTime": None,
    }
    namespace = namespace_budgets(spread(a=1), pdb("web", status={"conditions": [failed]}))
    reason = namespace.judge(namespace.pods["uid-a-0"], NOW).reason
    assert reason.message == (
        "the budget web: its pods cannot be counted:"
        " daemonsets.apps does not implement the scale subresource"
    )
    assert "a TopologyDisruptionBudget, which counts these pods" in reason.fix
    empty = namespace_budgets(spread(a=1), pdb("web", status={"currentHealthy": 1}))
    message = empty.judge(empty.pods["uid-a-0"], NOW).reason.message
    assert message == "the budget web: expects no pods, and Kubernetes then allows no eviction"


def test_undivided_budgets_are_combined() -> None:
    """Where workloads evict, two PodDisruptionBudgets without a term are counted together: both
    are charged, each refuses with its own numbers, and neither closes anything to updates.
    """
    counted: dict[str, Any] = {"fingerprint": "of this selector"}
    most = pdb("most", maxUnavailable=1, status=counted)
    least = pdb("least", minAvailable="50%", status=counted)
    namespace = namespace_budgets(spread(a=3, b=3, c=3), most, least)
    verdicts = VerdictRound(namespace, NOW, strict=True)
    first, second = (namespace.pods[f"uid-{zone}-0"] for zone in "ab")
    verdict = verdicts.judge(first)
    assert verdict.charged and [budget.name for budget in verdict.agreeing] == ["least", "most"]
    verdicts.charge(first)
    refused = verdicts.judge(second)
    assert refused.refusals == ("The disruption budget most: needs 8 healthy pods and has 8",)


def test_two_plain_budgets_of_a_pod_say_which_to_remove() -> None:
    """The one that needs fewer healthy pods is named, so that the stronger one stays."""
    loose = pdb("loose", status={"expectedPods": 9, "desiredHealthy": 1, "disruptionsAllowed": 8})
    firm = pdb("firm", status={"expectedPods": 9, "desiredHealthy": 8, "disruptionsAllowed": 1})
    namespace = namespace_budgets(spread(a=3, b=3, c=3), loose, firm)
    verdict = namespace.judge(namespace.pods["uid-a-0"], NOW)
    assert verdict.reason.fix.startswith("Delete PodDisruptionBudget loose, or narrow")
    assert "firm needs at least as many" in verdict.reason.fix
