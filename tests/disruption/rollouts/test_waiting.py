"""Why a pod that admission holds has no domain yet."""

from __future__ import annotations

from typing import Any

import pytest
from tests.disruption.clusters import NS, deployment, namespace_budgets, pod

from zonewise.api import Pod, convert
from zonewise.api.objects.budgets import DomainRollout
from zonewise.api.reason import Reason
from zonewise.disruption.rollouts.replacements import GATE
from zonewise.disruption.rollouts.waiting import explain_waiting

NAMESPACE = namespace_budgets([], owners=deployment(3))


def rollout(name: str = "web", *, workload: str = "web", **status: Any) -> DomainRollout:
    """A rollout of a Deployment."""
    reason, message = status.get("reason", ""), f"Deployment web: {status.pop('message', '')}"
    condition = {"type": "Progressing", "status": "True", "reason": reason, "message": message}
    return convert(
        DomainRollout,
        {
            "metadata": {"name": name, "namespace": NS},
            "spec": {"workloadRef": {"kind": "Deployment", "name": workload}},
            "status": {**status, "conditions": [condition]},
        },
    )


def waiting_pod() -> Pod:
    """A pod at the gate."""
    return pod("web-x", "", owner="web-1", schedulingGates=[{"name": GATE}])


def explain(*rollouts: DomainRollout) -> Reason:
    """Why the pod waits."""
    reason = explain_waiting(waiting_pod(), rollouts, NAMESPACE.owners)
    assert reason is not None
    return reason


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (
            {"domain": "b", "reason": "NoRoomInDomain", "message": "a pod waits for room."},
            "for domain b: DomainRollout web has no room there (NoRoomInDomain): Deployment web: a"
            " pod waits for room.",
        ),
        (
            {"domain": "b", "reason": "EvictionsBlocked", "message": "the budget web refuses"},
            "for its turn: DomainRollout web is at domain b (EvictionsBlocked): Deployment web: the"
            " budget web refuses",
        ),
        (
            {"reason": "PodsNotReady", "message": "domain a has 1 Ready pods of 2"},
            "for its turn: DomainRollout web has no domain in progress (PodsNotReady): Deployment"
            " web: domain a has 1 Ready pods of 2",
        ),
    ],
)
def test_a_pod_waits_for_what_its_rollout_waits_for(status: dict[str, Any], text: str) -> None:
    """The reason of a waiting pod names the rollout, its domain, its state and its message."""
    reason = explain(rollout("other", workload="db"), rollout(**status))
    assert reason.message == f"pod web-x waits at the scheduling gate {GATE} {text}"
    assert reason.code == status["reason"]
    assert reason.object == f"DomainRollout/{NS}/web"


def test_while_its_rollout_goes_on_it_starts_by_itself() -> None:
    """A pod whose rollout progresses needs nobody's help, and the reason says when it starts."""
    assert explain(rollout(domain="b", reason="Updating")).fix.startswith("It starts when")
    assert explain(rollout(domain="b", reason="Paused")).fix == ""


def test_a_pod_without_a_rollout_says_who_releases_it() -> None:
    """A pod that was left behind is released by the controller; without the gate none waits."""
    reason = explain(rollout("other", workload="db"))
    assert reason.code == "NoDomainRollout"
    assert "check that the controller runs" in reason.fix
    assert explain_waiting(pod("web-y", ""), [rollout()], NAMESPACE.owners) is None
