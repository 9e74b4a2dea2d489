"""A dump as ``kubectl get … -o yaml`` prints it on an EKS cluster: 40 nodes in three zones.

It has what such clusters have and a simple manifest has not: EBS volumes tied to zones by two
labels, a default class of the provider, StatefulSets whose pods run beside their data, DaemonSets
of the provider, and everything that the server and controllers there wrote.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

Obj = dict[str, Any]

ZONES = ("eu-west-1a", "eu-west-1b", "eu-west-1c")
NODES = 40
STATEFUL = {"kafka": (6, "gp3"), "postgres": (9, "gp2"), "search": (5, "gp3")}
STATELESS = {"web": 30, "cart": 12, "checkout": 9}
DRIVER = "ebs.csi.aws.com"
ZONE = "topology.kubernetes.io/zone"
EBS_ZONE = "topology.ebs.csi.aws.com/zone"
NAMESPACE = "shop"


def eks_dump() -> list[Obj]:
    """All objects, as plain values."""
    nodes = [_node(number) for number in range(NODES)]
    objects: list[Obj] = [_object("Namespace", NAMESPACE, ""), *nodes]
    objects += [
        _class("gp2", default=True, expand=False),
        _class("gp3", default=False, expand=True),
    ]
    for name, (replicas, cls) in STATEFUL.items():
        objects += _stateful(name, replicas, cls, nodes)
    for name, replicas in STATELESS.items():
        objects += _stateless(name, replicas, nodes)
    objects += _per_node("aws-node", nodes)
    return objects


def zone_of(node: Obj) -> str:
    """The zone of a node."""
    return str(node["metadata"]["labels"][ZONE])


def _node(number: int) -> Obj:
    zone = ZONES[number % len(ZONES)]
    name = f"ip-10-0-{number // 250}-{number + 10}.eu-west-1.compute.internal"
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "m5.2xlarge",
        "eks.amazonaws.com/nodegroup": f"workers-{zone[-1]}",
        ZONE: zone,
        "topology.kubernetes.io/region": "eu-west-1",
        EBS_ZONE: zone,
    }
    size = {"cpu": "8", "memory": "32Gi", "pods": "58", "attachable-volumes-aws-ebs": "25"}
    return _object(
        "Node",
        name,
        "",
        labels=labels,
        spec={"providerID": f"aws:///{zone}/i-{number:017x}"},
        status={
            "capacity": size,
            "allocatable": {**size, "cpu": "7910m"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    )


def _class(name: str, *, default: bool, expand: bool) -> Obj:
    marks = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return _object(
        "StorageClass",
        name,
        "",
        version="storage.k8s.io/v1",
        annotations=marks,
        provisioner=DRIVER if expand else "kubernetes.io/aws-ebs",
        parameters={"type": name, "encrypted": "true"},
        reclaimPolicy="Delete",
        volumeBindingMode="WaitForFirstConsumer",
        allowVolumeExpansion=expand,
    )


def _stateful(name: str, replicas: int, cls: str, nodes: list[Obj]) -> list[Obj]:
    template = _template(name)
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    draft = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "20Gi"}},
            "storageClassName": cls,
        },
    }
    workload = _object(
        "StatefulSet",
        name,
        version="apps/v1",
        spec={
            "serviceName": name,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": template,
            "volumeClaimTemplates": [draft],
        },
        status={"replicas": replicas, "readyReplicas": replicas},
    )
    service = _object(
        "Service",
        name,
        spec={"clusterIP": "None", "selector": {"app": name}, "ports": [{"port": 9000}]},
    )
    objects = [workload, service]
    homes = [nodes[(len(name) + index * 7) % NODES] for index in range(replicas)]
    for index, node in enumerate(homes):
        pod, claim = f"{name}-{index}", f"data-{name}-{index}"
        volume = f"pvc-{name}-{index}"
        labels = {
            "app": name,
            "apps.kubernetes.io/pod-index": str(index),
            "controller-revision-hash": f"{name}-5d8f7c9b6",
            "statefulset.kubernetes.io/pod-name": pod,
        }
        spec = {
            **template["spec"],
            "hostname": pod,
            "subdomain": name,
            "nodeName": node["metadata"]["name"],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        }
        objects += [
            _object(
                "Pod", pod, labels=labels, owner=("StatefulSet", name), spec=spec, status=_RUNS
            ),
            _claim(claim, name, cls, volume),
            _volume(volume, claim, cls, zone_of(node), index),
        ]
    return objects


def _claim(name: str, app: str, cls: str, volume: str) -> Obj:
    return _object(
        "PersistentVolumeClaim",
        name,
        labels={"app": app},
        annotations={
            "pv.kubernetes.io/bind-completed": "yes",
            "pv.kubernetes.io/bound-by-controller": "yes",
            "volume.kubernetes.io/storage-provisioner": DRIVER,
            "volume.kubernetes.io/selected-node": "ip-10-0-9-9.eu-west-1.compute.internal",
        },
        spec={
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "20Gi"}},
            "storageClassName": cls,
            "volumeMode": "Filesystem",
            "volumeName": volume,
        },
        status={"phase": "Bound", "capacity": {"storage": "20Gi"}},
    )


def _volume(name: str, claim: str, cls: str, zone: str, index: int) -> Obj:
    keys = (EBS_ZONE, ZONE) if index % 2 else (EBS_ZONE,)
    needs = [{"key": key, "operator": "In", "values": [zone]} for key in keys]
    return _object(
        "PersistentVolume",
        name,
        "",
        annotations={"pv.kubernetes.io/provisioned-by": DRIVER},
        spec={
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "20Gi"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": NAMESPACE,
                "name": claim,
                "uid": "9f0c",
                "resourceVersion": "77",
            },
            "csi": {
                "driver": DRIVER,
                "fsType": "ext4",
                "volumeHandle": f"vol-{index:017x}",
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": "1-ebs"},
            },
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": needs}]}},
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": cls,
            "volumeMode": "Filesystem",
        },
        status={"phase": "Bound"},
    )


def _stateless(name: str, replicas: int, nodes: list[Obj]) -> list[Obj]:
    template, revision = _template(name), "7c5ddbdf54"
    labels = {"app": name, "pod-template-hash": revision}
    selected = {"matchLabels": {"app": name}}
    deployment = _object(
        "Deployment",
        name,
        version="apps/v1",
        annotations={"deployment.kubernetes.io/revision": "3"},
        spec={"replicas": replicas, "selector": selected, "template": template},
        status={"replicas": replicas, "readyReplicas": replicas},
    )
    replica_set = _object(
        "ReplicaSet",
        f"{name}-{revision}",
        version="apps/v1",
        labels=labels,
        annotations={"deployment.kubernetes.io/revision": "3"},
        owner=("Deployment", name),
        spec={
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {**template, "metadata": {"labels": labels}},
        },
    )
    service = _object("Service", name, spec={"selector": {"app": name}, "ports": [{"port": 80}]})
    budget = _object(
        "PodDisruptionBudget",
        name,
        version="policy/v1",
        spec={"maxUnavailable": 1, "selector": selected},
    )
    pods = [
        _object(
            "Pod",
            f"{name}-{revision}-{index:05x}",
            labels=labels,
            owner=("ReplicaSet", f"{name}-{revision}"),
            spec={**template["spec"], "nodeName": node["metadata"]["name"]},
            status=_RUNS,
        )
        for index, node in enumerate(islice(cycle(nodes), replicas))
    ]
    return [deployment, replica_set, service, budget, *pods]


def _per_node(name: str, nodes: list[Obj]) -> list[Obj]:
    template = _template(name)
    selected = {"matchLabels": {"app": name}}
    daemons = _object(
        "DaemonSet",
        name,
        "kube-system",
        version="apps/v1",
        spec={"selector": selected, "template": template},
    )
    pods = [
        _object(
            "Pod",
            f"{name}-{index:05x}",
            "kube-system",
            labels={
                "app": name,
                "controller-revision-hash": "6f9c",
                "pod-template-generation": "1",
            },
            owner=("DaemonSet", name),
            spec={**template["spec"], "nodeName": node["metadata"]["name"]},
            status=_RUNS,
        )
        for index, node in enumerate(nodes)
    ]
    return [daemons, *pods]


_RUNS = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def _template(name: str) -> Obj:
    container = {
        "name": name,
        "image": f"registry.example/{name}:1",
        "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}},
    }
    return {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}


def _object(
    kind: str,
    name: str,
    namespace: str = NAMESPACE,
    *,
    version: str = "v1",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    owner: tuple[str, str] | None = None,
    **fields: Any,
) -> Obj:
    """An object with fields that the server there wrote."""
    meta: Obj = {
        "name": name,
        "uid": f"{kind.lower()}-{name}",
        "resourceVersion": "1234567",
        "creationTimestamp": "2026-03-01T08:00:00Z",
        "labels": labels or {},
        "annotations": annotations or {},
    }
    if namespace:
        meta["namespace"] = namespace
    if owner is not None:
        kind_of, called = owner
        meta["ownerReferences"] = [
            {
                "apiVersion": "apps/v1",
                "kind": kind_of,
                "name": called,
                "uid": f"{kind_of.lower()}-{called}",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}
