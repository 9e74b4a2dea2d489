"""Defaults that depend on the rest of an object; the others are in the generated table.

Each rule gets an object of one definition before any of its defaults is filled and changes it in
place. It may create an object whose content the table fills. The list of fields set here is also in
`tools/tables/defaults.py`, and the two are compared by means of a real server.

Some rules are on the kind and not on the field, because a real server has them only there: the job
inside a CronJob has none of a Job's defaults.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from zonewise.embedded.machinery.decoding.pod_resources import default_requests

Obj = dict[str, Any]
DefaultRule = Callable[[Obj], None]

RULES: dict[str, DefaultRule] = {}
CORE = "io.k8s.api.core.v1."
APPS = "io.k8s.api.apps.v1."
RESOURCE = "io.k8s.api.resource.v1."
CRD = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
RBAC_GROUP = "rbac.authorization.k8s.io"
MAX_RETRIES = 2**31 - 1

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_PATH_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<name>(?:{_DOMAIN}/)?{_PATH_COMPONENT}(?:/{_PATH_COMPONENT})*)(?::(?P<tag>\w[\w.-]{{0,127}}))?"
    r"(?P<digest>@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?",
    re.ASCII,
)
_IDENTIFIER = re.compile(r"[a-f0-9]{64}")
_NAME_LIMIT = 255


def defaults_for(*definitions: str) -> Callable[[DefaultRule], DefaultRule]:
    """Register a function as the rule of some definitions."""

    def register(function: DefaultRule) -> DefaultRule:
        RULES.update(dict.fromkeys(definitions, function))
        return function

    return register


@lru_cache(maxsize=4096)
def pull_policy(image: str) -> str:
    """The pull policy of a container that does not state one.

    `Always` for the tag `latest`, which is the default if neither a tag nor a digest is given. A
    text that is not a valid reference has no tag.
    """
    match = _REFERENCE.fullmatch(image)
    if match is None or _IDENTIFIER.fullmatch(image) or len(match["name"]) > _NAME_LIMIT:
        return "IfNotPresent"
    tag = match["tag"] or ("" if match["digest"] else "latest")
    return "Always" if tag == "latest" else "IfNotPresent"


@defaults_for(CORE + "Container", CORE + "EphemeralContainer")
def _default_container(value: Obj) -> None:
    if "imagePullPolicy" not in value:
        value["imagePullPolicy"] = pull_policy(value.get("image", ""))


@defaults_for(CORE + "ImageVolumeSource")
def _default_image_volume(value: Obj) -> None:
    if "pullPolicy" not in value:
        value["pullPolicy"] = pull_policy(value.get("reference", ""))


@defaults_for(CORE + "Volume")
def _default_volume(value: Obj) -> None:
    if value.keys() <= {"name"}:
        value["emptyDir"] = {}


@defaults_for(CORE + "PodSpec")
def _default_pod_spec(value: Obj) -> None:
    """The old field of the service account's name always equals the new one."""
    name = value.get("serviceAccountName") or value.get("serviceAccount")
    if name:
        value["serviceAccountName"] = value["serviceAccount"] = name


@defaults_for(CORE + "Pod")
def _default_pod(value: Obj) -> None:
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


@defaults_for(CORE + "Service")
def _default_service(value: Obj) -> None:
    if value.get("spec", {}).get("type") == "LoadBalancer":
        for ingress in value.get("status", {}).get("loadBalancer", {}).get("ingress", ()):
            if ingress.get("ip"):
                ingress.setdefault("ipMode", "VIP")


@defaults_for(CORE + "ServiceSpec")
def _default_service_spec(value: Obj) -> None:
    service_type = value.setdefault("type", "ClusterIP")
    affinity = value.setdefault("sessionAffinity", "None")
    if affinity == "None":
        value.pop("sessionAffinityConfig", None)
    elif affinity == "ClientIP":
        value.setdefault("sessionAffinityConfig", {})
    external = service_type in ("NodePort", "LoadBalancer")
    if external or (service_type == "ClusterIP" and value.get("externalIPs")):
        value.setdefault("externalTrafficPolicy", "Cluster")
    if external or service_type == "ClusterIP":
        value.setdefault("internalTrafficPolicy", "Cluster")
    if service_type == "LoadBalancer":
        value.setdefault("allocateLoadBalancerNodePorts", True)


@defaults_for(CORE + "ServicePort")
def _default_service_port(value: Obj) -> None:
    if not value.get("targetPort"):
        value["targetPort"] = value.get("port", 0)


@defaults_for(CORE + "Namespace")
def _default_namespace(value: Obj) -> None:
    meta = value.get("metadata") or {}
    if meta.get("name"):
        meta.setdefault("labels", {})["kubernetes.io/metadata.name"] = meta["name"]


@defaults_for(CORE + "NodeStatus")
def _default_node_status(value: Obj) -> None:
    if "allocatable" not in value and value.get("capacity"):
        value["allocatable"] = dict(value["capacity"])


@defaults_for(CORE + "PersistentVolume")
def _default_persistent_volume(value: Obj) -> None:
    spec = value.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")


@defaults_for(CORE + "LimitRangeItem")
def _default_limit_range_item(value: Obj) -> None:
    if value.get("type") != "Container":
        return
    limits = {**value.get("max", {}), **value.get("default", {})}
    requests = {**value.get("min", {}), **limits, **value.get("defaultRequest", {})}
    for name, amounts in (("default", limits), ("defaultRequest", requests)):
        if amounts:
            value[name] = amounts


@defaults_for(CORE + "Secret")
def _default_secret(value: Obj) -> None:
    """`stringData` is write-only: what is stored and read is `data`."""
    for name, text in value.pop("stringData", {}).items():
        data = value.setdefault("data", {})
        data[name] = base64.b64encode(text.encode()).decode("ascii")


@defaults_for(CORE + "ReplicationController")
def _default_replication_controller(value: Obj) -> None:
    spec = value.get("spec") or {}
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        spec.setdefault("selector", dict(labels))
        value.setdefault("metadata", {}).setdefault("labels", dict(labels))


@defaults_for(APPS + "DeploymentStrategy", APPS + "DaemonSetUpdateStrategy")
def _default_rolling_update(value: Obj) -> None:
    if value.get("type", "RollingUpdate") == "RollingUpdate":
        value.setdefault("rollingUpdate", {})


@defaults_for(APPS + "StatefulSetUpdateStrategy")
def _default_stateful_set_strategy(value: Obj) -> None:
    """A strategy that is set explicitly gets no default parameters."""
    if "type" not in value:
        value.setdefault("rollingUpdate", {})


@defaults_for(APPS + "StatefulSetSpec")
def _default_stateful_set(value: Obj) -> None:
    for claim in value.get("volumeClaimTemplates", ()):
        claim["kind"] = "PersistentVolumeClaim"
        claim["apiVersion"] = "v1"


@defaults_for("io.k8s.api.batch.v1.Job")
def _default_job(value: Obj) -> None:
    spec = value.setdefault("spec", {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", MAX_RETRIES if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault(
        "podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    )
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels")
    if labels:
        value.setdefault("metadata", {}).setdefault("labels", dict(labels))


@defaults_for("io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior")
def _default_autoscaler_behavior(value: Obj) -> None:
    percent_policy = {"type": "Percent", "value": 100, "periodSeconds": 15}
    pods_policy = {"type": "Pods", "value": 4, "periodSeconds": 15}
    up = value.setdefault("scaleUp", {})
    up.setdefault("stabilizationWindowSeconds", 0)
    up.setdefault("policies", [pods_policy, dict(percent_policy)])
    value.setdefault("scaleDown", {}).setdefault("policies", [percent_policy])


@defaults_for("io.k8s.api.networking.v1.NetworkPolicySpec")
def _default_network_policy(value: Obj) -> None:
    if "policyTypes" not in value:
        value["policyTypes"] = ["Ingress", "Egress"] if value.get("egress") else ["Ingress"]


@defaults_for("io.k8s.api.rbac.v1.Subject")
def _default_subject(value: Obj) -> None:
    if "apiGroup" not in value and value.get("kind") in ("User", "Group"):
        value["apiGroup"] = RBAC_GROUP


@defaults_for(RESOURCE + "ExactDeviceRequest", RESOURCE + "DeviceSubRequest")
def _default_device_request(value: Obj) -> None:
    if value.get("allocationMode", "ExactCount") == "ExactCount":
        value.setdefault("count", 1)


@defaults_for(CRD + "CustomResourceDefinitionNames")
def _default_resource_names(value: Obj) -> None:
    kind = value.get("kind", "")
    if kind:
        value.setdefault("singular", kind.lower())
        value.setdefault("listKind", f"{kind}List")


@defaults_for(CRD + "CustomResourceDefinitionSpec")
def _default_resource_spec(value: Obj) -> None:
    value.setdefault("conversion", {"strategy": "None"})


@defaults_for(CRD + "CustomResourceConversion")
def _default_resource_conversion(value: Obj) -> None:
    """A whole conversion has a default strategy; one without strategy gets an empty one."""
    value.setdefault("strategy", "")


@defaults_for(CRD + "CustomResourceDefinition")
def _default_resource_definition(value: Obj) -> None:
    """The storage version is a stored version from the beginning."""
    status = value.setdefault("status", {})
    versions = (value.get("spec") or {}).get("versions") or ()
    stored = [version.get("name", "") for version in versions if version.get("storage")]
    if not status.get("storedVersions") and stored:
        status["storedVersions"] = stored[:1]
