"""What the PodLocator of a pod should say, and what differs. Pure.

A locator has the addresses of its pod while the pod runs, the name of its node, and the labels of
that node: all of them, or those that were chosen. A pod that has finished keeps its node but no
address, which may be another's already. A node that does not exist is as if the pod were on none.
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
from zonewise.api.objects.pod_state import finished
from zonewise.topology.locators import LabelMaps, Labels

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Location:
    """Where a pod is; ``uid`` is the pod's."""

    uid: str
    ips: tuple[str, ...] = ()
    node: str = ""
    labels: Labels = field(default_factory=dict, hash=False)


def location_of(pod: Pod, node: Node | None, keys: Collection[str] | None) -> Location:
    """Where a pod is, given the node it names, if that exists; no ``keys`` means all labels."""
    ips = () if finished(pod) else tuple(one.ip for one in pod.status.pod_ips)
    if node is None or node.metadata.name != pod.spec.node_name:
        return Location(pod.metadata.uid, ips)
    return Location(pod.metadata.uid, ips, pod.spec.node_name, chosen_labels(node, keys))


def chosen_labels(node: Node, keys: Collection[str] | None) -> Labels:
    """The labels of a node that locators have."""
    labels = node.metadata.labels
    return labels if keys is None else {key: labels[key] for key in keys if key in labels}


def said_by(locator: PodLocator) -> Location:
    """Where a locator says its pod is."""
    return Location(
        next((owner.uid for owner in locator.metadata.owner_references if _is_pod(owner)), ""),
        tuple(one.ip for one in locator.ips or ()),
        locator.node_name,
        locator.node_labels or {},
    )


def new_locator(pod: Pod, location: Location) -> PodLocator:
    """The locator of a pod that has none."""
    meta = pod.metadata
    return PodLocator(
        metadata=ObjectMeta(
            name=meta.name, namespace=meta.namespace, owner_references=(owner_of(pod),)
        ),
        ips=tuple(PodIP(ip=ip) for ip in location.ips),
        node_name=location.node,
        node_labels=dict(location.labels),
    )


def changes(pod: Pod, location: Location, said: Location) -> list[Obj]:
    """The JSON patch that makes a locator say where its pod is; empty if it does."""
    found: list[Obj] = []
    if location.uid != said.uid:
        owner = msgspec.to_builtins(owner_of(pod))
        found.append(_put("/metadata/ownerReferences", [owner]))
    if location.ips != said.ips:
        found.append(_put("/ips", [{"ip": ip} for ip in location.ips]))
    if location.node != said.node:
        found.append(_put("/nodeName", location.node))
    if location.labels != said.labels:
        found.append(_put("/nodeLabels", dict(location.labels)))
    return found


def owner_of(pod: Pod) -> OwnerReference:
    """The reference that lets a locator go with its pod."""
    return OwnerReference(
        api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.metadata.uid
    )


def sharing(maps: LabelMaps) -> Callable[[PodLocator], PodLocator]:
    """What a store makes of each locator so that equal labels are held once."""

    def share(item: PodLocator) -> PodLocator:
        return msgspec.structs.replace(item, node_labels=maps.share(item.node_labels or {}))

    return share


def _is_pod(owner: OwnerReference) -> bool:
    return owner.kind == "Pod"


def _put(path: str, value: object) -> Obj:
    return {"op": "add", "path": path, "value": value}
