"""kubectl 1.36, unchanged, against the embedded API server: the common commands work."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.embedded import embedded

from tools import realkube as real

pytestmark = pytest.mark.real

Kubectl = Callable[..., str]

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, labels: {app: shop}}
spec:
  replicas: 2
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers: [{name: shop, image: "shop:1", ports: [{containerPort: 80}]}]
"""
CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {color: %s}\n"


@pytest.fixture(scope="module")
def kubeconfig() -> Iterator[Path]:
    """A server for this module."""
    with embedded() as path:
        yield path


@pytest.fixture
def kubectl(kubeconfig: Path, real_binaries: real.Binaries, tmp_path: Path) -> Kubectl:
    """kubectl on that server; returns its output, or its errors if it should fail."""
    program = real_binaries.path("kubectl")

    def run(*arguments: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            [program, "--kubeconfig", kubeconfig, "--cache-dir", tmp_path, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stderr or done.stdout
        return done.stderr if fails else done.stdout

    return run


def test_version_and_discovery(kubectl: Kubectl) -> None:
    """kubectl sees a 1.36 server with every GA kind under its names."""
    version = json.loads(kubectl("version", "-o", "json"))
    assert version["serverVersion"]["gitVersion"] == "v1.36.4+zonewise"
    resources = kubectl("api-resources", "-o", "name").split()
    assert {"pods", "deployments.apps", "endpointslices.discovery.k8s.io"} <= set(resources)
    assert "policy/v1beta1" in kubectl("api-versions").split()


def test_typed_commands_that_send_protobuf(kubectl: Kubectl) -> None:
    """create, auth and token commands work although they send protobuf."""
    assert kubectl("create", "namespace", "typed") == "namespace/typed created\n"
    output = kubectl("create", "deployment", "web", "--image=web", "--replicas=3", "-n", "typed")
    assert output == "deployment.apps/web created\n"
    assert kubectl("create", "serviceaccount", "robot", "-n", "typed")
    assert kubectl("create", "token", "robot", "-n", "typed").count(".") == 2
    assert kubectl("create", "secret", "generic", "s", "--from-literal=a=b", "-n", "typed")
    secret = kubectl("get", "secret", "s", "-n", "typed", "-o", "jsonpath={.data.a}")
    assert secret == "Yg=="
    assert kubectl("create", "service", "clusterip", "web", "--tcp=80:8080", "-n", "typed")
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert "zonewise-owner" in kubectl("auth", "whoami")


def test_apply_both_ways(kubectl: Kubectl) -> None:
    """apply creates, configures and reports unchanged, client-side and server-side."""
    assert "created" in kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    assert "unchanged" in kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    assert "configured" in kubectl("apply", "-f", "-", stdin=DEPLOYMENT.replace("shop:1", "shop:2"))
    assert "serverside-applied" in kubectl(
        "apply", "--server-side", "-f", "-", stdin=CONFIG % "red"
    )
    other = ("apply", "--server-side", "--field-manager=other", "-f", "-")
    refused = kubectl(*other, stdin=CONFIG % "blue", fails=True)
    assert 'conflict with "kubectl"' in refused
    assert "serverside-applied" in kubectl(*other, "--force-conflicts", stdin=CONFIG % "blue")
    difference = kubectl("diff", "-f", "-", stdin=CONFIG % "green", fails=True)
    assert difference == ""


def test_change_commands(kubectl: Kubectl) -> None:
    """label, annotate, patch, scale and set change the object."""
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    kubectl("label", "deployment", "shop", "tier=front")
    kubectl("annotate", "deployment", "shop", "note=x")
    kubectl("scale", "deployment", "shop", "--replicas=5")
    kubectl("set", "image", "deployment/shop", "shop=shop:9")
    image = (
        '{"spec":{"template":{"spec":{"containers":[{"name":"shop","imagePullPolicy":"Always"}]}}}}'
    )
    kubectl("patch", "deployment", "shop", "-p", image)
    kubectl(
        "patch",
        "deployment",
        "shop",
        "--type=json",
        "-p",
        '[{"op":"add","path":"/spec/paused","value":true}]',
    )
    columns = "L:.metadata.labels.tier,A:.metadata.annotations.note,R:.spec.replicas,P:.spec.paused"
    row = kubectl("get", "deployment", "shop", "--no-headers", "-o", f"custom-columns={columns}")
    assert row.split() == ["front", "x", "5", "true"]
    first = ".spec.template.spec.containers[0]"
    containers = f"jsonpath={{{first}.image}} {{{first}.imagePullPolicy}}"
    assert kubectl("get", "deployment", "shop", "-o", containers) == "shop:9 Always"
    kubectl("wait", "--for=jsonpath={.spec.replicas}=5", "deployment/shop", "--timeout=150s")


def test_tables_and_descriptions(kubectl: Kubectl) -> None:
    """get prints a real server's columns, and describe and explain work."""
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    header = kubectl("get", "deployments", "-o", "wide").splitlines()[0].split()
    assert header == [
        "NAME",
        "READY",
        "UP-TO-DATE",
        "AVAILABLE",
        "AGE",
        "CONTAINERS",
        "IMAGES",
        "SELECTOR",
    ]
    assert "StrategyType:" in kubectl("describe", "deployment", "shop")
    explained = kubectl("explain", "deployment.spec.strategy.rollingUpdate")
    assert "maxSurge" in explained
    assert "maxUnavailable" in explained


def test_nodes_can_be_cordoned(kubectl: Kubectl) -> None:
    """cordon and uncordon change a node and show it."""
    kubectl("create", "-f", "-", stdin='{"apiVersion":"v1","kind":"Node","metadata":{"name":"n1"}}')
    kubectl("cordon", "n1")
    assert "SchedulingDisabled" in kubectl("get", "node", "n1")
    kubectl("uncordon", "n1")
    assert "SchedulingDisabled" not in kubectl("get", "node", "n1")


def test_roles_decide(kubectl: Kubectl) -> None:
    """With --as a user may do what roles grant, and nothing else."""
    assert 'User "bob" cannot list resource "pods"' in kubectl(
        "get", "pods", "--as", "bob", fails=True
    )
    assert kubectl("auth", "can-i", "list", "pods", "--as", "bob", fails=True) == ""
    kubectl("create", "clusterrolebinding", "bob-views", "--clusterrole=view", "--user=bob")
    assert kubectl("auth", "can-i", "list", "pods", "--as", "bob").strip() == "yes"
    assert "forbidden" in kubectl("get", "secrets", "--as", "bob", fails=True)


def test_watch_shows_changes(
    kubectl: Kubectl, kubeconfig: Path, real_binaries: real.Binaries
) -> None:
    """get -w prints an object again when it changes."""
    kubectl("create", "configmap", "seen", "--from-literal=a=1")
    watch = subprocess.Popen(
        [
            real_binaries.path("kubectl"),
            *("--kubeconfig", str(kubeconfig), "get", "configmap", "seen", "-w", "-o", "name"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert watch.stdout is not None
        assert watch.stdout.readline() == "configmap/seen\n"
        kubectl("label", "configmap", "seen", "changed=yes")
        assert watch.stdout.readline() == "configmap/seen\n"
    finally:
        watch.kill()
        watch.communicate()


def test_deletion_cleans_up(kubectl: Kubectl) -> None:
    """delete waits until a namespace and all its content are gone."""
    kubectl("create", "namespace", "short")
    kubectl("create", "configmap", "c", "-n", "short")
    kubectl("delete", "namespace", "short", "--timeout=150s")
    assert "not found" in kubectl("get", "namespace", "short", fails=True)


def test_errors_have_messages(kubectl: Kubectl) -> None:
    """Invalid objects and missing capabilities are refused with a message."""
    bad = DEPLOYMENT.replace("name: shop, labels", "name: bad, labels")
    bad = bad.replace("app: shop}}\n  template", "app: other}}\n  template")
    assert "selector" in kubectl("create", "-f", "-", stdin=bad, fails=True)
    unknown = kubectl("apply", "-f", "-", stdin=CONFIG % "x" + "colour: 1\n", fails=True)
    assert 'unknown field "colour"' in unknown
    kubectl("run", "p", "--image=x")
    assert "simulated" in kubectl("exec", "p", "--", "ls", fails=True)


DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema:
      openAPIV3Schema:
        type: object
        properties: {spec: {type: object, properties: {size: {type: integer}}}}
"""
WIDGET = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: %d}\n"


def test_custom_resources(kubectl: Kubectl) -> None:
    """A custom resource is applied, applied again with a change, and shows its columns."""
    kubectl("apply", "-f", "-", stdin=DEFINITION)
    kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=150s")
    assert "created" in kubectl("apply", "-f", "-", stdin=WIDGET % 2)
    assert "configured" in kubectl("apply", "-f", "-", stdin=WIDGET % 5)
    assert kubectl("get", "widgets", "--no-headers").split() == ["w", "5"]


def test_unknown_kinds_do_not_hide_the_rest(kubectl: Kubectl) -> None:
    """A kind that is not served is named, and the other objects in the file are created."""
    unknown = "apiVersion: foo.example/v1\nkind: Bar\nmetadata: {name: b}\n---\n"
    complaint = kubectl("apply", "-f", "-", stdin=unknown + CONFIG % "late", fails=True)
    assert 'no matches for kind "Bar"' in complaint
    assert kubectl("get", "configmap", "settings", "-o", "jsonpath={.data.color}") == "late"
