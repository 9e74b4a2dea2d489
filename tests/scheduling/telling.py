"""Feeds a scheduler's cluster from plain objects."""

from __future__ import annotations

from collections.abc import Iterable

from tests.scheduling.situations import Obj

from zonewise.api import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    ReplicaSet,
    Service,
    StorageClass,
    VolumeAttachment,
    convert,
)
from zonewise.scheduling.cluster import SchedulerCluster


def cluster_of(objects: Iterable[Obj], seed: int = 0) -> SchedulerCluster:
    """A cluster with these objects, added in this order."""
    cluster = SchedulerCluster(seed=seed)
    for obj in objects:
        tell(cluster, obj)
    return cluster


def tell(cluster: SchedulerCluster, obj: Obj) -> None:
    """Add an object."""
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
            cluster.volume_cache.set_claim(convert(PersistentVolumeClaim, obj))
        case "PersistentVolume":
            cluster.volume_cache.set_volume(convert(PersistentVolume, obj))
        case "StorageClass":
            cluster.volume_cache.set_class(convert(StorageClass, obj))
        case "CSIDriver":
            cluster.volume_cache.set_driver(convert(CSIDriver, obj))
        case "CSIStorageCapacity":
            cluster.volume_cache.set_capacity(convert(CSIStorageCapacity, obj))
        case "CSINode":
            cluster.set_csi_node(convert(CSINode, obj))
        case "VolumeAttachment":
            cluster.set_attachment(convert(VolumeAttachment, obj))
        case "Service":
            service = convert(Service, obj)
            cluster.default_spread.set_service(service.key, service.spec.selector)
        case "ReplicaSet":
            owner = convert(ReplicaSet, obj)
            cluster.default_spread.set_owner("ReplicaSet", owner.key, owner.spec.selector)
