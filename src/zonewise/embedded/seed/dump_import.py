"""The shape of a real cluster, from a dump of it: what to create here so that it is rebuilt.

Pure: objects in, objects out, and an account of what was changed. The rules, in this order:

* *Recreated*: what controllers of this cluster make themselves is left out (EndpointSlices, Leases,
  the ReplicaSets of Deployments, the pods of workloads, the budgets of DomainRollouts…), and so is
  what every cluster has. Events are no part of a cluster's shape, and are not even mentioned.
* *Cannot work here*: what would call or run something that does not exist here (webhooks, API
  services, static pods) is left out and reported.
* *Stripped*: what the other cluster's server and controllers wrote: status, identity, owners,
  addresses of Services. Of nodes the size stays.
* *Simulated*: volumes keep their claims and their places, storage classes their names; there is
  no disk behind them (``dump_volumes``).
* *Invented*: what is referred to and not in the dump, if nothing would start without it:
  namespaces, service accounts, priority classes, storage classes, claims, volumes.

What is kept and works in another way than in the other cluster is reported as well.

With ``keep_placement`` pods that have a node keep it. Those of workloads come without an owner, and
so do their ReplicaSets and ControllerRevisions: they are created before the workloads, which adopt
what their selectors match, as workloads do. Without it the scheduler here decides about all.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zonewise.api.objects.pod_state import FINISHED
from zonewise.api.objects.storage import LEGACY_CLASS
from zonewise.api.values.printable import visible
from zonewise.embedded.components.volumes.provisioner import STANDARD as STANDARD_CLASS
from zonewise.embedded.components.volumes.well_known import PROVISIONED_BY
from zonewise.embedded.seed.dump_volumes import (
    CLAIM_SIZE,
    UNBOUND,
    DumpVolumes,
    added_class,
    mapping_at,
    storage_class,
    take_volume,
)
from zonewise.embedded.seed.seeder import full_name
from zonewise.runtime.cache import dump

Obj = dict[str, Any]
ReferenceKey = tuple[str, str, str]
"""Kind, namespace and name."""

ANEW = "recreated here"
STANDARD = "every cluster has it"
CALLS = "would call a server that is not here"
ON_NODE = "its node runs it by itself"
OVER = "has ended"
LEAVING = "was being deleted"
HARDWARE = "is about hardware that is not here"
CREDENTIALS = "is a credential of the other cluster"
MALFORMED = "does not have the form of its kind"
INVENTED = "is referred to and not in the dump"
NO_REVISIONS = "its pods may be replaced once; dump controllerrevisions as well to keep them"
NO_CONVERSION = "its versions are not converted, as that would call a server that is not here"

_ANEW = frozenset(
    {
        "CertificateSigningRequest",
        "CSINode",
        "CSIStorageCapacity",
        "ControllerRevision",
        "DisruptionLedger",
        "Endpoints",
        "IPAddress",
        "Lease",
        "NodeMetrics",
        "PodLocator",
        "PodMetrics",
        "ServiceCIDR",
        "VolumeAttachment",
    }
)
_EVENTS = frozenset({("v1", "Event"), ("events.k8s.io/v1", "Event")})
_STANDARD = frozenset({"ComponentStatus", "FlowSchema", "PriorityLevelConfiguration"})
_CALLS = frozenset({"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})
_HARDWARE = frozenset({"DeviceClass", "ResourceSlice", "CSIDriver"})
_DERIVING = frozenset({"DomainRollout"})
"""Owners that make everything they own again; without its owner it would be taken for foreign."""
_NAMESPACES = frozenset({"default", "kube-node-lease", "kube-public", "kube-system"})
_META = ("annotations", "generateName", "labels", "name", "namespace")
_REVISION = "deployment.kubernetes.io/"
_WRITTEN = (
    _REVISION,
    "deprecated.daemonset.template.generation",
    "endpoints.kubernetes.io/",
    "kubectl.kubernetes.io/last-applied-configuration",
    "node.alpha.kubernetes.io/",
    "pv.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "volume.kubernetes.io/",
)
_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_SERVICE = ("clusterIP", "clusterIPs", "healthCheckNodePort")
_MANAGED_SLICES = frozenset(
    {"endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"}
)
_TOKENS = "kube-api-access-"
_SYSTEM_PRIORITY = "system-"
_TEMPLATES: Mapping[str, tuple[str, ...]] = {
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "PodTemplate": ("template",),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"),
        ("spec", "template"),
    ),
}


@dataclass(frozen=True, slots=True)
class KindDifference:
    """Objects of a kind that differ from those of the dump, or are not in both, and why."""

    kind: str
    why: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DumpImport:
    """What to plant, and how it differs from the dump."""

    objects: tuple[Obj, ...]
    left_out: tuple[KindDifference, ...]
    changed: tuple[KindDifference, ...]
    invented: tuple[KindDifference, ...]


class _Account:
    """Names of objects by kind and reason."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], list[str]] = {}

    def add(self, obj: Obj, why: str) -> None:
        self._names.setdefault((obj["kind"], why), []).append(full_name(obj))

    def differences(self) -> tuple[KindDifference, ...]:
        return tuple(
            KindDifference(kind, why, tuple(sorted(names)))
            for (kind, why), names in sorted(self._names.items())
        )


def read(entries: Iterable[dump.DumpEntry]) -> Iterator[Obj]:
    """The objects of a dump; one that has no name is reported with file and line.

    So is one whose name or namespace is not text: YAML reads ``y``, ``on`` and ``1`` otherwise.
    """
    for entry in entries:
        obj = entry.plain()
        meta = mapping_at(obj, "metadata")
        for field in ("name", "namespace"):
            value = meta.get(field)
            if value is not None and not isinstance(value, str):
                shown = visible(json.dumps(value, default=str))[:40]
                raise entry.error(
                    f"the {field} of this {entry.kind} is read as {shown}, which is not text;"
                    f' put it in quotes, as in {field}: "y"'
                )
        if not meta.get("name"):
            raise entry.error(f"this {entry.kind} has no name")
        yield {**obj, "apiVersion": entry.api_version, "kind": entry.kind}


def shape(objects: Iterable[Obj], *, keep_placement: bool = False) -> DumpImport:
    """The shape of the cluster that these objects are of."""
    left, changed, invented = _Account(), _Account(), _Account()
    kept: list[Obj] = []
    references: set[ReferenceKey] = set()
    volumes = DumpVolumes(keep_placement=keep_placement)
    for obj in objects:
        if (obj["apiVersion"], obj["kind"]) in _EVENTS:
            continue
        differences: list[str] = []
        try:
            why = _out(obj, keep_placement)
            _look_for_volumes(obj, why, volumes)
            if not why:
                stripped, differences = _stripped(obj, keep_placement)
                references |= _references(stripped)
        except (AttributeError, KeyError, TypeError):
            why = MALFORMED  # the API server here would say the same, at length
        if why:
            left.add(obj, why)
            continue
        kept.append(stripped)
        for difference in differences:
            changed.add(stripped, difference)
    for volume in volumes.of_new_pods(kept):
        kept.remove(volume)
        left.add(volume, ANEW)
    for workload in _without_revisions(kept) if keep_placement else ():
        changed.add(workload, NO_REVISIONS)
    missing = list(_missing(kept, references))
    made, unbound = volumes.completed((*missing, *kept))
    for claim in unbound:
        if claim in kept:
            changed.add(claim, UNBOUND)
    for obj in (*missing, *made):
        invented.add(obj, INVENTED)
    added = added_class(kept)
    if added:
        changed.add({"kind": "StorageClass", "metadata": {"name": STANDARD_CLASS}}, added)
    return DumpImport(
        (*missing, *made, *kept), left.differences(), changed.differences(), invented.differences()
    )


def _without_revisions(objects: Iterable[Obj]) -> Iterator[Obj]:
    """Workloads that cannot tell which of the pods they adopt are up to date."""
    objects = list(objects)
    revised = {
        (one["metadata"].get("namespace"), one["metadata"]["name"].rpartition("-")[0])
        for one in objects
        if one["kind"] == "ControllerRevision"
    }
    for one in objects:
        place = (one["metadata"].get("namespace"), one["metadata"]["name"])
        if one["kind"] in ("DaemonSet", "StatefulSet") and place not in revised:
            yield one


def _look_for_volumes(obj: Obj, why: str, volumes: DumpVolumes) -> None:
    match obj["kind"]:
        case "Node":
            volumes.add_node(obj)
        case "Pod" if not _pod_ended(obj):
            volumes.add_pod(obj)
        case "PersistentVolumeClaim" if why == ANEW:
            volumes.add_ephemeral_claim(obj)


def _out(obj: Obj, keep_placement: bool) -> str:
    """Why an object is left out, or ""."""
    kind, meta = obj["kind"], obj.get("metadata") or {}
    name, labels = meta.get("name", ""), meta.get("labels") or {}
    if kind == "ControllerRevision" and keep_placement:
        return ""
    if kind == "APIService" and not mapping_at(obj, "spec").get("service"):
        return STANDARD
    for kinds, why in (
        (_ANEW, ANEW),
        (_STANDARD, STANDARD),
        (_CALLS, CALLS),
        (_HARDWARE, HARDWARE),
    ):
        if kind in kinds:
            return why
    if _owner(obj) in _DERIVING:
        return ANEW
    match kind:
        case "Namespace" if name in _NAMESPACES:
            return STANDARD
        case "Service" if (meta.get("namespace"), name) == ("default", "kubernetes"):
            return STANDARD
        case "ConfigMap" if name == "kube-root-ca.crt":
            return STANDARD
        case "ServiceAccount" if name == "default":
            return STANDARD
        case "PriorityClass" if name.startswith(_SYSTEM_PRIORITY):
            return STANDARD
        case "Secret" if obj.get("type") == "kubernetes.io/service-account-token":
            return CREDENTIALS
        case "EndpointSlice" if (
            labels.get("endpointslice.kubernetes.io/managed-by") in _MANAGED_SLICES
        ):
            return ANEW
        case "PersistentVolumeClaim" if _owner(obj) == "Pod":
            return ANEW
        case "ReplicaSet" if _owned(obj) and not keep_placement:
            return ANEW
        case "Job" if _owned(obj):
            return ANEW
        case "Pod":
            return _pod_out(obj, keep_placement)
    if labels.get("kubernetes.io/bootstrapping") in ("rbac-defaults", "default-component"):
        return STANDARD
    return ""


def _pod_out(pod: Obj, keep_placement: bool) -> str:
    if _annotation(pod, "kubernetes.io/config.mirror") or _owner(pod) == "Node":
        return ON_NODE
    if _pod_ended(pod):
        return OVER
    if pod["metadata"].get("deletionTimestamp"):
        return LEAVING
    placed = mapping_at(pod, "spec").get("nodeName")
    return "" if not _owned(pod) or (keep_placement and placed) else ANEW


def _pod_ended(pod: Obj) -> bool:
    return mapping_at(pod, "status").get("phase") in FINISHED


def _stripped(given: Obj, keep_placement: bool) -> tuple[Obj, list[str]]:
    """An object without what the other cluster wrote, and what else is different about it."""
    obj = copy.deepcopy(given)
    differences: list[str] = []
    kind = obj["kind"]
    meta = obj.get("metadata") or {}
    obj["metadata"] = {key: meta[key] for key in _META if meta.get(key)}
    annotations = obj["metadata"].pop("annotations", {})
    history = keep_placement and kind in ("Deployment", "ReplicaSet")
    wanted = {
        key: value
        for key, value in annotations.items()
        if not key.startswith(_WRITTEN) or (history and key.startswith(_REVISION))
    }
    if wanted:
        obj["metadata"]["annotations"] = wanted
    status = obj.pop("status", None) or {}
    spec = obj.get("spec") if isinstance(obj.get("spec"), dict) else {}
    assert isinstance(spec, dict)
    match kind:
        case "Node":
            _node(obj, spec, status)
        case "Service":
            headless = spec.get("clusterIP") == "None"
            for field in _SERVICE:
                spec.pop(field, None)
            if headless:
                spec["clusterIP"] = "None"
        case "Pod":
            _pod(spec)
            for term in _terms(spec):
                _unmerge(term)
            if not keep_placement:
                spec.pop("nodeName", None)
        case "Job":
            _job(obj, spec)
        case "Namespace":
            obj.pop("spec", None)
        case "StorageClass":
            return storage_class(obj)
        case "PersistentVolume":
            provisioned = bool(_annotation(given, PROVISIONED_BY))
            differences = take_volume(obj, status.get("phase", ""), provisioned=provisioned)
        case "CustomResourceDefinition":
            if mapping_at(spec, "conversion").get("strategy") == "Webhook":
                differences = [NO_CONVERSION]
            spec.pop("conversion", None)
        case "ServiceAccount":
            obj.pop("secrets", None)
    template = _template(obj)
    if template is not None:
        _pod(mapping_at(template, "spec"))
    return obj, differences


def _node(obj: Obj, spec: Obj, status: Obj) -> None:
    """Its size, its labels and its owner's taints; the rest is left to its kubelet."""
    taints = [taint for taint in spec.get("taints") or () if not taint["key"].startswith(_TAINTS)]
    obj["spec"] = {"taints": taints} if taints else {}
    if spec.get("unschedulable"):
        obj["spec"]["unschedulable"] = True
    obj["status"] = {key: status[key] for key in ("allocatable", "capacity") if key in status}


def _pod(spec: Obj) -> None:
    """Without the token that admission gave it, and with no priority but that of its class."""
    spec.pop("priority", None)
    spec["volumes"] = [
        volume for volume in spec.get("volumes") or () if not _token(volume.get("name", ""))
    ]
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(field) or ():
            mounts = container.get("volumeMounts") or ()
            container["volumeMounts"] = [
                mount for mount in mounts if not _token(mount.get("name", ""))
            ]
    if not spec["volumes"]:
        del spec["volumes"]


def _terms(spec: Obj) -> Iterator[Obj]:
    """What a pod says about other pods: constraints and terms of its affinities."""
    yield from spec.get("topologySpreadConstraints") or ()
    for field in ("podAffinity", "podAntiAffinity"):
        affinity = mapping_at(spec, "affinity", field)
        yield from affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for weighted in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield mapping_at(weighted, "podAffinityTerm")


def _unmerge(term: Obj) -> None:
    """Take out of a selector what the server put there for the label keys beside it."""
    keys = {*(term.get("matchLabelKeys") or ()), *(term.get("mismatchLabelKeys") or ())}
    selector = mapping_at(term, "labelSelector")
    if keys and "matchExpressions" in selector:
        rest = [one for one in selector["matchExpressions"] if one["key"] not in keys]
        selector["matchExpressions"] = rest


def _job(obj: Obj, spec: Obj) -> None:
    """The selector was made from the other cluster's uid."""
    if not spec.get("manualSelector"):
        spec.pop("selector", None)
        for meta in (obj["metadata"], mapping_at(obj, "spec", "template", "metadata")):
            labels = meta.get("labels") or {}
            for label in ("controller-uid", "batch.kubernetes.io/controller-uid"):
                labels.pop(label, None)


def _missing(objects: Iterable[Obj], wanted: set[ReferenceKey]) -> Iterator[Obj]:
    """What is referred to and missing, without which nothing would start."""
    there: set[ReferenceKey] = {("Namespace", "", name) for name in _NAMESPACES}
    for obj in objects:
        meta = obj["metadata"]
        there.add((obj["kind"], meta.get("namespace", ""), meta["name"]))
    for kind, namespace, name in sorted(wanted - there):
        if not name:
            continue
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        made = {"apiVersion": "v1", "kind": kind, "metadata": meta}
        match kind:
            case "PriorityClass":
                yield {**made, "apiVersion": "scheduling.k8s.io/v1", "value": 0}
            case "StorageClass":
                yield storage_class({"metadata": meta})[0]
            case "PersistentVolumeClaim":
                spec = {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": CLAIM_SIZE}},
                    "volumeName": f"{namespace}-{name}",
                }
                yield {**made, "spec": spec}
            case _:
                yield made


def _references(obj: Obj) -> set[ReferenceKey]:
    """What an object, or its pods, cannot do without; some have no name."""
    found = set(_named(obj))
    if not all(isinstance(part, str) for reference in found for part in reference):
        raise TypeError("a name is not text")
    return found


def _named(obj: Obj) -> Iterator[ReferenceKey]:
    namespace = obj["metadata"].get("namespace", "")
    yield "Namespace", "", namespace
    own = mapping_at(obj, "spec")
    if obj["kind"] == "PersistentVolumeClaim":
        named = obj["metadata"].get("annotations") or {}
        yield "StorageClass", "", named.get(LEGACY_CLASS, own.get("storageClassName")) or ""
    for claim in own.get("volumeClaimTemplates") or ():
        yield "StorageClass", "", mapping_at(claim, "spec").get("storageClassName") or ""
    template = obj if obj["kind"] == "Pod" else _template(obj)
    spec = mapping_at(template, "spec") if template is not None else {}
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or ""
    if account != "default":
        yield "ServiceAccount", namespace, account
    priority = spec.get("priorityClassName") or ""
    if not priority.startswith(_SYSTEM_PRIORITY):
        yield "PriorityClass", "", priority
    for volume in spec.get("volumes") or ():
        claim = mapping_at(volume, "persistentVolumeClaim").get("claimName") or ""
        yield "PersistentVolumeClaim", namespace, claim
        drafted = mapping_at(volume, "ephemeral", "volumeClaimTemplate", "spec")
        yield "StorageClass", "", drafted.get("storageClassName") or ""


def _template(obj: Obj) -> Obj | None:
    path = _TEMPLATES.get(obj["kind"])
    return mapping_at(obj, *path) if path else None


def _owned(obj: Obj) -> bool:
    return bool(_owner(obj))


def _owner(obj: Obj) -> str:
    """The kind of the controller that owns an object."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner.get("kind", ""))
    return ""


def _annotation(obj: Obj, name: str) -> str:
    return str(mapping_at(obj, "metadata", "annotations").get(name) or "")


def _token(volume: str) -> bool:
    return volume.startswith(_TOKENS)
