"""Properties that hold for any cluster and any pods."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduling.situations import HOST, ZONE, Obj, affinity, node, pod, preferred, spread
from tests.scheduling.telling import cluster_of, tell

from zonewise.api import Pod, convert
from zonewise.scheduling.cluster import SchedulerCluster
from zonewise.scheduling.decision import SchedulingDecision

KEYS = st.sampled_from([ZONE, HOST, "rack"])
APPS = st.sampled_from(["a", "b"])
TAINTS = st.sampled_from(
    [
        {"key": "t", "effect": "NoSchedule"},
        {"key": "u", "effect": "NoExecute"},
        {"key": "v", "effect": "PreferNoSchedule"},
    ]
)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Obj:
    """A node, small enough that some pods do not fit."""
    labels = {"rack": draw(st.sampled_from(["r1", "r2"]))} if draw(st.booleans()) else {}
    if draw(st.integers(0, 3)) == 0:
        labels[HOST] = "shared"
    return node(
        name,
        cpu=draw(st.sampled_from(["1", "2", "4"])),
        memory="4Gi",
        pods=draw(st.sampled_from(["2", "10"])),
        zone=draw(st.sampled_from(["", "x", "y", "z"])),
        labels=labels,
        taints=draw(st.lists(TAINTS, max_size=1)),
        unschedulable=draw(st.integers(0, 9)) == 0,
    )


@st.composite
def terms(draw: st.DrawFn) -> Obj:
    """A term about pods of an app."""
    term: Obj = {
        "topologyKey": draw(KEYS),
        "labelSelector": {"matchLabels": {"app": draw(APPS)}},
    }
    if draw(st.booleans()):
        term["namespaceSelector"] = {"matchLabels": {"team": "one"}}
    return term


@st.composite
def pods(draw: st.DrawFn, name: str) -> Obj:
    """A pod with any of the constraints."""
    spec: Obj = {}
    if draw(st.booleans()):
        spec["topologySpreadConstraints"] = [
            {
                **spread(draw(KEYS), draw(st.integers(1, 2)), soft=draw(st.booleans())),
                "labelSelector": {"matchLabels": {"app": draw(APPS)}},
                "nodeTaintsPolicy": draw(st.sampled_from(["Honor", "Ignore"])),
                "nodeAffinityPolicy": draw(st.sampled_from(["Honor", "Ignore"])),
            }
            for _ in range(draw(st.integers(1, 2)))
        ]
    kind = draw(st.sampled_from(["podAffinity", "podAntiAffinity"]))
    match draw(st.integers(0, 3)):
        case 0:
            spec |= affinity(kind, draw(terms()))
        case 1:
            spec |= preferred(kind, draw(terms()), weight=draw(st.integers(1, 100)))
    if draw(st.integers(0, 4)) == 0:
        spec["nodeSelector"] = {"rack": draw(st.sampled_from(["r1", "r2"]))}
    if draw(st.booleans()):
        spec["tolerations"] = [{"key": "t", "operator": "Exists"}]
    if draw(st.booleans()):
        spec["priority"] = draw(st.integers(0, 2))
    return pod(
        name,
        cpu=draw(st.sampled_from(["", "500m", "1", "2"])),
        labels={"app": draw(APPS)},
        namespace=draw(st.sampled_from(["default", "one"])),
        **spec,
    )


SPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "one", "labels": {"team": "one"}},
}


@dataclass
class World:
    """The objects of a cluster."""

    objects: dict[tuple[str, str], Obj] = field(default_factory=dict)

    def put(self, obj: Obj) -> None:
        """Add or change an object."""
        self.objects[obj["kind"], obj["metadata"]["name"]] = obj

    def fresh(self) -> SchedulerCluster:
        """A new cluster with all objects."""
        return cluster_of([SPACE, *self.objects.values()])


@st.composite
def worlds(draw: st.DrawFn, size: int = 6) -> list[Obj]:
    """Nodes, and pods on some of them."""
    count = draw(st.integers(1, size))
    drawn = [draw(nodes(f"n{number}")) for number in range(count)]
    for number in range(draw(st.integers(0, size))):
        there = draw(pods(f"e{number}"))
        there["spec"]["nodeName"] = f"n{draw(st.integers(0, count - 1))}"
        drawn.append(there)
    return drawn


def same(left: SchedulingDecision, other: SchedulingDecision) -> bool:
    """Whether two decisions are equal; the map of refusals has no order."""
    return left == other and dict(left.refusals) == dict(other.refusals)


@settings(max_examples=60, deadline=None)
@given(worlds(), pods("p"), st.randoms(use_true_random=False))
def test_the_order_of_objects_does_not_matter(
    objects: list[Obj], asking: Obj, random: Random
) -> None:
    """A cluster with the same objects in another order decides the same, reasons included."""
    shuffled = list(objects)
    random.shuffle(shuffled)
    item = convert(Pod, asking)
    assert same(
        cluster_of([SPACE, *objects]).decide(item), cluster_of([*shuffled, SPACE]).decide(item)
    )


@settings(max_examples=60, deadline=None)
@given(worlds(), st.lists(pods("p"), min_size=1, max_size=4))
def test_every_refusal_has_a_reason_of_every_node(objects: list[Obj], asking: list[Obj]) -> None:
    """A pod without a node has a reason for each node, and the message counts them."""
    cluster = cluster_of([SPACE, *objects])
    for obj in asking:
        decision = cluster.decide(convert(Pod, obj))
        if decision.node:
            assert not decision.message and not decision.refusals
            continue
        assert set(decision.refusals) == set(cluster.node_infos)
        assert all(refusal.reasons for refusal in decision.refusals.values())
        counts = Counter(
            reason for refusal in decision.refusals.values() for reason in refusal.reasons
        )
        for reason, count in counts.items():
            assert f"{count} {reason}" in decision.message
        assert [reason.object for reason in decision.reasons()] == [
            f"Node/{name}" for name in sorted(cluster.node_infos)
        ]


@st.composite
def stories(draw: st.DrawFn) -> list[tuple[str, Obj]]:
    """Nodes and pods that are added, changed and removed."""
    story = [("put", draw(nodes(f"n{number}"))) for number in range(draw(st.integers(1, 4)))]
    for _ in range(draw(st.integers(4, 12))):
        there = draw(pods(f"e{draw(st.integers(0, 2))}"))
        there["spec"]["nodeName"] = f"n{draw(st.integers(0, 2))}"
        match draw(st.sampled_from(["node", "put", "put", "put", "end", "drop", "drop"])):
            case "node":
                story.append(("put", draw(nodes(f"n{draw(st.integers(0, 3))}"))))
            case "end":
                there["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                story.append(("put", there))
            case "drop":
                gone = node(f"n{draw(st.integers(0, 3))}") if draw(st.booleans()) else there
                story.append(("drop", gone))
            case _:
                story.append(("put", there))
    return story


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(stories(), st.lists(pods("q"), min_size=1, max_size=3))
def test_a_cluster_that_changed_equals_a_new_one(
    story: list[tuple[str, Obj]], asking: list[Obj]
) -> None:
    """A cluster that was changed step by step decides as a new one with the same objects."""
    world, cluster = World(), cluster_of([SPACE])
    for number, (what, obj) in enumerate(story):
        meta = obj["metadata"]
        gone = world.objects.pop((obj["kind"], meta["name"]), None)
        if what == "put":
            if gone is not None and gone["metadata"].get("namespace") != meta.get("namespace"):
                cluster.remove_pod((gone["metadata"]["namespace"], meta["name"]))
            meta["generation"] = number
            world.put(obj)
            tell(cluster, obj)
        elif obj["kind"] == "Node":
            cluster.remove_node(meta["name"])
        elif gone is not None:
            cluster.remove_pod((gone["metadata"]["namespace"], meta["name"]))
        fresh = world.fresh()
        for manifest in asking:
            item = convert(Pod, manifest)
            assert same(cluster.decide(item), fresh.decide(item))


@settings(max_examples=80, deadline=None)
@given(worlds(8), st.lists(pods("p"), min_size=1, max_size=8))
def test_hard_rules_are_never_broken(objects: list[Obj], asking: list[Obj]) -> None:
    """The chosen node violates no hard rule of the pod or of others."""
    cluster = cluster_of([SPACE, *objects])
    present = [obj for obj in objects if obj["kind"] == "Pod"]
    all_nodes = {obj["metadata"]["name"]: obj for obj in objects if obj["kind"] == "Node"}
    for number, template in enumerate(asking):
        obj = copy.deepcopy(template)
        obj["metadata"]["name"] = f"p{number}"
        decision = cluster.decide(convert(Pod, obj))
        if not decision.node:
            continue
        broken = [
            rule.__name__
            for rule in (room, taints, evenness, company)
            if not rule(obj, decision.node, all_nodes, present)
        ]
        assert broken == []
        cluster.assume(convert(Pod, obj), decision.node)
        obj["spec"]["nodeName"] = decision.node
        present.append(obj)


Rule = Callable[[Obj, str, dict[str, Obj], Sequence[Obj]], bool]


def cpu(obj: Obj) -> int:
    """The CPU request of a pod, in millicores."""
    text = obj["spec"]["containers"][0]["resources"].get("requests", {}).get("cpu", "0")
    return int(text[:-1]) if text.endswith("m") else int(text) * 1000


def room(obj: Obj, name: str, all_nodes: dict[str, Obj], present: Sequence[Obj]) -> bool:
    """The node has enough CPU and pod slots."""
    size = all_nodes[name]["status"]["allocatable"]
    here = [neighbour for neighbour in present if neighbour["spec"]["nodeName"] == name]
    enough = not cpu(obj) or sum(map(cpu, [*here, obj])) <= int(size["cpu"]) * 1000
    return enough and len(here) < int(size["pods"])


def taints(obj: Obj, name: str, all_nodes: dict[str, Obj], present: Sequence[Obj]) -> bool:
    """The node is not cordoned, its taints are tolerated, and its labels are selected."""
    there = all_nodes[name]
    known = {toleration["key"] for toleration in obj["spec"].get("tolerations", ())}
    hard = {
        taint["key"] for taint in there["spec"].get("taints", ()) if "Prefer" not in taint["effect"]
    }
    node_selector = obj["spec"].get("nodeSelector", {}).items()
    return (
        hard <= known
        and not there["spec"].get("unschedulable")
        and node_selector <= there["metadata"]["labels"].items()
    )


def matches(term: Obj, carrier: Obj, other: Obj) -> bool:
    """Whether a term of one pod matches another."""
    meta = other["metadata"]
    space = "one" if "namespaceSelector" in term else carrier["metadata"]["namespace"]
    return bool(
        meta["namespace"] == space
        and term["labelSelector"]["matchLabels"].items() <= meta["labels"].items()
    )


def required(obj: Obj, kind: str) -> list[Obj]:
    """The hard terms of a pod."""
    group = obj["spec"].get("affinity", {}).get(kind, {})
    return list(group.get("requiredDuringSchedulingIgnoredDuringExecution", ()))


def company(obj: Obj, name: str, all_nodes: dict[str, Obj], present: Sequence[Obj]) -> bool:
    """Anti-affinity holds in both directions, and affinity has a match."""

    def near(neighbour: Obj, key: str) -> bool:
        home = all_nodes[neighbour["spec"]["nodeName"]]["metadata"]["labels"].get(key)
        return home is not None and home == all_nodes[name]["metadata"]["labels"].get(key)

    for other in present:
        for term in required(obj, "podAntiAffinity"):
            if matches(term, obj, other) and near(other, term["topologyKey"]):
                return False
        for term in required(other, "podAntiAffinity"):
            if matches(term, other, obj) and near(other, term["topologyKey"]):
                return False
    for term in required(obj, "podAffinity"):
        key = term["topologyKey"]
        if key not in all_nodes[name]["metadata"]["labels"]:
            return False
        matching = [candidate for candidate in present if matches(term, obj, candidate)]
        if not any(near(neighbour, key) for neighbour in matching):
            somewhere = any(
                key in all_nodes[neighbour["spec"]["nodeName"]]["metadata"]["labels"]
                for neighbour in matching
            )
            if somewhere or not matches(term, obj, obj):
                return False
    return True


def evenness(obj: Obj, name: str, all_nodes: dict[str, Obj], present: Sequence[Obj]) -> bool:
    """No hard spread constraint is exceeded."""
    hard = [
        constraint
        for constraint in obj["spec"].get("topologySpreadConstraints", ())
        if constraint["whenUnsatisfiable"] == "DoNotSchedule"
    ]
    keys = {entry["topologyKey"] for entry in hard}
    known = {toleration["key"] for toleration in obj["spec"].get("tolerations", ())}
    node_selector = obj["spec"].get("nodeSelector", {}).items()
    for constraint in hard:
        key, counts = constraint["topologyKey"], Counter[str]()
        for other, there in all_nodes.items():
            labels = there["metadata"]["labels"]
            tainted = {
                taint["key"]
                for taint in there["spec"].get("taints", ())
                if "Prefer" not in taint["effect"]
            } - known
            if not keys <= labels.keys():
                continue
            if constraint["nodeAffinityPolicy"] == "Honor" and not node_selector <= labels.items():
                continue
            if constraint["nodeTaintsPolicy"] == "Honor" and tainted:
                continue
            counts[labels[key]] += sum(
                neighbour["spec"]["nodeName"] == other
                and neighbour["metadata"]["namespace"] == obj["metadata"]["namespace"]
                and matches({"labelSelector": constraint["labelSelector"]}, obj, neighbour)
                for neighbour in present
            )
        label = all_nodes[name]["metadata"]["labels"].get(key)
        if label is None:
            return False
        itself = matches({"labelSelector": constraint["labelSelector"]}, obj, obj)
        if counts[label] + itself - min(counts.values()) > constraint["maxSkew"]:
            return False
    return True
