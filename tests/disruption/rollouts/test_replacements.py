"""Which new pods wait during a rollout by domain, and where they go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.disruption.clusters import EXISTS, NS, ZONE, deployment, per_zone, pod, tdb, zones

from zonewise.api import Node, Pod, convert
from zonewise.api.objects.budgets import DomainRollout
from zonewise.api.reason import Reason
from zonewise.disruption.budget import Budget
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owners import ScaleOwner
from zonewise.disruption.rollouts.plan import DomainPlan, RolloutView
from zonewise.disruption.rollouts.replacements import (
    GATE,
    Placements,
    confine,
    count_spellings,
    holds_replacement,
    is_held,
    label_of,
    labels_of,
    place_replacements,
    release_patch,
    sent_to,
    with_even_budgets,
)
from zonewise.disruption.rollouts.workload import RolledPod, RolledWorkload

REFERENCE = {"kind": "Deployment", "name": "web"}
WORKLOAD = RolledWorkload(kind="Deployment", namespace=NS, name="web", uid="uid-web")
GATED: dict[str, Any] = {"schedulingGates": [{"name": GATE}]}
CLAIM: dict[str, Any] = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
COUNTS = {"a": 2, "b": 2, "c": 2}


def rollout(*, doing: str = "", key: str = ZONE, **reference: str) -> DomainRollout:
    """A rollout of the Deployment web; ``doing`` is the domain that is updated now."""
    return convert(
        DomainRollout,
        {
            "metadata": {"name": "web", "namespace": NS},
            "spec": {"workloadRef": REFERENCE | reference, "topologyKey": key},
            "status": {"domain": doing},
        },
    )


def rolled(name: str, zone: str = "", *, outdated: bool = False, **spec: Any) -> RolledPod:
    """A pod of the workload, on a node of a zone or on none."""
    item = pod(name, f"n-{zone}" if zone else "", owner="web-1" if outdated else "web-2", **spec)
    return RolledPod(pod=item, domain=zone, ready=bool(zone), outdated=outdated)


def old(zone: str, count: int) -> list[RolledPod]:
    """Pods of the old revision in a zone."""
    return [rolled(f"old-{zone}-{number}", zone, outdated=True) for number in range(count)]


def new(zone: str, count: int) -> list[RolledPod]:
    """Pods of the new revision in a zone."""
    return [rolled(f"new-{zone}-{number}", zone) for number in range(count)]


def waiting_pods(count: int, **more: Any) -> list[RolledPod]:
    """Pods of the new revision that wait."""
    return [rolled(f"held-{number}", **GATED, **more) for number in range(count)]


def placed(
    scheduled: list[RolledPod],
    waiting: list[RolledPod],
    *,
    opened: str | None = "a",
    nodes: dict[str, Node] | None = None,
    obstacle: Callable[[Pod, str], str] = lambda pod, domain: "",
    refused: Collection[str] = (),
    **more: Any,
) -> Placements:
    """The places in a workload of two pods in each of three zones."""
    view = RolloutView(
        rollout=rollout(),
        **{
            "workload": WORKLOAD,
            "pods": tuple(scheduled),
            "unscheduled": tuple(waiting),
            "desired_ready": COUNTS,
            **more,
        },
    )
    plan = DomainPlan(
        reason=Reason(code="Updating", message="…", object="Deployment/shop/web"),
        open_domain=opened,
    )
    nodes = zones("a", "b", "c") if nodes is None else nodes
    return place_replacements(view, plan, nodes, obstacle, refused=refused)


def domains(placements: Placements) -> list[str | None]:
    """Where pods are sent."""
    return [domain for _, domain in placements.released]


def test_a_surge_goes_to_the_open_domain_and_the_rest_waits() -> None:
    """Of a surge of three the open zone of two pods gets two; the third waits for the next zone."""
    before = [*old("a", 2), *old("b", 2), *old("c", 2)]
    assert domains(placed(before, waiting_pods(3))) == ["a", "a"]
    after = [*new("a", 2), *old("b", 2), *old("c", 2)]
    assert domains(placed(after, waiting_pods(2))) == []
    assert domains(placed(after, waiting_pods(2), opened="b")) == ["b", "b"]


def test_pods_on_their_way_are_counted() -> None:
    """A pod that was sent to the zone and has no node yet has its place."""
    before = [*old("a", 2), *old("b", 2), *old("c", 2)]
    sent = rolled("sent", **affinity("a"))
    annotated = msgspec.structs.replace(sent.pod.metadata, annotations={GATE: "a"})
    sent = replace(sent, pod=msgspec.structs.replace(sent.pod, metadata=annotated))
    assert domains(placed(before, [sent, *waiting_pods(2)])) == ["a"]


def test_an_annotation_of_the_template_sends_no_pod() -> None:
    """Pods that are held have been sent nowhere, whatever their template says."""
    before = [*old("a", 2), *old("b", 2), *old("c", 2)]
    waiting = []
    for each in waiting_pods(2):
        annotated = msgspec.structs.replace(each.pod.metadata, annotations={GATE: "a"})
        waiting.append(replace(each, pod=msgspec.structs.replace(each.pod, metadata=annotated)))
    assert domains(placed(before, waiting)) == ["a", "a"]


def test_a_lost_pod_is_replaced_where_it_was() -> None:
    """A zone that is not open and lacks a pod gets it, after the open one has what it lacks."""
    pods = [*new("a", 1), *old("b", 2), *old("c", 1)]
    assert domains(placed(pods, waiting_pods(2))) == ["a", "c"]
    assert domains(placed([*new("a", 2), *old("b", 2), *old("c", 1)], waiting_pods(2))) == ["c"]
    assert domains(
        placed([*new("a", 2), *old("b", 2), *old("c", 1)], waiting_pods(2), opened=None)
    ) == ["c"]


def test_nothing_is_sent_where_it_has_no_room() -> None:
    """If the open zone has no room its pods wait, and the reason has the scheduler's words."""
    pods = [*old("a", 2), *old("b", 2), *old("c", 2)]
    words = "0/3 nodes are available: 1 Insufficient cpu."
    result = placed(pods, waiting_pods(2), obstacle=lambda pod, domain: words)
    assert result.released == ()
    assert result.reason is not None
    assert result.reason.code == "NoRoomInDomain"
    assert result.reason.message == (
        "Deployment web: 2 pods wait for room in domain a: 0/3 nodes are available: 1 Insufficient"
        " cpu"
    )
    assert result.reason.numbers == {"waiting": 2}
    assert result.reason.fix == (
        "It continues when a node of that domain has room: add one, or set maxSurge: 0 and a"
        " maxUnavailable, so that old pods make room."
    )


def test_an_outage_costs_no_capacity() -> None:
    """What is missing in a zone without a usable node, or without room and not open, may start
    anywhere; what replaces a pod of the open zone has to wait for room there.
    """
    pods = [*new("a", 2), *old("b", 2), *old("c", 1)]
    lost = zones("a", "b", "c")
    taints = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
    lost["n-c"] = convert(
        Node, {"metadata": msgspec.to_builtins(lost["n-c"].metadata), "spec": {"taints": taints}}
    )
    assert domains(placed(pods, waiting_pods(1), nodes=lost)) == [None]
    assert domains(placed(pods, waiting_pods(1), obstacle=lambda pod, domain: "full")) == [None]
    result = placed(pods, waiting_pods(1), opened="c", obstacle=lambda pod, domain: "full")
    assert result.released == () and result.reason is not None


def test_a_surge_waits_where_no_node_takes_pods() -> None:
    """If nothing is missing and no node of the open zone takes pods, the reason has the scheduler's
    words: it is the same as no room.
    """
    pods = [*old("a", 2), *old("b", 2), *old("c", 2)]
    nodes = zones("b", "c")
    result = placed(pods, waiting_pods(1), nodes=nodes, obstacle=lambda pod, domain: "no node")
    assert result.released == ()
    assert result.reason is not None and result.reason.message.endswith("in domain a: no node")


UNLABELLED = {"": 2, "b": 2, "c": 2}


def test_nodes_without_the_label_get_what_belongs_there() -> None:
    """What is in no zone gets its pods like a zone, while it is open and where it lacks one; where
    it has no room, as many start anywhere.
    """
    nodes = zones("", "b", "c")
    pods = [rolled(f"old-{n}", outdated=True) for n in range(2)] + [*old("b", 2), *old("c", 2)]
    pods = [replace(each, pod=on_node(each.pod, each.domain)) for each in pods]
    more: dict[str, Any] = {"nodes": nodes, "desired_ready": UNLABELLED}
    assert domains(placed(pods, waiting_pods(3), opened="", **more)) == ["", ""]
    assert domains(placed(pods[1:], waiting_pods(2), opened=None, **more)) == [""]
    full = {**more, "obstacle": lambda pod, domain: "full"}
    assert domains(placed(pods, waiting_pods(3), opened="", **full)) == [None, None]
    assert domains(placed(pods[1:], waiting_pods(1), opened=None, **full)) == [None]


def on_node(item: Pod, zone: str) -> Pod:
    """A pod on the node of a zone, or on the one without."""
    spec = msgspec.structs.replace(item.spec, node_name=f"n-{zone}")
    return msgspec.structs.replace(item, spec=spec)


def test_what_another_budget_lacks_comes_before_a_surge() -> None:
    """A zone that lacks pods by another budget only gets them after what is really missing, and
    before a surge; without room there they wait, as nothing is missing.
    """
    pods = [*old("a", 3), *old("b", 3)]
    more: dict[str, Any] = {"desired_ready": {"a": 3, "b": 3, "c": 0}, "budgets_lack": {"c": 2}}
    assert domains(placed(pods, waiting_pods(4), **more)) == ["c", "c", "a", "a"]
    assert domains(placed(pods[:-1], waiting_pods(2), **more)) == ["b", "c"]
    sent = rolled("sent")
    annotated = msgspec.structs.replace(sent.pod.metadata, annotations={GATE: "c"})
    sent = replace(sent, pod=msgspec.structs.replace(sent.pod, metadata=annotated))
    assert domains(placed(pods, [sent, *waiting_pods(1)], opened=None, **more)) == ["c"]
    full = placed(pods, waiting_pods(1), opened=None, obstacle=lambda pod, domain: "full", **more)
    assert full.released == ()


@pytest.mark.parametrize(
    ("waiting", "more"),
    [
        ([rolled("old", outdated=True, **GATED)], {}),
        ([rolled("bound", **GATED, **CLAIM)], {}),
        (
            waiting_pods(1),
            {
                "blocking_reason": Reason(
                    code="UnknownScale", message="…", object="Deployment/shop/web"
                )
            },
        ),
        (
            waiting_pods(1),
            {
                "workload": None,
                "blocking_reason": Reason(
                    code="RecreatedAtOnce", message="…", object="Deployment/shop/web"
                ),
            },
        ),
    ],
)
def test_where_there_is_no_order_pods_start_anywhere(
    waiting: list[RolledPod], more: dict[str, Any]
) -> None:
    """Pods of the old revision, pods with claims, and pods of a rollout that is not held are sent
    to no zone.
    """
    assert domains(placed(old("a", 2), waiting, **more)) == [None]


def test_a_complete_rollout_holds_nothing() -> None:
    """Once all pods are of the newest revision, what still waits starts anywhere."""
    view = RolloutView(
        rollout=rollout(),
        workload=WORKLOAD,
        pods=tuple(new("a", 2)),
        unscheduled=tuple(waiting_pods(1)),
        desired_ready=COUNTS,
    )
    plan = DomainPlan(reason=Reason(code="UpToDate", message="…", object="Deployment/shop/web"))
    result = place_replacements(view, plan, zones("a", "b", "c"), lambda pod, domain: "")
    assert domains(result) == [None]


@given(
    st.lists(st.sampled_from("abc"), max_size=6),
    st.lists(st.sampled_from("abc"), max_size=6),
    st.integers(0, 9),
    st.sampled_from(["a", "b", "c", None]),
    st.sets(st.sampled_from("abc")),
    st.randoms(use_true_random=False),
)
def test_no_zone_gets_more_than_belongs_there(
    outdated: list[str],
    updated: list[str],
    waiting: int,
    opened: str | None,
    full: set[str],
    random: Any,
) -> None:
    """In any state, no zone gets pods beyond what it lacks but the open one, and that has never
    more of the new revision than it should; zones without room get none, and the order of the input
    does not matter.
    """
    pods = [rolled(f"old-{n}", zone, outdated=True) for n, zone in enumerate(outdated)]
    pods += [rolled(f"new-{n}", zone) for n, zone in enumerate(updated)]
    wait = waiting_pods(waiting)

    def obstacle(pod: Pod, domain: str) -> str:
        return "full" if domain in full else ""

    result = placed(pods, wait, opened=opened, obstacle=obstacle)
    present = Counter(outdated) + Counter(updated)
    for zone, count in Counter(domains(result)).items():
        if zone is None:
            continue
        assert zone not in full
        most = COUNTS[zone] - present[zone]
        if zone == opened:
            most = max(most, COUNTS[zone] - Counter(updated)[zone])
        assert count <= most
    random.shuffle(pods)
    random.shuffle(wait)
    assert placed(pods, wait, opened=opened, obstacle=obstacle) == result


def affinity(*values: str, **required: Any) -> dict[str, Any]:
    """A node affinity for zones."""
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": list(values)}]}
    selector = {"nodeSelectorTerms": [term | required]}
    return {
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    }


def test_a_released_pod_keeps_what_it_required() -> None:
    """The zone is added to each of the pod's own terms, and only our gate is taken away."""
    item = pod(
        "p",
        **affinity("a", "b"),
        schedulingGates=[{"name": "example.com/other"}, {"name": GATE}],
    )
    patch = release_patch(item, (ZONE,), "a")
    assert patch["spec"]["schedulingGates"] == [{"name": "example.com/other"}]
    terms = patch["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    assert [each["values"] for each in terms[0]["matchExpressions"]] == [("a", "b"), ("a",)]
    assert release_patch(pod("q", **GATED), (ZONE,), None)["spec"] == {"schedulingGates": None}


def test_a_released_pod_says_where_it_was_sent() -> None:
    """An annotation tells it from a pod whose template requires the zone; the gate is gone."""
    assert not is_held(confine(pod("p", **GATED), (ZONE,), "a"))
    annotations = release_patch(pod("p", **GATED), (ZONE,), "a")["metadata"]["annotations"]
    item = pod("p")
    item = msgspec.structs.replace(
        item, metadata=msgspec.structs.replace(item.metadata, annotations=annotations)
    )
    assert sent_to(item) == "a"
    assert "annotations" not in release_patch(pod("p", **GATED), (ZONE,), None)["metadata"]
    assert sent_to(pod("q", **affinity("a"))) is None


def test_the_old_spelling_of_the_key_is_the_present_label() -> None:
    """Nodes have the present label, so an affinity names that."""
    assert label_of(rollout(key="failure-domain.beta.kubernetes.io/zone")) == ZONE
    assert label_of(rollout(key="example.com/rack")) == "example.com/rack"


def expressions(labels: tuple[str, ...], domain: str) -> list[list[tuple[Any, ...]]]:
    """What each term of a released pod requires."""
    patch = release_patch(pod("p", **GATED), labels, domain)["spec"]["affinity"]["nodeAffinity"]
    terms = patch["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    return [
        [
            (each["key"], each["operator"], *each.get("values", ()))
            for each in term["matchExpressions"]
        ]
        for term in terms
    ]


def test_the_affinity_names_the_labels_that_nodes_have() -> None:
    """Where a node has only the old spelling, either may match, the present one first; nodes of no
    zone have neither.
    """
    old_zone = "failure-domain.beta.kubernetes.io/zone"
    nodes = zones("a", "b")
    assert labels_of(rollout(), nodes.values()) == (ZONE,)
    assert labels_of(rollout(key="example.com/rack"), nodes.values()) == ("example.com/rack",)
    lasting = convert(Node, {"metadata": {"name": "n", "labels": {old_zone: "a"}}})
    both = labels_of(rollout(key=old_zone), [*nodes.values(), lasting])
    assert both == (ZONE, old_zone)
    assert expressions((ZONE,), "a") == [[(ZONE, "In", "a")]]
    assert expressions((ZONE,), "") == [[(ZONE, "DoesNotExist")]]
    assert expressions(both, "a") == [
        [(ZONE, "In", "a")],
        [(ZONE, "DoesNotExist"), (old_zone, "In", "a")],
    ]
    assert expressions(both, "") == [[(ZONE, "DoesNotExist"), (old_zone, "DoesNotExist")]]


def terms_of(item: Pod) -> list[Any]:
    """What a pod requires of its node."""
    assert item.spec.affinity is not None
    assert item.spec.affinity.node_affinity is not None
    required = msgspec.to_builtins(item.spec.affinity.node_affinity.required)
    terms: list[Any] = required["nodeSelectorTerms"]
    return terms


def test_the_number_of_terms_of_a_pod_never_changes() -> None:
    """The API server allows no other number of terms, so a pod that has some gets one spelling of
    the label, and one that has none gets both; a term that matches nothing stays as it is.
    """
    both = (ZONE, "failure-domain.beta.kubernetes.io/zone")
    own = affinity("a", "b")
    required = own["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    required["nodeSelectorTerms"].append({})
    item = pod("p", **own, **GATED)
    assert (count_spellings(item, both, "a"), count_spellings(pod("q", **GATED), both, "a")) == (
        2,
        1,
    )
    assert (count_spellings(item, both, ""), count_spellings(item, (ZONE,), "a")) == (1, 1)
    for spelling, added in enumerate(expressions(both, "a")):
        first, empty = terms_of(confine(item, both, "a", spelling=spelling))
        assert [
            (each["key"], each["operator"], *each.get("values", ()))
            for each in first["matchExpressions"]
        ] == [(ZONE, "In", "a", "b"), *added]
        assert empty == {}


def test_pods_that_may_not_be_released_are_the_last() -> None:
    """A place goes to another pod, if there is one, so that one refusal keeps no place empty."""
    before = [*old("a", 2), *old("b", 2), *old("c", 2)]
    three = waiting_pods(3)
    first = min(three, key=lambda each: each.pod.metadata.name).pod.metadata.uid

    def released(count: int) -> list[bool]:
        result = placed(before, three[:count], refused={first})
        return [item.metadata.uid == first for item, _ in result.released]

    assert released(3) == [False, False]
    assert released(1) == [True]


def budgets(*pods: Pod, owners: list[ScaleOwner] | None = None) -> NamespaceBudgets:
    """A Deployment of two revisions with some pods."""
    owners = deployment(6, revisions=2) if owners is None else owners
    return NamespaceBudgets(zones("a", "b", "c"), pods=pods, owners=owners)


OLD = pod("old", "n-a", owner="web-1")


@pytest.mark.parametrize(
    ("created", "rollouts", "others", "waits"),
    [
        (pod("p", owner="web-2"), [rollout()], [OLD], True),
        (pod("p", owner="web-3"), [rollout()], [OLD], True),
        (pod("p", owner="web-2"), [rollout(doing="c")], [], True),
        (pod("p", owner="web-2"), [rollout()], [], False),
        (pod("p", owner="web-1"), [rollout()], [OLD], False),
        (pod("p", owner="web-2"), [rollout(name="other")], [OLD], False),
        (pod("p", owner="web-2"), [], [OLD], False),
        (pod("p", owner="web-2", **CLAIM), [rollout()], [OLD], False),
        (pod("p", "n-b", owner="web-2"), [rollout()], [OLD], False),
        (pod("p", owner=""), [rollout()], [OLD], False),
        (pod("p", owner="web", kind="DaemonSet"), [rollout()], [OLD], False),
        (pod("p", owner="web-2", **GATED), [rollout()], [OLD], False),
    ],
)
def test_which_new_pods_wait(
    created: Pod, rollouts: list[DomainRollout], others: list[Pod], waits: bool
) -> None:
    """Pods of the newest revision wait while there are old ones or a zone is being updated; a
    ReplicaSet that is not known yet is the newest. Others start as ever.
    """
    assert holds_replacement(created, rollouts, budgets(*others)) is waits


EVEN: dict[str, Any] = {"expectedPods": "ReplicasPerDomain", "maxUnavailable": 1}
RACKS = {"key": "example.com/rack", "operator": "Exists"}


def even_view(*others: Budget, more: Iterable[ScaleOwner] = ()) -> RolloutView:
    """A rollout of six pods in two of three zones, as it meets other budgets."""
    scheduled = [rolled(f"old-{zone}-{n}", zone, outdated=True) for zone in "ab" for n in range(3)]
    waiting = waiting_pods(2)
    view = RolloutView(
        rollout=rollout(),
        workload=WORKLOAD,
        pods=tuple(scheduled),
        unscheduled=tuple(waiting),
        desired_ready={"a": 3, "b": 3, "c": 0},
    )
    neighbours = [
        pod(f"other-{n}", "n-a", owner=f"{owner.key[3]}") for owner in more for n in (0, 1)
    ]
    met = NamespaceBudgets(
        zones("a", "b", "c"),
        pods=[*(each.pod for each in (*scheduled, *waiting)), *neighbours],
        budgets=others,
        owners=[*deployment(6, revisions=2), *more],
    )
    return with_even_budgets(view, met)


def test_a_budget_that_divides_replicas_says_where_they_belong() -> None:
    """Its numbers count instead of the present distribution, and what it lacks is known."""
    view = even_view(tdb(**per_zone(**EVEN)))
    assert view.desired_ready == {"a": 2, "b": 2, "c": 2}
    assert view.budgets_lack == {"c": 2}


@pytest.mark.parametrize(
    "other",
    [
        tdb(**per_zone(maxUnavailable=1)),
        tdb(**per_zone(**EVEN, mode="Observe")),
        tdb(**per_zone(**EVEN, term=[RACKS])),
        tdb(**per_zone(**EVEN, term=[EXISTS, RACKS])),
        tdb(**per_zone(**EVEN, selector={"matchLabels": {"app": "other"}})),
    ],
)
def test_other_budgets_move_nothing(other: Budget) -> None:
    """Budgets without that field, in observe mode, of other domains or pods change no number."""
    view = even_view(other)
    assert view.desired_ready == {"a": 3, "b": 3, "c": 0}
    assert view.budgets_lack == {}


def test_a_budget_of_several_workloads_divides_each() -> None:
    """If a budget covers pods of another workload, too, only our own replicas are divided; what the
    budget lacks is more.
    """
    view = even_view(tdb(**per_zone(**EVEN)), more=replica_set("other", 6))
    assert view.desired_ready == {"a": 2, "b": 2, "c": 2}
    assert view.budgets_lack == {"b": 1, "c": 4}


def replica_set(name: str, replicas: int) -> list[ScaleOwner]:
    """A ReplicaSet of nobody."""
    (_, owner) = deployment(replicas, name=name)
    return [replace(owner, controller=None, replicas=replicas)]
