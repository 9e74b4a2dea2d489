"""The smallest object of each kind with rules of its own, and where it lives."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

Obj = dict[str, Any]

LABELS = {"app": "a"}
CONTAINER = {"name": "app", "image": "registry.example/app:1"}
POD_SPEC: Obj = {"containers": [CONTAINER]}
TEMPLATE: Obj = {"metadata": {"labels": LABELS}, "spec": POD_SPEC}
SELECTOR: Obj = {"matchLabels": LABELS}
CLIENT: Obj = {"url": "https://hooks.example:8443/ask"}
HOOK: Obj = {
    "name": "never.zonewise.io",
    "clientConfig": CLIENT,
    "sideEffects": "None",
    "admissionReviewVersions": ["v1"],
    "rules": [
        {
            "apiGroups": ["nobody.example"],
            "apiVersions": ["*"],
            "operations": ["CREATE"],
            "resources": ["nothings"],
        }
    ],
}
RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
SUBJECT = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "joe"}
RBAC = "rbac.authorization.k8s.io"


class Sample(NamedTuple):
    """A kind and its smallest object; ``status`` is a status to write, if the kind has one."""

    kind: str
    api: str
    plural: str
    namespaced: bool
    fields: Obj
    status: Obj | None = None

    def path(self, namespace: str) -> str:
        """Where objects of this kind are."""
        base = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        scope = f"/namespaces/{namespace}" if self.namespaced else ""
        return f"{base}{scope}/{self.plural}"

    def name(self, namespace: str, which: str) -> str:
        """A unique name; a definition's name has its plural and group in it."""
        if self.kind == "CustomResourceDefinition":
            return f"things.{which}.{namespace}.example"
        return which if self.namespaced else f"{which}-{namespace}"

    def make(self, namespace: str, which: str) -> Obj:
        """An object of this kind, labelled with the namespace the test works in."""
        fields = copy.deepcopy(self.fields)
        if self.kind == "CustomResourceDefinition":
            fields["spec"]["group"] = f"{which}.{namespace}.example"
        return {
            "apiVersion": self.api,
            "kind": self.kind,
            "metadata": {"name": self.name(namespace, which), "labels": {"contract": namespace}},
            **fields,
        }


SAMPLES = (
    Sample("Node", "v1", "nodes", False, {}, {"capacity": {"cpu": "4"}}),
    Sample("Pod", "v1", "pods", True, {"spec": POD_SPEC}, {"phase": "Running"}),
    Sample(
        "Service",
        "v1",
        "services",
        True,
        {"spec": {"selector": LABELS, "ports": [{"port": 80}]}},
        {"loadBalancer": {}},
    ),
    Sample(
        "EndpointSlice",
        "discovery.k8s.io/v1",
        "endpointslices",
        True,
        {"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}]},
    ),
    Sample("Namespace", "v1", "namespaces", False, {}, {"phase": "Active"}),
    Sample("Lease", "coordination.k8s.io/v1", "leases", True, {"spec": {"holderIdentity": "me"}}),
    Sample(
        "Event",
        "v1",
        "events",
        True,
        {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "NS"}, "reason": "Because"},
    ),
    Sample(
        "PodDisruptionBudget",
        "policy/v1",
        "poddisruptionbudgets",
        True,
        {"spec": {"minAvailable": 1, "selector": SELECTOR}},
        {"disruptionsAllowed": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    ),
    Sample(
        "ReplicaSet",
        "apps/v1",
        "replicasets",
        True,
        {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
        {"replicas": 1},
    ),
    Sample(
        "Deployment",
        "apps/v1",
        "deployments",
        True,
        {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
        {"replicas": 1},
    ),
    Sample(
        "StatefulSet",
        "apps/v1",
        "statefulsets",
        True,
        {"spec": {"serviceName": "s", "selector": SELECTOR, "template": TEMPLATE}},
        {"replicas": 1},
    ),
    Sample(
        "DaemonSet",
        "apps/v1",
        "daemonsets",
        True,
        {"spec": {"selector": SELECTOR, "template": TEMPLATE}},
        {"numberReady": 1},
    ),
    Sample(
        "StorageClass",
        "storage.k8s.io/v1",
        "storageclasses",
        False,
        {"provisioner": "disk.example"},
    ),
    Sample(
        "PersistentVolumeClaim",
        "v1",
        "persistentvolumeclaims",
        True,
        {
            "spec": {
                "storageClassName": "",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            }
        },
        {"phase": "Bound"},
    ),
    Sample(
        "PersistentVolume",
        "v1",
        "persistentvolumes",
        False,
        {
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": "disk.example", "volumeHandle": "h"},
            }
        },
        {"phase": "Available"},
    ),
    Sample("CSINode", "storage.k8s.io/v1", "csinodes", False, {"spec": {"drivers": []}}),
    Sample("CSIDriver", "storage.k8s.io/v1", "csidrivers", False, {"spec": {}}),
    Sample(
        "MutatingWebhookConfiguration",
        "admissionregistration.k8s.io/v1",
        "mutatingwebhookconfigurations",
        False,
        {"webhooks": [HOOK]},
    ),
    Sample(
        "ValidatingWebhookConfiguration",
        "admissionregistration.k8s.io/v1",
        "validatingwebhookconfigurations",
        False,
        {"webhooks": [HOOK]},
    ),
    Sample(
        "CustomResourceDefinition",
        "apiextensions.k8s.io/v1",
        "customresourcedefinitions",
        False,
        {
            "spec": {
                "group": "",
                "scope": "Namespaced",
                "names": {"plural": "things", "kind": "Thing"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": {"type": "object"}},
                    }
                ],
            }
        },
        {"observedGeneration": 7},
    ),
    Sample("ConfigMap", "v1", "configmaps", True, {"data": {"a": "1"}}),
    Sample("Secret", "v1", "secrets", True, {"data": {"a": "MQ=="}}),
    Sample("ServiceAccount", "v1", "serviceaccounts", True, {}),
    Sample(
        "ControllerRevision",
        "apps/v1",
        "controllerrevisions",
        True,
        {"revision": 1, "data": {"spec": {"a": 1}}},
    ),
    Sample("PriorityClass", "scheduling.k8s.io/v1", "priorityclasses", False, {"value": 10}),
    Sample(
        "VolumeAttachment",
        "storage.k8s.io/v1",
        "volumeattachments",
        False,
        {
            "spec": {
                "attacher": "disk.example",
                "nodeName": "n",
                "source": {"persistentVolumeName": "v"},
            }
        },
        {"attached": True},
    ),
    Sample(
        "ResourceQuota",
        "v1",
        "resourcequotas",
        True,
        {"spec": {"hard": {"services.loadbalancers": "5"}}},
        {"hard": {"services.loadbalancers": "5"}},
    ),
    Sample(
        "LimitRange",
        "v1",
        "limitranges",
        True,
        {"spec": {"limits": [{"type": "PersistentVolumeClaim", "max": {"storage": "9Ti"}}]}},
    ),
    Sample("Role", f"{RBAC}/v1", "roles", True, {"rules": RULES}),
    Sample("ClusterRole", f"{RBAC}/v1", "clusterroles", False, {"rules": RULES}),
    Sample(
        "RoleBinding",
        f"{RBAC}/v1",
        "rolebindings",
        True,
        {"roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "r"}, "subjects": [SUBJECT]},
    ),
    Sample(
        "ClusterRoleBinding",
        f"{RBAC}/v1",
        "clusterrolebindings",
        False,
        {"roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "r"}, "subjects": [SUBJECT]},
    ),
)
BY_KIND = {sample.kind: sample for sample in SAMPLES}
