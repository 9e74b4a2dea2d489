"""The shape of a real cluster, from a dump of it: what to create here so that it is rebuilt.

Pure: objects in, objects out, and a report of what was changed. The rules, in this order:

* *Recreated*: what controllers of this cluster create themselves is left out (EndpointSlices,
  Leases, the ReplicaSets of Deployments, the pods of workloads, the budgets of DomainRollouts…),
  and so is what every cluster has. Events are not part of a cluster's shape, and not reported.
* *Cannot work here*: what would call or run something that does not exist here (webhooks, API
  services, static pods) is left out and reported.
* *Stripped*: what the other cluster's server and controllers wrote: status, identity, owners,
  addresses of Services. Of nodes the size stays.
* *Simulated*: volumes keep their claims and their domains, storage classes their names; there is
  no disk behind them (``dump_volumes``).
* *Invented*: what is referred to and not in the dump, if nothing would start without it:
  namespaces, service accounts, priority classes, storage classes, claims, volumes.

What is imported and works in another way than in the other cluster is reported as well.

With ``keep_placement`` pods that have a node keep it. Those of workloads are created without an
owner, and so are their ReplicaSets and ControllerRevisions: they are created before the workloads,
which adopt what their selectors match. Without it the scheduler here places all pods.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zonewise.api.objects.pod_state import FINISHED_PHASES
from zonewise.api.objects.storage import LEGACY_CLASS
from zonewise.api.values.printable import escape_unprintable
from zonewise.embedded.components.volumes.provisioner import STANDARD as STANDARD_CLASS
from zonewise.embedded.components.volumes.well_known import PROVISIONED_BY
from zonewise.embedded.seed.dump_volumes import (
    CLAIM_SIZE,
    UNBOUND,
    DumpVolumes,
    describe_added_class,
    mapping_at,
    simulate_class,
    simulate_volume,
)
from zonewise.embedded.seed.seeder import full_name
from zonewise.runtime.cache import dump

Obj = dict[str, Any]
ReferenceKey = tuple[str, str, str]
"""Kind, namespace and name."""

RECREATED = "recreated here"
BUILT_IN = "every cluster has it"
NEEDS_SERVER = "would call a server that is not here"
STATIC_POD = "its node runs it by itself"
ENDED = "has ended"
TERMINATING = "was being deleted"
HARDWARE = "is about hardware that is not here"
CREDENTIALS = "is a credential of the other cluster"
MALFORMED = "does not have the form of its kind"
INVENTED = "is referred to and not in the dump"
NO_REVISIONS = "its pods may be replaced once; dump controllerrevisions as well to keep them"
NO_CONVERSION = "its versions are not converted, as that would call a server that is not here"

_RECREATED_KINDS = frozenset(
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
_EVENT_KINDS = frozenset({("v1", "Event"), ("events.k8s.io/v1", "Event")})
_BUILT_IN_KINDS = frozenset({"ComponentStatus", "FlowSchema", "PriorityLevelConfiguration"})
_CALLING_KINDS = frozenset(
    {"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}
)
_HARDWARE_KINDS = frozenset({"DeviceClass", "ResourceSlice", "CSIDriver"})
_RECREATING_OWNERS = frozenset({"DomainRollout"})
"""Owners that recreate everything they own; without its owner it would count as foreign."""
_BUILT_IN_NAMESPACES = frozenset({"default", "kube-node-lease", "kube-public", "kube-system"})
_METADATA_FIELDS = ("annotations", "generateName", "labels", "name", "namespace")
_REVISION_PREFIX = "deployment.kubernetes.io/"
_CONTROLLER_ANNOTATIONS = (
    _REVISION_PREFIX,
    "deprecated.daemonset.template.generation",
    "endpoints.kubernetes.io/",
    "kubectl.kubernetes.io/last-applied-configuration",
    "node.alpha.kubernetes.io/",
    "pv.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "volume.kubernetes.io/",
)
_CONTROLLER_TAINTS = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_ASSIGNED_SERVICE_FIELDS = ("clusterIP", "clusterIPs", "healthCheckNodePort")
_MANAGED_SLICES = frozenset(
    {"endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io"}
)
_API_ACCESS_PREFIX = "kube-api-access-"
_SYSTEM_PRIORITY = "system-"
_TEMPLATE_PATHS: Mapping[str, tuple[str, ...]] = {
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
    reason: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DumpImport:
    """What to create, and how it differs from the dump."""

    objects: tuple[Obj, ...]
    left_out: tuple[KindDifference, ...]
    changed: tuple[KindDifference, ...]
    invented: tuple[KindDifference, ...]


class _Differences:
    """Names of objects by kind and reason."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], list[str]] = {}

    def add(self, obj: Obj, reason: str) -> None:
        self._names.setdefault((obj["kind"], reason), []).append(full_name(obj))

    def differences(self) -> tuple[KindDifference, ...]:
        return tuple(
            KindDifference(kind, reason, tuple(sorted(names)))
            for (kind, reason), names in sorted(self._names.items())
        )


def read_dump(entries: Iterable[dump.DumpEntry]) -> Iterator[Obj]:
    """The objects of a dump; one that has no name is reported with file and line.

    So is one whose name or namespace is not text: YAML reads ``y``, ``on`` and ``1`` otherwise.
    """
    for entry in entries:
        obj = entry.plain()
        meta = mapping_at(obj, "metadata")
        for field in ("name", "namespace"):
            value = meta.get(field)
            if value is not None and not isinstance(value, str):
                printed = escape_unprintable(json.dumps(value, default=str))[:40]
                raise entry.error(
                    f"the {field} of this {entry.kind} is read as {printed}, which is not text;"
                    f' put it in quotes, as in {field}: "y"'
                )
        if not meta.get("name"):
            raise entry.error(f"this {entry.kind} has no name")
        yield {**obj, "apiVersion": entry.api_version, "kind": entry.kind}


def import_dump(objects: Iterable[Obj], *, keep_placement: bool = False) -> DumpImport:
    """Import the objects of a dump, with a report of the differences."""
    left_out, changed, invented = _Differences(), _Differences(), _Differences()
    imported: list[Obj] = []
    references: set[ReferenceKey] = set()
    volumes = DumpVolumes(keep_placement=keep_placement)
    for obj in objects:
        if (obj["apiVersion"], obj["kind"]) in _EVENT_KINDS:
            continue
        differences: list[str] = []
        try:
            reason = _reason_to_leave_out(obj, keep_placement)
            _collect_volumes(obj, reason, volumes)
            if not reason:
                obj_to_create, differences = _strip(obj, keep_placement)
                references |= _references_of(obj_to_create)
        except (AttributeError, KeyError, TypeError):
            reason = MALFORMED  # the API server here would refuse it, too
        if reason:
            left_out.add(obj, reason)
            continue
        imported.append(obj_to_create)
        for difference in differences:
            changed.add(obj_to_create, difference)
    for volume in volumes.volumes_of_new_pods(imported):
        imported.remove(volume)
        left_out.add(volume, RECREATED)
    for workload in _without_revisions(imported) if keep_placement else ():
        changed.add(workload, NO_REVISIONS)
    missing = list(_invent_missing(imported, references))
    invented_volumes, unbound = volumes.invent_volumes((*missing, *imported))
    for claim in unbound:
        if claim in imported:
            changed.add(claim, UNBOUND)
    for obj in (*missing, *invented_volumes):
        invented.add(obj, INVENTED)
    description = describe_added_class(imported)
    if description:
        changed.add({"kind": "StorageClass", "metadata": {"name": STANDARD_CLASS}}, description)
    return DumpImport(
        (*missing, *invented_volumes, *imported),
        left_out.differences(),
        changed.differences(),
        invented.differences(),
    )


def _without_revisions(objects: Iterable[Obj]) -> Iterator[Obj]:
    """Workloads that cannot know which of the pods they adopt are up to date."""
    objects = list(objects)
    revised = {
        (obj["metadata"].get("namespace"), obj["metadata"]["name"].rpartition("-")[0])
        for obj in objects
        if obj["kind"] == "ControllerRevision"
    }
    for obj in objects:
        key = (obj["metadata"].get("namespace"), obj["metadata"]["name"])
        if obj["kind"] in ("DaemonSet", "StatefulSet") and key not in revised:
            yield obj


def _collect_volumes(obj: Obj, reason: str, volumes: DumpVolumes) -> None:
    match obj["kind"]:
        case "Node":
            volumes.add_node(obj)
        case "Pod" if not _is_finished(obj):
            volumes.add_pod(obj)
        case "PersistentVolumeClaim" if reason == RECREATED:
            volumes.add_ephemeral_claim(obj)


def _reason_to_leave_out(obj: Obj, keep_placement: bool) -> str:
    """Why an object is left out, or ""."""
    kind, meta = obj["kind"], obj.get("metadata") or {}
    name, labels = meta.get("name", ""), meta.get("labels") or {}
    if kind == "ControllerRevision" and keep_placement:
        return ""
    if kind == "APIService" and not mapping_at(obj, "spec").get("service"):
        return BUILT_IN
    for kinds, reason in (
        (_RECREATED_KINDS, RECREATED),
        (_BUILT_IN_KINDS, BUILT_IN),
        (_CALLING_KINDS, NEEDS_SERVER),
        (_HARDWARE_KINDS, HARDWARE),
    ):
        if kind in kinds:
            return reason
    if _owner_kind(obj) in _RECREATING_OWNERS:
        return RECREATED
    match kind:
        case "Namespace" if name in _BUILT_IN_NAMESPACES:
            return BUILT_IN
        case "Service" if (meta.get("namespace"), name) == ("default", "kubernetes"):
            return BUILT_IN
        case "ConfigMap" if name == "kube-root-ca.crt":
            return BUILT_IN
        case "ServiceAccount" if name == "default":
            return BUILT_IN
        case "PriorityClass" if name.startswith(_SYSTEM_PRIORITY):
            return BUILT_IN
        case "Secret" if obj.get("type") == "kubernetes.io/service-account-token":
            return CREDENTIALS
        case "EndpointSlice" if (
            labels.get("endpointslice.kubernetes.io/managed-by") in _MANAGED_SLICES
        ):
            return RECREATED
        case "PersistentVolumeClaim" if _owner_kind(obj) == "Pod":
            return RECREATED
        case "ReplicaSet" if _has_owner(obj) and not keep_placement:
            return RECREATED
        case "Job" if _has_owner(obj):
            return RECREATED
        case "Pod":
            return _reason_to_leave_out_pod(obj, keep_placement)
    if labels.get("kubernetes.io/bootstrapping") in ("rbac-defaults", "default-component"):
        return BUILT_IN
    return ""


def _reason_to_leave_out_pod(pod: Obj, keep_placement: bool) -> str:
    if _get_annotation(pod, "kubernetes.io/config.mirror") or _owner_kind(pod) == "Node":
        return STATIC_POD
    if _is_finished(pod):
        return ENDED
    if pod["metadata"].get("deletionTimestamp"):
        return TERMINATING
    node_name = mapping_at(pod, "spec").get("nodeName")
    return "" if not _has_owner(pod) or (keep_placement and node_name) else RECREATED


def _is_finished(pod: Obj) -> bool:
    return mapping_at(pod, "status").get("phase") in FINISHED_PHASES


def _strip(source: Obj, keep_placement: bool) -> tuple[Obj, list[str]]:
    """An object without what the other cluster wrote, and how else it differs."""
    obj = copy.deepcopy(source)
    differences: list[str] = []
    kind = obj["kind"]
    meta = obj.get("metadata") or {}
    obj["metadata"] = {key: meta[key] for key in _METADATA_FIELDS if meta.get(key)}
    annotations = obj["metadata"].pop("annotations", {})
    keep_revision = keep_placement and kind in ("Deployment", "ReplicaSet")
    kept_annotations = {
        key: value
        for key, value in annotations.items()
        if not key.startswith(_CONTROLLER_ANNOTATIONS)
        or (keep_revision and key.startswith(_REVISION_PREFIX))
    }
    if kept_annotations:
        obj["metadata"]["annotations"] = kept_annotations
    status = obj.pop("status", None) or {}
    spec = obj.get("spec") if isinstance(obj.get("spec"), dict) else {}
    assert isinstance(spec, dict)
    match kind:
        case "Node":
            _strip_node(obj, spec, status)
        case "Service":
            headless = spec.get("clusterIP") == "None"
            for field in _ASSIGNED_SERVICE_FIELDS:
                spec.pop(field, None)
            if headless:
                spec["clusterIP"] = "None"
        case "Pod":
            _strip_pod_spec(spec)
            for term in _pod_terms(spec):
                _remove_merged_expressions(term)
            if not keep_placement:
                spec.pop("nodeName", None)
        case "Job":
            _strip_job(obj, spec)
        case "Namespace":
            obj.pop("spec", None)
        case "StorageClass":
            return simulate_class(obj)
        case "PersistentVolume":
            provisioned = bool(_get_annotation(source, PROVISIONED_BY))
            differences = simulate_volume(obj, status.get("phase", ""), provisioned=provisioned)
        case "CustomResourceDefinition":
            if mapping_at(spec, "conversion").get("strategy") == "Webhook":
                differences = [NO_CONVERSION]
            spec.pop("conversion", None)
        case "ServiceAccount":
            obj.pop("secrets", None)
    template = _pod_template(obj)
    if template is not None:
        _strip_pod_spec(mapping_at(template, "spec"))
    return obj, differences


def _strip_node(obj: Obj, spec: Obj, status: Obj) -> None:
    """Keep a node's size, labels and its owner's taints; its kubelet writes the rest."""
    taints = spec.get("taints") or ()
    taints = [taint for taint in taints if not taint["key"].startswith(_CONTROLLER_TAINTS)]
    obj["spec"] = {"taints": taints} if taints else {}
    if spec.get("unschedulable"):
        obj["spec"]["unschedulable"] = True
    obj["status"] = {key: status[key] for key in ("allocatable", "capacity") if key in status}


def _strip_pod_spec(spec: Obj) -> None:
    """Remove the token volume that admission added, and the priority, which its class sets."""
    spec.pop("priority", None)
    spec["volumes"] = [
        volume
        for volume in spec.get("volumes") or ()
        if not _is_token_volume(volume.get("name", ""))
    ]
    for field in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(field) or ():
            mounts = container.get("volumeMounts") or ()
            container["volumeMounts"] = [
                mount for mount in mounts if not _is_token_volume(mount.get("name", ""))
            ]
    if not spec["volumes"]:
        del spec["volumes"]


def _pod_terms(spec: Obj) -> Iterator[Obj]:
    """Terms about other pods: spread constraints and pod affinities."""
    yield from spec.get("topologySpreadConstraints") or ()
    for field in ("podAffinity", "podAntiAffinity"):
        affinity = mapping_at(spec, "affinity", field)
        yield from affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ()
        for weighted in affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ():
            yield mapping_at(weighted, "podAffinityTerm")


def _remove_merged_expressions(term: Obj) -> None:
    """Remove from a selector what the server merged into it for ``matchLabelKeys``."""
    keys = {*(term.get("matchLabelKeys") or ()), *(term.get("mismatchLabelKeys") or ())}
    selector = mapping_at(term, "labelSelector")
    if keys and "matchExpressions" in selector:
        expressions = selector["matchExpressions"]
        selector["matchExpressions"] = [e for e in expressions if e["key"] not in keys]


def _strip_job(obj: Obj, spec: Obj) -> None:
    """Remove the selector and labels that have the other cluster's uid."""
    if not spec.get("manualSelector"):
        spec.pop("selector", None)
        for meta in (obj["metadata"], mapping_at(obj, "spec", "template", "metadata")):
            labels = meta.get("labels") or {}
            for label in ("controller-uid", "batch.kubernetes.io/controller-uid"):
                labels.pop(label, None)


def _invent_missing(objects: Iterable[Obj], references: set[ReferenceKey]) -> Iterator[Obj]:
    """Invent what is referred to and missing, without which nothing would start."""
    existing: set[ReferenceKey] = {("Namespace", "", name) for name in _BUILT_IN_NAMESPACES}
    for obj in objects:
        meta = obj["metadata"]
        existing.add((obj["kind"], meta.get("namespace", ""), meta["name"]))
    for kind, namespace, name in sorted(references - existing):
        if not name:
            continue
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        invented = {"apiVersion": "v1", "kind": kind, "metadata": meta}
        match kind:
            case "PriorityClass":
                yield {**invented, "apiVersion": "scheduling.k8s.io/v1", "value": 0}
            case "StorageClass":
                yield simulate_class({"metadata": meta})[0]
            case "PersistentVolumeClaim":
                spec = {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": CLAIM_SIZE}},
                    "volumeName": f"{namespace}-{name}",
                }
                yield {**invented, "spec": spec}
            case _:
                yield invented


def _references_of(obj: Obj) -> set[ReferenceKey]:
    """What an object or its pods need; some references have an empty name."""
    references = set(_find_references(obj))
    if not all(isinstance(part, str) for reference in references for part in reference):
        raise TypeError("a name is not text")
    return references


def _find_references(obj: Obj) -> Iterator[ReferenceKey]:
    namespace = obj["metadata"].get("namespace", "")
    yield "Namespace", "", namespace
    spec_of_obj = mapping_at(obj, "spec")
    if obj["kind"] == "PersistentVolumeClaim":
        annotations = obj["metadata"].get("annotations") or {}
        class_name = annotations.get(LEGACY_CLASS, spec_of_obj.get("storageClassName"))
        yield "StorageClass", "", class_name or ""
    for claim in spec_of_obj.get("volumeClaimTemplates") or ():
        yield "StorageClass", "", mapping_at(claim, "spec").get("storageClassName") or ""
    template = obj if obj["kind"] == "Pod" else _pod_template(obj)
    pod_spec = mapping_at(template, "spec") if template is not None else {}
    account = pod_spec.get("serviceAccountName") or pod_spec.get("serviceAccount") or ""
    if account != "default":
        yield "ServiceAccount", namespace, account
    priority = pod_spec.get("priorityClassName") or ""
    if not priority.startswith(_SYSTEM_PRIORITY):
        yield "PriorityClass", "", priority
    for volume in pod_spec.get("volumes") or ():
        claim = mapping_at(volume, "persistentVolumeClaim").get("claimName") or ""
        yield "PersistentVolumeClaim", namespace, claim
        claim_spec = mapping_at(volume, "ephemeral", "volumeClaimTemplate", "spec")
        yield "StorageClass", "", claim_spec.get("storageClassName") or ""


def _pod_template(obj: Obj) -> Obj | None:
    path = _TEMPLATE_PATHS.get(obj["kind"])
    return mapping_at(obj, *path) if path else None


def _has_owner(obj: Obj) -> bool:
    return bool(_owner_kind(obj))


def _owner_kind(obj: Obj) -> str:
    """The kind of the controller that owns an object."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner.get("kind", ""))
    return ""


def _get_annotation(obj: Obj, name: str) -> str:
    return str(mapping_at(obj, "metadata", "annotations").get(name) or "")


def _is_token_volume(volume: str) -> bool:
    return volume.startswith(_API_ACCESS_PREFIX)
