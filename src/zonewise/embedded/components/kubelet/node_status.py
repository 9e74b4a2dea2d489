"""What a kubelet says about its node: pure functions from a Node to the fields that are missing.

A Node may be written with much (a dump of a real cluster) or nothing but its name. What it has is
kept; the rest is filled in, and the conditions are a healthy kubelet's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zonewise.api.objects.core import Node
from zonewise.api.values import times
from zonewise.topology import HOSTNAME_LABEL

Obj = dict[str, Any]

KUBELET = "zonewise.io/kubelet"
FAILED = "zonewise.io/failed"
OS_LABEL = "kubernetes.io/os"
ARCH_LABEL = "kubernetes.io/arch"
HEALTHY = {
    "MemoryPressure": (
        "False",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    "DiskPressure": ("False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
}


def ours(node: Node) -> bool:
    """Whether this node has a kubelet of ours; a user may act as its kubelet instead."""
    return node.metadata.annotations.get(KUBELET) != "none"


def working(node: Node) -> bool:
    """Whether the node's kubelet is ours and has not failed."""
    return ours(node) and FAILED not in node.metadata.annotations


def hosts(node: Node) -> tuple[str, ...]:
    """The addresses under which other nodes reach it."""
    return tuple(one.address for one in node.status.addresses if one.type == "InternalIP")


def labels(node: Node) -> Obj:
    """The labels every kubelet sets, as far as they are missing; the old names say the same."""
    have = node.metadata.labels
    os, arch = have.get(OS_LABEL, "linux"), have.get(ARCH_LABEL, "amd64")
    want = {
        HOSTNAME_LABEL: node.metadata.name,
        OS_LABEL: os,
        ARCH_LABEL: arch,
        f"beta.{OS_LABEL}": os,
        f"beta.{ARCH_LABEL}": arch,
    }
    return {name: value for name, value in want.items() if name not in have}


def status(
    node: Node,
    addresses: tuple[str, ...],
    resources: Mapping[str, str],
    *,
    version: str,
    now: float,
    refresh: float,
) -> Obj | None:
    """The status to write, or None if it says all of it and was written not long ago."""
    have = {one.type: one for one in node.status.conditions}
    moment = times.from_epoch(now)
    text = times.format_time(moment)
    same = {
        kind: kind in have and (have[kind].status, have[kind].reason, have[kind].message) == healthy
        for kind, healthy in HEALTHY.items()
    }
    beat = have["Ready"].last_heartbeat_time if "Ready" in have else None
    fresh = beat is not None and (moment - times.parse(beat)).total_seconds() < refresh
    known = node.status
    capacity = {**resources, **(known.allocatable | known.capacity)}
    allocatable = {**capacity, **known.allocatable}
    if (
        fresh
        and all(same.values())
        and hosts(node)
        and known.capacity == capacity
        and known.allocatable == allocatable
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
                "lastHeartbeatTime": text,
                "lastTransitionTime": (
                    have[kind].last_transition_time
                    if kind in have and have[kind].status == healthy[0]
                    else text
                ),
            }
            for kind, healthy in HEALTHY.items()
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
    }
    if not hosts(node):
        body["addresses"] = [
            {"$patch": "replace"},  # merged by type, two of one type would become one
            *({"type": "InternalIP", "address": one} for one in addresses),
            {"type": "Hostname", "address": node.metadata.name},
        ]
    if not known.node_info.kubelet_version:
        body["nodeInfo"] = _information(node, version)
    return body


def _information(node: Node, version: str) -> Obj:
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
