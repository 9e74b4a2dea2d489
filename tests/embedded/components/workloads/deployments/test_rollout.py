"""The arithmetic of rollouts: one pass, and invariants for any order of events."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.embedded.components.workloads.deployments.rollouts import (
    Cluster,
    deployment,
    make_set,
    sized,
    template,
)

from zonewise.api.objects.apps import Deployment, DeploymentStatus, ReplicaSet
from zonewise.embedded.components.workloads.deployments.rollout import (
    REVISION,
    REVISION_HISTORY,
    RolloutLimits,
    RolloutPlan,
    missing_annotations,
    pass_requests_on,
    plan_rollout,
    rollout_limits,
    split_sets,
    surplus_sets,
)
from zonewise.embedded.components.workloads.replicasets.replicas import target_replicas


def planned(owner: Deployment, *sets: ReplicaSet, old_pods: bool = True) -> RolloutPlan:
    """The next pass."""
    return plan_rollout(owner, split_sets(owner, sets), old_pods=old_pods)


def resizes(step: RolloutPlan) -> dict[str, int]:
    """The sizes a pass gives."""
    return {resize.replica_set.metadata.name: resize.replicas for resize in step.resizes}


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "expected"),
    [
        (10, "25%", "25%", (3, 2)),
        (1, "25%", "25%", (1, 0)),
        (3, 1, 1, (1, 1)),
        (3, 0, "10%", (0, 1)),
        (3, 0, 0, (0, 1)),
        (4, "0%", "25%", (0, 1)),
        (2, 0, 5, (0, 2)),
        (0, "25%", "25%", (0, 0)),
    ],
)
def test_surge_rounds_up_and_unavailable_down(
    replicas: int, surge: int | str, unavailable: int | str, expected: tuple[int, int]
) -> None:
    """Percentages are of replicas; if both round to 0, one pod may be unavailable."""
    limits = rollout_limits(deployment(replicas, surge=surge, unavailable=unavailable))
    assert limits == RolloutLimits(replicas, *expected)


def test_the_first_pass_creates_the_new_and_shrinks_the_old() -> None:
    """Of ten with 25 % each way, three new ones are created and two old ones removed at once."""
    step = planned(deployment(version=2), make_set(1, 10))
    assert step.create == 3
    assert resizes(step) == {"web-1": 8}


def test_a_stuck_rollout_changes_nothing() -> None:
    """While five new pods are not available, eight old ones stay."""
    cluster = Cluster(deployment(version=2), evicts=False)
    cluster.sets["v1"] = make_set(1, 10)
    cluster.pods["v1"] = [True] * 10
    for _ in range(10):
        cluster.think()
        for uid in list(cluster.sets):
            cluster.work(uid, lambda: True)
            cluster.count(uid)
    assert sized(cluster.sets.values()) == {"web-1": 8, "web-2": 5}


@pytest.mark.parametrize(
    ("surge", "unavailable", "expected"), [("25%", "25%", (12, 7)), (3, 2, (11, 7))]
)
def test_scaling_a_stuck_rollout_is_shared(
    surge: int | str, unavailable: int | str, expected: tuple[int, int]
) -> None:
    """From ten to fifteen, sets of eight and five grow in proportion, the remainder goes to the
    larger.
    """
    owner = deployment(15, version=2, surge=surge, unavailable=unavailable)
    step = planned(owner, make_set(1, 8), make_set(2, 5, available=0))
    assert resizes(step) == {"web-1": expected[0], "web-2": expected[1]}
    assert step.scaling


def test_scaling_down_a_stuck_rollout_is_shared() -> None:
    """From fifteen to four, twelve and seven become three and two, as on a real cluster."""
    owner = deployment(4, version=2)
    sets = (
        make_set(1, 12, desired=15, most=19),
        make_set(2, 7, available=0, desired=15, most=19),
    )
    assert resizes(planned(owner, *sets)) == {"web-1": 3, "web-2": 2}


def test_a_paused_deployment_scales_and_does_not_roll() -> None:
    """While paused, the size changes and the template does not."""
    step = planned(deployment(6, version=2, paused=True), make_set(1, 4, desired=4, most=5))
    assert step.create is None
    assert resizes(step) == {"web-1": 6}


def test_going_back_renumbers() -> None:
    """Revisions 1, 2, 3 become 2, 3, 4 when the first template returns; its numbers are kept."""
    owner = deployment(version=1)
    sets = [make_set(1, 0), make_set(2, 0), make_set(3, 10)]
    annotations = missing_annotations(owner, split_sets(owner, sets))
    assert annotations == {REVISION: "4", REVISION_HISTORY: "1"}
    again = [make_set(1, 0, revision=4, history="1"), make_set(2, 10, revision=5)]
    assert missing_annotations(owner, split_sets(owner, again)) == {
        REVISION: "6",
        REVISION_HISTORY: "1,4",
    }
    latest = [
        make_set(1, 10, revision=6, history="1,4"),
        make_set(2, 0, revision=5),
    ]
    assert missing_annotations(owner, split_sets(owner, latest)) == {}


def test_a_long_history_forgets_its_beginning() -> None:
    """The annotation keeps only the latest revisions."""
    past = ",".join(str(number) for number in range(1000, 1400))
    owner = deployment(version=1)
    sets = [
        make_set(1, 0, revision=1400, history=past),
        make_set(2, 10, revision=1401),
    ]
    history = missing_annotations(owner, split_sets(owner, sets))[REVISION_HISTORY]
    assert history.endswith(",1399,1400")
    assert len(history) <= 2000


def test_recreate_waits_for_the_last_old_pod() -> None:
    """New pods are created when no old pod is left, not even a terminating one."""
    owner = deployment(3, version=2, recreate=True)
    assert resizes(planned(owner, make_set(1, 3, desired=3, most=3))) == {"web-1": 0}
    gone = make_set(1, 0)
    assert planned(owner, gone, old_pods=True) == RolloutPlan()
    assert planned(owner, gone, old_pods=False).create == 3


def test_history_is_kept_up_to_its_limit() -> None:
    """The oldest empty ReplicaSets are deleted; one that still has pods stays."""
    owner = deployment(version=5, history=1)
    sets = [
        make_set(1, 0, have=1),
        *(make_set(n, 0) for n in (2, 3, 4)),
        make_set(5, 10),
    ]
    surplus = surplus_sets(owner, split_sets(owner, sets))
    assert [item.metadata.name for item in surplus] == ["web-2", "web-3"]
    everything = deployment(version=5, history=None)
    assert surplus_sets(everything, split_sets(everything, sets)) == ()


def test_history_is_kept_until_a_rollout_is_done() -> None:
    """During a rollout every revision can still be restored."""
    done = DeploymentStatus(
        observed_generation=1, replicas=10, updated_replicas=10, available_replicas=10
    )
    sets = [make_set(1, 0), make_set(2, 0), make_set(3, 10)]
    assert planned(deployment(version=3, history=0), *sets).delete == ()
    names = [
        item.metadata.name
        for item in planned(deployment(version=3, history=0, status=done), *sets).delete
    ]
    assert names == ["web-1", "web-2"]


def test_room_is_counted_in_pods_that_are_still_there() -> None:
    """While old pods wait for their eviction, the new ReplicaSet does not grow."""
    owner = deployment(version=2)
    old = make_set(1, 10, reducing=8)
    new = make_set(2, 3)
    step = planned(owner, old, new)
    # Three new ones are available: of thirteen, five may go, and the removal of two has begun.
    assert resizes(step) == {"web-1": 5}
    assert resizes(planned(owner, make_set(1, 10, reducing=5), new)) == {}
    assert resizes(planned(owner, make_set(1, 9, reducing=5), new)) == {"web-2": 4}


def test_unavailable_old_pods_go_first() -> None:
    """Of three unavailable pods two are removed first, while three new ones start."""
    step = planned(
        deployment(version=2),
        make_set(1, 10, available=7),
        make_set(2, 3, available=0),
    )
    assert resizes(step) == {"web-1": 8}


def test_an_outdated_status_removes_nothing() -> None:
    """A ReplicaSet whose status is older than its spec is not scaled down."""
    new = make_set(2, 3)
    late = msgspec.structs.replace(
        new, metadata=msgspec.structs.replace(new.metadata, generation=2)
    )
    owner = deployment(version=2)
    assert resizes(planned(owner, make_set(1, 10), new)) == {"web-1": 5}
    assert resizes(planned(owner, make_set(1, 10), late)) == {}


def test_a_reduction_ends_when_its_replica_set_is_to_grow() -> None:
    """After a rollback the ReplicaSet of the old template gets all its pods again."""
    owner = deployment(version=1)
    step = planned(owner, make_set(1, 9, reducing=5), make_set(2, 3))
    (resize,) = step.resizes
    assert (resize.replica_set.metadata.name, resize.replicas) == ("web-1", 10)


def test_scaling_up_waits_for_room() -> None:
    """Pods that a refused eviction keeps count against the limit; the rest follows later."""
    owner = deployment(12, version=2, surge=0, unavailable=1)
    stays = make_set(1, 2, reducing=0, most=10)
    step = planned(owner, stays, make_set(2, 10, most=10))
    (resize,) = step.resizes
    assert (resize.replicas, resize.short) == (10, True)


@pytest.mark.parametrize("recreate", [False, True])
def test_a_size_that_is_reached_already_ends_the_scaling(recreate: bool) -> None:
    """An old ReplicaSet that a rollout has brought to the new size learns that it is for that size;
    or the change of size would never end, and no ReplicaSet of the new template be created.
    """
    sets = [make_set(1, 5, desired=6, most=7)]
    if recreate:
        sets.append(make_set(2, 2, desired=6, most=7))
    step = planned(deployment(5, version=3, recreate=recreate), *sets)
    assert step.scaling
    assert resizes(step) == {item.metadata.name: item.spec.replicas for item in sets}
    assert not any(resize.short for resize in step.resizes)


@pytest.mark.parametrize(
    ("removable", "expected"),
    [
        ((0, 3), {"web-1": 5, "web-2": 2}),
        ((1, 3), {"web-1": 4}),
        ((0, 0), {"web-1": 4}),
    ],
)
def test_a_request_goes_to_an_old_set_whose_pods_may_go(
    removable: tuple[int, int], expected: dict[str, int]
) -> None:
    """If budgets hold all pods of the oldest ReplicaSet, another old one shrinks in its place, and
    as many are requested as before. If they hold those, too, the oldest waits.
    """
    owner = deployment(9, version=3, surge=0, unavailable=1)
    sets = split_sets(
        owner, [make_set(version, size, desired=9) for version, size in ((1, 5), (2, 3), (3, 1))]
    )
    by_uid = {item.metadata.uid: n for item, n in zip(sets.old, removable, strict=True)}
    step = plan_rollout(owner, sets, old_pods=True)
    assert resizes(step) == {"web-1": 4}
    passed = pass_requests_on(sets, step.resizes, by_uid)
    assert {item.replica_set.metadata.name: item.replicas for item in passed} == expected


def test_a_request_that_waits_is_passed_on_once_another_may_go() -> None:
    """What was requested before is withdrawn first, and no more than may go is requested."""
    owner = deployment(9, version=3, surge=0, unavailable=3)
    sets = split_sets(owner, [make_set(1, 5, reducing=2), make_set(2, 3), make_set(3, 1)])
    by_uid = {item.metadata.uid: n for item, n in zip(sets.old, (0, 2), strict=True)}
    passed = pass_requests_on(sets, (), by_uid)
    names = [(item.replica_set.metadata.name, item.replicas) for item in passed]
    assert names == [("web-1", 4), ("web-2", 1)]


def test_order_of_replica_sets_does_not_matter() -> None:
    """The plan does not depend on the order of ReplicaSets."""
    owner = deployment(15, version=3)
    sets = [make_set(1, 4), make_set(2, 4), make_set(3, 5, available=0)]
    assert resizes(planned(owner, *sets)) == resizes(planned(owner, *reversed(sets)))


AMOUNTS = st.one_of(st.integers(0, 12), st.integers(0, 100).map(lambda n: f"{n}%"))


def at_rest(owner: Deployment, *, evicts: bool) -> Cluster:
    """A cluster with a Deployment that is rolled out."""
    cluster = Cluster(owner, evicts=evicts)
    cluster.settle()
    return cluster


def move(cluster: Cluster, rng: random.Random) -> None:
    """One step of a controller, a pod or a user."""
    action = rng.choice(["think", "think", "work", "work", "work", "count", "count", "ready"])
    uid = rng.choice(sorted(cluster.sets))
    pods = cluster.pods[uid]
    if rng.random() < 0.02:
        cluster.change(template=template(rng.randrange(4)))
    if action == "think":
        cluster.think()
    elif action == "work":
        cluster.work(uid, lambda: rng.random() < 0.3)
    elif action == "count":
        cluster.count(uid)
    elif False in pods:
        pods[pods.index(False)] = True


@settings(max_examples=150, deadline=None)
@example(replicas=1, surge=1, unavailable=0, evicts=True, seed=132)
@given(
    replicas=st.integers(1, 12),
    surge=AMOUNTS,
    unavailable=AMOUNTS,
    evicts=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_limits_hold_in_any_order_and_the_rollout_ends(
    replicas: int, surge: int | str, unavailable: int | str, evicts: bool, seed: int
) -> None:
    """With late or refused steps, too, there are never too many or too few pods, and the rollout
    ends.
    """
    rng = random.Random(seed)
    cluster = at_rest(deployment(replicas, surge=surge, unavailable=unavailable), evicts=evicts)
    for _ in range(200):
        move(cluster, rng)
        assert cluster.within_limits(), (sized(cluster.sets.values()), cluster.pods)
    cluster.settle()
    new = split_sets(cluster.owner, cluster.sets.values()).new
    assert new is not None
    assert sized(cluster.sets.values())[new.metadata.name] == replicas == cluster.living
    assert all(target_replicas(item) == item.spec.replicas for item in cluster.sets.values())


@settings(max_examples=100, deadline=None)
@given(evicts=st.booleans(), seed=st.integers(0, 2**32))
def test_scaling_during_a_rollout_ends(evicts: bool, seed: int) -> None:
    """Sizes change during rollouts and refusals: never more pods than the largest size."""
    rng = random.Random(seed)
    cluster = at_rest(deployment(6), evicts=evicts)
    most = rollout_limits(cluster.owner).max_pods
    for _ in range(200):
        if rng.random() < 0.03:
            cluster.change(replicas=rng.randrange(15))
            most = max(most, rollout_limits(cluster.owner).max_pods)
        move(cluster, rng)
        assert (cluster.living if evicts else cluster.replicas) <= most
    cluster.settle()
    assert cluster.living == cluster.owner.spec.replicas == cluster.available
