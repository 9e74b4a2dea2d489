"""Runs a play on an API server with nodes, and describes the state after each act.

A play is a YAML file: nodes, then acts. An act changes objects, lists what must become true, and
ends when that is so and nothing has changed for a while. The state is then described without
random names, hashes and times, so that two servers that did the same have the same description.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from zonewise.api import Pod, ReplicaSet
from zonewise.api.errors import ApiError, NotFound
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client

Obj = dict[str, Any]
T = TypeVar("T", Pod, ReplicaSet)

ZONE = "topology.kubernetes.io/zone"
PATIENCE = 180.0
QUIET = 1.5
POLL = 0.25
AT_ONCE = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
NAMESPACED = {
    "ControllerRevision": "apps/v1",
    "DaemonSet": "apps/v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
    "PodDisruptionBudget": "policy/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "Pod": "v1",
    "Service": "v1",
}
WIDE = {"Node": "v1", "PriorityClass": "scheduling.k8s.io/v1"}
OWNED = ("DaemonSet", "Deployment", "Job", "PodDisruptionBudget", "ReplicaSet", "StatefulSet")
BEGUN = ("NewReplicaSetCreated", "ReplicaSetUpdated")
TIMES = ("lastTransitionTime", "lastUpdateTime", "startTime", "completionTime", "disruptedPods")


def plural(kind: str) -> str:
    """The resource of a kind, as far as plays need it."""
    return "priorityclasses" if kind == "PriorityClass" else f"{kind.lower()}s"


def path(kind: str, name: str = "", *, namespace: str) -> str:
    """The path of a kind's collection, or of an object in it."""
    version = WIDE.get(kind) or NAMESPACED[kind]
    root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    scope = "" if kind in WIDE else f"/namespaces/{namespace}"
    return f"{root}{scope}/{plural(kind)}" + (f"/{name}" if name else "")


def load(file: Path) -> Obj:
    """A play."""
    play: Obj = yaml.safe_load(file.read_text())
    return play


@dataclass
class Bounds:
    """What a rolling update must keep at every event: enough pods available, not too many desired.

    A ReplicaSet that was scaled down has its pods for some milliseconds more, and a real
    controller may create new ones meanwhile. So the upper bound is on the desired replicas of
    ReplicaSets. Ours keeps it for pods, too: ``exact``.
    """

    app: str
    least: int
    most: int
    exact: bool = False
    faults: list[str] = field(default_factory=list)

    def look(self, pods: Iterable[Pod], sets: Iterable[ReplicaSet]) -> None:
        """Check the bounds now."""
        alive = [
            pod
            for pod in pods
            if pod.metadata.labels.get("app") == self.app
            and not pod.metadata.deletion_timestamp
            and pod.status.phase not in ("Failed", "Succeeded")
        ]
        ready = sum(_state(pod) == "ready" for pod in alive)
        desired = sum(
            replica_set.spec.replicas or 0
            for replica_set in sets
            if replica_set.metadata.labels.get("app") == self.app
        )
        if ready < self.least:
            self.faults.append(f"{ready} available, {self.least} needed")
        for what, count in (("desired", desired), ("alive", len(alive) if self.exact else 0)):
            if count > self.most:
                self.faults.append(f"{count} {what}, {self.most} allowed")


class Stage:
    """A server on which plays run, each in a namespace of its own."""

    def __init__(self, client: Client, cache: Cache, namespace: str, *, exact: bool) -> None:
        self._client = client
        self._namespace = namespace
        self._exact = exact
        self._pods = cache.store(Pod)
        self._sets = cache.store(ReplicaSet)
        self._bounds: Bounds | None = None
        self._pods.on_change(self._changed)
        self._sets.on_change(self._changed)

    async def act(self, play: Obj) -> list[Obj]:
        """Run a play; returns the state at the end of each act."""
        await self._send("POST", "/api/v1/namespaces", {"metadata": {"name": self._namespace}})
        nodes = [node(short) for short in play["nodes"]]
        for manifest in nodes:
            await self._apply(manifest)
        await self._until(
            {
                f"Node/{manifest['metadata']['name']}": {"Ready": "KubeletReady"}
                for manifest in nodes
            }
        )
        seen = []
        for act in play["acts"]:
            self._bounds = Bounds(**act["guard"], exact=self._exact) if "guard" in act else None
            for manifest in act.get("apply", ()):
                await self._apply(manifest)
            for address, change in act.get("patch", {}).items():
                await self._change(address, change)
            for address in act.get("delete", ()):
                kind, name = address.split("/")
                await self._send("DELETE", path(kind, name, namespace=self._namespace))
            for app in act.get("evict", ()):
                await self._evict(app)
            await self._until(act["until"])
            seen.append(await self._settled(zones=play.get("zones", True)))
            if self._bounds is not None:
                seen[-1]["broken"] = sorted(set(self._bounds.faults))
        return seen

    async def clear(self, play: Obj) -> None:
        """Delete everything that a play created."""
        for kind in ("Deployment", "StatefulSet", "DaemonSet", "Job", "ReplicaSet", "Pod"):
            where = path(kind, namespace=self._namespace)
            await self._send("DELETE", where, AT_ONCE)
        names = {short["name"] for short in play["nodes"]}
        for act in play["acts"]:
            names |= {
                manifest["metadata"]["name"]
                for manifest in act.get("apply", ())
                if manifest["kind"] == "Node"
            }
        while any(pod.metadata.namespace == self._namespace for pod in self._pods.values()):
            await self._send("DELETE", path("Pod", namespace=self._namespace), AT_ONCE)
            await asyncio.sleep(POLL)
        for name in sorted(names):
            await self._send("DELETE", f"/api/v1/nodes/{name}")
        await self._send("DELETE", f"/api/v1/namespaces/{self._namespace}")

    def _changed(self, old: Pod | ReplicaSet | None, new: Pod | ReplicaSet | None) -> None:
        obj = new or old
        if self._bounds is not None and obj and obj.metadata.namespace == self._namespace:
            self._bounds.look(self._here(self._pods), self._here(self._sets))

    def _here(self, items: Iterable[T]) -> list[T]:
        return [obj for obj in items if obj.metadata.namespace == self._namespace]

    async def _apply(self, obj: Obj) -> None:
        kind, meta = obj["kind"], obj["metadata"]
        obj.setdefault("apiVersion", WIDE.get(kind) or NAMESPACED[kind])
        where = path(kind, meta["name"], namespace=self._namespace)
        query = {"fieldManager": "play", "force": "true"}
        await self._send("PATCH", where, obj, form="apply-patch+yaml", query=query)

    async def _change(self, address: str, change: Obj) -> None:
        """Send a strategic merge patch; to all pods with a label, if the address has a selector."""
        kind, name = address.split("/", 1)
        names = [name]
        if "=" in name:
            query = {"labelSelector": name}
            listed = await self._get(path(kind, namespace=self._namespace), query)
            names = sorted(obj["metadata"]["name"] for obj in listed["items"])
        for target in names:
            where = path(kind, target, namespace=self._namespace)
            await self._send("PATCH", where, change, form="strategic-merge-patch+json")

    async def _evict(self, app: str) -> None:
        """Try to evict every pod of an app once; refusals are fine."""
        for pod in sorted(self._pods.values(), key=lambda pod: pod.metadata.name):
            if pod.metadata.namespace == self._namespace and pod.metadata.labels.get("app") == app:
                body = {
                    "apiVersion": "policy/v1",
                    "kind": "Eviction",
                    "metadata": {"name": pod.metadata.name, "namespace": self._namespace},
                }
                where = path("Pod", pod.metadata.name, namespace=self._namespace)
                await self._send("POST", f"{where}/eviction", body, refused=(429,))

    async def _until(self, expected: Mapping[str, Obj]) -> None:
        """Wait until objects have the expected conditions and status."""
        deadline = time.monotonic() + PATIENCE
        missing = "?"
        while time.monotonic() < deadline:
            missing = ""
            for address, facts in expected.items():
                missing = missing or await self._missing(address, facts)
            if not missing:
                return
            await asyncio.sleep(POLL)
        raise AssertionError(
            f"still {missing} in {json.dumps(await self._seen(zones=True), indent=1)}"
        )

    async def _missing(self, address: str, facts: Obj) -> str:
        kind, name = address.split("/", 1)
        if kind == "pods":
            states: Counter[str] = Counter()
            for pod in self._pods.values():
                if (
                    pod.metadata.namespace == self._namespace
                    and pod.metadata.labels.get("app") == name
                ):
                    states[_state(pod)] += 1
            return "" if states == Counter(facts) else f"{address} {dict(states)}, not {facts}"
        try:
            obj = await self._get(path(kind, name, namespace=self._namespace))
        except NotFound:
            return f"no {address}"
        conditions = {
            condition["type"]: condition.get("reason", "") for condition in _conditions(obj)
        }
        status = obj.get("status", {})
        for fact, value in facts.items():
            there = conditions[fact] if fact in conditions else status.get(fact, 0)
            if there != value:
                return f"{address} {fact} {there}, not {value}"
        generation = obj["metadata"].get("generation", 1)
        if status.get("observedGeneration", generation) < generation:
            return f"{address} not observed"
        return ""

    async def _settled(self, *, zones: bool) -> Obj:
        """The state, once it has not changed for a while."""
        seen, since = await self._seen(zones=zones), time.monotonic()
        deadline = since + PATIENCE
        while time.monotonic() - since < QUIET:
            assert time.monotonic() < deadline, f"never at rest: {seen}"
            await asyncio.sleep(POLL)
            now = await self._seen(zones=zones)
            if now != seen:
                seen, since = now, time.monotonic()
        return seen

    async def _seen(self, *, zones: bool) -> Obj:
        """The state of the namespace, without random names, hashes and times."""
        objects = {
            kind: (await self._get(path(kind, namespace=self._namespace)))["items"]
            for kind in (*OWNED, "Pod", "ControllerRevision")
        }
        nodes = {
            node["metadata"]["name"]: node for node in (await self._get("/api/v1/nodes"))["items"]
        }
        where = f"/api/v1/namespaces/{self._namespace}/events"
        events = (await self._get(where))["items"]
        if not any(_unscheduled(pod) for pod in objects["Pod"]):
            # A pod may have been tried before its node was ready.
            events = [event for event in events if event["reason"] != "FailedScheduling"]
        names = Names(objects)
        return {
            "workloads": names.all(
                (kind, workload["metadata"]["name"], _plain(workload))
                for kind in OWNED
                for workload in objects[kind]
            ),
            "pods": names.counted(
                (
                    pod["metadata"].get("generateName") or pod["metadata"]["name"],
                    _pod(pod, nodes if zones else {}),
                )
                for pod in objects["Pod"]
            ),
            "revisions": names.counted(
                (revision["metadata"]["name"], revision["revision"])
                for revision in objects["ControllerRevision"]
            ),
            "nodes": {
                name: sorted(f"{t['key']}:{t['effect']}" for t in node["spec"].get("taints", ()))
                for name, node in sorted(nodes.items())
            },
            "events": sorted(
                {
                    f"{event['involvedObject']['kind']} {event['type']} {event['reason']}"
                    for event in events
                }
            ),
        }

    async def _get(self, where: str, query: Mapping[str, str] | None = None) -> Obj:
        answer = await self._client.raw("GET", where, query=dict(query or {}))
        content: Obj = json.loads(answer.body)
        return content

    async def _send(
        self,
        method: str,
        where: str,
        body: Obj | None = None,
        *,
        form: str = "json",
        query: Mapping[str, str] | None = None,
        refused: tuple[int, ...] = (404,),
    ) -> None:
        try:
            await self._client.raw(
                method,
                where,
                query=dict(query or {}),
                headers={"Content-Type": f"application/{form}"},
                body=json.dumps(body or {}).encode(),
            )
        except ApiError as error:
            if error.code not in refused:
                raise


class Names:
    """Replaces hashes and random parts of names by what they stand for."""

    def __init__(self, objects: Mapping[str, list[Obj]]) -> None:
        self._known: dict[str, str] = {}
        for replica_set in objects["ReplicaSet"]:
            notes, labels = (
                replica_set["metadata"].get("annotations", {}),
                replica_set["metadata"].get("labels", {}),
            )
            if "pod-template-hash" in labels:
                revision = notes.get("deployment.kubernetes.io/revision", "?")
                self._known[labels["pod-template-hash"]] = f"#{revision}"
        for controller_revision in objects["ControllerRevision"]:
            self._known[controller_revision["metadata"]["name"].rpartition("-")[2]] = (
                f"#{controller_revision['revision']}"
            )
        for pod in objects["Pod"]:
            start = pod["metadata"].get("generateName")
            if start:
                self._known[pod["metadata"]["name"]] = f"{start}*"
        longest_first = sorted(self._known, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def say(self, value: object) -> str:
        """Text for a value, without what is random."""
        text = json.dumps(value, sort_keys=True)
        for _ in range(2):  # a pod's name holds a hash
            text = self._pattern.sub(lambda match: self._known[match[0]], text)
        return text

    def all(self, items: Iterable[tuple[object, ...]]) -> list[str]:
        """Every item, in the order of its text."""
        return sorted(map(self.say, items))

    def counted(self, items: Iterable[tuple[object, ...]]) -> list[str]:
        """Every different item and how often it is there."""
        return [f"{count} x {text}" for text, count in sorted(Counter(self.all(items)).items())]


def node(short: Obj) -> Obj:
    """A node from a play's short form: name, zone, cpu, labels, taints."""
    name = short["name"]
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        **short.get("labels", {}),
    }
    if "zone" in short:
        labels[ZONE] = short["zone"]
    room = {"cpu": str(short.get("cpu", 4)), "memory": "16Gi", "pods": "110"}
    taints = [{"key": key, "effect": effect} for key, effect in short.get("taints", {}).items()]
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints} if taints else {},
        "status": {"capacity": room, "allocatable": room},
    }


def _conditions(obj: Obj) -> list[Obj]:
    conditions: list[Obj] = obj.get("status", {}).get("conditions") or []
    return conditions


def _state(pod: Pod) -> str:
    if pod.metadata.deletion_timestamp:
        return "terminating"
    if any(
        condition.type == "Ready" and condition.status == "True"
        for condition in pod.status.conditions
    ):
        return "ready"
    return pod.status.phase.lower()


def _condition_parts(condition: Obj) -> list[str]:
    """Status, reason and message of a condition.

    Whether a Deployment that has begun a rollout reports that its new ReplicaSet was created or
    that it progresses depends on timing: the real controller reports the second if it wrote its
    status between the creation and the first pod, and a conflict can prevent that.
    """
    reason = condition.get("reason", "")
    if condition["type"] == "Progressing" and reason in BEGUN:
        return [condition["status"], " or ".join(BEGUN), ""]
    return [condition["status"], reason, condition.get("message", "")]


def _plain(obj: Obj) -> Obj:
    """Replicas, revision and status of a workload."""
    status = {
        key: value
        for key, value in obj.get("status", {}).items()
        if key not in (*TIMES, "conditions") and value
    }
    if obj["metadata"].get("ownerReferences"):
        # How many steps a rollout took depends on timing.
        status.pop("observedGeneration", None)
    status["conditions"] = {
        condition["type"]: _condition_parts(condition) for condition in _conditions(obj)
    }
    notes = obj["metadata"].get("annotations", {})
    return {
        "replicas": obj["spec"].get("replicas"),
        "revision": notes.get("deployment.kubernetes.io/revision"),
        **status,
    }


def _unscheduled(pod: Obj) -> list[str] | None:
    for condition in _conditions(pod):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return [condition.get("reason", ""), condition.get("message", "")]
    return None


def _pod(obj: Obj, nodes: Mapping[str, Obj]) -> Obj:
    """The state of a pod, with its node's zone instead of the node."""
    node = nodes.get(obj["spec"].get("nodeName", ""))
    conditions = {condition["type"]: condition for condition in _conditions(obj)}
    ready = conditions.get("Ready", {})
    return {
        "phase": obj["status"].get("phase"),
        "ready": ready.get("status", "False"),
        "zone": node["metadata"]["labels"].get(ZONE) if node else None,
        "terminating": "deletionTimestamp" in obj["metadata"],
        "unscheduled": _unscheduled(obj),
        "disrupted": conditions.get("DisruptionTarget", {}).get("reason"),
        "nominated": bool(obj["status"].get("nominatedNodeName")),
    }
