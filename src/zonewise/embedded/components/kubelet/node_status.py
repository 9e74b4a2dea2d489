"""What a kubelet reports about its node: pure functions from a Node to the fields it lacks.

A Node may come with many fields (from a dump of a real cluster) or nothing but its name. What it
has is kept; the rest is filled in, and the conditions are those of a healthy node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zonewise.api.objects.core import Node
from zonewise.api.values import times
from zonewise.topology.nodes import HOSTNAME_LABEL

Obj = dict[str, Any]

KUBELET_ANNOTATION = "zonewise.io/kubelet"
FAILED_ANNOTATION = "zonewise.io/failed"
OS_LABEL = "kubernetes.io/os"
ARCH_LABEL = "kubernetes.io/arch"
HEALTHY_CONDITIONS = {
    "MemoryPressure": (
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}


def has_simulated_kubelet(node: Node) -> bool:
    """Whether this node's kubelet is simulated; a user may act as its kubelet instead."""
    return node.metadata.annotations.get(KUBELET_ANNOTATION) != "none"


def has_working_kubelet(node: Node) -> bool:
    """Whether the node's kubelet is simulated and has not failed."""
    return has_simulated_kubelet(node) and FAILED_ANNOTATION not in node.metadata.annotations


def internal_ips(node: Node) -> tuple[str, ...]:
    """The addresses at which other nodes reach a node."""
    return tuple(a.address for a in node.status.addresses if a.type == "InternalIP")


def missing_labels(node: Node) -> Obj:
    """The labels every kubelet sets, under their current and old names, that a node lacks."""
    current = node.metadata.labels
    os, arch = current.get(OS_LABEL, "linux"), current.get(ARCH_LABEL, "amd64")
    desired = {
        HOSTNAME_LABEL: node.metadata.name,
        OS_LABEL: os,
        ARCH_LABEL: arch,
        f"beta.{OS_LABEL}": os,
        f"beta.{ARCH_LABEL}": arch,
    }
    return {name: value for name, value in desired.items() if name not in current}


def generate_node_status(
    node: Node,
    addresses: tuple[str, ...],
    resources: Mapping[str, str],
    *,
    version: str,
    now: float,
    refresh: float,
) -> Obj | None:
    """The status to write, or None if the node has it and it was written recently."""
    current = {condition.type: condition for condition in node.status.conditions}
    moment = times.from_epoch(now)
    timestamp = times.format_time(moment)
    unchanged = {
        kind: kind in current
        and (current[kind].status, current[kind].reason, current[kind].message) == healthy
        for kind, healthy in HEALTHY_CONDITIONS.items()
    }
    heartbeat = current["Ready"].last_heartbeat_time if "Ready" in current else None
    fresh = heartbeat is not None and (moment - times.parse(heartbeat)).total_seconds() < refresh
    status = node.status
    capacity = {**resources, **(status.allocatable | status.capacity)}
    allocatable = {**capacity, **status.allocatable}
    if (
        fresh
        and all(unchanged.values())
        and internal_ips(node)
        and status.capacity == capacity
        and status.allocatable == allocatable
    ):
        return None
    body: Obj = {
        "capacity": capacity,
        "allocatable": allocatable,
        "conditions": [
            {
                "type": kind,
                "status": healthy[0],
                "reason": healthy[1],
                "message": healthy[2],
                "lastHeartbeatTime": timestamp,
                "lastTransitionTime": (
                    current[kind].last_transition_time
                    if kind in current and current[kind].status == healthy[0]
                    else timestamp
                ),
            }
            for kind, healthy in HEALTHY_CONDITIONS.items()
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }
    if not internal_ips(node):
        body["addresses"] = [
            {"$patch": "replace"},  # merged by type, two of the same type would become one
            *({"type": "InternalIP", "address": address} for address in addresses),
            {"type": "Hostname", "address": node.metadata.name},
        ]
    if not status.node_info.kubelet_version:
        body["nodeInfo"] = _node_info(node, version)
    return body


def _node_info(node: Node, version: str) -> Obj:
    uid = node.metadata.uid
    return {
        "machineID": uid.replace("-", ""),
        "systemUUID": uid,
        "bootID": uid,
        "kernelVersion": "6.1.0",
        "osImage": "Zonewise",
        "containerRuntimeVersion": "zonewise://0",
        "kubeletVersion": version,
        "kubeProxyVersion": "",
        "operatingSystem": node.metadata.labels.get(OS_LABEL, "linux"),
        "architecture": node.metadata.labels.get(ARCH_LABEL, "amd64"),
    }
