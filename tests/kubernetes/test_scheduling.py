"""The real scheduler and our function decide the same.

The scheduler is started when all objects exist, so what it sees is complete. Where it breaks ties
at random, its answer must be among our answers over many seeds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.scheduling.situations import SITUATIONS, Obj, Situation
from tests.scheduling.telling import cluster_of

from tools import realkube as real
from zonewise.api import Pod, convert
from zonewise.scheduling.decision import SchedulingDecision

pytestmark = pytest.mark.real

SEEDS = range(40)
PATHS = {
    "Node": "/api/v1/nodes",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Service": "/api/v1/namespaces/{}/services",
    "Namespace": "/api/v1/namespaces",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "StorageClass": "/apis/storage.k8s.io/v1/storageclasses",
    "CSIDriver": "/apis/storage.k8s.io/v1/csidrivers",
    "CSINode": "/apis/storage.k8s.io/v1/csinodes",
    "CSIStorageCapacity": "/apis/storage.k8s.io/v1/namespaces/{}/csistoragecapacities",
    "VolumeAttachment": "/apis/storage.k8s.io/v1/volumeattachments",
}
GONE_AT_ONCE = {"gracePeriodSeconds": 0}


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """An API server and a scheduler that is started and stopped by the tests."""
    settings = real.Settings(controllers=(), scheduler=True, fsync=False)
    with real.start(settings, binaries=real_binaries) as plane:
        assert plane.scheduler is not None
        plane.scheduler.stop()
        yield plane


def path_of(obj: Obj) -> str:
    """The collection an object is in."""
    return PATHS[obj["kind"]].format(obj["metadata"].get("namespace", "default"))


def send(plane: real.ControlPlane, method: str, path: str, body: Obj | None = None) -> Any:
    """Send a request to the API server; returns its answer."""
    status, content = plane.request(method, path, body)
    assert status < 300, f"{method} {path}: {content.decode()[:500]}"
    return json.loads(content)


def make(plane: real.ControlPlane, obj: Obj) -> Obj:
    """Create an object, then write its status and, if it is a node, exactly its taints."""
    path = path_of(obj)
    stored = send(plane, "POST", path, obj)
    own = f"{path}/{obj['metadata']['name']}"
    if obj["kind"] == "Node":
        stored["spec"]["taints"] = obj["spec"].get("taints", [])
        stored = send(plane, "PUT", own, stored)
    if "status" in obj and obj["kind"] != "Pod":
        stored["status"] = obj["status"]
        stored = send(plane, "PUT", f"{own}/status", stored)
    current: Obj = send(plane, "GET", own)
    return current


def remove(plane: real.ControlPlane, obj: Obj) -> None:
    """Delete an object and remove its finalizers, as its controllers would."""
    own = f"{path_of(obj)}/{obj['metadata']['name']}"
    plane.request("DELETE", own, GONE_AT_ONCE)
    status, content = plane.request("GET", own)
    if status == 200:
        now = json.loads(content)
        now["metadata"]["finalizers"] = []
        send(plane, "PUT", own, now)


def waiting(plane: real.ControlPlane, situation: Situation) -> Obj:
    """The pod, once the scheduler has bound it or written a condition."""
    path = f"{path_of(situation.pod)}/{situation.pod['metadata']['name']}"
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        pod: Obj = send(plane, "GET", path)
        if pod["spec"].get("nodeName") or pod["status"].get("conditions"):
            return pod
        plane.check()
        time.sleep(0.05)
    raise AssertionError("the scheduler did not decide")


def ours(objects: list[Obj], pod: Obj) -> list[SchedulingDecision]:
    """The decisions of our function for many seeds."""
    return [cluster_of(objects, seed).decide(convert(Pod, pod)) for seed in SEEDS]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.name)
def test_the_real_scheduler_agrees(plane: real.ControlPlane, situation: Situation) -> None:
    """Node, message, nomination and victims are those of the real scheduler."""
    assert plane.scheduler is not None
    created: list[Obj] = []
    try:
        for obj in (*situation.others, *situation.nodes, *situation.pods):
            created.append(make(plane, obj))
        pod = make(plane, situation.pod)
        decisions = ours(created, pod)
        created.append(pod)
        plane.scheduler.start()
        real_pod = waiting(plane, situation)
        node = real_pod["spec"].get("nodeName", "")
        if node:
            assert node in {decision.node for decision in decisions}
            return
        assert {decision.node for decision in decisions} == {""}
        condition = real_pod["status"]["conditions"][0]
        assert {decision.message for decision in decisions} == {condition["message"]}
        assert condition["reason"] == "Unschedulable"
        nominated = real_pod["status"].get("nominatedNodeName", "")
        assert nominated in {
            decision.preemption.node if decision.preemption else "" for decision in decisions
        }
        victims = {
            pod["metadata"]["name"]
            for pod in send(plane, "GET", "/api/v1/namespaces/default/pods")["items"]
            if "deletionTimestamp" in pod["metadata"]
        }
        for decision in decisions:
            if decision.preemption and decision.preemption.node == nominated:
                assert {name for _, name in decision.preemption.victims} == victims
    finally:
        plane.scheduler.stop()
        for obj in reversed(created):
            if obj["kind"] != "Namespace":
                remove(plane, obj)
