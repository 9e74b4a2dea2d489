"""Processor time of one decision over 1,000 nodes, pods of many Deployments taking turns.

Turns are the worst case: between two pods of a Deployment every other one has changed nodes. The
peer is the same function on a new cluster for each pod, which remembers nothing: a scan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.table import Row, Table
from zonewise.api import LabelSelector, Node, Pod, convert
from zonewise.scheduling.cluster import SchedulerCluster

NODES, PODS, SCANS = 1_000, 20_000, 3
ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"


def node(number: int) -> Node:
    """A node of one of three zones and sizes."""
    name = f"node-{number:04}"
    size = {"cpu": str((8, 16, 32)[number // 3 % 3]), "memory": "64Gi", "pods": "110"}
    labels = {HOST: name, ZONE: "abc"[number % 3]}
    manifest = {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": size}}
    return convert(Node, manifest)


def pod(number: int, apps: int, sort: str) -> Pod:
    """A pod of a Deployment, with what this sort of pods asks for."""
    app = {"app": f"app-{number % apps}"}
    requests = {"cpu": "100m", "memory": "128Mi"}
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
    term = {"labelSelector": {"matchLabels": app}}
    if sort == "zone spread":
        hard = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", **term}
        spec["topologySpreadConstraints"] = [hard]
    elif sort == "preferably apart":
        apart = [{"weight": 100, "podAffinityTerm": {**term, "topologyKey": HOST}}]
        key = "preferredDuringSchedulingIgnoredDuringExecution"
        spec["affinity"] = {"podAntiAffinity": {key: apart}}
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": app["app"],
        "uid": app["app"],
        "controller": True,
    }
    meta: dict[str, Any] = {"name": f"pod-{number}", "namespace": "default", "labels": app}
    if sort != "plain":
        meta["ownerReferences"] = [owner]
    return convert(Pod, {"metadata": meta, "spec": spec})


def cluster_of(apps: int) -> SchedulerCluster:
    """Nodes, and the workloads that hold pods together."""
    cluster = SchedulerCluster(seed=1)
    for number in range(NODES):
        cluster.set_node(node(number))
    for number in range(apps):
        name = f"app-{number}"
        selects = LabelSelector(match_labels={"app": name})
        cluster.default_spread.set_owner("ReplicaSet", ("default", name), selects)
    return cluster


def measure_decisions(apps: int, sort: str) -> float:
    """Microseconds of a decision, pod after pod."""
    cluster = cluster_of(apps)
    pods = [pod(number, apps, sort) for number in range(PODS)]
    begin = time.process_time()
    for pending in pods:
        decision = cluster.decide(pending)
        assert decision.node, decision.message
        cluster.assume(pending, decision.node)
    return (time.process_time() - begin) / PODS * 1e6


def scanned(apps: int, sort: str) -> float:
    """Microseconds of a decision by a function that remembers nothing, nodes only."""
    spent = 0.0
    for number in range(SCANS):
        cluster = cluster_of(apps)
        pending = pod(number, apps, sort)
        begin = time.process_time()
        cluster.decide(pending)
        spent += time.process_time() - begin
    return spent / SCANS * 1e6


def decisions() -> Iterator[Table]:
    """Every sort of pods, with few and with many Deployments."""
    for sort in ("plain", "spread by default", "zone spread", "preferably apart"):
        for apps in (10, 100):
            yield Table(
                title=f"{sort}: {PODS:,} pods of {apps} Deployments over {NODES:,} nodes",
                unit="µs/pod",
                higher_is_better=False,
                rows=(
                    Row(name="piece by piece", value=measure_decisions(apps, sort), ours=True),
                    Row(name="from scratch", value=scanned(apps, sort)),
                ),
            )
