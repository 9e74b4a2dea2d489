"""Tells a cluster what there is, from plain objects."""

from __future__ import annotations

from collections.abc import Iterable

from tests.scheduling.situations import Obj

from zonewise.api import (
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    ReplicaSet,
    Service,
    StorageClass,
    convert,
)
from zonewise.scheduling import Cluster


def told(objects: Iterable[Obj], seed: int = 0) -> Cluster:
    """A cluster that was told these objects, in this order."""
    cluster = Cluster(seed=seed)
    for obj in objects:
        tell(cluster, obj)
    return cluster


def tell(cluster: Cluster, obj: Obj) -> None:
    """Tell an object."""
    match obj["kind"]:
        case "Node":
            cluster.set_node(convert(Node, obj))
        case "Pod":
            cluster.set_pod(convert(Pod, obj))
        case "Namespace":
            cluster.set_namespace(convert(Namespace, obj))
        case "PodDisruptionBudget":
            cluster.set_budget(convert(PodDisruptionBudget, obj))
        case "PersistentVolumeClaim":
            cluster.shelf.set_claim(convert(PersistentVolumeClaim, obj))
        case "PersistentVolume":
            cluster.shelf.set_volume(convert(PersistentVolume, obj))
        case "StorageClass":
            cluster.shelf.set_class(convert(StorageClass, obj))
        case "Service":
            service = convert(Service, obj)
            cluster.bonds.set_service(service.key, service.spec.selector)
        case "ReplicaSet":
            owner = convert(ReplicaSet, obj)
            cluster.bonds.set_owner("ReplicaSet", owner.key, owner.spec.selector)
