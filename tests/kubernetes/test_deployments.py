"""Deployments and ReplicaSets in every detail: the same commands on a real control plane and ours.

Compared are whole objects: annotations, labels and owners of ReplicaSets, pods as they were made,
conditions in their order, what events say, and what kubectl prints about a rollout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded
from tests.kubernetes.scene import Obj, Scene, compare, normalize, without_placement

from tools import realkube as real

pytestmark = pytest.mark.real

WEB = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {team: a}, annotations: {note: "<a> & b"}}
spec:
  replicas: 10
  progressDeadlineSeconds: 600
  selector: {matchLabels: {app: web}, matchExpressions: [{key: tier, operator: Exists}]}
  template:
    metadata: {labels: {app: web, tier: front}, annotations: {hint: "x > y"}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: app:1
        ports: [{containerPort: 80, name: http}]
        resources: {requests: {cpu: 10m}}
"""
ORPHAN = """
apiVersion: v1
kind: Pod
metadata: {name: orphan, labels: {app: kept}}
spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: "app:1"}]}
"""
REPLICA_SET = """
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: kept}
spec:
  replicas: 2
  selector: {matchLabels: {app: kept}}
  template:
    metadata: {labels: {app: kept}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: main, image: "app:1"}]}
"""
HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
UNREADY = '{"spec":{"template":{"metadata":{"annotations":{"zonewise.io/unready":"true"}}}}}'
CURED = '{"spec":{"template":{"metadata":{"annotations":{"zonewise.io/unready":null}}}}}'


def revision(replica_set: Obj) -> int:
    """The revision a ReplicaSet stands for."""
    return int(replica_set["metadata"].get("annotations", {}).get(REVISION, 0))


def described(obj: Obj) -> Obj:
    """A workload's metadata, size and status, without what depends on timing."""
    meta, status = obj["metadata"], dict(obj["status"])
    fields = ("name", "labels", "annotations", "ownerReferences")
    if meta.get("ownerReferences"):
        status.pop("observedGeneration", None)
    status["conditions"] = {
        condition["type"]: [condition["status"], condition["reason"], condition["message"]]
        for condition in status.get("conditions", ())
    }
    annotations = dict(meta.get("annotations", {}))
    annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None)
    return {
        **{key: meta[key] for key in fields if key in meta},
        "annotations": annotations,
        "replicas": obj["spec"]["replicas"],
        "selector": obj["spec"]["selector"],
        "template": obj["spec"]["template"],
        "status": status,
    }


def settled(deployment: Obj) -> bool:
    """Whether a rollout has ended and the last old pod is gone."""
    status, size = deployment["status"], deployment["spec"]["replicas"]
    counts = {status.get(f"{what}eplicas", 0) for what in ("r", "updatedR", "availableR")}
    return (
        counts == {size}
        and not status.get("terminatingReplicas")
        and status.get("observedGeneration") == deployment["metadata"]["generation"]
    )


async def look(scene: Scene, holds: Callable[[Obj], bool] = settled) -> Obj:
    """The Deployment, its ReplicaSets and pods, once a condition holds and statuses are current."""
    (deployment,) = await scene.until("deployments", lambda deployments: holds(deployments[0]))

    def agreed(sets: list[Obj]) -> bool:
        return all(
            replica_set["status"].get("observedGeneration") == replica_set["metadata"]["generation"]
            and replica_set["status"]["replicas"] == replica_set["spec"]["replicas"]
            and not replica_set["status"].get("terminatingReplicas")
            for replica_set in sets
        )

    sets = sorted(await scene.until("replicasets", agreed), key=revision)
    hashes = [replica_set["metadata"]["labels"][HASH] for replica_set in sets]
    (deployment,) = await scene.until("deployments", lambda deployments: holds(deployments[0]))
    pods = [normalize(without_placement(pod), *hashes) for pod in await scene.items("pods")]
    seen: Obj = normalize(
        {
            "deployment": described(deployment),
            "conditions": [condition["type"] for condition in deployment["status"]["conditions"]],
            "sets": [described(replica_set) for replica_set in sets],
        },
        *hashes,
    )
    seen["pods"] = sorted(json.dumps(pod, sort_keys=True) for pod in pods)
    return seen


async def event_texts(scene: Scene, kind: str) -> list[str]:
    """The events about objects of a kind, without names of ReplicaSets and pods."""
    # A real recorder combines many similar events into one with this prefix.
    lines = {
        line.replace("(combined from similar events): ", "")
        for line in await scene.event_lines(kind)
    }
    return sorted({re.sub(r"\bweb-[a-z0-9]+(-[a-z0-9]{5})?\b", "web-*", line) for line in lines})


async def rollout(scene: Scene) -> list[Any]:
    """A Deployment is created, updated, rolled back twice, and to a chosen revision."""
    seen: list[Any] = []
    await scene.kubectl("apply", "-f", "-", stdin=WEB)
    seen.append(await look(scene))
    await scene.kubectl("set", "image", "deploy/web", "main=app:2")
    seen.append((await scene.kubectl("rollout", "status", "deploy/web")).splitlines()[-1])
    seen.append(await look(scene))
    await scene.kubectl("annotate", "deploy/web", "kubernetes.io/change-cause=third")
    await scene.kubectl("set", "image", "deploy/web", "main=app:3")
    seen.append(await look(scene))
    seen.append(await scene.kubectl("rollout", "history", "deploy/web"))
    for words in ((), ("--to-revision=1",), ()):
        seen.append(await scene.kubectl("rollout", "undo", "deploy/web", *words))
        seen.append(await look(scene))
        seen.append(await scene.kubectl("rollout", "history", "deploy/web"))
    return seen


async def stuck(scene: Scene) -> list[Any]:
    """A rollout that cannot progress stops, times out, is scaled up and down, and is repaired."""
    seen: list[Any] = []

    def timed_out(deployment: Obj) -> bool:
        status = deployment["status"]
        reasons = {condition["type"]: condition["reason"] for condition in status["conditions"]}
        return bool(
            reasons["Progressing"] == "ProgressDeadlineExceeded"
            and status.get("observedGeneration") == deployment["metadata"]["generation"]
            and status["replicas"] > deployment["spec"]["replicas"]
        )

    quick = WEB.replace("progressDeadlineSeconds: 600", "progressDeadlineSeconds: 4")
    await scene.kubectl("apply", "-f", "-", stdin=quick)
    await look(scene)
    await scene.kubectl("patch", "deploy/web", "-p", UNREADY)
    seen.append(await look(scene, timed_out))
    for size in (15, 4, 7):
        await scene.kubectl("scale", "deploy/web", f"--replicas={size}")
        seen.append(await look(scene, timed_out))
    await scene.kubectl("patch", "deploy/web", "-p", CURED)
    seen.append(await look(scene))
    return seen


async def paused(scene: Scene) -> list[Any]:
    """A pause stops the rollout of a template but not scaling."""
    seen: list[Any] = []

    def pausing(deployment: Obj) -> bool:
        status = deployment["status"]
        return bool(
            status.get("availableReplicas") == deployment["spec"]["replicas"]
            and status.get("observedGeneration") == deployment["metadata"]["generation"]
        )

    await scene.kubectl("apply", "-f", "-", stdin=WEB)
    await look(scene)
    seen.append(await scene.kubectl("rollout", "pause", "deploy/web"))
    await scene.kubectl("set", "image", "deploy/web", "main=app:2")
    await scene.kubectl("scale", "deploy/web", "--replicas=12")
    seen.append(await look(scene, pausing))
    seen.append(await scene.kubectl("rollout", "resume", "deploy/web"))
    seen.append(await look(scene))
    seen.append(await event_texts(scene, "ReplicaSet"))
    return seen


async def recreate(scene: Scene) -> list[Any]:
    """All old pods are deleted before the first new one is created."""
    text = WEB.replace("replicas: 10", "replicas: 3\n  strategy: {type: Recreate}")
    await scene.kubectl("apply", "-f", "-", stdin=text)
    seen = [await look(scene)]
    await scene.kubectl("set", "image", "deploy/web", "main=app:2")
    updated = await look(scene)
    # A busy controller of Kubernetes may first look when the old pods are gone: then the Deployment
    # looks complete throughout, and its condition names the old ReplicaSet for good.
    del updated["conditions"], updated["deployment"]["status"]["conditions"]["Progressing"]
    return [*seen, updated, await event_texts(scene, "Deployment")]


async def history(scene: Scene) -> list[Any]:
    """Old ReplicaSets beyond the limit are deleted; scaling to zero works."""
    text = WEB.replace("replicas: 10", "replicas: 2\n  revisionHistoryLimit: 1")
    await scene.kubectl("apply", "-f", "-", stdin=text)
    for version in range(2, 5):
        await look(scene)
        await scene.kubectl("set", "image", "deploy/web", f"main=app:{version}")
    await look(scene)
    await scene.until("replicasets", lambda sets: len(sets) == 2)
    seen = [await look(scene)]
    await scene.kubectl("scale", "deploy/web", "--replicas=0")
    seen.append(await look(scene))
    return seen


async def refused(scene: Scene) -> list[Any]:
    """Refused pods are reported by ReplicaSet and Deployment, and created once they are allowed."""

    def failing(deployment: Obj) -> bool:
        conditions = {condition["type"] for condition in deployment["status"].get("conditions", ())}
        return "ReplicaFailure" in conditions

    text = WEB.replace("    spec:\n", "    spec:\n      serviceAccountName: late\n")
    await scene.kubectl("apply", "-f", "-", stdin=text)
    (deployment,) = await scene.until("deployments", lambda deployments: failing(deployments[0]))
    (replica_set,) = await scene.items("replicasets")
    (deployment,) = await scene.items("deployments")
    text_hash = replica_set["metadata"]["labels"][HASH]
    nameless = re.compile(r'"web-[a-z0-9]+-[a-z0-9]*"')
    seen: list[Any] = []
    for obj in (deployment, replica_set):
        status = described(obj)["status"]
        for words in status["conditions"].values():
            words[2] = nameless.sub("POD", words[2])
        seen.append(normalize(status, text_hash))
    seen.append([nameless.sub("POD", text) for text in await scene.event_lines("ReplicaSet")])
    await scene.kubectl("create", "serviceaccount", "late")
    seen.append(await look(scene))
    return seen


async def adopted(scene: Scene) -> list[Any]:
    """A ReplicaSet adopts pods that match, releases those that no longer do, and replaces them."""
    seen: list[Any] = []

    async def look_at_pods(count: int) -> None:
        def ready(pods: list[Obj]) -> bool:
            conditions = [
                condition
                for pod in pods
                for condition in pod["status"].get("conditions", ())
                if condition["type"] == "Ready" and condition["status"] == "True"
            ]
            return len(pods) == count == len(conditions)

        pods = await scene.until("pods", ready)
        seen.append(
            sorted(json.dumps(normalize(without_placement(pod)), sort_keys=True) for pod in pods)
        )

    await scene.kubectl("apply", "-f", "-", stdin=ORPHAN)
    await look_at_pods(1)
    await scene.kubectl("apply", "-f", "-", stdin=REPLICA_SET)
    await look_at_pods(2)
    await scene.kubectl("label", "--overwrite", "pod/orphan", "app=free")
    await look_at_pods(3)
    body = json.dumps({"metadata": {"labels": {"more": "yes"}}})
    patch = json.dumps({"spec": {"template": json.loads(body)}})
    await scene.kubectl("patch", "rs/kept", "-p", patch)
    (replica_set,) = await scene.until(
        "replicasets", lambda sets: "fullyLabeledReplicas" not in sets[0]["status"]
    )
    seen.append(described(replica_set)["status"])
    await scene.kubectl("delete", "rs/kept", "--cascade=orphan")
    await look_at_pods(3)
    await scene.kubectl("apply", "-f", "-", stdin=REPLICA_SET)
    (replica_set,) = await scene.until(
        "replicasets", lambda sets: sets[0]["status"].get("availableReplicas") == 2
    )
    seen.append(described(replica_set)["status"])
    await look_at_pods(3)
    return seen


SCRIPTS: dict[str, Callable[[Scene], Awaitable[list[Any]]]] = {
    "rollout": rollout,
    "stuck": stuck,
    "paused": paused,
    "recreate": recreate,
    "history": history,
    "refused": refused,
    "adopted": adopted,
}


@pytest.fixture(scope="module")
def ours() -> Iterator[Path]:
    """Our living cluster, without nodes."""
    with embedded("--workload-removal=delete", content="--empty") as kubeconfig:
        yield kubeconfig


@pytest.mark.asyncio
@pytest.mark.parametrize("name", SCRIPTS)
async def test_both_clusters_roll_out_alike(
    realkube: real.ControlPlane, real_binaries: real.Binaries, ours: Path, name: str
) -> None:
    """Objects, events and kubectl's output are equal at every step."""
    await compare(
        SCRIPTS[name],
        f"deployments-{name}",
        kubectl=real_binaries.path("kubectl"),
        theirs=realkube.kubeconfig,
        ours=ours,
    )
