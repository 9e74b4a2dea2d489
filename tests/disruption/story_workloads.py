"""The workloads of the stories: six pods of app=foo of each kind, two in each of three zones.

Every kind with a rolling update may take down more pods at a time than any budget of the stories
allows. Pods are Ready after a second, so that two that are missing at once are noticed.
"""

from __future__ import annotations

from typing import Any

from tests.disruption.story_table import Kind

from zonewise.api.resource import Resource

Obj = dict[str, Any]

ZONE = "topology.kubernetes.io/zone"
LABELS = {"app": "foo"}
NAME = "foo"
REPLICAS, FEWER = 6, 3
TOGETHER = 4
"""How many pods a strategy may take at a time: one more than there are zones, so that it would take
two of a zone, whichever it takes.
"""
GROUP = "stories.example"
WANTED_LABEL = "stories.example/wanted"
"""On the nodes that a DaemonSet runs on, with the namespace as value."""
OWNER = Resource(GROUP, "v1", "Ring", "rings")
RESOURCES: dict[Kind, Resource] = {
    "Deployment": Resource("apps", "v1", "Deployment", "deployments"),
    "StatefulSet OrderedReady": Resource("apps", "v1", "StatefulSet", "statefulsets"),
    "StatefulSet Parallel": Resource("apps", "v1", "StatefulSet", "statefulsets"),
    "DaemonSet": Resource("apps", "v1", "DaemonSet", "daemonsets"),
    "ReplicationController": Resource("", "v1", "ReplicationController", "replicationcontrollers"),
    "Job": Resource("batch", "v1", "Job", "jobs"),
    "custom kind": OWNER,
}
SIZES: dict[Kind, str] = {"Job": "parallelism", "custom kind": "size"}
"""The field that says how many pods there should be, if it is not ``replicas``."""

DEFINITION: Obj = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"rings.{GROUP}"},
    "spec": {
        "group": GROUP,
        "names": {"kind": OWNER.kind, "plural": OWNER.plural},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
                "subresources": {
                    "scale": {
                        "specReplicasPath": ".spec.size",
                        "statusReplicasPath": ".status.size",
                    }
                },
            }
        ],
    },
}


def size_of(kind: Kind, count: int) -> Obj:
    """The change of a spec that requests so many pods."""
    return {SIZES.get(kind, "replicas"): count}


def image_of(version: int) -> str:
    """An image that runs until it is stopped."""
    return f"pause:{version}"


def pod_template(version: int, **more: Any) -> Obj:
    """The pods of a revision, spread over zones and one on each node: a Deployment's controller
    creates new pods before the old ones are gone, and they have to wait for their zone.
    """
    spread = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": LABELS},
    }
    alone = {"labelSelector": {"matchLabels": LABELS}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "metadata": {"labels": LABELS, "annotations": {"zonewise.io/ready-after": "1s"}},
        "spec": {
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}
            },
            "containers": [{"name": "c", "image": image_of(version)}],
            "terminationGracePeriodSeconds": 0,
            "topologySpreadConstraints": [spread],
            **more,
        },
    }


def workload(kind: Kind, namespace: str, count: int) -> Obj:
    """A workload with so many pods; a DaemonSet has one on every node with its label."""
    resource = RESOURCES[kind]
    template = pod_template(1)
    spec: Obj = {"selector": {"matchLabels": LABELS}, "template": template, "replicas": count}
    match kind:
        case "Deployment":
            spec["strategy"] = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": TOGETHER}}
        case "StatefulSet OrderedReady" | "StatefulSet Parallel":
            spec |= {"serviceName": NAME, "podManagementPolicy": kind.split()[1]}
            spec["updateStrategy"] = {"rollingUpdate": {"maxUnavailable": TOGETHER}}
        case "DaemonSet":
            del spec["replicas"], template["spec"]["topologySpreadConstraints"]
            del template["spec"]["affinity"]
            template["spec"]["nodeSelector"] = {WANTED_LABEL: namespace}
            spec["updateStrategy"] = {"rollingUpdate": {"maxUnavailable": TOGETHER}}
        case "ReplicationController":
            spec["selector"] = LABELS
        case "Job":
            # Each index has a pause of its own: a pod that was evicted delays no other one.
            spec = {
                "parallelism": count,
                "completions": REPLICAS,
                "completionMode": "Indexed",
                "backoffLimitPerIndex": 10,
                "template": pod_template(1, restartPolicy="Never"),
            }
        case "custom kind":
            spec = {"size": count}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": spec,
    }


def rollout(kind: Kind, namespace: str, order: list[str]) -> Obj:
    """A rollout by domain of a workload."""
    return {
        "apiVersion": "zonewise.io/v1alpha1",
        "kind": "DomainRollout",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "workloadRef": {"kind": RESOURCES[kind].kind, "name": NAME},
            "order": {"domains": order},
            "pauseSeconds": 1,
        },
    }
