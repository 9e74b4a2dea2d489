"""When the printed webhooks of budgets are called, and what happens if none answers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from zonewise.api.values import quantity
from zonewise.embedded.machinery.cel.match_conditions import compile_conditions
from zonewise.install.hooks import render_webhooks
from zonewise.install.installation import WEBHOOK, BudgetsMode, Installation
from zonewise.install.workload import render_workload

Obj = dict[str, Any]
SYSTEM = "system:serviceaccount:kube-system:"
OWNED: Obj = {
    "metadata": {
        "name": "web-1",
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": True}],
    }
}


def hooks(
    budgets: BudgetsMode = "enforce", gated_user: str = "system:serviceaccount:argo:rollouts"
) -> dict[str, Obj]:
    """The webhooks by their path."""
    installation = Installation(budgets=budgets, gated_users=(gated_user,))
    return {
        hook["clientConfig"]["service"]["path"]: hook
        for configuration in render_webhooks(installation)
        for hook in configuration["webhooks"]
    }


def is_called(hook: Obj, user: str, object: Obj | None, old: Obj | None, operation: str) -> bool:
    """Whether the webhook is called."""
    request = {"operation": operation, "name": "web-1", "userInfo": {"username": user}}
    conditions = compile_conditions(hook.get("matchConditions", []))
    return conditions.evaluate(request=request, object=object, old_object=old)


@pytest.mark.parametrize(
    ("user", "gated"),
    [
        (f"{SYSTEM}replicaset-controller", True),
        (f"{SYSTEM}replication-controller", True),
        (f"{SYSTEM}statefulset-controller", True),
        (f"{SYSTEM}daemon-set-controller", True),
        ("system:kube-controller-manager", True),
        ("system:serviceaccount:argo:rollouts", True),
        (f"{SYSTEM}generic-garbage-collector", False),
        (f"{SYSTEM}namespace-controller", False),
        (f"{SYSTEM}pod-garbage-collector", False),
        (f"{SYSTEM}node-controller", False),
        (f"{SYSTEM}job-controller", False),
        ("system:kube-scheduler", False),
        ("system:node:n1", False),
        ("system:serviceaccount:other:operator", False),
        ("kubernetes-admin", False),
    ],
)
def test_whose_deletions_are_gated(user: str, gated: bool) -> None:
    """Deletions by workload controllers and named users are gated, unless the pod is being deleted
    already.
    """
    hook = hooks()["/deletions"]
    assert is_called(hook, user, None, OWNED, "DELETE") is gated
    leaving = {"metadata": {**OWNED["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert not is_called(hook, user, None, leaving, "DELETE")


@pytest.mark.parametrize(
    "user",
    [
        "o'brien",
        'the "owner"',
        "back\\slash\\",
        "two\nlines\t\x00",
        "x'] || true || 'x' in ['",
        'x"] || true || "x" in ["',
        "zoë \N{GRINNING FACE}",
    ],
)
def test_a_gated_user_may_have_any_name(user: str) -> None:
    """Whatever characters are in the name of a gated user, that user is gated, and no other."""
    hook = hooks(gated_user=user)["/deletions"]
    assert is_called(hook, user, None, OWNED, "DELETE")
    assert not is_called(hook, "kubernetes-admin", None, OWNED, "DELETE")


def test_deletions_of_pods_without_an_owner_are_not_gated() -> None:
    """Where all controllers are one user, it also collects pods without an owner."""
    hook = hooks()["/deletions"]
    alone: Obj = {"metadata": {"name": "alone"}}
    assert not is_called(hook, "system:kube-controller-manager", None, alone, "DELETE")


@pytest.mark.parametrize(
    ("user", "before", "after", "clamped"),
    [
        (f"{SYSTEM}deployment-controller", 5, 3, True),
        ("system:kube-controller-manager", 5, 3, True),
        (f"{SYSTEM}deployment-controller", 3, 5, False),
        (f"{SYSTEM}deployment-controller", 3, 3, False),
        (f"{SYSTEM}horizontal-pod-autoscaler", 5, 3, False),
        ("kubernetes-admin", 5, 3, False),
    ],
)
def test_which_replicasets_are_clamped(user: str, before: int, after: int, clamped: bool) -> None:
    """Only ReplicaSets that a Deployment scales down are clamped."""
    old, new = ({"metadata": {}, "spec": {"replicas": size}} for size in (before, after))
    assert is_called(hooks()["/replicasets"], user, new, old, "UPDATE") is clamped


@pytest.mark.parametrize(
    ("user", "kind", "judged"),
    [
        (f"{SYSTEM}replicaset-controller", "ReplicaSet", True),
        (f"{SYSTEM}statefulset-controller", "StatefulSet", True),
        ("system:kube-controller-manager", "ReplicaSet", True),
        ("system:kube-controller-manager", "DaemonSet", False),
        (f"{SYSTEM}daemon-set-controller", "DaemonSet", False),
        (f"{SYSTEM}job-controller", "Job", False),
        ("kubernetes-admin", "ReplicaSet", False),
    ],
)
def test_which_new_pods_are_judged(user: str, kind: str, judged: bool) -> None:
    """Only pods that a ReplicaSet or StatefulSet creates may have to wait for their zone."""
    owner = {"kind": kind, "name": "web", "controller": True}
    new: Obj = {"metadata": {"name": "", "ownerReferences": [owner]}}
    assert is_called(hooks()["/pods"], user, new, None, "CREATE") is judged
    alone: Obj = {"metadata": {"name": "alone"}}
    assert not is_called(hooks()["/pods"], user, alone, None, "CREATE")


@pytest.mark.parametrize(
    ("budgets", "policies"),
    [
        (
            "enforce",
            {
                "/evictions": "Fail",
                "/deletions": "Ignore",
                "/replicasets": "Fail",
                "/pods": "Ignore",
            },
        ),
        ("observe", {"/evictions": "Ignore", "/deletions": "Ignore"}),
        ("off", {}),
    ],
)
def test_what_happens_if_no_webhook_answers(budgets: BudgetsMode, policies: dict[str, str]) -> None:
    """Evictions and scale-downs are refused, deletions and new pods pass; with observe everything
    passes. Only namespaces that opted in are gated, never ours or the system's.
    """
    gates = {path: hook for path, hook in hooks(budgets).items() if path != "/services"}
    assert {path: hook["failurePolicy"] for path, hook in gates.items()} == policies
    for hook in gates.values():
        opted, never = hook["namespaceSelector"]["matchExpressions"]
        assert (opted["key"], opted["values"]) == ("zonewise.io/budgets", ["enforce"])
        assert (never["operator"], never["values"]) == ("NotIn", ["zonewise", "kube-system"])


@pytest.mark.parametrize(
    ("budgets", "seconds"),
    [
        ("enforce", {"/evictions": 15, "/deletions": 30, "/replicasets": 15, "/pods": 2}),
        ("observe", {"/evictions": 5, "/deletions": 5}),
    ],
)
def test_timeouts(budgets: BudgetsMode, seconds: dict[str, int]) -> None:
    """Deletions, which pass without an answer, have the longest timeout; observing is short, and so
    is the wait for new pods.
    """
    gates = {path: hook for path, hook in hooks(budgets).items() if path != "/services"}
    assert {path: hook["timeoutSeconds"] for path, hook in gates.items()} == seconds


def test_a_gate_has_room_for_every_pod() -> None:
    """A webhook with budgets caches all pods: 415 MB were measured for 50,000."""

    def limit(budgets: BudgetsMode) -> Fraction:
        objects = render_workload(Installation(budgets=budgets))
        (deployment,) = [
            item
            for item in objects
            if (item["kind"], item["metadata"]["name"]) == ("Deployment", WEBHOOK)
        ]
        (webhook,) = deployment["spec"]["template"]["spec"]["containers"]
        return quantity.value(webhook["resources"]["limits"]["memory"])

    assert limit("off") < 2 * 415_000_000 <= limit("observe") == limit("enforce")
