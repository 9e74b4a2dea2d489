"""The table of defaults: what a real server adds to the objects of `samples/`, sent with
dryRun=All.

OpenAPI knows almost none of them. Each sample is compared with the answer, definition by
definition. For every field that the sample left out, the answer either has a value or has not;
seen in many places this gives one of three results:

* always absent: no default;
* always there with the same value: a default that depends on nothing, and goes into the table;
* anything else: it depends on the rest of the object. Such fields must be named in `BY_HAND`, which
  is the list of what `embedded.machinery.decoding.defaulting` computes, or in `SERVER`, what
  admission or the kind's own rules decide. A field in neither stops the generator, and so does a
  name that is not needed.

A default of an object is `{}` with the defaults of its own definition inside. What Go prints anyway
(see `definitions.printing`) is no default. The metadata and the status of the object itself are set
by the server and ignored.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tools.tables.server import Refused, Server
from zonewise.embedded.machinery.decoding.normalizing import normalize
from zonewise.embedded.machinery.schema.definitions import OBJECT_META, Definitions
from zonewise.embedded.machinery.schema.kinds import KindRow
from zonewise.embedded.machinery.schema.schema import UNSET, Schema

SAMPLES = Path(__file__).with_name("samples")
STORED = "stored:"  # samples of this file are created and read back
ABSENT = "absent"
CORE = "io.k8s.api.core.v1."
BATCH = "io.k8s.api.batch.v1."
LABEL_SELECTOR = "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"
CRD = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."

# Depend on the rest of the object: computed by zonewise.embedded.machinery.decoding.defaulting.
BY_HAND = {
    "io.k8s.api.apps.v1.DaemonSetUpdateStrategy": {"rollingUpdate"},
    "io.k8s.api.apps.v1.DeploymentStrategy": {"rollingUpdate"},
    "io.k8s.api.apps.v1.StatefulSetUpdateStrategy": {"rollingUpdate"},
    "io.k8s.api.autoscaling.v2.HPAScalingRules": {"policies", "stabilizationWindowSeconds"},
    BATCH + "JobSpec": {
        "backoffLimit",
        "completionMode",
        "completions",
        "manualSelector",
        "parallelism",
        "podReplacementPolicy",
        "suspend",
    },
    CORE + "Container": {"imagePullPolicy"},
    CORE + "ContainerPort": {"hostPort"},
    CORE + "EphemeralContainer": {"imagePullPolicy"},
    CORE + "ImageVolumeSource": {"pullPolicy"},
    CORE + "LimitRangeItem": {"default", "defaultRequest"},
    CORE + "NodeStatus": {"allocatable"},
    CORE + "PersistentVolumeClaim": {"apiVersion", "kind"},
    CORE + "PersistentVolumeSpec": {"persistentVolumeReclaimPolicy", "volumeMode"},
    CORE + "PodSpec": {"enableServiceLinks", "serviceAccount", "serviceAccountName"},
    CORE + "ReplicationControllerSpec": {"selector"},
    CORE + "ResourceRequirements": {"requests"},
    CORE + "ServicePort": {"targetPort"},
    CORE + "ServiceSpec": {
        "allocateLoadBalancerNodePorts",
        "externalTrafficPolicy",
        "internalTrafficPolicy",
        "sessionAffinityConfig",
    },
    CORE + "Volume": {"emptyDir"},
    "io.k8s.api.networking.v1.NetworkPolicySpec": {"policyTypes"},
    "io.k8s.api.rbac.v1.Subject": {"apiGroup"},
    "io.k8s.api.resource.v1.DeviceSubRequest": {"count"},
    "io.k8s.api.resource.v1.ExactDeviceRequest": {"count"},
    CRD + "CustomResourceDefinitionNames": {"listKind", "singular"},
}
# Set while an object is created, by admission or by the rules of its kind: no defaults at all.
SERVER = {
    "io.k8s.api.certificates.v1.CertificateSigningRequestSpec": {
        "groups",
        "uid",
        "username",
    },
    BATCH + "JobSpec": {"selector"},
    CORE + "NamespaceSpec": {"finalizers"},
    CORE + "NodeSpec": {"taints"},
    CORE + "PersistentVolumeClaimSpec": {"dataSource", "dataSourceRef"},
    CORE + "PersistentVolumeStatus": {"lastPhaseTransitionTime"},
    CORE + "PodSpec": {"preemptionPolicy", "priority", "tolerations"},
    CORE + "ServicePort": {"nodePort"},
    CORE + "ServiceSpec": {
        "clusterIP",
        "clusterIPs",
        "healthCheckNodePort",
        "ipFamilies",
        "ipFamilyPolicy",
    },
    CORE + "TypedLocalObjectReference": {"apiGroup", "kind", "name"},
    CORE + "TypedObjectReference": {"apiGroup", "kind", "name"},
    "io.k8s.api.resource.v1.DeviceTaint": {"timeAdded"},
    LABEL_SELECTOR: {"matchLabels"},
    OBJECT_META: {"labels"},
}
# Dropped, though no feature gate turns them off.
CONSUMED = {CORE + "Secret": {"stringData"}}
# The status of these has defaults of its own; that of others is made by the rules of the kind.
STATUS = {
    CORE + kind for kind in ("Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim")
}
# Cannot be in a sample: switched off, read-only, or reserved for objects that exist already.
UNSEEN = {
    CORE + "ClusterTrustBundleProjection",
    CORE + "ComponentCondition",
    CORE + "ConfigMapNodeConfigSource",
    CORE + "NodeConfigSource",
    CORE + "PodCertificateProjection",
    CORE + "PodSchedulingGroup",
    "io.k8s.api.flowcontrol.v1.ExemptPriorityLevelConfiguration",
    "io.k8s.api.resource.v1.NodeAllocatableResourceMapping",
    "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry",
    "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
}


class Observations:
    """What was observed of each field of each definition that a sample left out."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, str], dict[str, list[str]]] = {}
        self.sent: dict[str, set[str]] = {}
        self.stored: set[tuple[str, str]] = set()
        self.gone: set[tuple[str, str]] = set()
        self.answers: list[dict[str, Any]] = []

    def compare(
        self, schema: Schema, sent: dict[str, Any], got: dict[str, Any], where: str
    ) -> None:
        """Record one use of a definition."""
        self.sent.setdefault(schema.name, set()).update(sent)
        for name, field in schema.fields.items():
            at = f"{where}.{name}"
            value = got.get(name, UNSET)
            if name in sent:
                (self.gone if value is UNSET else self.stored).add((schema.name, name))
                self._below(field, sent[name], value, at)
            elif field.shape == "object" and field.absent_value == {} and value is not UNSET:
                self.compare(field, {}, value, at)
            elif value is UNSET or (
                field.absent_value is not UNSET and value == field.absent_value
            ):
                self._add(schema.name, name, ABSENT, where)
            elif field.shape == "object":
                self._add(schema.name, name, "{}", where)
                self.compare(field, {}, value, at)
            else:
                self._add(schema.name, name, json.dumps(value, sort_keys=True), where)

    def _add(self, name: str, field: str, text: str, where: str) -> None:
        self.seen.setdefault((name, field), {}).setdefault(text, []).append(where)

    def _below(self, schema: Schema, sent: Any, got: Any, where: str) -> None:
        if got is UNSET:
            return
        if schema.shape == "object":
            self.compare(schema, sent, got, where)
        elif schema.shape == "list" and schema.items is not None:
            for index, (before, after) in enumerate(zip(sent, got, strict=False)):
                self._below(schema.items, before, after, f"{where}[{index}]")
        elif schema.shape == "map" and schema.values is not None:
            for key, before in sent.items():
                self._below(schema.values, before, got.get(key, UNSET), f"{where}[{key}]")

    def defaults(self) -> dict[str, dict[str, Any]]:
        """The defaults that depend on nothing, sorted; raises for fields that no list names."""
        by_type: dict[str, dict[str, Any]] = {}
        explained = {
            (name, field) for named in (BY_HAND, SERVER) for name in named for field in named[name]
        }
        complaints = []
        for (name, field), values in sorted(self.seen.items()):
            if (name, field) in explained:
                explained.discard((name, field))
                if set(values) == {ABSENT}:
                    complaints.append(f"{name}.{field} is explained and never has a default")
            elif len(values) > 1:
                places = {text: where[:3] for text, where in values.items()}
                complaints.append(f"{name}.{field} depends on something: {places}")
            elif ABSENT not in values:
                by_type.setdefault(name, {})[field] = json.loads(next(iter(values)))
        complaints += [f"{name}.{field} is explained and was not seen" for name, field in explained]
        if complaints:
            raise ValueError("\n".join(complaints))
        return by_type

    def dropped(self) -> dict[str, list[str]]:
        """Fields that this server knows and drops: their feature gate is off."""
        by_type: dict[str, list[str]] = {}
        for name, field in sorted(self.gone - self.stored):
            if field not in CONSUMED.get(name, ()):
                by_type.setdefault(name, []).append(field)
        return by_type

    def unseen(self, kinds: Iterable[KindRow], definitions: Definitions) -> list[str]:
        """Definitions that objects can hold and no sample does."""
        reachable: set[str] = set()

        def visit(schema: Schema) -> None:
            if schema.name in reachable:
                return
            if schema.name:
                reachable.add(schema.name)
            for name, field in schema.fields.items():
                if name != "status" or not field.name.endswith("Status"):
                    visit(field)
            for below in (schema.items, schema.values):
                if below is not None:
                    visit(below)

        for row in kinds:
            if "list" in row.verbs:
                visit(definitions.schema(row.type))
        objects = {name for name in reachable if definitions.schema(name).shape == "object"}
        missing = {name for name in objects - self.sent.keys() if not name.endswith("Status")}
        return sorted(missing ^ UNSEEN)


def samples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of the samples, with its origin."""
    for file in sorted(SAMPLES.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield f"{file.stem}:{document['kind']}/{document['metadata'].get('name', '')}", document


def collection(row: KindRow, namespace: str = "default") -> str:
    """Where objects of a kind are created."""
    root = f"/apis/{row.group}/{row.version}" if row.group else f"/api/{row.version}"
    return (
        f"{root}/namespaces/{namespace}/{row.plural}" if row.namespaced else f"{root}/{row.plural}"
    )


def by_kind(kinds: Iterable[KindRow]) -> dict[tuple[str, str], KindRow]:
    """Rows by apiVersion and kind of an object."""
    return {(f"{row.group}/{row.version}".lstrip("/"), row.kind): row for row in kinds}


def observe(server: Server, kinds: Iterable[KindRow], definitions: Definitions) -> Observations:
    """Send every sample and compare."""
    rows = by_kind(kinds)
    observations = Observations()
    for where, sample in samples():
        row = rows[sample["apiVersion"], sample["kind"]]
        try:
            got = _answer(server, collection(row), sample, stored=where.startswith(STORED))
        except Refused as refused:
            raise ValueError(f"{where}: {refused}") from refused
        kind = definitions.schema(row.type)
        if "name" in sample["metadata"]:
            observations.answers.append(
                {"type": row.type, "sent": sample, "got": answer(kind, sample, got)}
            )
        sent = normalize(kind, copy.deepcopy(sample))
        for side in (sent, got):
            if row.type not in STATUS:
                side.pop("status", None)
            for name in ("metadata", "apiVersion", "kind"):
                side.pop(name, None)
        observations.compare(kind, sent, got, where)
    _observe_ephemeral(server, definitions, observations)
    return observations


def _answer(server: Server, path: str, sample: dict[str, Any], *, stored: bool) -> dict[str, Any]:
    """What a sample becomes: at once, or in storage."""
    got: dict[str, Any]
    if not stored:
        got = server.send("POST", f"{path}?dryRun=All&fieldValidation=Strict", sample)
        return got
    object_path = f"{path}/{sample['metadata']['name']}"
    server.send("POST", path, sample)
    try:
        got = server.get(object_path)
    finally:
        server.send("DELETE", f"{object_path}?gracePeriodSeconds=0")
    return got


def answer(schema: Schema, sent: Mapping[str, Any], got: Mapping[str, Any]) -> dict[str, Any]:
    """An answer without what the server sets: the result that our own code must have."""
    trimmed = copy.deepcopy(dict(got))
    given = sent.get("metadata", {})
    trimmed["metadata"] = {
        name: value
        for name, value in trimmed["metadata"].items()
        if name in given or name == "labels"
    }
    if schema.name not in STATUS:
        trimmed.pop("status", None)
    elif "lastPhaseTransitionTime" in trimmed["status"]:
        del trimmed["status"]["lastPhaseTransitionTime"]
    if schema.name == BATCH + "Job":
        for meta in (trimmed["metadata"], trimmed["spec"]["template"]["metadata"]):
            labels = meta.pop("labels", {})
            own = {k: v for k, v in labels.items() if not k.endswith(("-uid", "job-name"))}
            meta.update({"labels": own} if own else {})
        if not trimmed["spec"]["manualSelector"]:
            del trimmed["spec"]["selector"]
    stripped: dict[str, Any] = without_server_fields(schema, trimmed)
    return stripped


def without_server_fields(schema: Schema, value: Any) -> Any:
    """A value without the fields that admission or the rules of its kind may set."""
    if schema.shape == "object" and isinstance(value, dict):
        skipped = (
            () if schema.name in (LABEL_SELECTOR, OBJECT_META) else SERVER.get(schema.name, ())
        )
        return {
            name: without_server_fields(schema.fields[name], item)
            for name, item in value.items()
            if name not in skipped or (schema.name == BATCH + "JobSpec")
        }
    if schema.shape == "list" and schema.items is not None and isinstance(value, list):
        return [without_server_fields(schema.items, item) for item in value]
    return value


def _observe_ephemeral(
    server: Server, definitions: Definitions, observations: Observations
) -> None:
    """Ephemeral containers can only be added to a pod that exists."""
    pods = "/api/v1/namespaces/default/pods"
    pod = {"metadata": {"name": "ephemeral"}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    server.send("POST", pods, pod)
    try:
        sent = [{"name": "b", "image": "b:1"}, {"name": "c", "image": "c"}]
        got = server.send(
            "PATCH",
            f"{pods}/ephemeral/ephemeralcontainers?dryRun=All&fieldValidation=Strict",
            {"spec": {"ephemeralContainers": sent}},
            media="application/strategic-merge-patch+json",
        )
        by_name = {item["name"]: item for item in got["spec"]["ephemeralContainers"]}
        kind = definitions.schema(CORE + "EphemeralContainer")
        for item in sent:
            observations.compare(
                kind, item, by_name[item["name"]], f"ephemeral container {item['name']}"
            )
    finally:
        server.send("DELETE", f"{pods}/ephemeral?gracePeriodSeconds=0")
