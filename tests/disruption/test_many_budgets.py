"""Many budgets in a namespace: shared counts, the cost of a change, and the limit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.disruption.clusters import (
    EXISTS,
    NOW,
    NS,
    ZONE,
    code,
    deployment,
    namespace_budgets,
    node,
    pod,
    spread,
    tdb,
    zones,
)

from zonewise.api import Pod
from zonewise.api.values.selector import Selector
from zonewise.disruption.budget import Budget, BudgetKey
from zonewise.disruption.domain_counts import DomainCounts
from zonewise.disruption.namespace_budgets import BUDGETS_LIMIT, PODS_PER_SLICE, NamespaceBudgets
from zonewise.disruption.verdict import VerdictRound

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def selecting(name: str, *, created: str = "", limit: int = 1, **labels: str) -> Budget:
    """A budget per zone of the pods with these labels."""
    budget = tdb(
        name,
        domains={"a": 3, "b": 3, "c": 3},
        selector={"matchLabels": labels},
        topologyKeys=[ZONE],
        maxUnavailable=limit,
    )
    return replace(budget, created=created)


class Work:
    """How often pods were counted, and selectors tested."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counted = self.tested = 0
        put, matches = DomainCounts.put, Selector.matches

        def counting(counts: DomainCounts, item: Pod) -> None:
            self.counted += 1
            put(counts, item)

        def testing(selector: Selector, labels: Mapping[str, str]) -> bool:
            self.tested += 1
            return matches(selector, labels)

        patch.setattr(DomainCounts, "put", counting)
        patch.setattr(Selector, "matches", testing)

    def taken(self) -> tuple[int, int]:
        """The work since the last time."""
        done = self.counted, self.tested
        self.counted = self.tested = 0
        return done


def settle(namespace: NamespaceBudgets) -> None:
    """Count everything that has changed."""
    for _ in namespace.count_changes():
        pass


def test_budgets_with_one_selector_share_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ninety budgets of nine pods count nine pods, not 810, though each allows another number."""
    work = Work(monkeypatch)
    budgets = [selecting(f"b{number}", limit=number % 3, app="web") for number in range(90)]
    namespace = namespace_budgets(spread(a=3, b=3, c=3), *budgets)
    settle(namespace)
    counted, tested = work.taken()
    assert counted == 9
    assert tested == 18, "once as a change, once by the new count"
    standings = [namespace.state(budget.key, NOW) for budget in budgets]
    assert [standing.allowed("a") for standing in standings] == [number % 3 for number in range(90)]
    work.taken()
    namespace.put_pod(pod("a-0", "n-a", ready=False))
    settle(namespace)
    assert work.taken() == (1, 1)
    assert namespace.state(budgets[2].key, NOW).allowed("a") == 1


def test_a_label_change_touches_only_budgets_that_could_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of ninety budgets of other pods none is evaluated when a label of a pod changes."""
    budgets = [selecting(f"b{number}", group=str(number)) for number in range(90)]
    pods = [pod(f"p{number}", "n-a", labels={"group": str(number)}) for number in range(90)]
    namespace = namespace_budgets(pods, *budgets)
    settle(namespace)
    work = Work(monkeypatch)
    namespace.put_pod(pod("p7", "n-a", labels={"group": "8"}))
    assert work.taken() == (0, 0), "a change is noted, and counted at the next read"
    settle(namespace)
    assert work.taken() == (1, 2), "one count has lost it and one got it"
    assert namespace.state(budgets[7].key, NOW).domains["a"].present == 0
    assert namespace.state(budgets[8].key, NOW).domains["a"].present == 2


def test_a_hundred_changes_of_a_pod_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without reads in between only the last state is counted."""
    namespace = namespace_budgets(spread(a=3, b=3, c=3), selecting("web", app="web"))
    settle(namespace)
    work = Work(monkeypatch)
    for turn in range(100):
        namespace.put_pod(pod("a-0", "n-a", labels={"turn": str(turn)}))
    settle(namespace)
    assert work.taken()[0] == 1


def test_another_guard_needs_no_new_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout that opens one domain after the other changes its budget and counts nothing."""
    spec: dict[str, Any] = {"maxUnavailable": 0}
    closed = {"key": ZONE, "operator": "NotIn", "values": ["a"]}
    before = tdb(**spec, nodeSelectorTerm={"matchExpressions": [EXISTS]})
    after = tdb(**spec, nodeSelectorTerm={"matchExpressions": [EXISTS, closed]})
    namespace = namespace_budgets(spread(a=3, b=3, c=3), before)
    settle(namespace)
    work = Work(monkeypatch)
    namespace.put_budget(after)
    standing = namespace.state(after.key, NOW)
    assert work.taken()[0] == 0
    assert (standing.allowed("a"), standing.allowed("b")) == (None, 0)


def test_counting_pauses_after_each_slice() -> None:
    """Counting thousands of pods yields in between; a change in a pause is counted."""
    pods = [pod(f"p{number}", "n-a") for number in range(10 * PODS_PER_SLICE)]
    namespace = namespace_budgets(pods, selecting("web", app="web"))
    work = namespace.count_changes()
    pauses = 0
    for _ in work:
        pauses += 1
        if pauses == 3:
            namespace.put_pod(pod("p0", "n-b"))
            namespace.drop_pod(pod("p1", "n-a"))
    assert pauses >= 10
    domains = namespace.state(("TopologyDisruptionBudget", NS, "web"), NOW).domains
    assert (domains["a"].present, domains["b"].present) == (10 * PODS_PER_SLICE - 2, 1)


def test_the_oldest_budgets_of_a_namespace_are_counted() -> None:
    """A budget above the limit allows nothing and says why; when an older one is deleted it counts.
    Pods that it does not select are not affected.
    """
    first = [
        selecting(f"z{number}", created="2026-01-01", group=str(number))
        for number in range(BUDGETS_LIMIT)
    ]
    late = selecting("late", created="2026-02-01", app="web")
    other = pod("other", "n-a", labels={"app": "other"})
    namespace = namespace_budgets([*spread(a=3, b=3, c=3), other], late, *first)
    assert namespace.is_beyond_limit(late.key)
    assert namespace.budgets_at_limit()[1] == late.key
    verdict = namespace.judge(namespace.pods["uid-a-0"], NOW)
    assert not verdict.allowed
    assert "more than 100 budgets per failure domain" in verdict.reason.message
    assert namespace.state(late.key, NOW).reason().code == "TooManyBudgets"
    assert code(namespace, "other") == "Uncovered"
    namespace.drop_budget(first[3].key)
    assert not namespace.is_beyond_limit(late.key)
    assert code(namespace, "a-0") == "Allowed"
    namespace.put_budget(first[3])
    assert namespace.is_beyond_limit(late.key), "it is older, whenever it is seen"
    assert code(namespace, "a-0") == "Blocked"


def test_a_budget_beyond_the_limit_blocks_what_it_would_guard() -> None:
    """A budget above the limit blocks what it would guard; not if it guards nothing or observes,
    nor controllers that repair unready pods.
    """
    first = [selecting(f"z{number}", group=str(number)) for number in range(BUDGETS_LIMIT)]
    only_b = {"key": ZONE, "operator": "In", "values": ["b"]}
    late = tdb("~", maxUnavailable=1, nodeSelectorTerm={"matchExpressions": [EXISTS, only_b]})
    late = replace(late, created="2026")
    namespace = namespace_budgets([*spread(a=3, b=2), pod("b-9", "n-b", ready=False)], *first, late)
    assert code(namespace, "a-0") == "Uncovered"
    assert code(namespace, "b-0") == code(namespace, "b-9") == "Blocked"
    assert code(namespace, "b-9", evicting=False) == "Uncovered"
    namespace.put_budget(replace(late, enforced=False))
    assert code(namespace, "b-0") == "Uncovered"


def test_one_of_thousands_beyond_the_limit_is_named() -> None:
    """A refusal is as short with a thousand budgets above the limit as with one."""
    budgets = [selecting(f"b{number:04}", app="web") for number in range(BUDGETS_LIMIT + 1000)]
    namespace = namespace_budgets(spread(a=1), *budgets)
    verdict = namespace.judge(namespace.pods["uid-a-0"], NOW)
    assert sum("more than 100" in blocker.message for blocker in verdict.blockers) == 1


def test_plain_budgets_do_not_count_toward_the_limit() -> None:
    """Plain budgets do not count toward the limit, since their own controller counts them."""
    namespace = namespace_budgets(spread(a=3), selecting("web", app="web"))
    assert namespace.counted_budgets == 1


def test_any_history_gives_the_numbers_of_the_last_state() -> None:
    """Pods, budgets and nodes are added, changed and removed in any order, with some reads."""
    rng = random.Random(7)
    for _ in range(60):
        nodes = zones("a", "b", "c")
        namespace = NamespaceBudgets(nodes, owners=deployment(9))
        pods: dict[str, Pod] = {}
        budgets: dict[BudgetKey, Budget] = {}
        for _ in range(60):
            match rng.randrange(6):
                case 0 | 1 | 2:
                    item = pod(
                        f"p{rng.randrange(12)}",
                        f"n-{rng.choice('abcd')}",
                        ready=rng.random() < 0.8,
                        labels={rng.choice("xyz"): rng.choice("12") for _ in range(2)},
                    )
                    pods[item.metadata.uid] = item
                    namespace.put_pod(item)
                case 3 if pods:
                    namespace.drop_pod(pods.pop(rng.choice(sorted(pods))))
                case 4:
                    budget = _drawn(rng)
                    budgets[budget.key] = budget
                    namespace.put_budget(budget)
                case 5 if budgets and rng.random() < 0.5:
                    key = rng.choice(sorted(budgets))
                    del budgets[key]
                    namespace.drop_budget(key)
                case 5:
                    name = f"n-{rng.choice('abcd')}"
                    nodes[name] = node(name, rng.choice("abc"))
                    namespace.nodes_changed()
            if rng.random() < 0.2:
                next(namespace.count_changes(), None)
        fresh = NamespaceBudgets(
            nodes, budgets=budgets.values(), pods=pods.values(), owners=deployment(9)
        )
        for key in budgets:
            assert namespace.state(key, NOW) == fresh.state(key, NOW)
        for item in pods.values():
            assert namespace.judge(item, NOW) == fresh.judge(item, NOW)


def _drawn(rng: random.Random) -> Budget:
    operator = rng.choice(OPERATORS)
    values = {"values": rng.sample("12", rng.randint(1, 2))} if operator in OPERATORS[:2] else {}
    expression = {"key": rng.choice("xyz"), "operator": operator, **values}
    return tdb(
        f"b{rng.randrange(5)}",
        selector={"matchExpressions": [expression]},
        topologyKeys=[ZONE],
        maxUnavailable=rng.randrange(3),
    )


def test_changes_in_a_pause_do_not_change_a_round() -> None:
    """A round counts its budgets in slices and judges by that, whatever changed since."""
    budgets = [
        tdb(
            f"b{number}",
            selector={"matchLabels": {f"l{number}": "x"}},
            topologyKeys=[ZONE],
            maxUnavailable=1,
        )
        for number in range(20)
    ]
    labels = {f"l{number}": "x" for number in range(20)}
    pods = [pod(f"p{number}", "n-a", labels=labels) for number in range(3)]
    namespace = namespace_budgets(pods, *budgets)
    verdicts = VerdictRound(namespace, NOW)
    seen: Counter[bool] = Counter()
    for turn, _ in enumerate(verdicts.prepare(pods[0])):
        if turn == 0:
            namespace.drop_budget(budgets[19].key)
        seen.update([True])
    assert seen[True] == 3
    assert verdicts.judge(pods[0]).allowed
    assert len(verdicts.judge(pods[0]).agreeing) == 19
