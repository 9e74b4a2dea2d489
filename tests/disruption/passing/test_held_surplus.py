"""Which surplus pods of a ReplicaSet are evicted while a budget holds the first ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.disruption.clusters import (
    NOW,
    NS,
    namespace_budgets,
    per_zone,
    pod,
    tdb,
)

from zonewise.api import Pod, ReplicaSet, convert
from zonewise.disruption.owner_views import ReplicaSetScale
from zonewise.disruption.owners import owner_of
from zonewise.disruption.passing.deletion_order import rank_for_deletion
from zonewise.disruption.passing.held_surplus import choose_surplus

OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "u"}


def choose(
    pods: list[Pod],
    replicas: int,
    *,
    owner: dict[str, Any] | None = None,
    evicted: tuple[str, ...] = (),
    **rule: Any,
) -> list[str]:
    """The choice among the pods of a ReplicaSet of that size, under a budget of each zone."""
    meta: dict[str, Any] = {"name": "web-1", "namespace": NS, "uid": "uid-web-1"}
    if owner is not None:
        meta["ownerReferences"] = [owner | {"controller": True}]
    body = {"metadata": meta, "spec": {"replicas": replicas}}
    owners = [owner_of(convert(ReplicaSet, body))]
    zones = Counter(each.spec.node_name.removeprefix("n-") for each in pods)
    budget = tdb(domains=dict(zones), **per_zone(**(rule or {"minAvailable": 1})))
    budgets = namespace_budgets(pods, budget, owners=owners)
    item = convert(ReplicaSetScale, body)
    choice = choose_surplus(item, pods, budgets, NOW, evicted=evicted)
    return [pod.metadata.name for pod in choice.pods]


def ranked(zones: str) -> list[Pod]:
    """A pod in each of these zones, in the order in which Kubernetes' controller deletes them."""
    pods = [pod(f"p{number}", f"n-{zone}") for number, zone in enumerate(zones)]
    names = [each.metadata.name for each in rank_for_deletion(pods, now=NOW)]
    return [pod(name, f"n-{zone}") for name, zone in zip(names, zones, strict=True)]


def test_another_zone_is_taken_where_the_first_pod_is_held() -> None:
    """The last pod of a zone comes first and may not go: one of the fullest zone goes instead."""
    pods = ranked("caab")
    assert choose(pods, 3) == [pods[1].metadata.name]
    assert len(choose(ranked("cbaaa"), 3)) == 2


def test_the_controller_does_alone_what_it_can() -> None:
    """Nothing is chosen without a surplus, or while one of the pods that come first may go."""
    assert choose(ranked("caab"), 4) == []
    assert choose(ranked("aacb"), 3) == []
    assert choose(ranked("caab"), 2) == []


def test_pods_that_are_leaving_are_no_surplus() -> None:
    """A pod that was evicted a moment ago, or is being deleted, is not replaced by another one."""
    pods = ranked("caab")
    assert choose(pods, 3, evicted=(pods[1].metadata.uid,)) == []
    gone = pod(pods[1].metadata.name, "n-a", leaving=True)
    assert choose([pods[0], gone, *pods[2:]], 3) == []


def test_deployments_are_steered_otherwise() -> None:
    """The ReplicaSets of a Deployment are left alone."""
    assert choose(ranked("caab"), 3, owner=OWNER) == []


def test_nothing_may_go() -> None:
    """Where budgets hold every pod, none is chosen."""
    assert choose(ranked("cab"), 2, minAvailable=1, expectedPods="ReplicasPerDomain") == []
