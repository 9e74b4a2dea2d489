"""``zonewise up --api-only``: what the server does without controllers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.embedded.apiserver.program import running, say

pytestmark = pytest.mark.system


def test_addresses_of_both_families(tmp_path: Path) -> None:
    """A Service that requires two families gets two ClusterIPs."""
    spec = {"ports": [{"port": 80}], "ipFamilyPolicy": "RequireDualStack"}
    with running(tmp_path / "data") as program:
        body = {"metadata": {"name": "s"}, "spec": spec}
        service = program.ask("POST", "/api/v1/namespaces/default/services", body)
    assert [":" in address for address in service["spec"]["clusterIPs"]] == [False, True]


def test_a_new_namespace_gets_its_account_and_no_other(tmp_path: Path) -> None:
    """A new namespace gets one ServiceAccount more than with a bare kube-apiserver:
    docs/embedded-reference.md.
    """
    path = "/api/v1/namespaces/new/serviceaccounts"
    with running(tmp_path / "data") as program:
        program.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "new"}})
        while not (accounts := program.ask("GET", path)["items"]):
            pass
        assert [account["metadata"]["name"] for account in accounts] == ["default"]
        program.ask("POST", path, {"metadata": {"name": "robot"}})
        names = [account["metadata"]["name"] for account in program.ask("GET", path)["items"]]
    assert names == ["default", "robot"]


def test_a_pod_with_two_budgets_is_answered_500(tmp_path: Path) -> None:
    """Without controllers no ledger is kept, so an eviction of a pod with two PodDisruptionBudgets
    is an error as in Kubernetes.
    """
    labels = {"app": "web"}
    pods = "/api/v1/namespaces/default/pods"
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    pod = {
        "metadata": {"name": "web", "labels": labels},
        "spec": {"nodeName": "a-1", "containers": [{"name": "c", "image": "c:1"}]},
    }
    limit = {"selector": {"matchLabels": labels}, "minAvailable": 0}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}}
    headers = (("Content-Type", "application/json"),)
    with running(tmp_path / "data") as program:
        created = program.ask("POST", pods, pod)
        created["status"] = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        program.ask("PUT", f"{pods}/web/status", created)
        for name in ("one", "two"):
            program.ask("POST", budgets, {"metadata": {"name": name}, "spec": limit})
        body = json.dumps(eviction).encode()
        request = program.render("POST", f"{pods}/web/eviction", body, headers=headers)
        with program.connect() as link:
            answer = say(link, request)
    assert answer.status == 500
    assert "more than one PodDisruptionBudget" in answer.json()["message"]
