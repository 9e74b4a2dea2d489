"""StatefulSets, DaemonSets and CronJobs in detail: the same on a real control plane and on ours.

Plays compare final states; here whole objects are compared: revisions and their names, pods as
they were created, claims and their owners, events, and what kubectl prints about history. The
kubelets are ours on both.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded
from tests.kubernetes.scene import NODES, Obj, Scene, compare, normalize, without_placement

from tools import realkube as real

pytestmark = pytest.mark.real

STATEFUL = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web, annotations: {note: "<a> & b"}}
spec:
  replicas: 3
  serviceName: web
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, tier: front}, annotations: {hint: "x > y"}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: app:1
        ports: [{containerPort: 80, name: http}]
        env: [{name: A, value: "1"}]
        resources: {requests: {cpu: 10m, memory: 1Gi}}
"""
DAEMON = """
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 3}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      terminationGracePeriodSeconds: 1
      hostNetwork: true
      tolerations: [{key: special, operator: Exists}]
      containers: [{name: main, image: "app:1"}]
"""
CLAIMS = """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 3
  serviceName: db
  podManagementPolicy: Parallel
  persistentVolumeClaimRetentionPolicy: {whenDeleted: %s, whenScaled: %s}
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: main, image: "app:1", volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data, labels: {kind: data}, annotations: {a: b}}
    spec:
      storageClassName: none
      accessModes: [ReadWriteOnce]
      resources: {requests: {storage: 1Gi}}
"""
SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"
CRON = """
apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: "*/10 * * * *"
  timeZone: Europe/Berlin
  concurrencyPolicy: Forbid
  jobTemplate:
    metadata: {labels: {app: tick}, annotations: {a: b}}
    spec:
      template:
        metadata: {annotations: {zonewise.io/runs-for: 1s}}
        spec: {restartPolicy: Never, containers: [{name: main, image: "app:1"}]}
"""


def recorded(revision: Obj) -> Obj:
    """A revision with only the comparable part of its metadata."""
    meta = revision["metadata"]
    fields = ("name", "labels", "annotations", "ownerReferences")
    return {
        **{key: meta[key] for key in fields if key in meta},
        "revision": revision["revision"],
        "data": revision["data"],
    }


def status(obj: Obj) -> Obj:
    """A workload's status and generation."""
    return {**obj["status"], "generation": obj["metadata"]["generation"]}


async def stateful(scene: Scene) -> list[Any]:
    """A StatefulSet is created, updated, rolled back and scaled to zero."""
    seen: list[Any] = []

    async def look(replicas: int) -> None:
        def settled(sets: list[Obj]) -> bool:
            status = sets[0]["status"]
            generation = sets[0]["metadata"]["generation"]
            current = status.get("currentRevision", "")
            numbers = (status.get("availableReplicas"), status.get("replicas"))
            return (generation, current, (replicas, replicas)) == (
                status.get("observedGeneration"),
                status.get("updateRevision"),
                numbers,
            )

        sets = await scene.until("statefulsets", settled)
        seen.append(
            {
                "status": status(sets[0]),
                "pods": [normalize(without_placement(pod)) for pod in await scene.items("pods")],
                "revisions": [
                    normalize(recorded(revision))
                    for revision in await scene.items("controllerrevisions")
                ],
                "history": await scene.kubectl("rollout", "history", "sts/web"),
            }
        )

    await scene.kubectl("apply", "-f", "-", stdin=STATEFUL)
    await look(3)
    await scene.kubectl("set", "image", "sts/web", "main=app:2")
    seen.append((await scene.kubectl("rollout", "status", "sts/web")).splitlines()[-1])
    await look(3)
    seen.append(await scene.kubectl("rollout", "history", "sts/web", "--revision=1"))
    seen.append(await scene.kubectl("rollout", "undo", "sts/web"))
    await look(3)
    await scene.kubectl("scale", "sts/web", "--replicas=0")
    await look(0)
    seen.append(await scene.event_lines("StatefulSet"))
    return seen


async def daemon(scene: Scene) -> list[Any]:
    """A DaemonSet is created, updated and rolled back."""
    seen: list[Any] = []

    async def look() -> None:
        def settled(sets: list[Obj]) -> bool:
            status = sets[0]["status"]
            generation = sets[0]["metadata"]["generation"]
            return (generation, len(NODES), len(NODES)) == (
                status.get("observedGeneration"),
                status.get("updatedNumberScheduled"),
                status.get("numberAvailable"),
            )

        sets = await scene.until("daemonsets", settled)
        history = await scene.items("controllerrevisions")
        history.sort(key=lambda revision: int(revision["revision"]))
        hashes = [
            revision["metadata"]["labels"]["controller-revision-hash"] for revision in history
        ]
        pods = await scene.until(
            "pods",
            lambda pods: all("deletionTimestamp" not in pod["metadata"] for pod in pods),
        )
        pods.sort(key=lambda pod: str(pod["spec"]["nodeName"]))
        seen.append(
            {
                "status": status(sets[0]),
                "annotations": sorted(sets[0]["metadata"]["annotations"]),
                "pods": [normalize(without_placement(pod), *hashes) for pod in pods],
                "revisions": [normalize(recorded(revision), *hashes) for revision in history],
                "history": await scene.kubectl("rollout", "history", "ds/agent"),
            }
        )

    await scene.kubectl("apply", "-f", "-", stdin=DAEMON)
    await look()
    await scene.kubectl("set", "image", "ds/agent", "main=app:2")
    seen.append((await scene.kubectl("rollout", "status", "ds/agent")).splitlines()[-1])
    await look()
    seen.append(await scene.kubectl("rollout", "undo", "ds/agent"))
    await look()
    seen.append(normalize(await scene.event_lines("DaemonSet")))
    return seen


async def claims(scene: Scene) -> list[Any]:
    """Claims are created for every ordinal and owned as the (also a new) retention policy says."""
    seen: list[Any] = []

    async def look(owners: dict[str, str]) -> None:
        def settled(claims: list[Obj]) -> bool:
            return owners == {
                claim["metadata"]["name"]: "".join(
                    owner["kind"] for owner in claim["metadata"].get("ownerReferences", ())
                )
                for claim in claims
                if "deletionTimestamp" not in claim["metadata"]
            }

        claims = await scene.until("persistentvolumeclaims", settled)
        fields = ("name", "labels", "annotations", "ownerReferences", "finalizers")
        seen.append(
            [
                normalize({key: claim["metadata"].get(key) for key in fields} | claim["spec"])
                for claim in claims
            ]
        )
        pods = await scene.until("pods", lambda pods: len(pods) == len(owners))
        seen.append([normalize(without_placement(pod)["volumes"]) for pod in pods])

    three, two = ("data-db-0", "data-db-1", "data-db-2"), ("data-db-0", "data-db-1")
    await scene.kubectl("apply", "-f", "-", stdin=CLAIMS % ("Retain", "Retain"))
    await look(dict.fromkeys(three, ""))
    await scene.kubectl("apply", "-f", "-", stdin=CLAIMS % ("Delete", "Retain"))
    await look(dict.fromkeys(three, "StatefulSet"))
    await scene.kubectl("apply", "-f", "-", stdin=CLAIMS % ("Delete", "Delete"))
    await scene.kubectl("scale", "sts/db", "--replicas=2")
    await look(dict.fromkeys(two, "StatefulSet"))
    await scene.kubectl("apply", "-f", "-", stdin=CLAIMS % ("Retain", "Retain"))
    await look(dict.fromkeys(three, ""))
    seen.append(await scene.event_lines("StatefulSet"))
    await scene.kubectl("delete", "sts/db", "--wait=false")
    await scene.until("pods", lambda pods: not pods)
    seen.append(
        [claim["metadata"]["name"] for claim in await scene.items("persistentvolumeclaims")]
    )
    return seen


async def failing(scene: Scene) -> list[Any]:
    """Failed pods are replaced, with events."""
    await scene.kubectl("apply", "-f", "-", stdin=STATEFUL.replace("replicas: 3", "replicas: 1"))
    await scene.kubectl("apply", "-f", "-", stdin=DAEMON)
    await scene.kubectl("rollout", "status", "sts/web")
    await scene.kubectl("rollout", "status", "ds/agent")
    before = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in await scene.items("pods")}
    for name in before.values():
        body = json.dumps({"status": {"phase": "Failed"}})
        await scene.kubectl("patch", "pod", name, "--subresource=status", "-p", body)

    def replaced(pods: list[Obj]) -> bool:
        ready = [
            pod
            for pod in pods
            if pod["metadata"]["uid"] not in before
            and any(
                c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"]
            )
        ]
        return len(ready) == len(before) == len(pods)

    await scene.until("pods", replaced)
    return [
        normalize(await scene.event_lines("StatefulSet")),
        sorted({line.split(":")[0] for line in await scene.event_lines("DaemonSet")}),
    ]


async def cron(scene: Scene) -> list[Any]:
    """A CronJob that missed its time creates one Job for it, which completes."""
    await scene.kubectl("apply", "-f", "-", stdin=CRON)
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
    body = json.dumps({"status": {"lastScheduleTime": past}})
    await scene.kubectl("patch", "cronjob", "tick", "--subresource=status", "-p", body)
    touch = '{"metadata":{"annotations":{"x":"y"}}}'
    await scene.kubectl("patch", "cronjob", "tick", "-p", touch)

    def over(cron_jobs: list[Obj]) -> bool:
        status = cron_jobs[0]["status"]
        return "lastSuccessfulTime" in status and "active" not in status

    cron_jobs = await scene.until("cronjobs", over)
    status = cron_jobs[0]["status"]
    (job,) = await scene.items("jobs")
    meta = job["metadata"]
    due = datetime.fromisoformat(status["lastScheduleTime"])
    assert meta["name"] == f"tick-{int(due.timestamp()) // 60}"
    moment = meta["annotations"].pop(SCHEDULED)
    assert datetime.fromisoformat(moment) == due
    fields = ("labels", "annotations", "ownerReferences")
    return [
        sorted(status),
        moment[-6:],
        normalize({key: meta[key] for key in fields}),
        [line.replace(meta["name"], "JOB") for line in await scene.event_lines("CronJob")],
    ]


async def orphans(scene: Scene) -> list[Any]:
    """Recreated sets adopt orphans; pods that no longer match are released."""
    seen: list[Any] = []
    await scene.kubectl("apply", "-f", "-", stdin=STATEFUL)
    await scene.kubectl("apply", "-f", "-", stdin=DAEMON)
    await scene.kubectl("rollout", "status", "sts/web")
    await scene.kubectl("rollout", "status", "ds/agent")
    kinds = ("pods", "controllerrevisions")
    before = {obj["metadata"]["uid"] for kind in kinds for obj in await scene.items(kind)}

    def owned(objects: list[Obj]) -> bool:
        return all(obj["metadata"].get("ownerReferences") for obj in objects)

    for name, manifest in (("sts/web", STATEFUL), ("ds/agent", DAEMON)):
        await scene.kubectl("delete", name, "--cascade=orphan")
        await scene.kubectl("apply", "-f", "-", stdin=manifest)
        await scene.kubectl("rollout", "status", name)
    after = [obj for kind in kinds for obj in await scene.until(kind, owned)]
    seen.append(before == {obj["metadata"]["uid"] for obj in after})
    seen += [normalize(obj["metadata"]["ownerReferences"]) for obj in after]
    agent = next(
        pod["metadata"]["name"]
        for pod in await scene.items("pods")
        if pod["metadata"]["name"].startswith("agent")
    )
    for name in ("web-1", agent):
        await scene.kubectl("label", "pod", name, "app=other", "--overwrite")

    def released(pods: list[Obj]) -> bool:
        return not any(
            pod["metadata"].get("ownerReferences")
            for pod in pods
            if pod["metadata"]["labels"]["app"] == "other"
        )

    await scene.until("pods", lambda pods: released(pods) and len(pods) == 7)
    await scene.kubectl("delete", "pod", "web-1")
    await scene.kubectl("rollout", "status", "sts/web")
    pods = await scene.until("pods", lambda pods: released(pods) and len(pods) == 7)
    seen.append(sorted(pod["metadata"]["labels"]["app"] for pod in pods))
    return seen


async def refused(scene: Scene) -> list[Any]:
    """Refused pods leave events and statuses with the reason."""
    account = "containers:", "serviceAccountName: missing\n      containers:"
    seen: list[Any] = []

    def about(kind: str, events: list[Obj]) -> bool:
        return any(event["involvedObject"]["kind"] == kind for event in events)

    for kind, manifest in (("StatefulSet", STATEFUL), ("DaemonSet", DAEMON)):
        await scene.kubectl("apply", "-f", "-", stdin=manifest.replace(*account))
        await scene.until("events", partial(about, kind))
        seen.append(await scene.event_lines(kind))
        sets = await scene.until(
            f"{kind.lower()}s", lambda sets: "observedGeneration" in sets[0]["status"]
        )
        seen.append(status(sets[0]))
    return seen


SCRIPTS: dict[str, Callable[[Scene], Awaitable[list[Any]]]] = {
    "stateful": stateful,
    "daemon": daemon,
    "claims": claims,
    "failing": failing,
    "cron": cron,
    "orphans": orphans,
    "refused": refused,
}


@pytest.fixture(scope="module")
def ours() -> Iterator[Path]:
    """Our living cluster, without nodes."""
    with embedded("--workload-removal=delete", content="--empty") as kubeconfig:
        yield kubeconfig


@pytest.mark.asyncio
@pytest.mark.parametrize("name", SCRIPTS)
async def test_both_clusters_do_the_same(
    realkube: real.ControlPlane, real_binaries: real.Binaries, ours: Path, name: str
) -> None:
    """Objects, events and kubectl's output are equal at every step."""
    await compare(
        SCRIPTS[name],
        f"sets-{name}",
        kubectl=real_binaries.path("kubectl"),
        theirs=realkube.kubeconfig,
        ours=ours,
    )
