"""StatefulSets and DaemonSets in every detail: the same commands on a real control plane and ours.

Plays compare how things end; here whole objects are compared: revisions and their names, pods as
they were made, claims and their owners, what events say, and what kubectl prints about history.
The kubelets are ours on both.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded

from tools import realkube as real
from zonewise.api.core import Node
from zonewise.api.meta import ObjectMeta
from zonewise.embedded.crew import Crew
from zonewise.embedded.kubelets import Kubelets
from zonewise.runtime.client import Client
from zonewise.runtime.cluster import load_config
from zonewise.runtime.transport import HttpsTransport

pytestmark = pytest.mark.real

Obj = dict[str, Any]
NODES = ("n1", "n2", "n3")
PATIENCE = 90.0
CHANCE = "the object has been modified"
"""What a controller says when somebody else was quicker, which may be so or not."""

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


class Scene:
    """One cluster, as kubectl shows it."""

    def __init__(self, kubectl: Path, kubeconfig: Path, namespace: str) -> None:
        self._command = (
            str(kubectl),
            *("--kubeconfig", str(kubeconfig), "-n", namespace),
        )

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What a command prints."""
        done = await asyncio.to_thread(
            subprocess.run,
            [*self._command, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    async def items(self, kind: str) -> list[Obj]:
        """All objects of a kind."""
        found: list[Obj] = json.loads(await self.kubectl("get", kind, "-o", "json"))["items"]
        return sorted(found, key=lambda one: str(one["metadata"]["name"]))

    async def until(self, kind: str, holds: Callable[[list[Obj]], bool]) -> list[Obj]:
        """The objects of a kind once something is true of them."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = await self.items(kind)
            if holds(found):
                return found
            assert time.monotonic() < deadline, json.dumps(found)[:4000]
            await asyncio.sleep(0.2)

    async def told(self, kind: str) -> list[str]:
        """What events about objects of a kind say, each once."""
        events = await self.items("events")
        return sorted(
            {
                f"{one['type']} {one['reason']}: {one['message']}"
                for one in events
                if one["involvedObject"]["kind"] == kind and CHANCE not in one["message"]
            }
        )


def told_plainly(value: Any, *hashes: str) -> Any:
    """A value without uids, times, and the hashes and random names given."""
    text = json.dumps(value, sort_keys=True)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UID", text)
    for number, one in enumerate(hashes):
        text = text.replace(one, f"HASH{number}")
    return json.loads(re.sub(r"(agent|kube-api-access)-[a-z0-9]{5}\b", r"\1-RANDOM", text))


def made(pod: Obj) -> Obj:
    """A pod as it was made, without where it ended up."""
    meta, spec = pod["metadata"], pod["spec"]
    kept = ("generateName", "labels", "annotations", "ownerReferences")
    return {
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {key: value for key, value in spec.items() if key not in ("nodeName", "volumes")},
        "volumes": [one for one in spec["volumes"] if "projected" not in one],
    }


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


def shown(seen: Any) -> list[str]:
    """What was seen, line by line."""
    return json.dumps(seen, indent=1, sort_keys=True).splitlines()


SCRIPTS: dict[str, Callable[[Scene], Awaitable[list[Any]]]] = {
    "stateful": stateful,
    "daemon": daemon,
    "claims": claims,
    "failing": failing,
}


@pytest.fixture(scope="module")
def ours() -> Iterator[Path]:
    """Our living cluster, without nodes."""
    with embedded("--workload-removal=delete", content="--empty") as kubeconfig:
        yield kubeconfig


@asynccontextmanager
async def inhabited(kubeconfig: Path, *, kubelets: bool) -> AsyncIterator[None]:
    """A cluster with nodes that live while this lasts."""
    transport = HttpsTransport(load_config(kubeconfig=kubeconfig))

    def connect(manager: str) -> Client:
        return Client(transport, field_manager=manager)

    crew = Crew(connect, clock=time.time, rng=random.Random(1))
    if kubelets:
        crew.add("kubelets", Kubelets)
    work = asyncio.create_task(crew.run())
    client = connect("test")
    try:
        for name in NODES:
            await client.create(Node(metadata=ObjectMeta(name=name)))
        yield
    finally:
        for name in NODES:
            await client.delete(Node, name)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await transport.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", SCRIPTS)
async def test_both_clusters_do_the_same(
    realkube: real.ControlPlane, real_binaries: real.Binaries, ours: Path, name: str
) -> None:
    """Objects, events and kubectl's words are equal at every step."""
    kubectl = real_binaries.path("kubectl")

    async def performed(kubeconfig: Path, *, kubelets: bool) -> list[Any]:
        scene = Scene(kubectl, kubeconfig, f"sets-{name}")
        async with inhabited(kubeconfig, kubelets=kubelets):
            await scene.kubectl("create", "namespace", f"sets-{name}")
            await scene.until(
                "serviceaccounts",
                lambda found: any(one["metadata"]["name"] == "default" for one in found),
            )
            try:
                return await SCRIPTS[name](scene)
            finally:
                await scene.kubectl("delete", "namespace", f"sets-{name}", "--wait=false")
                await scene.until("pods", lambda pods: not pods)

    theirs, mine = await asyncio.gather(
        performed(realkube.kubeconfig, kubelets=True), performed(ours, kubelets=False)
    )
    for step, (right, found) in enumerate(zip(theirs, mine, strict=True), start=1):
        difference = list(unified_diff(shown(right), shown(found), lineterm="", n=2))
        assert not difference, "\n".join((f"step {step}", *difference))
