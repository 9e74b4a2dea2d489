"""Which pod of a StatefulSet is created or deleted next."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.embedded.components.workloads.statefulsets.numbered_pods import NOW, make_pod

from zonewise.api.objects.pod import Pod
from zonewise.embedded.components.workloads.statefulsets.ordinals import (
    StatefulPodRemoval,
    StatefulSetCounts,
    StatefulSetPlan,
    StatefulSetRule,
    allowed_unavailable,
    count,
    decide,
    is_complete,
    ordinal_of,
)

ORDERED = StatefulSetRule(name="web", replicas=3, current="r1", update="r1")
PARALLEL = replace(ORDERED, parallel=True)


def chosen(
    decision: StatefulSetPlan, held_pods: Collection[str] = frozenset()
) -> list[StatefulPodRemoval]:
    """The pods that are deleted, if budgets hold some."""
    return [
        removal
        for step in decision.removals
        for removal in [
            removal for removal in step.candidates if removal.pod.metadata.name not in held_pods
        ][: step.count]
    ]


def going(
    decision: StatefulSetPlan, held_pods: Collection[str] = frozenset()
) -> list[tuple[str, str]]:
    """The pods that are deleted, and why, if budgets hold some."""
    return [(removal.pod.metadata.name, removal.cause) for removal in chosen(decision, held_pods)]


def pods(*numbers: int, **fields: Any) -> list[Pod]:
    """Pods of the set ``web``."""
    return [make_pod(f"web-{number}", **fields) for number in numbers]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("web-0", 0),
        ("web-12", 12),
        ("web", None),
        ("web-01", None),
        ("web-a-1", None),
        ("x-1", None),
    ],
)
def test_numbers_are_read_from_names(name: str, number: int | None) -> None:
    """Only names that the set itself would give have an ordinal."""
    assert ordinal_of(name, "web") == number


def test_an_ordered_set_makes_the_lowest_missing_pod() -> None:
    """An ordered set creates one pod at a time, the lowest first."""
    assert decide(ORDERED, [], now=NOW).creations == (0,)
    assert decide(ORDERED, pods(0, 2), now=NOW).creations == (1,)


def test_a_parallel_set_makes_all_missing_pods() -> None:
    """Parallel sets do not wait."""
    assert decide(PARALLEL, pods(1, phase="Pending"), now=NOW).creations == (0, 2)


@pytest.mark.parametrize(
    "below",
    [
        make_pod("web-0", phase="Pending"),
        make_pod("web-0", ready=False),
        make_pod("web-0", leaving=True),
    ],
)
def test_an_ordered_set_waits_for_the_pod_below(below: Pod) -> None:
    """No pod is created above one that is not available."""
    decision = decide(ORDERED, [below], now=NOW)
    assert decision.creations == ()
    assert decision.removals == ()


def test_a_young_pod_halts_an_ordered_set() -> None:
    """With minReadySeconds the set waits at a pod that became Ready just now."""
    rule = replace(ORDERED, min_ready=30)
    assert decide(rule, pods(0, since=10), now=NOW).creations == ()
    assert decide(rule, pods(0, since=30), now=NOW).creations == (1,)


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_finished_pods_are_deleted_and_made_again_later(phase: str) -> None:
    """A finished pod is deleted; its successor is created when it is gone, and nothing else."""
    decision = decide(ORDERED, [*pods(0, 2), make_pod("web-1", phase=phase)], now=NOW)
    assert going(decision) == [("web-1", "finished")]
    gone = decide(ORDERED, [*pods(0, 2), make_pod("web-1", phase=phase, leaving=True)], now=NOW)
    assert (gone.creations, gone.removals) == ((), ())


def test_a_scale_down_takes_the_highest_first() -> None:
    """Condemned pods are deleted one by one from the top, once all others are available."""
    assert going(decide(ORDERED, pods(0, 1, 2, 3, 4), now=NOW)) == [("web-4", "scale-down")]
    leaving = [*pods(0, 1, 2, 3), make_pod("web-4", leaving=True)]
    assert going(decide(ORDERED, leaving, now=NOW)) == []
    unready = [*pods(0, 2, 3), make_pod("web-1", ready=False)]
    assert going(decide(ORDERED, unready, now=NOW)) == []
    together = decide(PARALLEL, pods(0, 1, 2, 3, 4), now=NOW)
    assert going(together) == [("web-4", "scale-down"), ("web-3", "scale-down")]


def test_of_condemned_pods_that_are_down_the_lowest_may_go() -> None:
    """An unavailable condemned pod is deleted if no pod below is unavailable."""
    lone = [*pods(0, 1, 2, 3), make_pod("web-4", ready=False)]
    assert going(decide(ORDERED, lone, now=NOW)) == [("web-4", "scale-down")]
    two = [*pods(0, 1, 2), make_pod("web-3", ready=False), make_pod("web-4", ready=False)]
    assert going(decide(ORDERED, two, now=NOW)) == []


def test_an_update_goes_from_the_top_one_by_one() -> None:
    """The highest outdated pod is deleted when those above are available again."""
    rule = replace(ORDERED, update="r2")
    assert going(decide(rule, pods(0, 1, 2), now=NOW)) == [("web-2", "update")]
    fresh = [*pods(0, 1), make_pod("web-2", revision="r2")]
    assert going(decide(rule, fresh, now=NOW)) == [("web-1", "update")]
    young = [*pods(0, 1), make_pod("web-2", revision="r2", ready=False)]
    assert going(decide(rule, young, now=NOW)) == []


def test_a_broken_outdated_pod_is_replaced_in_a_parallel_set() -> None:
    """Without maxUnavailable an outdated pod is deleted in any state."""
    rule = replace(PARALLEL, update="r2")
    broken = [*pods(0, 1), make_pod("web-2", ready=False)]
    assert going(decide(rule, broken, now=NOW)) == [("web-2", "update")]


def test_a_partition_keeps_the_lower_pods() -> None:
    """Pods below the partition stay, or are created again, at the current revision."""
    rule = replace(ORDERED, update="r2", partition=2)
    fresh = [*pods(0, 1), make_pod("web-2", revision="r2")]
    assert going(decide(rule, fresh, now=NOW)) == []
    assert [rule.revision_for(number) for number in rule.ordinals] == ["r1", "r1", "r2"]
    later = replace(rule, start=5, partition=1)
    assert [later.revision_for(number) for number in later.ordinals] == ["r1", "r2", "r2"]


def test_on_delete_deletes_nothing() -> None:
    """OnDelete deletes no pod; a deleted pod is replaced by an updated one."""
    rule = replace(ORDERED, update="r2", on_delete=True)
    assert going(decide(rule, pods(0, 1, 2), now=NOW)) == []
    assert rule.revision_for(0) == "r2"
    assert not is_complete(rule, StatefulSetCounts(replicas=3, ready=3, updated=3))


@pytest.mark.parametrize("parallel", [True, False])
def test_a_held_pod_is_passed_over(parallel: bool) -> None:
    """Evicting, the highest outdated pod that may go is updated; one that deletes does not look
    further than the highest.
    """
    rule = replace(ORDERED, parallel=parallel, update="r2", evicting=True)
    assert going(decide(rule, pods(0, 1, 2), now=NOW)) == [("web-2", "update")]
    assert going(decide(rule, pods(0, 1, 2), now=NOW), {"web-2"}) == [("web-1", "update")]
    assert going(decide(rule, pods(0, 1, 2), now=NOW), {"web-0", "web-1", "web-2"}) == []


def test_a_passed_pod_waits_for_the_pods_below() -> None:
    """A pod that was passed over may not go while one below is being replaced."""
    rule = replace(PARALLEL, update="r2", evicting=True)
    being_replaced = make_pod("web-1", revision="r2", ready=False)
    assert going(decide(rule, [*pods(0, 2), being_replaced], now=NOW)) == []
    replaced = make_pod("web-1", revision="r2")
    assert going(decide(rule, [*pods(0, 2), replaced], now=NOW)) == [("web-2", "update")]


def test_held_pods_are_passed_over_in_a_scale_down() -> None:
    """The highest condemned pod that may go is deleted, one at a time; outdated pods do not wait
    for condemned ones that are held.
    """
    rule = replace(ORDERED, update="r2", evicting=True)
    five = decide(rule, pods(0, 1, 2, 3, 4), now=NOW)
    assert going(five) == [("web-4", "scale-down")]
    assert going(five, {"web-4"}) == [("web-3", "scale-down")]
    assert going(five, {"web-4", "web-3"}) == [("web-2", "update")]
    leaving = [*pods(0, 1, 2, 4), make_pod("web-3", leaving=True)]
    assert going(decide(rule, leaving, now=NOW)) == []


def test_outdated_pods_that_are_down_may_always_go() -> None:
    """Evicting, they do not use up maxUnavailable: the update may be their repair."""
    rule = replace(PARALLEL, update="r2", max_unavailable=1, evicting=True)
    crowd = [*pods(0, 2), make_pod("web-1", ready=False)]
    assert going(decide(rule, crowd, now=NOW)) == [("web-1", "update")]
    assert going(decide(replace(rule, evicting=False), crowd, now=NOW)) == []


def test_several_pods_may_be_updated_together() -> None:
    """maxUnavailable pods are deleted together; unavailable ones count."""
    rule = replace(PARALLEL, replicas=5, update="r2", max_unavailable=2)
    assert going(decide(rule, pods(0, 1, 2, 3, 4), now=NOW)) == [
        ("web-4", "update"),
        ("web-3", "update"),
    ]
    down = [*pods(1, 2, 3, 4), make_pod("web-0", ready=False)]
    assert going(decide(rule, down, now=NOW)) == [("web-4", "update")]


@pytest.mark.parametrize(
    ("most", "replicas", "expected"), [(2, 5, 2), ("50%", 5, 2), ("10%", 5, 1), ("100%", 4, 4)]
)
def test_percentages_round_down_to_one_at_least(
    most: int | str, replicas: int, expected: int
) -> None:
    """A percentage rounds down, and is at least one."""
    assert allowed_unavailable(most, replicas) == expected


def test_a_stale_claim_holds_back_its_number() -> None:
    """An ordinal with a former pod's claim waits; a parallel set continues with others."""
    assert decide(ORDERED, pods(0), now=NOW, stale={1}).creations == ()
    assert decide(PARALLEL, pods(0), now=NOW, stale={1}).creations == (2,)


def test_statuses_count_leaving_pods_in_no_revision() -> None:
    """A terminating pod counts as a replica, and as ready if it is, but for no revision."""
    rule = replace(ORDERED, update="r2")
    several = [make_pod("web-0"), make_pod("web-1", revision="r2"), make_pod("web-2", leaving=True)]
    assert count(rule, several, now=NOW) == StatefulSetCounts(
        replicas=3, ready=3, available=3, current=1, updated=1
    )
    assert is_complete(replace(ORDERED, replicas=0), StatefulSetCounts())


RULES = st.builds(
    StatefulSetRule,
    name=st.just("web"),
    replicas=st.integers(0, 6),
    current=st.just("r1"),
    update=st.sampled_from(["r1", "r2"]),
    start=st.integers(0, 2),
    parallel=st.booleans(),
    partition=st.integers(0, 3),
    max_unavailable=st.none() | st.integers(1, 3) | st.sampled_from(["30%", "60%"]),
    evicting=st.booleans(),
)
STATES = ("up", "down", "pending", "failed", "leaving")
FIELDS: dict[str, dict[str, Any]] = {
    "up": {},
    "down": {"ready": False},
    "pending": {"phase": "Pending"},
    "failed": {"phase": "Failed"},
    "leaving": {"leaving": True},
}
CROWDS = st.dictionaries(
    st.integers(0, 8), st.tuples(st.sampled_from(STATES), st.sampled_from(["r1", "r2"]))
)
Crowd = dict[int, tuple[str, str]]


def make_pods(crowd: Crowd) -> list[Pod]:
    """Pods of these numbers in these states, at these revisions."""
    return [
        make_pod(f"web-{number}", revision=revision, **FIELDS[state])
        for number, (state, revision) in crowd.items()
    ]


def down(rule: StatefulSetRule, crowd: Crowd) -> int:
    """How many desired pods are not available."""
    return sum(crowd.get(number, ("none", ""))[0] != "up" for number in rule.ordinals)


def carried_out(
    rule: StatefulSetRule,
    crowd: Crowd,
    decision: StatefulSetPlan,
    held_pods: Collection[str] = frozenset(),
) -> Crowd:
    """The pods after a decision, if budgets hold some."""
    after = dict(crowd)
    for number in decision.creations:
        after[number] = ("pending", rule.revision_for(number))
    for departure in chosen(decision, held_pods):
        number = int(departure.pod.metadata.name.removeprefix("web-"))
        after[number] = ("leaving", crowd[number][1])
    return after


@given(rule=RULES, crowd=CROWDS, seed=st.integers())
def test_any_order_of_pods_gives_the_same_decision(
    rule: StatefulSetRule, crowd: Crowd, seed: int
) -> None:
    """A decision does not depend on the order of pods."""
    several = make_pods(crowd)
    mixed = random.Random(seed).sample(several, len(several))
    assert decide(rule, several, now=NOW) == decide(rule, mixed, now=NOW)


@given(rule=RULES, crowd=CROWDS)
def test_an_ordered_step_is_one_step_above_available_pods(
    rule: StatefulSetRule, crowd: Crowd
) -> None:
    """An ordered set creates one pod when all below are available, or deletes pods."""
    rule = replace(rule, parallel=False)
    decision = decide(rule, make_pods(crowd), now=NOW)
    assert len(decision.creations) <= 1
    for number in decision.creations:
        assert all(crowd[lower][0] == "up" for lower in range(rule.start, number))
        assert not decision.removals
    for departure in chosen(decision):
        if departure.cause == "scale-down":
            assert down(rule, crowd) == 0
            assert len(chosen(decision)) == 1


HELD_PODS = st.frozensets(st.integers(0, 8).map("web-{}".format))


@given(rule=RULES, crowd=CROWDS, held_pods=HELD_PODS)
def test_updates_never_take_down_more_than_allowed(
    rule: StatefulSetRule, crowd: Crowd, held_pods: frozenset[str]
) -> None:
    """Deletions for an update leave at most maxUnavailable pods unavailable, whatever is held."""
    decision = decide(rule, make_pods(crowd), now=NOW)
    taken = [item.pod for item in chosen(decision, held_pods) if item.cause == "update"]
    numbers = [int(pod.metadata.name.removeprefix("web-")) for pod in taken]
    assert all(number >= rule.start + rule.partition for number in numbers)
    assert all(crowd[number][1] != rule.update for number in numbers)
    lost = sum(crowd[number][0] == "up" for number in numbers)
    if rule.max_unavailable is None:
        assert len(taken) <= 1
    elif lost:
        after = carried_out(rule, crowd, decision, held_pods)
        assert down(rule, after) <= allowed_unavailable(rule.max_unavailable, rule.replicas)
    if rule.evicting and rule.max_unavailable is None and lost:
        assert all(number in crowd for number in rule.ordinals[rule.partition :])


@settings(max_examples=60, deadline=None)
@given(rule=RULES, crowd=CROWDS, seed=st.integers())
def test_every_crowd_converges(rule: StatefulSetRule, crowd: Crowd, seed: int) -> None:
    """Whatever fails or is held meanwhile, in the end the desired pods are available at their
    revisions. Condemned pods that have finished are left out: an ordered set waits for them for
    ever, as a real one does.
    """
    rng = random.Random(seed)
    crowd = {
        number: (state, revision)
        for number, (state, revision) in crowd.items()
        if number in rule.ordinals or state != "failed"
    }
    for turn in range(200):
        decision = decide(rule, make_pods(crowd), now=NOW)
        open_third = turn // 10 % 3
        held_pods = {
            f"web-{number}" for number in crowd if rule.evicting and number % 3 != open_third
        }
        crowd = carried_out(rule, crowd, decision, held_pods)
        calm = turn > 20
        for number in sorted(crowd):
            state, revision = crowd[number]
            if rng.random() < 0.5:
                continue
            if state == "leaving":
                del crowd[number]
            elif state in ("pending", "down"):
                crowd[number] = ("up", revision)
            elif not calm and rng.random() < 0.2:
                finished = "failed" if number in rule.ordinals else "down"
                crowd[number] = (rng.choice(["down", finished]), revision)
    assert sorted(crowd) == list(rule.ordinals)
    assert {state for state, _ in crowd.values()} <= {"up"}
    for number, (_, revision) in crowd.items():
        if number >= rule.start + rule.partition:
            assert revision == rule.update
    assert decide(rule, make_pods(crowd), now=NOW).removals == ()
