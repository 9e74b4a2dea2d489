"""Small clusters and one pod that needs a node: the input of a scheduler.

Everything is plain data, so that a real API server and our function get the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


@dataclass(frozen=True)
class Situation:
    """Existing objects, and the pod to schedule."""

    name: str
    nodes: Sequence[Obj]
    pod: Obj
    pods: Sequence[Obj] = ()
    others: Sequence[Obj] = ()


def node(
    name: str,
    *,
    cpu: str = "4",
    memory: str = "8Gi",
    pods: str = "110",
    zone: str = "",
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Obj] = (),
    unschedulable: bool = False,
    more: Mapping[str, str] | None = None,
) -> Obj:
    """A node."""
    spec: Obj = {"taints": list(taints)} if taints else {}
    if unschedulable:
        spec["unschedulable"] = True
    room = {"cpu": cpu, "memory": memory, "pods": pods, **(more or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {HOST: name, **({ZONE: zone} if zone else {}), **(labels or {})},
        },
        "spec": spec,
        "status": {"capacity": room, "allocatable": room},
    }


def pod(
    name: str,
    *,
    on: str = "",
    cpu: str = "",
    memory: str = "",
    labels: Mapping[str, str] | None = None,
    namespace: str = "default",
    more: Mapping[str, str] | None = None,
    ports: Sequence[Obj] = (),
    **spec: Any,
) -> Obj:
    """A pod of one container; ``on`` puts it on a node."""
    requests = {"cpu": cpu, "memory": memory, **(more or {})}
    requests = {key: value for key, value in requests.items() if value}
    resources: Obj = {"requests": requests} if requests else {}
    if more:
        resources["limits"] = dict(more)
    container = {"name": "c", "image": "i", "resources": resources, "ports": list(ports)}
    if on:
        spec["nodeName"] = on
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 30, **spec},
    }


def spread(key: str = ZONE, skew: int = 1, *, soft: bool = False, **more: Any) -> Obj:
    """A spread constraint over pods with the label app=a."""
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway" if soft else "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "a"}},
        **more,
    }


def near(key: str, app: str, **more: Any) -> Obj:
    """A term about pods with a label app."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


def affinity(kind: str, *terms: Obj) -> Obj:
    """A required affinity of a kind: podAffinity or podAntiAffinity."""
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}}


def preferred(kind: str, *terms: Obj, weight: int = 100) -> Obj:
    """A preferred affinity of a kind."""
    weighted = [{"weight": weight, "podAffinityTerm": term} for term in terms]
    return {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}}


def on_nodes(*terms: Obj, prefer: Sequence[tuple[int, Obj]] = ()) -> Obj:
    """A node affinity."""
    affinity: Obj = {}
    if terms:
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {
            "nodeSelectorTerms": list(terms)
        }
    if prefer:
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": weight, "preference": term} for weight, term in prefer
        ]
    return {"affinity": {"nodeAffinity": affinity}}


def has(key: str, *values: str, operator: str = "In") -> Obj:
    """A term about one label of a node."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def named(*names: str) -> Obj:
    """A term about a node's name."""
    return {
        "matchFields": [{"key": "metadata.name", "operator": "In", "values": [n]} for n in names]
    }


def priority_class(name: str, value: int, **more: Any) -> Obj:
    """A priority class."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        **more,
    }


LOW, HIGH = priority_class("low", 10), priority_class("high", 1000)
TAINT = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
THREE = [node("n1", zone="a"), node("n2", zone="b"), node("n3", zone="c")]
A = {"app": "a"}


def budget(name: str, app: str, allowed: int) -> Obj:
    """A budget whose status allows a number of disruptions."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": 1},
        "status": {
            "disruptionsAllowed": allowed,
            "currentHealthy": 1,
            "desiredHealthy": 1,
            "expectedPods": 1,
        },
    }


def storage_class(name: str, *, waits: bool = False, **more: Any) -> Obj:
    """A class of volumes."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "example.com/maker",
        "volumeBindingMode": "WaitForFirstConsumer" if waits else "Immediate",
        **more,
    }


def claim(name: str, storage: str, *, volume: str = "", mode: str = "ReadWriteOnce") -> Obj:
    """A claim, bound if it has a volume."""
    bound = {"pv.kubernetes.io/bind-completed": "yes"} if volume else {}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default", "annotations": bound},
        "spec": {
            "accessModes": [mode],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": storage,
            **({"volumeName": volume} if volume else {}),
        },
        "status": {"phase": "Bound" if volume else "Pending"},
    }


def volume(
    name: str, storage: str, *, host: str = "", zone: str = "", mode: str = "ReadWriteOnce"
) -> Obj:
    """A volume that can be used from one host, or has the label of a zone."""
    spec: Obj = {
        "capacity": {"storage": "1Gi"},
        "accessModes": [mode],
        "storageClassName": storage,
        "csi": {"driver": "example.com", "volumeHandle": name},
    }
    if host:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [has(HOST, host)]}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {ZONE: zone} if zone else {}},
        "spec": spec,
        "status": {"phase": "Available"},
    }


def driver(name: str) -> Obj:
    """A CSI driver that publishes its capacity."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": name},
        "spec": {"storageCapacity": True},
    }


def capacity(name: str, storage: str, zone: str, size: str, largest: str = "") -> Obj:
    """The capacity of a class in a zone."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": {"name": name, "namespace": "default"},
        "storageClassName": storage,
        "nodeTopology": {"matchLabels": {ZONE: zone}},
        "capacity": size,
        **({"maximumVolumeSize": largest} if largest else {}),
    }


def csi_node(name: str, driver: str, count: int) -> Obj:
    """A node that can attach a number of volumes of a driver."""
    csi_driver = {
        "name": driver,
        "nodeID": name,
        "topologyKeys": [],
        "allocatable": {"count": count},
    }
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {"name": name},
        "spec": {"drivers": [csi_driver]},
    }


def attachment(name: str, node: str, volume: str) -> Obj:
    """A volume that is attached to a node."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": name},
        "spec": {
            "attacher": "example.com",
            "nodeName": node,
            "source": {"persistentVolumeName": volume},
        },
    }


def uses(*names: str) -> Obj:
    """The volumes of a pod that uses claims."""
    return {
        "volumes": [
            {"name": f"v{number}", "persistentVolumeClaim": {"claimName": name}}
            for number, name in enumerate(names)
        ]
    }


SITUATIONS = [
    Situation("no-nodes", [], pod("p")),
    Situation("least-used", THREE, pod("p", cpu="1"), [pod("x", on="n1", cpu="2")]),
    Situation("too-big", THREE, pod("p", cpu="5", memory="9Gi")),
    Situation(
        "several-reasons",
        [
            node("n1", cpu="1"),
            node("n2", taints=[TAINT]),
            node("n3", unschedulable=True),
            node("n4", pods="1"),
            node("n5", memory="100Mi"),
        ],
        pod("p", cpu="2", memory="1Gi"),
        [pod("x", on="n4", cpu="3")],
    ),
    Situation(
        "tolerated",
        [node("n1", taints=[TAINT]), node("n2", cpu="1")],
        pod("p", cpu="2", tolerations=[{"key": "dedicated", "operator": "Exists"}]),
    ),
    Situation(
        "rather-not",
        [node("n1", taints=[{"key": "k", "effect": "PreferNoSchedule"}]), node("n2", cpu="3")],
        pod("p", cpu="1"),
    ),
    Situation("node-selector", THREE, pod("p", nodeSelector={"disk": "ssd"})),
    Situation("node-affinity", THREE, pod("p", **on_nodes(has(ZONE, "b")))),
    Situation(
        "node-preference",
        THREE,
        pod("p", cpu="1", **on_nodes(prefer=[(50, has(ZONE, "c")), (10, has(ZONE, "a"))])),
    ),
    Situation("by-name", THREE, pod("p", **on_nodes(named("n2")))),
    Situation("by-name-gone", THREE, pod("p", **on_nodes(named("n9")))),
    Situation("by-name-full", THREE, pod("p", cpu="9", **on_nodes(named("n2")))),
    Situation("by-name-conflict", THREE, pod("p", **on_nodes(named("n2", "n3")))),
    Situation(
        "ports",
        THREE[:2],
        pod("p", ports=[{"containerPort": 80, "hostPort": 8080}]),
        [
            pod("x", on="n1", ports=[{"containerPort": 80, "hostPort": 8080}]),
            pod("y", on="n2", ports=[{"containerPort": 80, "hostPort": 8080, "protocol": "UDP"}]),
        ],
    ),
    Situation(
        "ports-taken",
        THREE[:1],
        pod("p", ports=[{"containerPort": 80, "hostPort": 8080}]),
        [pod("x", on="n1", ports=[{"containerPort": 1, "hostPort": 8080, "hostIP": "10.0.0.1"}])],
    ),
    Situation(
        "extended",
        [node("n1", more={"example.com/gpu": "2"}), node("n2", more={"example.com/gpu": "1"})],
        pod("p", more={"example.com/gpu": "2"}),
        [pod("x", on="n1", more={"example.com/gpu": "1"})],
    ),
    Situation(
        "init-containers",
        [node("n1", cpu="2"), node("n2", cpu="4")],
        pod(
            "p",
            cpu="1",
            initContainers=[
                {
                    "name": "side",
                    "image": "i",
                    "restartPolicy": "Always",
                    "resources": {"requests": {"cpu": "1"}},
                },
                {"name": "first", "image": "i", "resources": {"requests": {"cpu": "1500m"}}},
            ],
        ),
    ),
    Situation(
        "spread",
        THREE,
        pod("p", labels=A, topologySpreadConstraints=[spread()]),
        [pod("x", on="n1", labels=A), pod("y", on="n2", labels=A)],
    ),
    Situation(
        "spread-blocked",
        [*THREE[:2], node("n3", zone="c", unschedulable=True), node("n4")],
        pod("p", labels=A, topologySpreadConstraints=[spread()]),
        [pod("x", on="n1", labels=A), pod("y", on="n2", labels=A)],
    ),
    Situation(
        "spread-taints-honored",
        [*THREE[:2], node("n3", zone="c", taints=[TAINT])],
        pod("p", labels=A, topologySpreadConstraints=[spread(nodeTaintsPolicy="Honor")]),
        [pod("x", on="n1", labels=A)],
    ),
    Situation(
        "spread-min-domains",
        THREE[:2],
        pod("p", labels=A, topologySpreadConstraints=[spread(minDomains=3)]),
        [pod("x", on="n1", labels=A), pod("y", on="n2", labels=A)],
    ),
    Situation(
        "spread-softly",
        [*THREE, node("n4", zone="a", cpu="32", memory="64Gi")],
        pod("p", cpu="1", labels=A, topologySpreadConstraints=[spread(soft=True)]),
        [pod("x", on="n1", labels=A), pod("y", on="n4", labels=A), pod("z", on="n2", labels=A)],
    ),
    Situation(
        "spread-by-revision",
        THREE[:2],
        pod(
            "p",
            labels={**A, "rev": "2"},
            topologySpreadConstraints=[spread(matchLabelKeys=["rev"])],
        ),
        [pod("x", on="n1", labels={**A, "rev": "1"}), pod("y", on="n2", labels={**A, "rev": "2"})],
    ),
    Situation(
        "spread-by-service",
        [*THREE, node("n4", zone="a", cpu="64", memory="128Gi")],
        pod("p", cpu="1", memory="1Gi", labels=A),
        [pod("x", on="n4", labels=A), pod("y", on="n2", labels=A), pod("z", on="n4", labels=A)],
        [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "s", "namespace": "default"},
                "spec": {"selector": A, "ports": [{"port": 80}]},
            }
        ],
    ),
    Situation(
        "near",
        THREE,
        pod("p", **affinity("podAffinity", near(ZONE, "a"))),
        [pod("x", on="n2", labels=A)],
    ),
    Situation("near-nobody", THREE, pod("p", **affinity("podAffinity", near(ZONE, "a")))),
    Situation(
        "near-itself",
        [*THREE[:1], node("n4")],
        pod("p", labels=A, **affinity("podAffinity", near(ZONE, "a"))),
    ),
    Situation(
        "away",
        THREE,
        pod("p", labels=A, **affinity("podAntiAffinity", near(HOST, "a"))),
        [pod("x", on="n1", labels=A), pod("y", on="n3", labels=A)],
    ),
    Situation(
        "away-everywhere",
        THREE,
        pod("p", **affinity("podAntiAffinity", near(ZONE, "a"))),
        [pod(f"x{n}", on=f"n{n}", labels=A) for n in (1, 2, 3)],
    ),
    Situation(
        "unwelcome",
        THREE[:2],
        pod("p", labels=A),
        [pod(f"x{n}", on=f"n{n}", **affinity("podAntiAffinity", near(ZONE, "a"))) for n in (1, 2)],
    ),
    Situation(
        "other-namespaces",
        THREE[:2],
        pod(
            "p",
            **affinity(
                "podAntiAffinity",
                near(HOST, "a", namespaceSelector={"matchLabels": {"team": "x"}}),
            ),
        ),
        [pod("x", on="n1", labels=A, namespace="team-x"), pod("y", on="n2", labels=A)],
        [
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": "team-x", "labels": {"team": "x"}},
            }
        ],
    ),
    Situation(
        "likes-company",
        [*THREE, node("n4", zone="a", cpu="16", memory="32Gi")],
        pod("p", cpu="1", **preferred("podAffinity", near(ZONE, "a"))),
        [pod("x", on="n2", labels=A, cpu="1")],
    ),
    Situation(
        "is-liked",
        THREE,
        pod("p", cpu="1", labels=A),
        [pod("x", on="n2", cpu="1", **preferred("podAffinity", near(ZONE, "a")))],
    ),
    Situation(
        "likes-to-be-alone",
        THREE[:2],
        pod("p", cpu="100m", labels=A, **preferred("podAntiAffinity", near(HOST, "a"))),
        [pod("x", on="n1", labels=A), pod("y", on="n2", cpu="2")],
    ),
    Situation(
        "preempts",
        THREE[:2],
        pod("p", cpu="3", priorityClassName="high"),
        [
            pod("x", on="n1", cpu="3", priorityClassName="low"),
            pod("y", on="n2", cpu="2", priorityClassName="low"),
            pod("z", on="n2", cpu="2"),
        ],
        [LOW, HIGH],
    ),
    Situation(
        "preempts-without-breaking-budgets",
        THREE[:2],
        pod("p", cpu="3", priorityClassName="high"),
        [
            pod("x", on="n1", cpu="3", labels={"app": "kept"}),
            pod("y", on="n2", cpu="3", priorityClassName="low"),
        ],
        [LOW, HIGH, budget("b", "kept", 0)],
    ),
    Situation(
        "preempts-nobody",
        [*THREE[:2], node("n3", taints=[TAINT])],
        pod("p", cpu="3", priorityClassName="low"),
        [
            pod("x", on="n1", cpu="3", priorityClassName="high"),
            pod("y", on="n2", cpu="2", priorityClassName="high"),
            pod("z", on="n2", cpu="1"),
        ],
        [LOW, HIGH],
    ),
    Situation(
        "preempts-never",
        THREE[:1],
        pod("p", cpu="3", priorityClassName="polite"),
        [pod("x", on="n1", cpu="3")],
        [priority_class("polite", 500, preemptionPolicy="Never")],
    ),
    Situation("claim-missing", THREE, pod("p", **uses("c"))),
    Situation(
        "claim-unbound",
        THREE,
        pod("p", **uses("c")),
        others=[storage_class("now"), claim("c", "now")],
    ),
    Situation(
        "volume-lost",
        THREE,
        pod("p", **uses("c")),
        others=[storage_class("now"), claim("c", "now", volume="v")],
    ),
    Situation(
        "volume-reach",
        [*THREE[:2], node("n3", taints=[TAINT])],
        pod("p", **uses("c")),
        others=[storage_class("now"), volume("v", "now", host="n2"), claim("c", "now", volume="v")],
    ),
    Situation(
        "volume-elsewhere",
        [*THREE[:2], node("n3", taints=[TAINT])],
        pod("p", **uses("c")),
        others=[storage_class("now"), volume("v", "now", host="n3"), claim("c", "now", volume="v")],
    ),
    Situation(
        "volume-zone",
        [node("n1", zone="a", unschedulable=True), *THREE[1:]],
        pod("p", **uses("c")),
        others=[storage_class("now"), volume("v", "now", zone="a"), claim("c", "now", volume="v")],
    ),
    Situation(
        "class-elsewhere",
        [node("n1", zone="a", unschedulable=True), *THREE[1:]],
        pod("p", **uses("c")),
        others=[
            storage_class(
                "later",
                waits=True,
                allowedTopologies=[{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}],
            ),
            claim("c", "later"),
        ],
    ),
    Situation(
        "no-volume-there",
        THREE[:2],
        pod("p", **uses("c", "d", "e"), nodeSelector={ZONE: "a"}),
        others=[
            storage_class("local", waits=True, provisioner="kubernetes.io/no-provisioner"),
            volume("v", "local", host="n1"),
            volume("w", "local", host="n3"),
            volume("x", "local", host="n2"),
            claim("c", "local"),
            claim("d", "local"),
            claim("e", "local", volume="x"),
        ],
    ),
    Situation(
        "claim-of-one-pod",
        THREE[:2],
        pod("p", **uses("c")),
        [pod("x", on="n1", **uses("c"))],
        [
            storage_class("now"),
            volume("v", "now", mode="ReadWriteOncePod"),
            claim("c", "now", volume="v", mode="ReadWriteOncePod"),
        ],
    ),
    Situation(
        "enough-storage-in-one-zone",
        [THREE[0], node("n2", zone="b", unschedulable=True), THREE[2]],
        pod("p", **uses("c")),
        others=[
            driver("example.com"),
            storage_class("csi", waits=True, provisioner="example.com"),
            claim("c", "csi"),
            capacity("ca", "csi", "a", "512Mi"),
            capacity("cb", "csi", "b", "2Gi"),
            capacity("cc", "csi", "c", "4Gi", "1023Mi"),
        ],
    ),
    Situation(
        "not-enough-storage",
        [*THREE, node("n4", zone="d")],
        pod("p", **uses("c")),
        others=[
            driver("example.com"),
            storage_class("csi", waits=True, provisioner="example.com"),
            claim("c", "csi"),
            capacity("ca", "csi", "a", "512Mi"),
            capacity("cb", "other", "b", "2Gi"),
            capacity("cc", "csi", "c", "4Gi", "1023Mi"),
        ],
    ),
    Situation(
        "storage-too-small-and-volume-elsewhere",
        THREE[:2],
        pod("p", **uses("c", "d")),
        others=[
            driver("example.com"),
            storage_class("csi", waits=True, provisioner="example.com"),
            claim("c", "csi"),
            storage_class("now"),
            volume("v", "now", host="n2"),
            claim("d", "now", volume="v"),
            capacity("ca", "csi", "a", "512Mi"),
        ],
    ),
    Situation(
        "too-many-volumes",
        THREE[:2],
        pod("p", **uses("d", "e")),
        [pod("x", on="n1", **uses("c")), pod("y", on="n2", **uses("d"))],
        [
            storage_class("now"),
            *(csi_node(name, "example.com", 2) for name in ("n1", "n2")),
            *(volume(name, "now") for name in "vwxz"),
            claim("c", "now", volume="v"),
            claim("d", "now", volume="w"),
            claim("e", "now", volume="x"),
            attachment("a", "n2", "z"),
            attachment("b", "n2", "w"),
        ],
    ),
    Situation(
        "volumes-there-already",
        THREE[:2],
        pod("p", **uses("c", "d")),
        [pod("x", on="n1", **uses("c"))],
        [
            storage_class("now"),
            csi_node("n1", "example.com", 2),
            csi_node("n2", "example.com", 1),
            volume("v", "now"),
            volume("w", "now"),
            claim("c", "now", volume="v"),
            claim("d", "now", volume="w"),
        ],
    ),
]
