"""What the PodLocator of a pod should say, and what differs. Pure.

A locator has the addresses of its pod while the pod runs, the name of its node, and the labels of
that node: all of them, or those that were chosen, with the list of these, because readers ask other
sources for what is not known. A pod that has finished keeps its node but no
address, which another pod may already have. A pod on a node that does not exist counts as on none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import msgspec

from zonewise.api.meta import ObjectMeta, OwnerReference
from zonewise.api.objects.core import Node
from zonewise.api.objects.locator import PodLocator
from zonewise.api.objects.pod import Pod, PodIP
from zonewise.api.objects.pod_state import is_pod_finished
from zonewise.topology.locator_index import LabelInterner, Labels

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PodLocation:
    """Where a pod is; ``uid`` is the pod's, ``keys`` are the chosen labels, None for all."""

    uid: str
    ips: tuple[str, ...] = ()
    node: str = ""
    labels: Labels = field(default_factory=dict, hash=False)
    keys: tuple[str, ...] | None = None


def location_of(pod: Pod, node: Node | None, keys: Collection[str] | None) -> PodLocation:
    """Where a pod is, given the node it names, if that exists; no ``keys`` means all labels."""
    ips = () if is_pod_finished(pod) else tuple(pod_ip.ip for pod_ip in pod.status.pod_ips)
    chosen = None if keys is None else tuple(sorted(keys))
    if node is None or node.metadata.name != pod.spec.node_name:
        return PodLocation(pod.metadata.uid, ips, keys=chosen)
    labels = select_labels(node, keys)
    return PodLocation(pod.metadata.uid, ips, pod.spec.node_name, labels, chosen)


def select_labels(node: Node, keys: Collection[str] | None) -> Labels:
    """The labels of a node that locators have."""
    labels = node.metadata.labels
    return labels if keys is None else {key: labels[key] for key in keys if key in labels}


def location_in(locator: PodLocator) -> PodLocation:
    """The location that a locator states."""
    return PodLocation(
        next((owner.uid for owner in locator.metadata.owner_references if _is_pod(owner)), ""),
        tuple(pod_ip.ip for pod_ip in locator.ips or ()),
        locator.node_name,
        locator.node_labels or {},
        locator.node_label_keys,
    )


def new_locator(pod: Pod, location: PodLocation) -> PodLocator:
    """The locator of a pod that has none."""
    meta = pod.metadata
    return PodLocator(
        metadata=ObjectMeta(
            name=meta.name, namespace=meta.namespace, owner_references=(owner_of(pod),)
        ),
        ips=tuple(PodIP(ip=ip) for ip in location.ips),
        node_name=location.node,
        node_labels=dict(location.labels),
        node_label_keys=location.keys,
    )


def locator_patch(pod: Pod, desired: PodLocation, current: PodLocation) -> list[JsonObject]:
    """The JSON patch that brings a locator to the desired location; empty if it is there."""
    operations: list[JsonObject] = []
    if desired.uid != current.uid:
        owner = msgspec.to_builtins(owner_of(pod))
        operations.append(_set_field("/metadata/ownerReferences", [owner]))
    if desired.ips != current.ips:
        operations.append(_set_field("/ips", [{"ip": ip} for ip in desired.ips]))
    if desired.node != current.node:
        operations.append(_set_field("/nodeName", desired.node))
    if desired.labels != current.labels:
        operations.append(_set_field("/nodeLabels", dict(desired.labels)))
    if desired.keys is not None and desired.keys != current.keys:
        operations.append(_set_field("/nodeLabelKeys", list(desired.keys)))
    elif desired.keys is None and current.keys is not None:
        operations.append({"op": "remove", "path": "/nodeLabelKeys"})
    return operations


def owner_of(pod: Pod) -> OwnerReference:
    """The reference by which a locator is deleted with its pod."""
    meta = pod.metadata
    return OwnerReference(api_version="v1", kind="Pod", name=meta.name, uid=meta.uid)


def label_interning(interner: LabelInterner) -> Callable[[PodLocator], PodLocator]:
    """The transform with which a store keeps equal labels of locators once."""

    def intern(locator: PodLocator) -> PodLocator:
        labels, keys = interner.intern(locator.node_labels or {}), locator.node_label_keys
        if keys is not None:
            keys = interner.intern_keys(keys)
        return msgspec.structs.replace(locator, node_labels=labels, node_label_keys=keys)

    return intern


def _is_pod(owner: OwnerReference) -> bool:
    return owner.kind == "Pod"


def _set_field(path: str, value: object) -> JsonObject:
    return {"op": "add", "path": path, "value": value}
