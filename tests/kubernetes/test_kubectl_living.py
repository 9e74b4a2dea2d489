"""kubectl 1.36, unchanged, against ``zonewise up``: the daily work of a cluster's operator."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded

from tools import realkube as real

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

Kubectl = Callable[..., str]
WAIT = "--timeout=150s"


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    """A living cluster with the demo, for this module."""
    with embedded("--pod-start", "200ms", content="--zones=a,b,c") as path:
        yield path


@pytest.fixture(scope="module")
def kubectl(
    kubeconfig: Path, real_binaries: real.Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Kubectl:
    """kubectl in the namespace of the demo, once all of it is Ready; returns its output."""
    cache = tmp_path_factory.mktemp("kubectl")

    def run(*arguments: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            [
                real_binaries.path("kubectl"),
                *("--kubeconfig", kubeconfig, "--cache-dir", cache, "-n", "shop"),
                *arguments,
            ],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stderr + done.stdout
        return done.stderr if fails else done.stdout

    run("wait", "--for=create", "statefulset/orders", WAIT)
    for workload in ("deployment/web", "daemonset/cache", "statefulset/orders"):
        run("rollout", "status", workload, WAIT)
    return run


def pods(kubectl: Kubectl, app: str) -> list[Any]:
    """The pods of a workload."""
    items: list[Any] = json.loads(kubectl("get", "pods", "-l", f"app={app}", "-o", "json"))["items"]
    return items


def images(kubectl: Kubectl, app: str) -> set[str]:
    """The images its pods run."""
    return {pod["spec"]["containers"][0]["image"] for pod in pods(kubectl, app)}


def test_drain_and_uncordon(kubectl: Kubectl) -> None:
    """drain empties a node through its budgets, and what ran there runs elsewhere."""
    before = kubectl("get", "pods", "--field-selector=spec.nodeName=a-1", "-o", "name").split()
    assert len(before) > 1
    refused = kubectl("drain", "a-1", WAIT, fails=True)
    assert "DaemonSet-managed Pods (use --ignore-daemonsets to ignore)" in refused
    output = kubectl("drain", "a-1", "--ignore-daemonsets", "--delete-emptydir-data", WAIT)
    assert "node/a-1 drained" in output
    left = json.loads(kubectl("get", "pods", "--field-selector=spec.nodeName=a-1", "-o", "json"))[
        "items"
    ]
    assert {pod["metadata"]["labels"]["app"] for pod in left} == {"cache"}
    assert "SchedulingDisabled" in kubectl("get", "node", "a-1")
    for workload in ("deployment/web", "deployment/catalog", "statefulset/orders"):
        kubectl("rollout", "status", workload, WAIT)
    assert kubectl("uncordon", "a-1") == "node/a-1 uncordoned\n"
    assert "SchedulingDisabled" not in kubectl("get", "node", "a-1")


def test_cordon_keeps_pods_off(kubectl: Kubectl) -> None:
    """A cordoned node gets no new pod, and its pods stay."""
    kubectl("cordon", "b-1", "b-2", "b-3")
    try:
        before = {pod["metadata"]["name"] for pod in pods(kubectl, "checkout")}
        kubectl("scale", "deployment/checkout", "--replicas=8")
        kubectl("rollout", "status", "deployment/checkout", WAIT)
        after = pods(kubectl, "checkout")
        assert before <= {pod["metadata"]["name"] for pod in after}
        new = [pod for pod in after if pod["metadata"]["name"] not in before]
        assert not {pod["spec"]["nodeName"] for pod in new} & {"b-1", "b-2", "b-3"}
    finally:
        kubectl("uncordon", "b-1", "b-2", "b-3")
        kubectl("scale", "deployment/checkout", "--replicas=3")


def test_rollouts_of_a_deployment(kubectl: Kubectl) -> None:
    """set image, status, history, undo, pause, resume and restart work."""
    kubectl("set", "image", "deployment/web", "web=shop/web:2")
    output = kubectl("rollout", "status", "deployment/web", WAIT)
    assert output.splitlines()[-1] == 'deployment "web" successfully rolled out'
    assert images(kubectl, "web") == {"shop/web:2"}
    history = kubectl("rollout", "history", "deployment/web")
    assert [line.split()[0] for line in history.splitlines()[2:] if line] == ["1", "2"]
    assert "shop/web:1" in kubectl("rollout", "history", "deployment/web", "--revision=1")
    assert "rolled back" in kubectl("rollout", "undo", "deployment/web")
    kubectl("rollout", "status", "deployment/web", WAIT)
    assert images(kubectl, "web") == {"shop/web:1"}
    kubectl("rollout", "pause", "deployment/web")
    kubectl("set", "image", "deployment/web", "web=shop/web:3")
    assert images(kubectl, "web") == {"shop/web:1"}
    kubectl("rollout", "resume", "deployment/web")
    kubectl("rollout", "status", "deployment/web", WAIT)
    assert images(kubectl, "web") == {"shop/web:3"}
    old = {pod["metadata"]["uid"] for pod in pods(kubectl, "web")}
    assert "restarted" in kubectl("rollout", "restart", "deployment/web")
    kubectl("rollout", "status", "deployment/web", WAIT)
    kubectl("wait", "--for=jsonpath={.status.replicas}=9", "deployment/web", WAIT)
    living = [pod for pod in pods(kubectl, "web") if "deletionTimestamp" not in pod["metadata"]]
    assert not {pod["metadata"]["uid"] for pod in living} & old


@pytest.mark.parametrize(
    ("workload", "app", "image"),
    [("statefulset/orders", "orders", "shop/orders"), ("daemonset/cache", "cache", "shop/cache")],
)
def test_rollouts_of_sets(kubectl: Kubectl, workload: str, app: str, image: str) -> None:
    """StatefulSets and DaemonSets roll out, have a history and roll back, too."""
    kubectl("set", "image", workload, f"{app}={image}:2")
    kubectl("rollout", "status", workload, WAIT)
    assert images(kubectl, app) == {f"{image}:2"}
    assert len(kubectl("rollout", "history", workload).split("CHANGE-CAUSE")[1].split()) == 4
    kubectl("rollout", "undo", workload)
    kubectl("rollout", "status", workload, WAIT)
    assert images(kubectl, app) == {f"{image}:1"}
    assert "restarted" in kubectl("rollout", "restart", workload)
    kubectl("rollout", "status", workload, WAIT)


def test_scale(kubectl: Kubectl) -> None:
    """scale changes the number of pods of a Deployment and of a StatefulSet."""
    kubectl("scale", "deployment/catalog", "--replicas=12")
    kubectl("rollout", "status", "deployment/catalog", WAIT)
    assert len(pods(kubectl, "catalog")) == 12
    kubectl("scale", "deployment/catalog", "--current-replicas=12", "--replicas=6")
    kubectl("wait", "--for=jsonpath={.status.replicas}=6", "deployment/catalog", WAIT)
    kubectl("scale", "statefulset/orders", "--replicas=2")
    kubectl("wait", "--for=delete", "pod/orders-2", WAIT)
    kubectl("scale", "statefulset/orders", "--replicas=3")
    kubectl("rollout", "status", "statefulset/orders", WAIT)
    names = {pod["metadata"]["name"] for pod in pods(kubectl, "orders")}
    assert names == {"orders-0", "orders-1", "orders-2"}


def test_a_budget_holds_no_scale_down(kubectl: Kubectl) -> None:
    """A StatefulSet that is scaled below its budget gets there."""
    assert json.loads(kubectl("get", "pdb", "orders", "-o", "json"))["spec"]["minAvailable"] == 2
    kubectl("scale", "statefulset/orders", "--replicas=1")
    kubectl("wait", "--for=delete", "pod/orders-2", "pod/orders-1", WAIT)
    assert len(pods(kubectl, "orders")) == 1
    kubectl("scale", "statefulset/orders", "--replicas=3")
    kubectl("rollout", "status", "statefulset/orders", WAIT)


def test_describe(kubectl: Kubectl) -> None:
    """describe shows nodes, pods and workloads with their events."""
    node = kubectl("describe", "node", "a-1")
    for word in (
        "Ready ",
        "KubeletReady",
        "Allocated resources:",
        "Non-terminated Pods:",
        "cache-",
    ):
        assert word in node, node
    pod = pods(kubectl, "cart")[0]["metadata"]["name"]
    description = kubectl("describe", "pod", pod)
    for word in (
        "Controlled By:  ReplicaSet/cart-",
        "State:          Running",
        "Scheduled",
        "IPs:",
    ):
        assert word in description, description
    deployment = kubectl("describe", "deployment", "cart")
    for word in ("2 desired | 2 updated | 2 total | 2 available", "MinimumReplicasAvailable"):
        assert word in deployment, deployment
    assert "ScalingReplicaSet" in deployment
    assert "web" in kubectl("describe", "service", "web")
    assert "Allowed disruptions:" in kubectl("describe", "pdb", "web")


def test_tables(kubectl: Kubectl) -> None:
    """get prints the usual columns of a running cluster."""
    rows = kubectl("get", "nodes").splitlines()
    assert len(rows) == 10
    assert rows[1].split()[:2] == ["a-1", "Ready"]
    wide = kubectl("get", "pods", "-o", "wide", "-l", "app=cart").splitlines()
    assert wide[1].split()[1:3] == ["1/1", "Running"]
    assert kubectl("get", "deployment", "cart", "--no-headers").split()[1:4] == ["2/2", "2", "2"]
    claims = kubectl("get", "pvc", "--no-headers").splitlines()
    assert {line.split()[1] for line in claims} == {"Bound"}
    assert "web-" in kubectl("get", "endpointslices")
