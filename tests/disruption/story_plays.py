"""Plays a story of the table on a stage: the same steps on the embedded and on a real cluster."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from tests.disruption.story_stage import JSON, ZONES, Stage, closed_but, image
from tests.disruption.story_table import Cell, Story
from tests.disruption.story_workloads import (
    DEFINITION,
    FEWER,
    NAME,
    OWNER,
    REPLICAS,
    RESOURCES,
    WANTED_LABEL,
    ZONE,
    Obj,
    image_of,
    pod_template,
    rollout,
    size_of,
    workload,
)

from zonewise.api import Pod
from zonewise.api.errors import ApiError, Conflict
from zonewise.api.objects.budgets import DomainRollout
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.api.resource import Resource
from zonewise.runtime.client.client import Client

NODES = Resource("", "v1", "Node", "nodes", namespaced=False)
EVEN = dict.fromkeys(ZONES, REPLICAS // len(ZONES))
EACH_ZONE: list[Obj] = [{"key": ZONE, "operator": "Exists"}]
ORDER = ["c", "a", "b"]
UNREADY = "zonewise.io/unready"
"""An annotation that our kubelets obey."""


async def play(stage: Stage, story: Story, cell: Cell) -> None:
    """Play a story with the workload of the stage; raises if a promise is broken."""
    try:
        async with _workload(stage, operated=cell.deed == "operate"):
            await _STORIES[story](stage, cell)
    finally:
        stage.end()
    assert stage.faults == [], f"{stage.kind}: {stage.faults}"


async def define(client: Client) -> None:
    """Define the custom kind, unless it is, and wait until it is served."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    with suppress(Conflict):
        await client.raw("POST", path, headers=JSON, body=json.dumps(DEFINITION).encode())
    async with asyncio.timeout(60):
        while True:
            with suppress(ApiError):
                await client.raw("GET", OWNER.path("default"))
                return
            await asyncio.sleep(0.2)


@asynccontextmanager
async def _workload(stage: Stage, *, operated: bool) -> AsyncIterator[None]:
    """Create the workload with two pods in each zone; pods of a custom kind are the test's."""
    if stage.kind == "DaemonSet":
        for name in stage.zones:
            await _mark_node(stage, name, stage.namespace)
    # The lower half of a StatefulSet's ordinals is in three zones, so that it may stay alone.
    stateful = stage.kind.startswith("StatefulSet")
    count = FEWER if stateful else REPLICAS
    manifest = workload(stage.kind, stage.namespace, count)
    owner = await stage.create(manifest, RESOURCES[stage.kind])
    operator = asyncio.create_task(_operate(stage, owner)) if operated else None
    try:
        if stateful:
            await stage.until_ready(FEWER)
            await stage.change(size_of(stage.kind, REPLICAS))
        await stage.until_ready(REPLICAS, EVEN)
        yield
    finally:
        if operator is not None:
            operator.cancel()
            with suppress(asyncio.CancelledError):
                await operator


async def _one_zone_at_a_time(stage: Stage, cell: Cell) -> None:
    """Story 1: only pods of the open zone go; opening the others one by one ends the update."""
    await stage.limit(closed_but("a"), maxUnavailable=0)
    originals = _pods_to_replace(stage)
    opened = "a"

    def rule(ready: Counter[str]) -> str | None:
        lacking = [zone for zone in ZONES if ready[zone] < EVEN[zone] and zone != opened]
        return f"{lacking} lacked pods while {opened} was open" if lacking else None

    stage.rule = rule
    async with _disruption(stage, cell):
        for zone in ZONES:
            opened = zone
            if zone != "a":
                await stage.open(zone)
            await stage.until(partial(_is_replaced, stage, originals, zone), f"{zone} replaced")
            for pod in originals.values():
                if stage.zone(pod) > zone:
                    assert not await stage.evict(pod, dry_run=True), stage.kind
    await _assert_replaced(stage, originals, cell)
    assert "".join(stage.order) == ZONES


async def _one_pod_of_each_zone(stage: Stage, cell: Cell) -> None:
    """Story 2: at every moment each zone lacks at most one pod."""
    await stage.limit(EACH_ZONE, maxUnavailable=1)
    await _replace_all(
        stage,
        cell,
        lambda ready: next(
            (f"{zone} had {ready[zone]}" for zone in ZONES if ready[zone] < EVEN[zone] - 1), None
        ),
    )


async def _one_pod_of_all(stage: Stage, cell: Cell) -> None:
    """Story 3: at every moment at most one pod is missing, wherever it is."""
    await stage.limit([], maxUnavailable=1)
    await _replace_all(
        stage,
        cell,
        lambda ready: (
            f"{sum(ready.values())} were ready" if sum(ready.values()) < REPLICAS - 1 else None
        ),
    )


async def _scale_down(stage: Stage, cell: Cell) -> None:
    """Story 4: six pods become three, and each zone has one at every moment, although the workload
    would leave none in zone c.
    """
    recovering = await _prefer_zone_c(stage)
    await stage.limit(EACH_ZONE, minAvailable=1)
    if cell.limited:
        stage.rule = lambda ready: next(
            (f"{zone} had no pod" for zone in ZONES if not ready[zone]), None
        )
    if cell.deed == "shrink":
        staying = _nodes_that_stay(stage).values()
        for name in stage.zones:
            if name not in staying:
                await _mark_node(stage, name, None)
    else:
        await stage.change(size_of(stage.kind, FEWER))
    if recovering is not None:
        await stage.until(lambda: len(stage.pods()) == FEWER + 1, "waiting for zone c")
        await _mark_unready(stage, recovering, None)
    await stage.until_ready(FEWER, dict.fromkeys(ZONES, 1) if cell.limited else None)


async def _prefer_zone_c(stage: Stage) -> str | None:
    """Let a scale-down leave no Ready pod in zone c, if nothing keeps it from that, where the kind
    leaves a way: of ReplicaSets and ReplicationControllers the youngest pods go; of a StatefulSet
    the highest ordinals, of a DaemonSet those of some nodes, although the one that stays is not
    Ready. Returns the name of that one.
    """
    pods_of_c = sorted(
        (pod for pod in stage.pods() if stage.zone(pod) == "c"), key=lambda pod: pod.metadata.name
    )
    if stage.kind in ("Deployment", "ReplicationController"):
        for pod in pods_of_c:
            await stage.client.delete(Pod, pod.metadata.name, stage.namespace)
            await _until_left(stage, pod)
        await stage.until_ready(REPLICAS, EVEN)
    if stage.kind == "DaemonSet":
        node = _nodes_that_stay(stage)["c"]
        (name,) = (pod.metadata.name for pod in pods_of_c if pod.spec.node_name == node)
    elif stage.kind == "StatefulSet Parallel":
        name = pods_of_c[0].metadata.name
    else:
        return None
    await _mark_unready(stage, name, "true")
    await stage.until(lambda: sum(stage.ready().values()) == REPLICAS - 1, "not ready")
    return name


def _nodes_that_stay(stage: Stage) -> dict[str, str]:
    """The nodes on which a DaemonSet keeps its pods, by zone."""
    return {zone: name for name, zone in sorted(stage.zones.items())}


async def _mark_unready(stage: Stage, name: str, value: str | None) -> None:
    await stage.patch(Pod.resource, name, {"metadata": {"annotations": {UNREADY: value}}})


async def _roll_out(stage: Stage, cell: Cell) -> None:
    """A DomainRollout: zones in its order, one pod of one zone at a time, and it ends."""
    if stage.limiting:
        await stage.create(rollout(stage.kind, stage.namespace, ORDER), DomainRollout.resource)
        await stage.until_answered(lambda: _is_complete(stage), "complete before the update")
    originals = _pods_to_replace(stage)
    stage.rule = lambda ready: (
        f"ready were {dict(ready)}" if sum(ready.values()) < REPLICAS - 1 else None
    )
    async with _disruption(stage, cell):
        await stage.until(
            lambda: all(_is_replaced(stage, originals, zone) for zone in ZONES), "replaced"
        )
    await _assert_replaced(stage, originals, cell)
    await stage.until_answered(lambda: _is_complete(stage), "complete")
    assert stage.order == ORDER


_STORIES: dict[Story, Callable[[Stage, Cell], Any]] = {
    "1": _one_zone_at_a_time,
    "2": _one_pod_of_each_zone,
    "3": _one_pod_of_all,
    "4": _scale_down,
    "DomainRollout": _roll_out,
}


async def _replace_all(
    stage: Stage, cell: Cell, rule: Callable[[Counter[str]], str | None]
) -> None:
    originals = _pods_to_replace(stage)
    stage.rule = rule
    async with _disruption(stage, cell):
        await stage.until(
            lambda: all(_is_replaced(stage, originals, zone) for zone in ZONES), "replaced"
        )
    await _assert_replaced(stage, originals, cell)


def _pods_to_replace(stage: Stage) -> dict[str, Pod]:
    """All pods by uid; of a Job all of zone a and one of each other, because its controller waits
    10 s for each.
    """
    pods = sorted(stage.pods(), key=lambda pod: pod.metadata.name)
    if stage.kind == "Job":
        others = {stage.zone(pod): pod for pod in pods if stage.zone(pod) != "a"}
        pods = [pod for pod in pods if stage.zone(pod) == "a"] + list(others.values())
    return {pod.metadata.uid: pod for pod in pods}


@asynccontextmanager
async def _disruption(stage: Stage, cell: Cell) -> AsyncIterator[None]:
    """Change the template, or evict the pods for as long as the story lasts, or both."""
    containers = pod_template(2)["spec"]["containers"]
    if cell.deed == "update" or stage.kind == "ReplicationController":
        await stage.change({"template": {"spec": {"containers": containers}}})
    if cell.deed == "update":
        yield
        return
    evicting = asyncio.create_task(_evict(stage, list(_pods_to_replace(stage).values())))
    try:
        yield
        await evicting
    finally:
        evicting.cancel()
        with suppress(asyncio.CancelledError):
            await evicting


async def _evict(stage: Stage, pods: list[Pod]) -> None:
    """Evict pods as drains do: all at once, and again as long as some are refused."""
    while pods:
        answers = await asyncio.gather(*map(stage.evict, pods))
        pods = [pod for pod, granted in zip(pods, answers, strict=True) if not granted]
        await asyncio.sleep(1)


async def _operate(stage: Stage, owner: Obj) -> None:
    """What the controller of the custom kind does: as many pods as are requested; surplus ones are
    evicted, whichever may go.
    """
    meta = owner["metadata"]
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    number = 0
    while True:
        size = (await stage.client.raw("GET", OWNER.path(stage.namespace, NAME))).json()
        pods = stage.pods()
        for _ in range(size["spec"]["size"] - len(pods)):
            number += 1
            await _create_pod(stage, f"{NAME}-{number}", reference)
        # The budget decides which ones go: without it, both of zone c are the first.
        for pod in sorted(pods, key=stage.zone, reverse=True):
            if len(stage.pods()) > size["spec"]["size"] and await stage.evict(pod):
                await _until_left(stage, pod)
        await asyncio.sleep(0.5)


async def _create_pod(stage: Stage, name: str, owner: Obj) -> None:
    manifest = pod_template(2 if int(name.rpartition("-")[2]) > REPLICAS else 1)
    manifest["metadata"] |= {"name": name, "namespace": stage.namespace, "ownerReferences": [owner]}
    pod = await stage.create(manifest, Pod.resource)
    uid = pod["metadata"]["uid"]
    await stage.until(lambda: uid in {pod.metadata.uid for pod in stage.pods()}, "created")


async def _until_left(stage: Stage, pod: Pod) -> None:
    uid = pod.metadata.uid
    await stage.until(lambda: uid not in {pod.metadata.uid for pod in stage.pods()}, "gone")


def _is_replaced(stage: Stage, originals: dict[str, Pod], zone: str) -> bool:
    pods = [pod for pod in stage.pods() if stage.zone(pod) == zone]
    return (
        not any(pod.metadata.uid in originals for pod in pods)
        and sum(map(is_pod_ready, pods)) == len(pods) == EVEN[zone]
    )


async def _assert_replaced(stage: Stage, originals: dict[str, Pod], cell: Cell) -> None:
    await stage.until_ready(REPLICAS, EVEN)
    assert not originals.keys() & {pod.metadata.uid for pod in stage.pods()}
    version = 1 if stage.kind == "Job" else 2
    assert {image(pod) for pod in stage.pods()} == {image_of(version)}, stage.kind


async def _is_complete(stage: Stage) -> bool:
    item = await stage.client.get(DomainRollout, NAME, stage.namespace)
    return ("Complete", "True") in {(each.type, each.status) for each in item.status.conditions}


async def _mark_node(stage: Stage, name: str, value: str | None) -> None:
    await stage.patch(NODES, name, {"metadata": {"labels": {WANTED_LABEL: value}}})
