"""Decisions of the gate: how many a second, and how long the slowest of a hundred takes.

5,000 pods under 1, 10 or 100 budgets (each pod is under three of them, or the one).
Every decision is followed by what it causes: the pod is seen leaving and its successor is seen
coming, so no count is ever reused.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator

from benchmarks.table import Row, Table
from zonewise.api import Node, Pod, convert
from zonewise.api.objects.apps import StatefulSet
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.disruption.budget import budget_of
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owners import owner_of
from zonewise.disruption.verdict import VerdictRound

PODS = 5000
ZONES = 3
GROUPS = 100
QUESTIONS = 3000
ZONE = "topology.kubernetes.io/zone"


def decisions() -> Iterator[Table]:
    """Decisions by number of budgets."""
    rates, slow = [], []
    for budgets in (1, 10, 100):
        times = _decide(budgets)
        rates.append(Row(name=f"{budgets} budgets", value=len(times) / sum(times), ours=True))
        p99 = statistics.quantiles(times, n=100)[98] * 1000
        slow.append(Row(name=f"{budgets} budgets", value=p99, ours=True))
    yield Table(
        title=f"decisions on {PODS:,} pods",
        unit="1/s",
        higher_is_better=True,
        rows=tuple(rates),
    )
    yield Table(
        title=f"decisions on {PODS:,} pods, the slowest of a hundred",
        unit="ms",
        higher_is_better=False,
        rows=tuple(slow),
    )


def _pod(number: int, generation: int) -> Pod:
    labels = {"app": "web", **{f"g{level}": str(number % (GROUPS // 3)) for level in range(3)}}
    name = f"web-{number % (GROUPS // 3)}"
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "controller": True}
    return convert(
        Pod,
        {
            "metadata": {
                "name": f"web-{number}",
                "namespace": "n",
                "uid": f"{number}-{generation}",
                "labels": labels,
                "ownerReferences": [owner],
            },
            "spec": {"nodeName": f"n{number % 300}"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        },
    )


def _book(budgets: int) -> NamespaceBudgets:
    nodes = {
        f"n{number}": convert(
            Node, {"metadata": {"name": f"n{number}", "labels": {ZONE: f"z{number % ZONES}"}}}
        )
        for number in range(300)
    }
    counted = []
    for number in range(budgets):
        chosen = {"app": "web"}
        if budgets > 1:
            chosen |= {f"g{number % 3}": str(number // 3)}
        counted.append(
            budget_of(
                convert(
                    TopologyDisruptionBudget,
                    {
                        "metadata": {"name": f"b{number}", "namespace": "n"},
                        "spec": {
                            "maxUnavailable": "50%",
                            "selector": {"matchLabels": chosen},
                            "topologyKeys": [ZONE],
                        },
                    },
                )
            )
        )
    owners = [
        {
            "metadata": {"name": f"web-{group}", "namespace": "n"},
            "spec": {"replicas": len(range(group, PODS, GROUPS // 3))},
        }
        for group in range(GROUPS // 3)
    ]
    return NamespaceBudgets(
        nodes,
        budgets=counted,
        pods=[_pod(number, 0) for number in range(PODS)],
        owners=[owner_of(convert(StatefulSet, owner)) for owner in owners],
    )


def _decide(budgets: int) -> list[float]:
    namespace_budgets = _book(budgets)
    rng = random.Random(1)
    taken = []
    for turn in range(QUESTIONS):
        number = rng.randrange(PODS)
        pod = namespace_budgets.find_pod(f"web-{number}")
        assert pod is not None
        begin = time.perf_counter()
        verdict = VerdictRound(namespace_budgets, 0.0).judge(pod)
        taken.append(time.perf_counter() - begin)
        if verdict.allowed:
            namespace_budgets.drop_pod(pod)
            namespace_budgets.put_pod(_pod(number, turn + 1))
    return taken
