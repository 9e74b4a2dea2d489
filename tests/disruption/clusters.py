"""Objects for budgets: nodes in zones, a workload's pods on them, budgets of both kinds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zonewise.api import Node, Pod, ReplicaSet, convert
from zonewise.api.objects.apps import Deployment
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.disruption.budget import Budget, budget_of
from zonewise.disruption.ledger import Ledger
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owners import ScaleOwner, owner_of

NS = "shop"
ZONE = "topology.kubernetes.io/zone"
EXISTS = {"key": ZONE, "operator": "Exists"}
NOW = 1_790_000_000.0


def node(name: str, zone: str = "", **labels: str) -> Node:
    """A node of a zone; without one it has no label."""
    placed = {ZONE: zone} if zone else {}
    return convert(Node, {"metadata": {"name": name, "labels": placed | labels}})


def zones(*names: str) -> dict[str, Node]:
    """A node in each zone, called as the zone."""
    return {f"n-{name}": node(f"n-{name}", name) for name in names}


def pod(
    name: str,
    at: str = "",
    *,
    ready: bool = True,
    phase: str = "Running",
    leaving: bool = False,
    owner: str = "web-1",
    kind: str = "ReplicaSet",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Pod:
    """A pod of a ReplicaSet on a node."""
    group = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1"}
    reference = {
        "apiVersion": group.get(kind, "example.com/v1"),
        "kind": kind,
        "name": owner,
        "uid": f"uid-{owner}",
        "controller": True,
    }
    return convert(
        Pod,
        {
            "metadata": {
                "name": name,
                "namespace": NS,
                "uid": f"uid-{name}",
                "labels": {"app": "web"} | (labels or {}),
                "ownerReferences": [reference] if owner else [],
                **({"deletionTimestamp": "2026-10-01T00:00:00Z"} if leaving else {}),
            },
            "spec": {**({"nodeName": at} if at else {}), **spec},
            "status": {
                "phase": phase,
                "conditions": [{"type": "Ready", "status": str(ready)}],
            },
        },
    )


def deployment(replicas: int, *, revisions: int = 1, name: str = "web") -> list[ScaleOwner]:
    """A Deployment and its ReplicaSets; the last one is the newest."""
    above = convert(
        Deployment,
        {
            "metadata": {"name": name, "namespace": NS, "uid": f"uid-{name}"},
            "spec": {"replicas": replicas},
        },
    )
    sets = [
        convert(
            ReplicaSet,
            {
                "metadata": {
                    "name": f"{name}-{number}",
                    "namespace": NS,
                    "uid": f"uid-{name}-{number}",
                    "annotations": {"deployment.kubernetes.io/revision": str(number)},
                    "ownerReferences": [
                        {
                            "apiVersion": "apps/v1",
                            "kind": "Deployment",
                            "name": name,
                            "uid": f"uid-{name}",
                            "controller": True,
                        }
                    ],
                },
                "spec": {"replicas": 0},
            },
        )
        for number in range(1, revisions + 1)
    ]
    return [owner_of(above), *(owner_of(replica_set) for replica_set in sets)]


def tdb(name: str = "web", *, domains: dict[str, int] | None = None, **spec: Any) -> Budget:
    """A TopologyDisruptionBudget of the pods labelled app=web."""
    status = [{"domain": key, "expectedPods": value} for key, value in (domains or {}).items()]
    return budget_of(
        convert(
            TopologyDisruptionBudget,
            {
                "metadata": {"name": name, "namespace": NS},
                "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
                "status": {"domains": status},
            },
        )
    )


def pdb(name: str = "plain", *, status: dict[str, Any] | None = None, **spec: Any) -> Budget:
    """A PodDisruptionBudget of the same pods."""
    return budget_of(
        convert(
            PodDisruptionBudget,
            {
                "metadata": {"name": name, "namespace": NS, "generation": 1},
                "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
                "status": {"observedGeneration": 1, **(status or {})},
            },
        )
    )


def per_zone(*, term: Iterable[dict[str, Any]] = (EXISTS,), **spec: Any) -> dict[str, Any]:
    """The spec of a budget that groups by zone."""
    return {"nodeSelectorTerm": {"matchExpressions": list(term)}, **spec}


def spread(**counts: int) -> list[Pod]:
    """Ready pods: a number of them in each zone."""
    return [
        pod(f"{zone}-{number}", f"n-{zone}") for zone, n in counts.items() for number in range(n)
    ]


def namespace_budgets(
    pods: Iterable[Pod],
    *budgets: Budget,
    nodes: dict[str, Node] | None = None,
    owners: Iterable[ScaleOwner] | None = None,
    replicas: int = 9,
    ledger: Ledger | None = None,
) -> NamespaceBudgets:
    """All objects together; zones a, b and c by default."""
    return NamespaceBudgets(
        zones("a", "b", "c") if nodes is None else nodes,
        budgets=budgets,
        pods=pods,
        owners=deployment(replicas) if owners is None else owners,
        ledger=ledger,
    )


def allowed(namespace: NamespaceBudgets, name: str = "web") -> dict[str, int | None]:
    """What a budget allows in each domain."""
    (key,) = (key for key in namespace.budgets if key[2] == name)
    standing = namespace.state(key, NOW)
    return {domain.name: standing.allowed(domain.name) for domain in standing.named_domains}


def code(namespace: NamespaceBudgets, name: str, *, evicting: bool = True) -> str:
    """The verdict about taking down a pod."""
    item = next(
        candidate for candidate in namespace.pods.values() if candidate.metadata.name == name
    )
    return namespace.judge(item, NOW, evicting=evicting).reason.code
