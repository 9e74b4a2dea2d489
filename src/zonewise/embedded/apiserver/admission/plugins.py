"""The admission plugins of a default API server, as far as clients can observe them.

Each plugin is one function, which ignores what it is not for. ``order_admission`` is their order,
which is the real server's: it decides which of two refusals a client gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zonewise.api.errors import StatusCause
from zonewise.api.objects.core import Namespace
from zonewise.api.objects.storage import LEGACY_CLASS, is_default_class, newest_default_class
from zonewise.embedded.apiserver.admission.admission import (
    Admission,
    Attributes,
    WebhookAdmission,
)
from zonewise.embedded.apiserver.admission.limit_ranges import LimitRanges
from zonewise.embedded.apiserver.admission.quotas import Quotas
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.strategy.pod.volumes import token_projection
from zonewise.topology.nodes import REGION_LABEL, ZONE_LABEL

Obj = dict[str, Any]
GetObject = Callable[[str, str, str], Obj | None]
ListObjects = Callable[[str], Iterable[Obj]]

PROTECTED_NAMESPACES = frozenset({"default", "kube-system", "kube-public"})
TOLERATION_SECONDS = 300
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
ACCOUNT_ATTEMPTS = 100
ACCOUNT_PAUSE = 0.01
MIRROR_POD_ANNOTATION = "kubernetes.io/config.mirror"
DEFAULT_INGRESS_CLASS_ANNOTATION = "ingressclass.kubernetes.io/is-default-class"
PROTECTION_FINALIZERS = {
    "/persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "/persistentvolumes": "kubernetes.io/pv-protection",
    "storage.k8s.io/volumeattributesclasses": "kubernetes.io/vac-protection",
}
TOPOLOGY_LABELS = (REGION_LABEL, ZONE_LABEL)


def order_admission(
    plugins: Plugins, limit_ranges: LimitRanges, webhooks: WebhookAdmission, quotas: Quotas
) -> Admission:
    """The admission chain of a server."""
    return Admission(
        wait=plugins.wait_for_default_account,
        mutating=(
            plugins.check_namespace,
            limit_ranges.apply_defaults,
            plugins.set_service_account,
            taint_new_node,
            plugins.set_priority,
            add_default_tolerations,
            plugins.set_default_storage_class,
            add_protection_finalizer,
            plugins.apply_runtime_class,
            plugins.set_default_ingress_class,
        ),
        validating=(plugins.protect_namespaces, limit_ranges.check),
        webhooks=webhooks,
        quotas=quotas.admit,
    )


class Plugins:
    """The built-in plugins; they can read other objects."""

    def __init__(
        self, get_object: GetObject, list_objects: ListObjects, choose: Callable[[str], str]
    ) -> None:
        self._get_object = get_object
        self._list_objects = list_objects
        self._choose = choose

    def check_namespace(self, attributes: Attributes) -> None:
        """Refuse new objects in namespaces that do not exist or are being deleted."""
        if attributes.operation != "CREATE" or attributes.subresource or not attributes.namespace:
            return
        name = attributes.namespace
        namespace = self._get_object("/namespaces", "", name)
        if namespace is None:
            raise status_errors.not_found(Namespace.resource, name)
        if namespace["metadata"].get("deletionTimestamp"):
            raise attributes.forbidden(
                f"unable to create new content in namespace {name} because it is being terminated",
                causes=(
                    StatusCause(
                        reason="NamespaceTerminating",
                        message=f"namespace {name} is being terminated",
                        field="metadata.namespace",
                    ),
                ),
            )

    def protect_namespaces(self, attributes: Attributes) -> None:
        """Refuse to delete the namespaces that a cluster needs."""
        if (
            attributes.operation == "DELETE"
            and attributes.served.storage == "/namespaces"
            and attributes.name in PROTECTED_NAMESPACES
        ):
            raise attributes.forbidden("this namespace may not be deleted")

    async def wait_for_default_account(self, attributes: Attributes) -> None:
        """Wait up to a second for a new namespace's account ``default``, as the real plugin does.

        A controller creates it after the namespace's creation was answered; pods of the same file
        may come before.
        """
        if not _is_create_of(attributes, "/pods"):
            return
        spec = (attributes.obj or {}).get("spec") or {}
        if (spec.get("serviceAccountName") or "default") != "default":
            return
        for _ in range(ACCOUNT_ATTEMPTS):
            if self._get_object("/serviceaccounts", attributes.namespace, "default") is not None:
                return
            namespace = self._get_object("/namespaces", "", attributes.namespace)
            if namespace is None or namespace["metadata"].get("deletionTimestamp"):
                return
            await asyncio.sleep(ACCOUNT_PAUSE)

    def set_service_account(self, attributes: Attributes) -> None:
        """Set a pod's service account, which must exist, and mount its token."""
        if not _is_create_of(attributes, "/pods"):
            return
        obj = attributes.obj
        assert obj is not None
        if MIRROR_POD_ANNOTATION in (obj["metadata"].get("annotations") or {}):
            return
        spec = obj.setdefault("spec", {})
        name = spec.get("serviceAccountName") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        account = self._get_object("/serviceaccounts", attributes.namespace, name)
        if account is None:
            raise attributes.forbidden(
                f"error looking up service account {attributes.namespace}/{name}:"
                f' serviceaccount "{name}" not found'
            )
        automount = spec.get("automountServiceAccountToken")
        if automount is None:
            automount = account.get("automountServiceAccountToken", True)
        if automount:
            self._mount_token(spec)
        if account.get("imagePullSecrets") and not spec.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [dict(secret) for secret in account["imagePullSecrets"]]

    def _mount_token(self, spec: Obj) -> None:
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        unmounted = [
            container
            for container in containers
            if all(
                mount.get("mountPath") != TOKEN_PATH
                for mount in container.get("volumeMounts") or ()
            )
        ]
        if not unmounted:
            return
        letters = "".join(self._choose("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))
        volume = f"kube-api-access-{letters}"
        for container in unmounted:
            container.setdefault("volumeMounts", []).append(
                {"name": volume, "readOnly": True, "mountPath": TOKEN_PATH}
            )
        spec.setdefault("volumes", []).append({"name": volume, "projected": token_projection()})

    def set_priority(self, attributes: Attributes) -> None:
        """Set a pod's priority from its class only."""
        if not _is_create_of(attributes, "/pods"):
            return
        obj = attributes.obj
        assert obj is not None
        spec = obj["spec"]
        name = spec.get("priorityClassName", "")
        priority, policy = 0, "PreemptLowerPriority"
        if not name:
            default = self._default_priority()
            if default:
                name = spec["priorityClassName"] = default["metadata"]["name"]
                priority = default.get("value", 0)
                policy = default.get("preemptionPolicy", policy)
        else:
            priority_class = self._get_object("scheduling.k8s.io/priorityclasses", "", name)
            if priority_class is None:
                raise attributes.forbidden(f"no PriorityClass with name {name} was found")
            priority = priority_class.get("value", 0)
            policy = priority_class.get("preemptionPolicy", policy)
        if spec.get("priority") is not None and spec["priority"] != priority:
            raise attributes.forbidden(
                f"the integer value of priority ({spec['priority']}) must not be provided in pod"
                f" spec; priority admission controller computed {priority} from the given"
                " PriorityClass name"
            )
        spec["priority"] = priority
        if spec.get("preemptionPolicy") not in {None, policy}:
            raise attributes.forbidden(
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be"
                f" provided in pod spec; priority admission controller computed {policy} from the"
                " given PriorityClass name"
            )
        spec["preemptionPolicy"] = policy

    def _default_priority(self) -> Obj | None:
        classes = (
            priority_class
            for priority_class in self._list_objects("scheduling.k8s.io/priorityclasses")
            if priority_class.get("globalDefault")
        )
        return min(classes, key=lambda priority_class: priority_class.get("value", 0), default=None)

    def set_default_storage_class(self, attributes: Attributes) -> None:
        """Give a claim without a class the default one; the newest if there are several."""
        if not _is_create_of(attributes, "/persistentvolumeclaims"):
            return
        obj = attributes.obj
        assert obj is not None
        spec = obj.setdefault("spec", {})
        if spec.get("storageClassName") is not None or LEGACY_CLASS in (
            obj["metadata"].get("annotations") or {}
        ):
            return
        default = _newest_default(
            self._list_objects("storage.k8s.io/storageclasses"), is_default_class
        )
        if default:
            spec["storageClassName"] = default

    def set_default_ingress_class(self, attributes: Attributes) -> None:
        """Give an ingress without a class the default one."""
        if not _is_create_of(attributes, "networking.k8s.io/ingresses"):
            return
        obj = attributes.obj
        assert obj is not None
        spec = obj.setdefault("spec", {})
        legacy = "kubernetes.io/ingress.class"
        if spec.get("ingressClassName") or legacy in (obj["metadata"].get("annotations") or {}):
            return
        default = _newest_default(
            self._list_objects("networking.k8s.io/ingressclasses"),
            lambda annotations: annotations.get(DEFAULT_INGRESS_CLASS_ANNOTATION) == "true",
        )
        if default:
            spec["ingressClassName"] = default

    def apply_runtime_class(self, attributes: Attributes) -> None:
        """Apply overhead and scheduling of a pod's runtime class, which must exist."""
        if not _is_create_of(attributes, "/pods"):
            return
        obj = attributes.obj
        assert obj is not None
        spec = obj["spec"]
        name = spec.get("runtimeClassName")
        if not name:
            if spec.get("overhead"):
                raise attributes.forbidden(
                    "pod rejected: Pod Overhead set without corresponding RuntimeClass defined"
                    " Overhead"
                )
            return
        runtime_class = self._get_object("node.k8s.io/runtimeclasses", "", name)
        if runtime_class is None:
            raise attributes.forbidden(f'pod rejected: RuntimeClass "{name}" not found')
        overhead = (runtime_class.get("overhead") or {}).get("podFixed")
        if overhead:
            if spec.get("overhead") and spec["overhead"] != overhead:
                raise attributes.forbidden(
                    "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
                )
            spec["overhead"] = dict(overhead)
        scheduling = runtime_class.get("scheduling") or {}
        for key, value in (scheduling.get("nodeSelector") or {}).items():
            if spec.setdefault("nodeSelector", {}).setdefault(key, value) != value:
                raise attributes.forbidden(
                    f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value};"
                    f" pod.spec.nodeSelector[{key}] = {spec['nodeSelector'][key]}"
                )
        for toleration in scheduling.get("tolerations") or ():
            if toleration not in spec.setdefault("tolerations", []):
                spec["tolerations"].append(dict(toleration))


def add_default_tolerations(attributes: Attributes) -> None:
    """Let a pod stay five minutes on an unreachable node, unless it has such a toleration."""
    if attributes.served.storage != "/pods" or attributes.subresource or attributes.obj is None:
        return
    obj = attributes.obj
    tolerations = obj["spec"].get("tolerations") or []
    for key in (NOT_READY, UNREACHABLE):
        if not any(_tolerates(toleration, key) for toleration in tolerations):
            tolerations.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": TOLERATION_SECONDS,
                }
            )
    obj["spec"]["tolerations"] = tolerations


def taint_new_node(attributes: Attributes) -> None:
    """Taint a new node, so that it gets no pods until its kubelet reports Ready."""
    if not _is_create_of(attributes, "/nodes"):
        return
    obj = attributes.obj
    assert obj is not None
    taints = obj.setdefault("spec", {}).setdefault("taints", [])
    if not any(
        taint.get("key") == NOT_READY and taint.get("effect") == "NoSchedule" for taint in taints
    ):
        taints.append({"key": NOT_READY, "effect": "NoSchedule"})


def add_protection_finalizer(attributes: Attributes) -> None:
    """Add the finalizer that protects volumes and claims in use."""
    finalizer = PROTECTION_FINALIZERS.get(attributes.served.storage)
    if not finalizer or attributes.operation != "CREATE" or attributes.subresource:
        return
    obj = attributes.obj
    assert obj is not None
    finalizers = obj["metadata"].setdefault("finalizers", [])
    if finalizer not in finalizers:
        finalizers.append(finalizer)


def copy_topology_labels(pod: Obj, node: Obj | None) -> None:
    """Copy region and zone labels of a node to a pod that is bound to it."""
    labels = (node or {}).get("metadata", {}).get("labels") or {}
    for key in TOPOLOGY_LABELS:
        if key in labels:
            pod["metadata"].setdefault("labels", {})[key] = labels[key]


def _is_create_of(attributes: Attributes, storage: str) -> bool:
    return (
        attributes.operation == "CREATE"
        and not attributes.subresource
        and attributes.served.storage == storage
    )


def _tolerates(toleration: Obj, key: str) -> bool:
    return toleration.get("key") in {key, None, ""} and toleration.get("effect") in {
        "NoExecute",
        None,
        "",
    }


def _newest_default(classes: Iterable[Obj], is_default: Callable[[Mapping[str, str]], bool]) -> str:
    metas = (class_["metadata"] for class_ in classes)
    return newest_default_class(
        (meta["creationTimestamp"], meta["name"])
        for meta in metas
        if is_default(meta.get("annotations") or {})
    )
