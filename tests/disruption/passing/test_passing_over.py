"""Which pods of a StatefulSet are evicted while a budget holds the first one."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.disruption.clusters import EXISTS, NOW, NS, namespace_budgets, pod, tdb

from zonewise.api import Pod, convert
from zonewise.api.objects.budgets import Grant
from zonewise.api.values import times
from zonewise.disruption.ledger import Ledger
from zonewise.disruption.owner_views import StatefulSetScale
from zonewise.disruption.owners import owner_of
from zonewise.disruption.passing.passing_over import PassingChoice, choose_ordinals

ZONES = "abcabc"
"""The zones of ordinals 0 to 5."""


def stateful_set(replicas: int = 6, **spec: Any) -> StatefulSetScale:
    """The StatefulSet db, updated from revision 1 to 2."""
    status = {"observedGeneration": 1, "currentRevision": "1", "updateRevision": "2"}
    meta = {"name": "db", "namespace": NS, "uid": "uid-db", "generation": 1}
    body = {"metadata": meta, "spec": {"replicas": replicas, **spec}, "status": status}
    return convert(StatefulSetScale, body)


def ordinal(number: int, revision: str = "1", **fields: Any) -> Pod:
    """The pod of an ordinal, in its zone."""
    labels = {"controller-revision-hash": revision}
    at = f"n-{ZONES[number]}"
    return pod(f"db-{number}", at, owner="db", kind="StatefulSet", labels=labels, **fields)


def choose(
    item: StatefulSetScale,
    *changed: Pod,
    open_zones: str = "a",
    evicted: tuple[str, ...] = (),
    granted: str = "",
    **limit: Any,
) -> PassingChoice:
    """The choice among six pods, some of them changed, if only these zones are open."""
    by_name = {item.metadata.name: item for item in (*map(ordinal, range(6)), *changed)}
    pods = list(by_name.values())
    closed = {**EXISTS, "operator": "NotIn", "values": list(open_zones)}
    term = {"matchExpressions": [EXISTS, closed]}
    counted = {"a": 2, "b": 2, "c": 2}
    budget = tdb(domains=counted, nodeSelectorTerm=term, **(limit or {"maxUnavailable": 0}))
    grant = Grant(uid=f"uid-{granted}", pod=granted, time=times.format_time(times.from_epoch(NOW)))
    ledger = Ledger(grants={grant.uid: grant} if granted else {})
    budgets = namespace_budgets(pods, budget, owners=[owner_of(item)], ledger=ledger)
    return choose_ordinals(item, pods, budgets, NOW, evicted=evicted)


def names(choice: PassingChoice) -> list[str]:
    """The chosen pods."""
    return [item.metadata.name for item in choice.pods]


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_the_highest_that_may_go_is_evicted(policy: str) -> None:
    """Ordinal 5 is in the closed zone c: of those in zone a the highest goes, and the choice says
    which pod is held and by what.
    """
    choice = choose(stateful_set(podManagementPolicy=policy))
    assert names(choice) == ["db-3"]
    assert choice.first_refusal is not None
    held_pod, verdict = choice.first_refusal
    assert held_pod.metadata.name == "db-5"
    assert "no pod of domain c may be unavailable" in verdict.reason.message


def test_nothing_is_evicted_while_the_first_may_go() -> None:
    """The StatefulSet's own controller deletes its highest ordinal if no budget holds it."""
    assert choose(stateful_set(), open_zones="c").pods == ()
    assert choose(stateful_set(), open_zones="x").pods == ()


@pytest.mark.parametrize(
    "changed",
    [ordinal(3, leaving=True), ordinal(3, "2", ready=False), ordinal(3, "2", phase="Pending")],
)
@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_one_pod_at_a_time(policy: str, changed: Pod) -> None:
    """While a pod is being replaced no other one is evicted."""
    if changed.status.phase == "Pending":
        changed = ordinal(3, "2", ready=False, phase="Pending")
    assert choose(stateful_set(podManagementPolicy=policy), changed).pods == ()


def test_a_pod_that_was_evicted_counts_before_it_looks_so() -> None:
    """Neither the cache's delay nor another process's grant lets a second pod go."""
    assert choose(stateful_set(), evicted=("uid-db-3",)).pods == ()
    assert choose(stateful_set(), granted="db-3").pods == ()


def test_parallel_sets_keep_their_own_limit() -> None:
    """With maxUnavailable 2 two pods may be missing, for whatever reason."""
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 2}}
    item = stateful_set(podManagementPolicy="Parallel", updateStrategy=rolling)
    assert names(choose(item)) == ["db-3", "db-0"]
    assert names(choose(item, ordinal(4, "2", ready=False))) == ["db-3"]


def test_a_broken_pod_may_always_go() -> None:
    """An outdated pod that is not Ready serves nobody: it is evicted beside others."""
    item = stateful_set(podManagementPolicy="Parallel")
    assert names(choose(item, ordinal(0, ready=False), open_zones="ab")) == ["db-4", "db-0"]


def test_a_scale_down_passes_over_held_ordinals() -> None:
    """Ordinal 5 is held because another pod of its zone is not Ready; the condemned one of another
    zone goes before it. A scale-down that is not held is left to the StatefulSet's controller.
    """
    item = stateful_set(replicas=4, podManagementPolicy="Parallel")
    down = ordinal(2, "2", ready=False)
    assert names(choose(item, down, open_zones="x", minAvailable=2)) == ["db-4"]
    assert names(choose(item, open_zones="x", minAvailable=2)) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"updateStrategy": {"type": "OnDelete"}},
        {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 4}}},
    ],
)
def test_other_pods_than_the_strategy_replaces_stay(spec: dict[str, Any]) -> None:
    """OnDelete and partitions are respected."""
    assert choose(stateful_set(**spec)).pods == ()


def test_young_pods_are_waited_for() -> None:
    """With minReadySeconds a pod that became Ready just now is not available yet."""
    since = times.format_time(times.from_epoch(NOW - 10))
    young = ordinal(3, "2")
    (ready,) = young.status.conditions
    conditions = (replace(ready, last_transition_time=since),)
    young = replace(young, status=replace(young.status, conditions=conditions))
    choice = choose(stateful_set(minReadySeconds=30), young)
    assert (choice.pods, choice.retry_after) == ((), 20.0)


@pytest.mark.parametrize(("number", "is_condemned"), [(2**31 - 1, True), (2**31, False)])
def test_a_pod_without_an_ordinal_is_not_condemned(number: int, is_condemned: bool) -> None:
    """Kubernetes reads ordinals of 32 bits: a pod with a greater number is nothing to scale down,
    so it is not chosen.
    """
    strange = pod(f"db-{number}", "n-a", owner="db", kind="StatefulSet")
    choice = choose(stateful_set(podManagementPolicy="Parallel"), strange, open_zones="")
    assert choice.first_refusal is not None
    first = strange.metadata.name if is_condemned else "db-5"
    assert choice.first_refusal[0].metadata.name == first
