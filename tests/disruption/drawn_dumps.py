"""Random dumps: nodes in zones and racks, workloads of all kinds, several budgets."""

from __future__ import annotations

import random
from typing import Any

Item = dict[str, Any]

ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
RACK, DISK = "example.com/rack", "example.com/disk"
LIMITS = (0, 1, 2, 3, "0%", "1%", "25%", "34%", "50%", "100%")
MOMENTS = {
    "2026-03-01T10:00:00Z": 600.0,
    "2026-03-01T09:58:30Z": 510.0,
    "2026-03-01T09:50:00Z": 0.0,
}
"""Times of grants, in seconds; the first is the latest time in every dump that has grants."""


def dump(seed: int) -> list[Item]:
    """The objects of one cluster, in any order."""
    rng = random.Random(f"dump {seed}")
    nodes = _nodes(rng)
    workloads, pods = _workloads(rng, nodes)
    objects = [*nodes, *workloads, *pods, *_budgets(rng), *_ledger(rng, pods)]
    missing = [node for node in nodes if rng.random() < 0.05]
    objects = [item for item in objects if item not in missing]
    rng.shuffle(objects)
    return objects


def _nodes(rng: random.Random) -> list[Item]:
    old = rng.random() < 0.3
    created = []
    for number in range(rng.randint(2, 8)):
        labels = {DISK: rng.choice(("ssd", "hdd"))} if rng.random() < 0.8 else {}
        if rng.random() < 0.9:
            labels[OLD_ZONE if old else ZONE] = rng.choice("abc")
        if rng.random() < 0.8:
            labels[RACK] = rng.choice(("r1", "r2"))
        spec: Item = {}
        if rng.random() < 0.1:
            spec = {"taints": [{"key": "dedicated", "value": "x", "effect": "NoSchedule"}]}
        created.append(_item("v1", "Node", f"n{number}", labels=labels, spec=spec, namespace=""))
    return created


def _item(
    version: str,
    kind: str,
    name: str,
    *,
    namespace: str = "shop",
    labels: Item | None = None,
    annotations: Item | None = None,
    owner: Item | None = None,
    **fields: Any,
) -> Item:
    meta: Item = {"name": name, "uid": f"{kind}-{name}"}
    for key, value in (("namespace", namespace), ("labels", labels), ("annotations", annotations)):
        if value:
            meta[key] = value
    if owner is not None:
        meta["ownerReferences"] = [
            {
                "apiVersion": owner["apiVersion"],
                "kind": owner["kind"],
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": True,
            }
        ]
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}


def _workloads(rng: random.Random, nodes: list[Item]) -> tuple[list[Item], list[Item]]:
    """One or two workloads under the same label, with their pods."""
    objects: list[Item] = []
    pods: list[Item] = []
    for number in range(1 if rng.random() < 0.7 else 2):
        sort = rng.choice(
            ("Deployment", "Deployment", "StatefulSet", "DaemonSet", "Rollout", "Cache", "Job", "")
        )
        name = f"w{number}"
        replicas = rng.randint(0, 9)
        spec: Item = {}
        if rng.random() < 0.2:
            spec["nodeSelector"] = {DISK: "ssd"}
        if rng.random() < 0.1:
            spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        controllers, owners = _owners(sort, name, replicas, spec)
        if rng.random() < 0.07 and controllers:
            controllers.remove(rng.choice(controllers))
        objects += controllers
        count = max(1, replicas + rng.choice((0, 0, 0, -1, -2, 1, 3)))
        for index in range(count):
            old = rng.random() < 0.4
            pods.append(_pod(rng, f"{name}-{index}", nodes, owners[0 if old else -1], spec, old))
    return objects, pods


def _owners(
    sort: str, name: str, replicas: int, spec: Item
) -> tuple[list[Item], list[Item | None]]:
    """A workload's objects, and the controllers of its old and of its new pods."""
    if sort == "":
        return [], [None]
    if sort == "StatefulSet":
        set_ = _item(
            "apps/v1", sort, name, spec={"replicas": replicas}, status={"updateRevision": "new"}
        )
        return [set_], [set_]
    if sort == "DaemonSet":
        marks = {"deprecated.daemonset.template.generation": "2"}
        template = {"template": {"metadata": {}, "spec": spec}}
        daemon = _item("apps/v1", sort, name, annotations=marks, spec=template)
        return [daemon], [daemon]
    if sort in ("Cache", "Job"):
        number = {"replicas": replicas} if sort == "Cache" else {}
        custom = _item("batch/v1" if sort == "Job" else "db.io/v1", sort, name, spec=number)
        return [custom], [custom]
    group = "argoproj.io/v1alpha1" if sort == "Rollout" else "apps/v1"
    key = "rollout.argoproj.io" if sort == "Rollout" else "deployment.kubernetes.io"
    above = _item(group, sort, name, spec={"replicas": replicas})
    sets: list[Item | None] = [
        _item(
            "apps/v1",
            "ReplicaSet",
            f"{name}-{number}",
            annotations={f"{key}/revision": str(number)},
            owner=above,
            spec={"replicas": number},
        )
        for number in (9, 10)
    ]
    return [above, *(replica_set for replica_set in sets if replica_set is not None)], sets


def _pod(
    rng: random.Random,
    name: str,
    nodes: list[Item],
    owner: Item | None,
    spec: Item,
    old: bool,
) -> Item:
    labels = {"app": "web"}
    labels["controller-revision-hash"] = "old" if old else "new"
    labels["pod-template-generation"] = "1" if old else "2"
    if rng.random() < 0.5:
        labels["tier"] = "front"
    placed = dict(spec)
    phase = "Running"
    if rng.random() < 0.92:
        node = rng.choice(nodes)
        placed["nodeName"] = node["metadata"]["name"]
        # As admission does it, so that the zone is known when the node is gone.
        if rng.random() < 0.5 and ZONE in node["metadata"].get("labels", {}):
            labels[ZONE] = node["metadata"]["labels"][ZONE]
        phase = rng.choice(("Running",) * 12 + ("Pending", "Succeeded", "Failed"))
    else:
        phase = "Pending"
    ready = phase == "Running" and rng.random() < 0.8
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}]}
    created = _item("v1", "Pod", name, labels=labels, owner=owner, spec=placed, status=status)
    if rng.random() < 0.06:
        created["metadata"]["deletionTimestamp"] = "2026-03-01T09:59:00Z"
    return created


def _budgets(rng: random.Random) -> list[Item]:
    budgets = []
    for number in range(rng.choice((1, 1, 2, 3))):
        kind = rng.choice(("TopologyDisruptionBudget",) * 3 + ("PodDisruptionBudget",) * 2)
        selector: Item = {"matchLabels": {"app": "web"}}
        if rng.random() < 0.2:
            selector["matchLabels"]["tier"] = "front"
        if rng.random() < 0.1:
            selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}
        spec: Item = {"selector": selector}
        spec[rng.choice(("maxUnavailable", "maxUnavailable", "minAvailable"))] = rng.choice(LIMITS)
        if rng.random() < 0.2:
            spec["unhealthyPodEvictionPolicy"] = rng.choice(("AlwaysAllow", "IfHealthyBudget"))
        name = f"b{number}"
        if kind == "PodDisruptionBudget" and rng.random() < 0.6:
            budgets.append(_plain(rng, name, spec))
            continue
        _group(rng, spec, kind)
        version = "zonewise.io/v1alpha1"
        if kind == "PodDisruptionBudget":
            version = rng.choice(("policy/v1", "policy/v1beta1"))
        status: Item = {}
        if rng.random() < 0.6:
            status = {"domains": _remembered(rng, spec)}
        budgets.append(_item(version, kind, name, spec=spec, status=status))
    return budgets


def _plain(rng: random.Random, name: str, spec: Item) -> Item:
    desired, current = rng.randint(1, 4), rng.randint(0, 6)
    status = {
        "expectedPods": rng.randint(1, 8),
        "desiredHealthy": desired,
        "currentHealthy": current,
        "disruptionsAllowed": max(0, current - desired),
    }
    return _item("policy/v1", "PodDisruptionBudget", name, spec=spec, status=status)


def _group(rng: random.Random, spec: Item, kind: str) -> None:
    """A term of some kind: by zone, by rack and zone, of some nodes, of all, of none."""
    zone = rng.choice((ZONE, ZONE, OLD_ZONE))
    exists = {"key": zone, "operator": "Exists"}
    rack = {"key": RACK, "operator": "Exists"}
    ssd = {"key": DISK, "operator": rng.choice(("In", "NotIn")), "values": ["ssd"]}
    some = {"key": zone, "operator": rng.choice(("In", "NotIn")), "values": ["a"]}
    sorts: list[list[Item]] = [
        [exists],
        [exists],
        [some, exists],
        [rack, exists],
        [exists, rack],
        [exists, ssd],
        [ssd],
        [],
    ]
    chosen = rng.choice(sorts)
    spec["nodeSelectorTerm"] = {"matchExpressions": chosen}
    if kind == "PodDisruptionBudget":
        return
    if rng.random() < 0.15:
        del spec["nodeSelectorTerm"]
    if rng.random() < 0.15:
        spec["topologyKeys"] = rng.choice(([zone], [RACK], [RACK, zone]))
    if rng.random() < 0.15:
        spec["crossDomain"] = rng.choice(("Independent", "Exclusive"))
    if rng.random() < 0.1:
        spec["expectedPods"] = "ReplicasPerDomain"
    if rng.random() < 0.15:
        spec["mode"] = rng.choice(("Observe", "Enforce"))


def _remembered(rng: random.Random, spec: Item) -> list[Item]:
    """A baseline of the domains that a budget might have had."""
    expressions = spec.get("nodeSelectorTerm", {}).get("matchExpressions", [])
    keys = spec.get("topologyKeys") or [
        expression["key"] for expression in expressions if expression["operator"] == "Exists"
    ]
    names = [""]
    for key in keys:
        values = ("r1", "r2") if key == RACK else ("a", "b", "c", "z")
        names = [f"{name}/{value}" if name else value for name in names for value in values]
    chosen = [name or "*" for name in names if rng.random() < 0.7] or [names[0] or "*"]
    return [{"domain": name, "expectedPods": rng.randint(0, 3)} for name in chosen]


def _ledger(rng: random.Random, pods: list[Item]) -> list[Item]:
    if rng.random() < 0.5:
        return []
    first, *others = MOMENTS
    grants = [{"uid": "of-a-pod-that-is-gone", "pod": "gone", "time": first}]
    for pod in pods:
        if rng.random() < 0.15:
            time = rng.choice((first, *others))
            meta = pod["metadata"]
            grants.append({"uid": meta["uid"], "pod": meta["name"], "time": time})
    rng.shuffle(grants)
    return [_item("zonewise.io/v1alpha1", "DisruptionLedger", "zonewise", spec={"grants": grants})]
