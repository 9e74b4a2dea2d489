"""Random cases for the arithmetic of budgets, and each of them as objects."""

from __future__ import annotations

import random
from typing import Any

from tests.disruption.clusters import (
    NOW,
    ZONE,
    deployment,
    namespace_budgets,
    node,
    per_zone,
    pod,
    tdb,
    zones,
)
from tests.disruption.model import Case, Pods

from zonewise.api import Pod
from zonewise.api.objects.budgets import Grant
from zonewise.api.values import times
from zonewise.disruption.grouping import NO_DOMAIN
from zonewise.disruption.ledger import Ledger
from zonewise.disruption.namespace_budgets import NamespaceBudgets

CASES = 400
NAMES = ("a", "b", "c", "d", "e")


def drawn(seed: int) -> Case:
    """A random case: balanced or not, in a rollout or not, with a baseline or not."""
    rng = random.Random(seed)
    domains = set(NAMES[: rng.randint(1, 5)])
    replicas = rng.randint(0, 14)
    pods: list[Pods] = []
    places = [*sorted(domains), *([NO_DOMAIN] if rng.random() < 0.2 else [])]
    total = max(0, replicas + rng.choice((0, 0, 0, -1, -2, 1, 3)))
    for _ in range(total):
        pods.append(
            Pods(
                rng.choice(places),
                1,
                ready=rng.random() < 0.8,
                outdated=rng.random() < 0.4,
                granted=rng.random() < 0.1,
            )
        )
    if not pods:
        # A workload without pods has no owner either, as far as a budget can see.
        replicas = 0
    baseline = None
    if rng.random() < 0.6:
        baseline = dict.fromkeys(domains, 0)
        for _ in range(max(0, replicas + rng.choice((0, 0, 0, -3, 4)))):
            baseline[rng.choice(sorted(domains))] += 1
    return Case(
        replicas=replicas,
        pods=pods,
        domains=domains,
        limit=rng.choice(("0", "1", "2", "0%", "1%", "25%", "50%", "100%", "3")),
        at_least=rng.random() < 0.3,
        baseline=baseline,
        open={name for name in domains if rng.random() < 0.15} | {NO_DOMAIN},
        exclusive=rng.random() < 0.15,
        per_domain=rng.random() < 0.1,
    )


def build(case: Case, order: random.Random) -> tuple[NamespaceBudgets, list[tuple[Pods, Pod]]]:
    """The case as objects, in some order."""
    nodes = zones(*sorted(case.domains))
    nodes["n-"] = node("n-")
    pairs = [
        (
            some,
            pod(
                f"p{number}",
                f"n-{some.domain}",
                ready=some.ready,
                owner="web-1" if some.outdated else "web-2",
            ),
        )
        for number, some in enumerate(case.pods)
    ]
    term: list[dict[str, Any]] = [{"key": ZONE, "operator": "Exists"}]
    if shut := sorted(case.open - {NO_DOMAIN}):
        term.append({"key": ZONE, "operator": "NotIn", "values": shut})
    value = int(case.limit) if case.limit.isdigit() else case.limit
    spec = per_zone(term=term, **{"minAvailable" if case.at_least else "maxUnavailable": value})
    if case.exclusive:
        spec["crossDomain"] = "Exclusive"
    if case.per_domain:
        spec["expectedPods"] = "ReplicasPerDomain"
    time = times.format_time(times.from_epoch(NOW))
    grants = {
        item.metadata.uid: Grant(uid=item.metadata.uid, pod=item.metadata.name, time=time)
        for some, item in pairs
        if some.granted
    }
    shuffled = [item for _, item in pairs]
    order.shuffle(shuffled)
    owners = deployment(case.replicas, revisions=2)
    order.shuffle(owners)
    budget = tdb(domains=case.baseline, **spec)
    if case.baseline == {}:
        budget = tdb(**spec)
    return (
        namespace_budgets(shuffled, budget, nodes=nodes, owners=owners, ledger=Ledger(grants)),
        pairs,
    )
