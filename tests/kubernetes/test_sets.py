"""StatefulSets, DaemonSets and CronJobs in detail: the same on a real control plane and on ours.

Plays compare how things end; here whole objects are compared: revisions and their names, pods as
they were made, claims and their owners, what events say, and what kubectl prints about history.
The kubelets are ours on both.
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
from tests.kubernetes.scene import NODES, Obj, Scene, compare, made, told_plainly

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
    """A revision without its metadata's noise."""
    meta = revision["metadata"]
    kept = ("name", "labels", "annotations", "ownerReferences")
    return {
        **{key: meta[key] for key in kept if key in meta},
        "revision": revision["revision"],
        "data": revision["data"],
    }


def status(obj: Obj) -> Obj:
    """A workload's status and generation."""
    return {**obj["status"], "generation": obj["metadata"]["generation"]}


async def stateful(scene: Scene) -> list[Any]:
    """A StatefulSet is made, updated, taken back and scaled to nothing."""
    seen: list[Any] = []

    async def look(replicas: int) -> None:
        def settled(found: list[Obj]) -> bool:
            told = found[0]["status"]
            generation = found[0]["metadata"]["generation"]
            current = told.get("currentRevision", "")
            numbers = (told.get("availableReplicas"), told.get("replicas"))
            return (generation, current, (replicas, replicas)) == (
                told.get("observedGeneration"),
                told.get("updateRevision"),
                numbers,
            )

        found = await scene.until("statefulsets", settled)
        seen.append(
            {
                "status": status(found[0]),
                "pods": [told_plainly(made(pod)) for pod in await scene.items("pods")],
                "revisions": [
                    told_plainly(recorded(one)) for one in await scene.items("controllerrevisions")
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
    seen.append(await scene.told("StatefulSet"))
    return seen


async def daemon(scene: Scene) -> list[Any]:
    """A DaemonSet is made, updated and taken back."""
    seen: list[Any] = []

    async def look() -> None:
        def settled(found: list[Obj]) -> bool:
            told = found[0]["status"]
            generation = found[0]["metadata"]["generation"]
            return (generation, len(NODES), len(NODES)) == (
                told.get("observedGeneration"),
                told.get("updatedNumberScheduled"),
                told.get("numberAvailable"),
            )

        found = await scene.until("daemonsets", settled)
        history = await scene.items("controllerrevisions")
        history.sort(key=lambda one: int(one["revision"]))
        hashes = [one["metadata"]["labels"]["controller-revision-hash"] for one in history]
        pods = await scene.until(
            "pods",
            lambda pods: all("deletionTimestamp" not in one["metadata"] for one in pods),
        )
        pods.sort(key=lambda pod: str(pod["spec"]["nodeName"]))
        seen.append(
            {
                "status": status(found[0]),
                "annotations": sorted(found[0]["metadata"]["annotations"]),
                "pods": [told_plainly(made(pod), *hashes) for pod in pods],
                "revisions": [told_plainly(recorded(one), *hashes) for one in history],
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
    seen.append(told_plainly(await scene.told("DaemonSet")))
    return seen


async def claims(scene: Scene) -> list[Any]:
    """Claims are made for every number and given away as the policy says, also a new policy."""
    seen: list[Any] = []

    async def look(owners: dict[str, str]) -> None:
        def settled(found: list[Obj]) -> bool:
            return owners == {
                one["metadata"]["name"]: "".join(
                    owner["kind"] for owner in one["metadata"].get("ownerReferences", ())
                )
                for one in found
                if "deletionTimestamp" not in one["metadata"]
            }

        found = await scene.until("persistentvolumeclaims", settled)
        kept = ("name", "labels", "annotations", "ownerReferences", "finalizers")
        seen.append(
            [
                told_plainly({key: one["metadata"].get(key) for key in kept} | one["spec"])
                for one in found
            ]
        )
        pods = await scene.until("pods", lambda pods: len(pods) == len(owners))
        seen.append([told_plainly(made(pod)["volumes"]) for pod in pods])

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
    seen.append(await scene.told("StatefulSet"))
    await scene.kubectl("delete", "sts/db", "--wait=false")
    await scene.until("pods", lambda pods: not pods)
    seen.append([one["metadata"]["name"] for one in await scene.items("persistentvolumeclaims")])
    return seen


async def failing(scene: Scene) -> list[Any]:
    """Pods that have finished are replaced, and events say so."""
    await scene.kubectl("apply", "-f", "-", stdin=STATEFUL.replace("replicas: 3", "replicas: 1"))
    await scene.kubectl("apply", "-f", "-", stdin=DAEMON)
    await scene.kubectl("rollout", "status", "sts/web")
    await scene.kubectl("rollout", "status", "ds/agent")
    before = {one["metadata"]["uid"]: one["metadata"]["name"] for one in await scene.items("pods")}
    for name in before.values():
        body = json.dumps({"status": {"phase": "Failed"}})
        await scene.kubectl("patch", "pod", name, "--subresource=status", "-p", body)

    def replaced(pods: list[Obj]) -> bool:
        ready = [
            one
            for one in pods
            if one["metadata"]["uid"] not in before
            and any(
                c["type"] == "Ready" and c["status"] == "True" for c in one["status"]["conditions"]
            )
        ]
        return len(ready) == len(before) == len(pods)

    await scene.until("pods", replaced)
    return [
        told_plainly(await scene.told("StatefulSet")),
        sorted({one.split(":")[0] for one in await scene.told("DaemonSet")}),
    ]


async def cron(scene: Scene) -> list[Any]:
    """A CronJob that missed a moment makes one Job for it, which runs to its end."""
    await scene.kubectl("apply", "-f", "-", stdin=CRON)
    past = (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="seconds")
    body = json.dumps({"status": {"lastScheduleTime": past}})
    await scene.kubectl("patch", "cronjob", "tick", "--subresource=status", "-p", body)
    touch = '{"metadata":{"annotations":{"x":"y"}}}'
    await scene.kubectl("patch", "cronjob", "tick", "-p", touch)

    def over(found: list[Obj]) -> bool:
        told = found[0]["status"]
        return "lastSuccessfulTime" in told and "active" not in told

    found = await scene.until("cronjobs", over)
    told = found[0]["status"]
    (job,) = await scene.items("jobs")
    meta = job["metadata"]
    due = datetime.fromisoformat(told["lastScheduleTime"])
    assert meta["name"] == f"tick-{int(due.timestamp()) // 60}"
    moment = meta["annotations"].pop(SCHEDULED)
    assert datetime.fromisoformat(moment) == due
    kept = ("labels", "annotations", "ownerReferences")
    return [
        sorted(told),
        moment[-6:],
        told_plainly({key: meta[key] for key in kept}),
        [one.replace(meta["name"], "JOB") for one in await scene.told("CronJob")],
    ]


async def orphans(scene: Scene) -> list[Any]:
    """Sets that are made again take over what was left; what no longer matches is let go."""
    seen: list[Any] = []
    await scene.kubectl("apply", "-f", "-", stdin=STATEFUL)
    await scene.kubectl("apply", "-f", "-", stdin=DAEMON)
    await scene.kubectl("rollout", "status", "sts/web")
    await scene.kubectl("rollout", "status", "ds/agent")
    kinds = ("pods", "controllerrevisions")
    before = {one["metadata"]["uid"] for kind in kinds for one in await scene.items(kind)}

    def owned(found: list[Obj]) -> bool:
        return all(one["metadata"].get("ownerReferences") for one in found)

    for name, manifest in (("sts/web", STATEFUL), ("ds/agent", DAEMON)):
        await scene.kubectl("delete", name, "--cascade=orphan")
        await scene.kubectl("apply", "-f", "-", stdin=manifest)
        await scene.kubectl("rollout", "status", name)
    after = [one for kind in kinds for one in await scene.until(kind, owned)]
    seen.append(before == {one["metadata"]["uid"] for one in after})
    seen += [told_plainly(one["metadata"]["ownerReferences"]) for one in after]
    agent = next(
        one["metadata"]["name"]
        for one in await scene.items("pods")
        if one["metadata"]["name"].startswith("agent")
    )
    for name in ("web-1", agent):
        await scene.kubectl("label", "pod", name, "app=other", "--overwrite")

    def released(found: list[Obj]) -> bool:
        return not any(
            one["metadata"].get("ownerReferences")
            for one in found
            if one["metadata"]["labels"]["app"] == "other"
        )

    await scene.until("pods", lambda found: released(found) and len(found) == 7)
    await scene.kubectl("delete", "pod", "web-1")
    await scene.kubectl("rollout", "status", "sts/web")
    pods = await scene.until("pods", lambda found: released(found) and len(found) == 7)
    seen.append(sorted(one["metadata"]["labels"]["app"] for one in pods))
    return seen


async def refused(scene: Scene) -> list[Any]:
    """Pods that are refused leave events and statuses that tell why."""
    account = "containers:", "serviceAccountName: missing\n      containers:"
    seen: list[Any] = []

    def about(kind: str, events: list[Obj]) -> bool:
        return any(one["involvedObject"]["kind"] == kind for one in events)

    for kind, manifest in (("StatefulSet", STATEFUL), ("DaemonSet", DAEMON)):
        await scene.kubectl("apply", "-f", "-", stdin=manifest.replace(*account))
        await scene.until("events", partial(about, kind))
        seen.append(await scene.told(kind))
        found = await scene.until(
            f"{kind.lower()}s", lambda found: "observedGeneration" in found[0]["status"]
        )
        seen.append(status(found[0]))
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
    """Objects, events and kubectl's words are equal at every step."""
    await compare(
        SCRIPTS[name],
        f"sets-{name}",
        kubectl=real_binaries.path("kubectl"),
        theirs=realkube.kubeconfig,
        ours=ours,
    )
