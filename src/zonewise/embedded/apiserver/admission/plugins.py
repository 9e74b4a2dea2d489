"""What a default API server's admission adds and refuses, as far as clients can see it.

One function a plugin; each looks at what it cares for and leaves the rest alone. They run in the
order of ``MUTATING`` and ``VALIDATING``, which is the real server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zonewise.api.errors import StatusCause
from zonewise.api.objects.core import Namespace
from zonewise.api.objects.storage import LEGACY_CLASS, is_default_class, newest_default
from zonewise.embedded.apiserver.admission.admission import AdmissionPlugin, Attributes
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.strategy.pod.volumes import token_projection
from zonewise.topology import REGION_LABEL, ZONE_LABEL

Obj = dict[str, Any]
Look = Callable[[str, str, str], Obj | None]
All = Callable[[str], Iterable[Obj]]

IMMORTAL = frozenset({"default", "kube-system", "kube-public"})
TOLERATION_SECONDS = 300
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
ACCOUNT_TRIES = 100
ACCOUNT_PAUSE = 0.01
MIRROR = "kubernetes.io/config.mirror"
DEFAULT_INGRESS = "ingressclass.kubernetes.io/is-default-class"
PROTECTION = {
    "/persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "/persistentvolumes": "kubernetes.io/pv-protection",
    "storage.k8s.io/volumeattributesclasses": "kubernetes.io/vac-protection",
}
TOPOLOGY_LABELS = (REGION_LABEL, ZONE_LABEL)


class Plugins:
    """The built-in plugins over a way to look at other objects."""

    def __init__(self, look: Look, every: All, choose: Callable[[str], str]) -> None:
        self._look = look
        self._every = every
        self._choose = choose
        self.mutating: tuple[AdmissionPlugin, ...] = (
            self.namespace,
            self.service_account,
            tolerations,
            self.priority,
            taint_new_node,
            protect,
            self.default_storage_class,
            self.default_ingress_class,
            self.runtime_class,
        )
        self.validating: tuple[AdmissionPlugin, ...] = (self.immortal,)

    def namespace(self, attributes: Attributes) -> None:
        """New objects go only into namespaces that exist and are not on their way out."""
        if attributes.operation != "CREATE" or attributes.subresource or not attributes.namespace:
            return
        name = attributes.namespace
        found = self._look("/namespaces", "", name)
        if found is None:
            raise status_errors.not_found(Namespace.resource, name)
        if found["metadata"].get("deletionTimestamp"):
            raise status_errors.forbidden(
                attributes.served.kind.resource,
                attributes.called,
                f"unable to create new content in namespace {name} because it is being terminated",
                causes=(
                    StatusCause(
                        reason="NamespaceTerminating",
                        message=f"namespace {name} is being terminated",
                        field="metadata.namespace",
                    ),
                ),
            )

    def immortal(self, attributes: Attributes) -> None:
        """The namespaces a cluster cannot do without stay."""
        if (
            attributes.operation == "DELETE"
            and attributes.served.storage == "/namespaces"
            and attributes.name in IMMORTAL
        ):
            raise status_errors.forbidden(
                attributes.served.kind.resource,
                attributes.called,
                "this namespace may not be deleted",
            )

    async def default_account(self, attributes: Attributes) -> None:
        """Wait for a new namespace's account ``default``, as the real plugin does, a second.

        A controller makes it after the namespace's creation was answered; pods of the same file are
        sooner.
        """
        if not _new(attributes, "/pods"):
            return
        spec = (attributes.obj or {}).get("spec") or {}
        if (spec.get("serviceAccountName") or "default") != "default":
            return
        for _ in range(ACCOUNT_TRIES):
            if self._look("/serviceaccounts", attributes.namespace, "default") is not None:
                return
            namespace = self._look("/namespaces", "", attributes.namespace)
            if namespace is None or namespace["metadata"].get("deletionTimestamp"):
                return
            await asyncio.sleep(ACCOUNT_PAUSE)

    def service_account(self, attributes: Attributes) -> None:
        """A pod runs as a service account that exists, and finds its token mounted."""
        if not _new(attributes, "/pods"):
            return
        obj = attributes.obj
        assert obj is not None
        if MIRROR in (obj["metadata"].get("annotations") or {}):
            return
        spec = obj.setdefault("spec", {})
        name = spec.get("serviceAccountName") or "default"
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        account = self._look("/serviceaccounts", attributes.namespace, name)
        if account is None:
            raise status_errors.forbidden(
                attributes.served.kind.resource,
                attributes.called,
                f"error looking up service account {attributes.namespace}/{name}:"
                f' serviceaccount "{name}" not found',
            )
        wanted = spec.get("automountServiceAccountToken")
        if wanted is None:
            wanted = account.get("automountServiceAccountToken", True)
        if wanted:
            self._mount_token(spec)
        if account.get("imagePullSecrets") and not spec.get("imagePullSecrets"):
            spec["imagePullSecrets"] = [dict(one) for one in account["imagePullSecrets"]]

    def _mount_token(self, spec: Obj) -> None:
        containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
        bare = [
            one
            for one in containers
            if all(mount.get("mountPath") != TOKEN_PATH for mount in one.get("volumeMounts") or ())
        ]
        if not bare:
            return
        letters = "".join(self._choose("bcdfghjklmnpqrstvwxz2456789") for _ in range(5))
        volume = f"kube-api-access-{letters}"
        for one in bare:
            one.setdefault("volumeMounts", []).append(
                {"name": volume, "readOnly": True, "mountPath": TOKEN_PATH}
            )
        spec.setdefault("volumes", []).append({"name": volume, "projected": token_projection()})

    def priority(self, attributes: Attributes) -> None:
        """A pod's priority comes from its class only."""
        if not _new(attributes, "/pods"):
            return
        obj = attributes.obj
        assert obj is not None
        spec = obj["spec"]
        name = spec.get("priorityClassName", "")
        number, policy = 0, "PreemptLowerPriority"
        if not name:
            default = self._default_priority()
            if default:
                name = spec["priorityClassName"] = default["metadata"]["name"]
                number = default.get("value", 0)
                policy = default.get("preemptionPolicy", policy)
        else:
            chosen = self._look("scheduling.k8s.io/priorityclasses", "", name)
            if chosen is None:
                raise status_errors.forbidden(
                    attributes.served.kind.resource,
                    attributes.called,
                    f"no PriorityClass with name {name} was found",
                )
            number = chosen.get("value", 0)
            policy = chosen.get("preemptionPolicy", policy)
        if spec.get("priority") is not None and spec["priority"] != number:
            raise status_errors.forbidden(
                attributes.served.kind.resource,
                attributes.called,
                f"the integer value of priority ({spec['priority']}) must not be provided in pod"
                f" spec; priority admission controller computed {number} from the given"
                " PriorityClass name",
            )
        spec["priority"] = number
        if spec.get("preemptionPolicy") not in {None, policy}:
            raise status_errors.forbidden(
                attributes.served.kind.resource,
                attributes.called,
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be"
                f" provided in pod spec; priority admission controller computed {policy} from the"
                " given PriorityClass name",
            )
        spec["preemptionPolicy"] = policy

    def _default_priority(self) -> Obj | None:
        classes = (
            one
            for one in self._every("scheduling.k8s.io/priorityclasses")
            if one.get("globalDefault")
        )
        return min(classes, key=lambda one: one.get("value", 0), default=None)

    def default_storage_class(self, attributes: Attributes) -> None:
        """A claim that names no class gets the default one; the newest if there are several."""
        if not _new(attributes, "/persistentvolumeclaims"):
            return
        obj = attributes.obj
        assert obj is not None
        spec = obj.setdefault("spec", {})
        if spec.get("storageClassName") is not None or LEGACY_CLASS in (
            obj["metadata"].get("annotations") or {}
        ):
            return
        chosen = _default(self._every("storage.k8s.io/storageclasses"), is_default_class)
        if chosen:
            spec["storageClassName"] = chosen

    def default_ingress_class(self, attributes: Attributes) -> None:
        """An ingress that names no class gets the default one."""
        if not _new(attributes, "networking.k8s.io/ingresses"):
            return
        obj = attributes.obj
        assert obj is not None
        spec = obj.setdefault("spec", {})
        legacy = "kubernetes.io/ingress.class"
        if spec.get("ingressClassName") or legacy in (obj["metadata"].get("annotations") or {}):
            return
        chosen = _default(
            self._every("networking.k8s.io/ingressclasses"),
            lambda annotations: annotations.get(DEFAULT_INGRESS) == "true",
        )
        if chosen:
            spec["ingressClassName"] = chosen

    def runtime_class(self, attributes: Attributes) -> None:
        """A pod's runtime class exists; its overhead and its place are the pod's."""
        if not _new(attributes, "/pods"):
            return
        obj = attributes.obj
        assert obj is not None
        spec = obj["spec"]
        name = spec.get("runtimeClassName")
        resource = attributes.served.kind.resource
        if not name:
            if spec.get("overhead"):
                raise status_errors.forbidden(
                    resource,
                    attributes.called,
                    "pod rejected: Pod Overhead set without corresponding RuntimeClass defined"
                    " Overhead",
                )
            return
        chosen = self._look("node.k8s.io/runtimeclasses", "", name)
        if chosen is None:
            raise status_errors.forbidden(
                resource, attributes.called, f'pod rejected: RuntimeClass "{name}" not found'
            )
        overhead = (chosen.get("overhead") or {}).get("podFixed")
        if overhead:
            if spec.get("overhead") and spec["overhead"] != overhead:
                raise status_errors.forbidden(
                    resource,
                    attributes.called,
                    "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead",
                )
            spec["overhead"] = dict(overhead)
        scheduling = chosen.get("scheduling") or {}
        for key, value in (scheduling.get("nodeSelector") or {}).items():
            if spec.setdefault("nodeSelector", {}).setdefault(key, value) != value:
                raise status_errors.forbidden(
                    resource,
                    attributes.called,
                    f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value};"
                    f" pod.spec.nodeSelector[{key}] = {spec['nodeSelector'][key]}",
                )
        for one in scheduling.get("tolerations") or ():
            if one not in spec.setdefault("tolerations", []):
                spec["tolerations"].append(dict(one))


def tolerations(attributes: Attributes) -> None:
    """A pod may stay five minutes on an unreachable node, unless it says otherwise."""
    if attributes.served.storage != "/pods" or attributes.subresource or attributes.obj is None:
        return
    obj = attributes.obj
    have = obj["spec"].get("tolerations") or []
    for key in (NOT_READY, UNREACHABLE):
        if not any(_tolerates(one, key) for one in have):
            have.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": TOLERATION_SECONDS,
                }
            )
    obj["spec"]["tolerations"] = have


def taint_new_node(attributes: Attributes) -> None:
    """A new node gets no pods until its kubelet reports Ready."""
    if not _new(attributes, "/nodes"):
        return
    obj = attributes.obj
    assert obj is not None
    taints = obj.setdefault("spec", {}).setdefault("taints", [])
    if not any(one.get("key") == NOT_READY and one.get("effect") == "NoSchedule" for one in taints):
        taints.append({"key": NOT_READY, "effect": "NoSchedule"})


def protect(attributes: Attributes) -> None:
    """Volumes and claims in use are not torn away."""
    finalizer = PROTECTION.get(attributes.served.storage)
    if not finalizer or attributes.operation != "CREATE" or attributes.subresource:
        return
    obj = attributes.obj
    assert obj is not None
    have = obj["metadata"].setdefault("finalizers", [])
    if finalizer not in have:
        have.append(finalizer)


def bound_labels(pod: Obj, node: Obj | None) -> None:
    """A pod that is bound carries its node's region and zone."""
    labels = (node or {}).get("metadata", {}).get("labels") or {}
    for key in TOPOLOGY_LABELS:
        if key in labels:
            pod["metadata"].setdefault("labels", {})[key] = labels[key]


def _new(attributes: Attributes, storage: str) -> bool:
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


def _default(classes: Iterable[Obj], marked: Callable[[Mapping[str, str]], bool]) -> str:
    metas = (one["metadata"] for one in classes)
    return newest_default(
        (meta["creationTimestamp"], meta["name"])
        for meta in metas
        if marked(meta.get("annotations") or {})
    )
