"""PodDisruptionBudgets, counted as Kubernetes counts."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.api.meta import IntOrString, ObjectMeta
from zonewise.api.objects.pod import Pod, PodCondition, PodStatus
from zonewise.api.objects.policy import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from zonewise.api.values import times
from zonewise.disruption.pdb import (
    DELETION_SECONDS,
    BudgetCount,
    failed_status,
    needs_scale,
    seconds_until_stale,
    status_of_count,
)

NOW = 1_750_000_000.0


def text(seconds: float) -> str:
    """A time as on the wire."""
    return times.format_time(times.from_epoch(seconds))


def pod(name: str, *, ready: bool = True, leaving: bool = False) -> Pod:
    """A pod, Ready or not."""
    condition = PodCondition(type="Ready", status="True" if ready else "False")
    return Pod(
        metadata=ObjectMeta(name=name, deletion_timestamp=text(NOW) if leaving else None),
        status=PodStatus(phase="Running", conditions=(condition,)),
    )


def pods(count: int, *, unready: int = 0) -> list[Pod]:
    """A number of pods, the last of them unready."""
    return [pod(f"p{n}", ready=n < count - unready) for n in range(count)]


def budget(
    *,
    least: IntOrString | None = None,
    most: IntOrString | None = None,
    promised: dict[str, str] | None = None,
) -> PodDisruptionBudget:
    """A budget."""
    return PodDisruptionBudget(
        metadata=ObjectMeta(name="b", namespace="n", generation=1),
        spec=PodDisruptionBudgetSpec(min_available=least, max_unavailable=most),
        status=PodDisruptionBudgetStatus(disrupted_pods=promised or {}),
    )


@pytest.mark.parametrize(
    ("least", "most", "scale", "there", "unready", "expected"),
    [
        # minAvailable, maxUnavailable, scale, pods, unready -> expected, desired, healthy, allowed
        (2, None, 0, 3, 0, (3, 2, 3, 1)),
        (3, None, 9, 3, 0, (3, 3, 3, 0)),
        (5, None, 9, 3, 0, (3, 5, 3, 0)),
        (0, None, 0, 0, 0, (0, 0, 0, 0)),
        ("50%", None, 3, 3, 0, (3, 2, 3, 1)),
        ("1%", None, 3, 3, 0, (3, 1, 3, 2)),
        ("100%", None, 3, 3, 0, (3, 3, 3, 0)),
        (None, 1, 3, 3, 0, (3, 2, 3, 1)),
        (None, 1, 3, 3, 1, (3, 2, 2, 0)),
        (None, 1, 3, 3, 2, (3, 2, 1, 0)),
        (None, "1%", 3, 3, 0, (3, 2, 3, 1)),
        (None, "100%", 3, 3, 0, (3, 0, 3, 3)),
        (None, 7, 3, 3, 0, (3, 0, 3, 3)),
        (None, 1, 9, 3, 0, (9, 8, 3, 0)),  # a budget on one zone of a workload
        (None, 1, 0, 2, 0, (0, 0, 2, 0)),  # bare pods
        (None, 0, 3, 5, 0, (3, 3, 5, 2)),  # scaled down, pods not gone yet
        (None, None, 3, 3, 0, (0, 0, 3, 0)),
    ],
)
def test_counts(
    least: IntOrString | None,
    most: IntOrString | None,
    scale: int,
    there: int,
    unready: int,
    expected: tuple[int, int, int, int],
) -> None:
    """Expected, desired and healthy pods give the allowed number, as in Kubernetes' controller."""
    count = BudgetCount.count(
        budget(least=least, most=most), pods(there, unready=unready), scale, now=NOW
    )
    assert (count.expected, count.desired, count.healthy, count.allowed) == expected


def test_leaving_pods_are_expected_but_not_healthy() -> None:
    """With a whole number, terminating pods count as expected."""
    given_pods = [*pods(2), pod("z", leaving=True)]
    count = BudgetCount.count(budget(least=2), given_pods, 0, now=NOW)
    assert (count.expected, count.healthy, count.allowed) == (3, 2, 0)


def test_a_promised_pod_is_not_healthy_until_the_promise_ends() -> None:
    """After an eviction a pod counts as disrupted for two minutes; then it counts again and is
    reported.
    """
    promised = {"p0": text(NOW)}
    during = BudgetCount.count(budget(most=1, promised=promised), pods(3), 3, now=NOW + 100)
    assert (during.healthy, during.allowed, during.recheck_after) == (2, 0, DELETION_SECONDS - 100)
    assert during.disrupted == promised
    assert during.overdue == ()
    after = BudgetCount.count(budget(most=1, promised=promised), pods(3), 3, now=NOW + 121)
    assert (after.healthy, after.allowed, after.recheck_after) == (3, 1, None)
    assert after.disrupted == {}
    assert after.overdue == ("p0",)


def test_a_promise_ends_with_the_pod() -> None:
    """A pod that is gone or terminating needs no entry in disruptedPods."""
    promised = {"gone": text(NOW), "z": text(NOW)}
    given_pods = [*pods(2), pod("z", leaving=True)]
    count = BudgetCount.count(budget(most=1, promised=promised), given_pods, 3, now=NOW)
    assert count.disrupted == {}
    assert count.recheck_after is None


def test_a_promise_is_about_one_pod_and_not_its_successor() -> None:
    """A pod created after the eviction of one with its name is healthy; in the same second, soon
    after.
    """
    promise = budget(least=1, promised={"p0": text(NOW - 3)})

    def count(created: float, now: float = NOW) -> BudgetCount:
        meta = ObjectMeta(name="p0", creation_timestamp=text(created))
        return BudgetCount.count(
            promise, [msgspec.structs.replace(pod("p0"), metadata=meta)], 0, now=now
        )

    assert (count(NOW - 2).healthy, count(NOW - 2).disrupted) == (1, {})
    assert count(NOW - 3).healthy == 0
    assert count(NOW - 3, now=NOW + 10).healthy == 1
    assert count(NOW - 4, now=NOW + 10).healthy == 0


def test_only_integers_of_present_pods_need_no_scale() -> None:
    """For any maxUnavailable and for percentages the controllers' scale is read."""
    assert not needs_scale(budget(least=1).spec)
    assert needs_scale(budget(least="1%").spec)
    assert needs_scale(budget(most=1).spec)
    assert needs_scale(budget(most="1%").spec)


def test_the_condition_keeps_its_time_while_its_status_stays() -> None:
    """An equal second count gives the same status."""
    counted = budget(most=1)
    first = status_of_count(counted, BudgetCount.count(counted, pods(3), 3, now=NOW), now=text(NOW))
    assert first.conditions[0].reason == "SufficientPods"
    seen = PodDisruptionBudget(metadata=counted.metadata, spec=counted.spec, status=first)
    again = status_of_count(
        seen, BudgetCount.count(seen, pods(3), 3, now=NOW + 9), now=text(NOW + 9)
    )
    assert again == first
    less = status_of_count(
        seen, BudgetCount.count(seen, pods(2), 3, now=NOW + 9), now=text(NOW + 9)
    )
    assert (less.conditions[0].status, less.conditions[0].reason) == ("False", "InsufficientPods")
    assert less.conditions[0].last_transition_time == text(NOW + 9)


def test_a_budget_that_cannot_be_counted_allows_nothing() -> None:
    """The last numbers stay, nothing is allowed, and the generation is not observed."""
    counted = budget(most=1)
    first = status_of_count(counted, BudgetCount.count(counted, pods(3), 3, now=NOW), now=text(NOW))
    seen = PodDisruptionBudget(metadata=ObjectMeta(generation=2), spec=counted.spec, status=first)
    failed = failed_status(seen, "no scale", now=text(NOW + 5))
    assert failed.disruptions_allowed == 0
    assert failed.current_healthy == first.current_healthy
    assert failed.observed_generation == 1
    condition = failed.conditions[0]
    assert (condition.status, condition.reason, condition.message) == (
        "False",
        "SyncFailed",
        "no scale",
    )


def condemned(reason: str, *, phase: str = "Running", leaving: bool = False) -> Pod:
    """A pod with the condition DisruptionTarget."""
    condition = PodCondition(
        type="DisruptionTarget", status="True", reason=reason, last_transition_time=text(NOW)
    )
    return Pod(
        metadata=ObjectMeta(name="p", deletion_timestamp=text(NOW) if leaving else None),
        status=PodStatus(phase=phase, conditions=(condition,)),
    )


def test_a_pod_that_was_not_deleted_loses_its_condition() -> None:
    """Two minutes after an eviction without effect; not if a kubelet or an end explains it."""
    assert seconds_until_stale(condemned("EvictionByEvictionAPI"), now=NOW + 20) == 100
    assert seconds_until_stale(condemned("EvictionByEvictionAPI"), now=NOW + 500) == 0
    assert seconds_until_stale(condemned("TerminationByKubelet"), now=NOW + 500) is None
    assert (
        seconds_until_stale(condemned("PreemptionByScheduler", phase="Failed"), now=NOW + 500)
        is None
    )
    assert (
        seconds_until_stale(condemned("EvictionByEvictionAPI", leaving=True), now=NOW + 500) is None
    )
    assert seconds_until_stale(pod("p"), now=NOW) is None


@given(
    st.one_of(st.integers(0, 12), st.integers(0, 100).map(lambda n: f"{n}%")),
    st.booleans(),
    st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=10),
    st.integers(0, 12),
    st.integers(0, 2**16),
)
def test_enough_pods_stay_if_all_allowed_ones_go(
    value: IntOrString, least: bool, shape: list[tuple[bool, bool, bool]], scale: int, seed: int
) -> None:
    """If all allowed pods go, enough healthy ones stay; the order of pods does not matter."""
    there = [pod(f"p{n}", ready=ready, leaving=off) for n, (ready, off, _) in enumerate(shape)]
    promised = {f"p{n}": text(NOW) for n, (_, _, taken) in enumerate(shape) if taken}
    counted = budget(
        least=value if least else None, most=None if least else value, promised=promised
    )
    count = BudgetCount.count(counted, there, scale, now=NOW + 1)
    assert count.allowed == 0 or count.healthy - count.allowed >= count.desired
    assert count.healthy <= sum(ready and not off for ready, off, _ in shape)
    random.Random(seed).shuffle(there)
    assert BudgetCount.count(counted, there, scale, now=NOW + 1) == count
