"""Which domain is open: order, pauses, rollbacks, broken pods, and crashes at any point."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.disruption.clusters import tdb
from tests.disruption.rollouts.rolling import Rolling, rollout, spread

from zonewise.api.reason import Reason
from zonewise.disruption.rollouts.plan import RolloutView, plan_rollout


def played(town: Rolling, *, most: int = 200, broken: str = "") -> list[str]:
    """Roll out to the end; the zones in the order they were opened."""
    order: list[str] = []
    for _ in range(most):
        plan = town.turn()
        if plan.open_domain is not None and order[-1:] != [plan.open_domain]:
            order.append(plan.open_domain)
        if plan.is_complete and town.done():
            return order
        town.live(broken=broken)
    raise AssertionError(f"not done: {plan.reason}")


def update(town: Rolling, revision: str = "2") -> Rolling:
    """Change the template."""
    town.update_revision = revision
    return town


def test_nothing_to_do_is_complete() -> None:
    """A workload of one revision is up to date, and no domain is open."""
    plan = spread(3, 3, 3).turn()
    assert plan.is_complete
    assert plan.open_domain is None
    assert plan.reason.code == "UpToDate"


@pytest.mark.parametrize(
    ("town", "order"),
    [
        (spread(3, 1, 2), ["b", "c", "a"]),
        (spread(2, 2, 2), ["a", "b", "c"]),
        (spread(2, 2, 2, order={"domains": ["c", "a"]}), ["c", "a", "b"]),
        (spread(1, 2, 2, order={"domains": ["nowhere", "b"]}), ["b", "a", "c"]),
    ],
)
def test_the_order(town: Rolling, order: list[str]) -> None:
    """The emptiest domain goes first, or as listed; domains that are not listed follow by name."""
    assert played(update(town)) == order


def test_the_order_of_a_label() -> None:
    """A label of nodes gives the order: numbers by size, then texts, then nodes without it."""
    town = spread(1, 1, 1, 1, order={"nodeLabel": "wave"})
    town.node_labels = {"a": {"wave": "10"}, "b": {"wave": "9"}, "d": {"wave": "last"}}
    assert played(update(town)) == ["b", "a", "d", "c"]


def test_ordinals_go_from_the_highest() -> None:
    """Within a domain the highest ordinal goes first, one by one unless more may be missing."""
    town = update(spread(3, 3))
    played(town)
    assert town.evicted == ["db-4", "db-2", "db-0", "db-5", "db-3", "db-1"]
    fast = update(spread(4, maxUnavailable="50%"))
    fast.turn()
    fast.turn()
    assert [evicted.metadata.name for evicted in fast.decide()[1].pods] == ["db-3", "db-2"]


def test_a_partition_keeps_its_pods() -> None:
    """Ordinals below the partition are not replaced, and the rollout completes without them."""
    town = update(spread(2, 2))
    town.partition = 2
    for _ in range(30):
        plan = town.turn()
        town.live()
    assert plan.is_complete
    assert sorted(town.evicted) == ["db-2", "db-3"]


def test_each_domain_has_a_state() -> None:
    """The status says which domains are done, in progress, next and later, and counts them."""
    town = update(spread(1, 1, 1, 1, order={"domains": ["a", "b", "c", "d"]}))
    while town.item.status.domain != "b":
        town.turn()
        town.live()
    status = town.item.status
    assert {row.domain: row.state for row in status.domains} == {
        "a": "Done",
        "b": "Doing",
        "c": "Next",
        "d": "Later",
    }
    assert (status.progress, status.reason) == ("1/4", "Updating")
    assert {condition.type: condition.status for condition in status.conditions} == {
        "Complete": "False",
        "Progressing": "True",
    }
    played(town)
    assert {condition.type: condition.status for condition in town.item.status.conditions} == {
        "Complete": "True",
        "Progressing": "False",
    }


def test_between_domains_is_a_pause() -> None:
    """After a domain nothing is open for the configured time; the plan has the time to continue."""
    town = update(spread(1, 1, pauseSeconds=300))
    while "a" not in {row.domain for row in town.item.status.domains if row.state == "Done"}:
        town.turn()
        town.live()
    plan = town.turn()
    assert plan.reason.code == "PausedBetweenDomains"
    assert (plan.open_domain, plan.next_domain) == (None, "b")
    assert plan.retry_after is not None
    assert 0 < plan.retry_after <= 300
    town.time += 300
    assert town.turn().open_domain == "b"


def test_the_first_domain_does_not_wait() -> None:
    """A pause is between domains, so the first one starts at once."""
    town = update(spread(1, 1, pauseSeconds=300))
    town.turn()
    assert town.turn().open_domain == "a"


def test_an_unready_pod_elsewhere_stops_it() -> None:
    """While another domain lacks a Ready pod nothing is open; then the rollout continues."""
    town = update(spread(3, 3, 3))
    for _ in range(4):
        town.turn()
        town.live()
    assert town.opened == "a"
    hurt = next(ordinal for ordinal in town.pods if ordinal.zone == "c")
    hurt.ready = False
    hurt.revision = "2"
    plan = town.turn()
    assert (plan.open_domain, plan.current_domain) == (None, "a")
    assert plan.reason.code == "PodsNotReady"
    assert "domain c has 2 Ready pods of 3" in plan.reason.message
    before = list(town.evicted)
    town.turn()
    assert town.evicted == before
    hurt.ready = True
    assert town.turn().open_domain == "a"


def test_a_domain_that_is_out_stops_it_and_is_left_alone() -> None:
    """Pods on lost nodes are not evicted; after the outage the rollout ends, each pod once."""
    town = update(spread(3, 3, 3))
    while town.opened != "b":
        town.turn()
        town.live()
    town.down = {"b"}
    before = list(town.evicted)
    for _ in range(20):
        plan = town.turn()
        town.live()
    assert town.evicted == before
    assert plan.current_domain == "b"
    town.down = set()
    played(town)
    assert len(town.evicted) == len(set(town.evicted)) == 9


def test_broken_pods_are_repaired_by_the_update() -> None:
    """A revision that never gets Ready, in two domains, does not block its fix."""
    town = spread(2, 2, 2)
    for ordinal in town.pods:
        if ordinal.zone in "bc":
            ordinal.ready = False
    update(town)
    order = played(town, broken="1")
    assert order[0] == "b"
    assert set(town.evicted[:4]) == {"db-1", "db-4", "db-2", "db-5"}


def test_a_pod_that_breaks_elsewhere_is_mended_first() -> None:
    """A domain with a broken old pod goes before one that is in progress and whole; if that one
    lacks a pod itself, it does not.
    """
    town = update(spread(3, 3, order={"domains": ["a", "b"]}))
    for _ in range(4):
        town.turn()
        town.live()
    hurt = next(ordinal for ordinal in town.pods if ordinal.zone == "b")
    hurt.ready, hurt.stuck = False, True
    town.time += 60
    while town.lacking() != {"b"}:
        assert town.turn().open_domain != "b"
        town.live()
    before = len(town.evicted)
    assert town.turn().open_domain == "b"
    town.turn()
    assert town.evicted[before:] == [town.name(hurt)]
    assert played(town)


def test_a_pod_that_is_starting_is_not_broken() -> None:
    """A pod that has just started does not change the order; the plan says when it would."""
    town = update(spread(2, 2, 2, order={"domains": ["a"]}))
    town.pods[1].ready = False
    town.turn()
    plan = town.turn()
    assert (plan.open_domain, plan.reason.code, plan.next_domain) == (None, "PodsNotReady", "a")
    assert plan.retry_after == 60.0
    town.time += 60
    assert town.turn().open_domain == "b"


def test_a_broken_update_stays_in_its_domain() -> None:
    """If pods of a new revision do not get Ready, the rollout stops in the first domain."""
    town = update(spread(3, 3, 3))
    for _ in range(50):
        plan = town.turn()
        town.live(broken="2")
    assert town.evicted == ["db-6"]
    assert (plan.current_domain, plan.reason.code) == ("a", "Updating")
    assert "2 of 3 Ready" in plan.reason.message


def test_a_rollback_takes_the_newest_first() -> None:
    """In a rollback the domain that was updated last goes first, then the others."""
    town = update(spread(2, 2, 2, order={"domains": ["b", "a", "c"]}))
    while town.opened != "c":
        town.turn()
        town.live()
    assert town.evicted == ["db-4", "db-1", "db-3", "db-0"]
    town.update_revision = "1"
    order = played(town)
    assert order == ["a", "b"]
    assert town.evicted[4:] == ["db-0", "db-3", "db-1", "db-4"]
    assert town.item.status.reason == "UpToDate"


def test_a_rollback_has_its_own_reason() -> None:
    """The reason says that an update is rolled back."""
    town = update(spread(2, 2, 2))
    while town.opened != "b":
        town.turn()
        town.live()
    town.update_revision = "1"
    town.turn()
    assert town.turn().reason.code == "RollingBack"


def test_paused_is_closed() -> None:
    """``paused`` closes every domain and remembers the one in progress."""
    town = update(spread(2, 2))
    for _ in range(3):
        town.turn()
        town.live()
    paused = rollout(paused=True)
    town.item = type(paused)(metadata=paused.metadata, spec=paused.spec, status=town.item.status)
    plan = town.turn()
    assert (plan.open_domain, plan.current_domain, plan.reason.code) == (None, "a", "Paused")
    running = rollout()
    town.item = type(paused)(metadata=paused.metadata, spec=running.spec, status=town.item.status)
    assert town.turn().open_domain == "a"


def test_other_budgets_are_checked_before_an_eviction() -> None:
    """A pod that another budget refuses is not evicted, and the verdict is returned."""
    town = update(spread(2, 2))
    town.others = [tdb("all", domains={"*": 4}, minAvailable=4)]
    town.turn()
    town.turn()
    assert town.opened == "a"
    _, chosen = town.decide()
    assert not chosen.pods
    assert chosen.refusal is not None
    assert "the budget all" in chosen.refusal.reason.message


def test_errors_close_all_domains() -> None:
    """If something is wrong with the workload, nothing is open and the reason says why."""
    why = Reason(code="WorkloadNotFound", message="there is no StatefulSet db")
    plan = plan_rollout(RolloutView(rollout=rollout(), blocking_reason=why))
    assert (plan.open_domain, plan.reason, plan.is_progressing) == (None, why, False)


def test_any_order_of_pods_gives_the_same_plan() -> None:
    """The decision does not depend on the order in which pods are listed."""
    town = update(spread(2, 3, 2))
    town.turn()
    view = town.view(town.namespace_budgets())
    pods = list(view.pods)
    plans = set()
    for seed in range(20):
        random.Random(seed).shuffle(pods)
        plan = plan_rollout(
            RolloutView(
                rollout=view.rollout,
                workload=view.workload,
                pods=tuple(pods),
                desired_ready=view.desired_ready,
                open_domain=view.open_domain,
                now=view.now,
            )
        )
        plans.add((plan.open_domain, plan.current_domain, plan.next_domain, plan.reason))
    assert len(plans) == 1


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(
    counts=st.lists(st.integers(0, 4), min_size=2, max_size=4).filter(any),
    most=st.sampled_from([1, 2, "50%", "100%"]),
    pause=st.sampled_from([0, 3]),
    seed=st.integers(0, 2**32),
)
def test_one_domain_at_a_time_whatever_happens(
    counts: list[int], most: int | str, pause: int, seed: int
) -> None:
    """With crashes after any write, outages, failing pods, new revisions and rollbacks, no Ready
    pod is deleted while another domain lacks one, and in the end the rollout is done.
    """
    rng = random.Random(seed)
    town = update(spread(*counts, maxUnavailable=most, pauseSeconds=pause))
    for step in range(400):
        quiet = step > 60
        before = town.lacking()
        taken = len(town.evicted)
        ready = {town.name(ordinal) for ordinal in town.pods if ordinal.there and ordinal.ready}
        town.turn(crash_after=3 if quiet else rng.randrange(4))
        for name in town.evicted[taken:]:
            ordinal = town.pods[int(name.removeprefix("db-"))]
            if name in ready:
                assert before <= {ordinal.zone}
        if town.done() and quiet and town.item.status.reason == "UpToDate":
            break
        if rng.random() < 0.7 or quiet:
            town.live()
        if not quiet:
            if rng.random() < 0.1:
                town.update_revision = rng.choice("12345")
                for ordinal in town.pods:
                    ordinal.stuck = ordinal.stuck and ordinal.revision != town.update_revision
            if rng.random() < 0.1:
                hurt = rng.choice(town.pods)
                hurt.ready = False
                hurt.stuck = (
                    hurt.there and hurt.revision != town.update_revision and rng.random() < 0.5
                )
            if rng.random() < 0.1:
                town.down = {rng.choice("abcd")} if rng.random() < 0.5 else set()
        else:
            town.down = set()
            town.time += 3
    assert town.done()
    assert town.item.status.reason == "UpToDate"
