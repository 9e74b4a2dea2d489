"""Defaults that depend on the rest of an object; the others are in the generated table.

Each rule gets an object of one definition before any of its defaults is filled and changes it in
place. It may create an object and leave its inside to the table. The list of fields set here is
also in `tools/tables/defaults.py`, and the two are compared by means of a real server.

Some rules are at the kind and not at the field, because a real server has them only there: the job
inside a CronJob has none of a Job's defaults.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from zonewise.embedded.machinery.decoding.images import pull_policy
from zonewise.embedded.machinery.decoding.pod_resources import default_requests

Obj = dict[str, Any]
Rule = Callable[[Obj], None]

RULES: dict[str, Rule] = {}
CORE = "io.k8s.api.core.v1."
APPS = "io.k8s.api.apps.v1."
RESOURCE = "io.k8s.api.resource.v1."
CRD = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
RBAC_GROUP = "rbac.authorization.k8s.io"
MANY_RETRIES = 2**31 - 1


def rule(*definitions: str) -> Callable[[Rule], Rule]:
    """Make a function the rule of some definitions."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(definitions, function))
        return function

    return register


@rule(CORE + "Container", CORE + "EphemeralContainer")
def _container(value: Obj) -> None:
    if "imagePullPolicy" not in value:
        value["imagePullPolicy"] = pull_policy(value.get("image", ""))


@rule(CORE + "ImageVolumeSource")
def _image_volume(value: Obj) -> None:
    if "pullPolicy" not in value:
        value["pullPolicy"] = pull_policy(value.get("reference", ""))


@rule(CORE + "Volume")
def _volume(value: Obj) -> None:
    if value.keys() <= {"name"}:
        value["emptyDir"] = {}


@rule(CORE + "PodSpec")
def _pod_spec(value: Obj) -> None:
    """The old name of the service account's field is kept in step with the new one."""
    name = value.get("serviceAccountName") or value.get("serviceAccount")
    if name:
        value["serviceAccountName"] = value["serviceAccount"] = name


@rule(CORE + "Pod")
def _pod(value: Obj) -> None:
    spec = value.get("spec")
    if not spec:
        return
    default_requests(spec)
    spec.setdefault("enableServiceLinks", True)
    if spec.get("hostNetwork"):
        for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
            for port in container.get("ports", ()):
                if "containerPort" in port:
                    port.setdefault("hostPort", port["containerPort"])


@rule(CORE + "Service")
def _service(value: Obj) -> None:
    if value.get("spec", {}).get("type") == "LoadBalancer":
        for ingress in value.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
            if ingress.get("ip"):
                ingress.setdefault("ipMode", "VIP")


@rule(CORE + "ServiceSpec")
def _service_spec(value: Obj) -> None:
    kind = value.setdefault("type", "ClusterIP")
    affinity = value.setdefault("sessionAffinity", "None")
    if affinity == "None":
        value.pop("sessionAffinityConfig", None)
    elif affinity == "ClientIP":
        value.setdefault("sessionAffinityConfig", {})
    outside = kind in ("NodePort", "LoadBalancer")
    if outside or (kind == "ClusterIP" and value.get("externalIPs")):
        value.setdefault("externalTrafficPolicy", "Cluster")
    if outside or kind == "ClusterIP":
        value.setdefault("internalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        value.setdefault("allocateLoadBalancerNodePorts", True)


@rule(CORE + "ServicePort")
def _service_port(value: Obj) -> None:
    if not value.get("targetPort"):
        value["targetPort"] = value.get("port", 0)


@rule(CORE + "Namespace")
def _namespace(value: Obj) -> None:
    meta = value.get("metadata") or {}
    if meta.get("name"):
        meta.setdefault("labels", {})["kubernetes.io/metadata.name"] = meta["name"]


@rule(CORE + "NodeStatus")
def _node_status(value: Obj) -> None:
    if "allocatable" not in value and value.get("capacity"):
        value["allocatable"] = dict(value["capacity"])


@rule(CORE + "PersistentVolume")
def _persistent_volume(value: Obj) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")


@rule(CORE + "LimitRangeItem")
def _limit_range_item(value: Obj) -> None:
    if value.get("type") != "Container":
        return
    limits = {**value.get("max", {}), **value.get("default", {})}
    requests = {**value.get("min", {}), **limits, **value.get("defaultRequest", {})}
    for name, amounts in (("default", limits), ("defaultRequest", requests)):
        if amounts:
            value[name] = amounts


@rule(CORE + "Secret")
def _secret(value: Obj) -> None:
    """Plain text is only a way to write: what is stored and shown is `data`."""
    for name, text in value.pop("stringData", {}).items():
        data = value.setdefault("data", {})
        data[name] = base64.b64encode(text.encode()).decode("ascii")


@rule(CORE + "ReplicationController")
def _replication_controller(value: Obj) -> None:
    spec = value.get("spec") or {}
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        spec.setdefault("selector", dict(labels))
        value.setdefault("metadata", {}).setdefault("labels", dict(labels))


@rule(APPS + "DeploymentStrategy", APPS + "DaemonSetUpdateStrategy")
def _rolling_update(value: Obj) -> None:
    if value.get("type", "RollingUpdate") == "RollingUpdate":
        value.setdefault("rollingUpdate", {})


@rule(APPS + "StatefulSetUpdateStrategy")
def _stateful_set_strategy(value: Obj) -> None:
    """A strategy that is set explicitly gets no default parameters."""
    if "type" not in value:
        value.setdefault("rollingUpdate", {})


@rule(APPS + "StatefulSetSpec")
def _stateful_set(value: Obj) -> None:
    for claim in value.get("volumeClaimTemplates", ()):
        claim["kind"] = "PersistentVolumeClaim"
        claim["apiVersion"] = "v1"


@rule("io.k8s.api.batch.v1.Job")
def _job(value: Obj) -> None:
    spec = value.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", MANY_RETRIES if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault(
        "podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    )
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        value.setdefault("metadata", {}).setdefault("labels", dict(labels))


@rule("io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior")
def _autoscaler_behavior(value: Obj) -> None:
    whole = {"type": "Percent", "value": 100, "periodSeconds": 15}
    some = {"type": "Pods", "value": 4, "periodSeconds": 15}
    up = value.setdefault("scaleUp", {})
    up.setdefault("stabilizationWindowSeconds", 0)
    up.setdefault("policies", [some, dict(whole)])
    value.setdefault("scaleDown", {}).setdefault("policies", [whole])


@rule("io.k8s.api.networking.v1.NetworkPolicySpec")
def _network_policy(value: Obj) -> None:
    if "policyTypes" not in value:
        value["policyTypes"] = ["Ingress", "Egress"] if value.get("egress") else ["Ingress"]


@rule("io.k8s.api.rbac.v1.Subject")
def _subject(value: Obj) -> None:
    if "apiGroup" not in value and value.get("kind") in ("User", "Group"):
        value["apiGroup"] = RBAC_GROUP


@rule(RESOURCE + "ExactDeviceRequest", RESOURCE + "DeviceSubRequest")
def _device_request(value: Obj) -> None:
    if value.get("allocationMode", "ExactCount") == "ExactCount":
        value.setdefault("count", 1)


@rule(CRD + "CustomResourceDefinitionNames")
def _resource_names(value: Obj) -> None:
    kind = value.get("kind", "")
    if kind:
        value.setdefault("singular", kind.lower())
        value.setdefault("listKind", f"{kind}List")


@rule(CRD + "CustomResourceDefinitionSpec")
def _resource_spec(value: Obj) -> None:
    value.setdefault("conversion", {"strategy": "None"})


@rule(CRD + "CustomResourceConversion")
def _resource_conversion(value: Obj) -> None:
    """A strategy is the default of a whole conversion, not of one that leaves it out."""
    value.setdefault("strategy", "")


@rule(CRD + "CustomResourceDefinition")
def _resource_definition(value: Obj) -> None:
    """The storage version is a stored version from the beginning."""
    status = value.setdefault("status", {})
    versions = (value.get("spec") or {}).get("versions") or ()
    stored = [version.get("name", "") for version in versions if version.get("storage")]
    if not status.get("storedVersions") and stored:
        status["storedVersions"] = stored[:1]
