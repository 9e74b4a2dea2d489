"""The CustomResourceDefinitions of snapshots, for clusters that do not have them.

Names, fields and columns are those of Kubernetes' snapshot API; clients written for it find what
they expect. A cluster that has definitions of its own keeps them.
"""

from __future__ import annotations

from typing import Any

from zonewise.api.objects.snapshots import (
    GROUP,
    VolumeSnapshot,
    VolumeSnapshotClass,
    VolumeSnapshotContent,
)
from zonewise.api.resource import Resource

Obj = dict[str, Any]

APPROVED = "https://github.com/kubernetes-csi/external-snapshotter/pull/814"
TEXT: Obj = {"type": "string"}
TIME: Obj = {"type": "string", "format": "date-time"}
FLAG: Obj = {"type": "boolean"}
LONG: Obj = {"type": "integer", "format": "int64"}
POLICY: Obj = {"type": "string", "enum": ["Delete", "Retain"]}
ERROR: Obj = {"type": "object", "properties": {"message": TEXT, "time": TIME}}


def definitions() -> list[Obj]:
    """All three definitions."""
    return [_snapshots(), _contents(), _classes()]


def _one_of(first: str, second: str) -> Obj:
    return {
        "type": "object",
        "properties": {first: TEXT, second: TEXT},
        "x-kubernetes-validations": [
            {
                "rule": f"has(self.{first}) != has(self.{second})",
                "message": f"exactly one of {first} and {second} must be set",
            }
        ],
    }


def _schema(spec: Obj, status: Obj) -> Obj:
    return {"type": "object", "required": ["spec"], "properties": {"spec": spec, "status": status}}


def _snapshots() -> Obj:
    size = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    spec = {
        "type": "object",
        "required": ["source"],
        "properties": {
            "source": _one_of("persistentVolumeClaimName", "volumeSnapshotContentName"),
            "volumeSnapshotClassName": TEXT,
        },
    }
    status = {
        "type": "object",
        "properties": {
            "boundVolumeSnapshotContentName": TEXT,
            "creationTime": TIME,
            "readyToUse": FLAG,
            "restoreSize": size,
            "error": ERROR,
            "volumeGroupSnapshotName": TEXT,
        },
    }
    columns = [
        _column("ReadyToUse", ".status.readyToUse", "boolean"),
        _column("SourcePVC", ".spec.source.persistentVolumeClaimName", "string"),
        _column("SourceSnapshotContent", ".spec.source.volumeSnapshotContentName", "string"),
        _column("RestoreSize", ".status.restoreSize", "string"),
        _column("SnapshotClass", ".spec.volumeSnapshotClassName", "string"),
        _column("SnapshotContent", ".status.boundVolumeSnapshotContentName", "string"),
        _column("CreationTime", ".status.creationTime", "date"),
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    return _definition(VolumeSnapshot.resource, ["vs"], _schema(spec, status), columns, status=True)


def _contents() -> Obj:
    names = ("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid")
    reference = {"type": "object", "properties": dict.fromkeys(names, TEXT)}
    spec = {
        "type": "object",
        "required": ["deletionPolicy", "driver", "source", "volumeSnapshotRef"],
        "properties": {
            "deletionPolicy": POLICY,
            "driver": TEXT,
            "source": _one_of("volumeHandle", "snapshotHandle"),
            "sourceVolumeMode": TEXT,
            "volumeSnapshotClassName": TEXT,
            "volumeSnapshotRef": reference,
        },
    }
    status = {
        "type": "object",
        "properties": {
            "snapshotHandle": TEXT,
            "creationTime": LONG,
            "restoreSize": {**LONG, "minimum": 0},
            "readyToUse": FLAG,
            "error": ERROR,
            "volumeGroupSnapshotHandle": TEXT,
        },
    }
    columns = [
        _column("ReadyToUse", ".status.readyToUse", "boolean"),
        _column("RestoreSize", ".status.restoreSize", "integer"),
        _column("DeletionPolicy", ".spec.deletionPolicy", "string"),
        _column("Driver", ".spec.driver", "string"),
        _column("VolumeSnapshotClass", ".spec.volumeSnapshotClassName", "string"),
        _column("VolumeSnapshot", ".spec.volumeSnapshotRef.name", "string"),
        _column("VolumeSnapshotNamespace", ".spec.volumeSnapshotRef.namespace", "string"),
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    resource, schema = VolumeSnapshotContent.resource, _schema(spec, status)
    return _definition(resource, ["vsc", "vscs"], schema, columns, status=True)


def _classes() -> Obj:
    schema = {
        "type": "object",
        "required": ["deletionPolicy", "driver"],
        "properties": {
            "deletionPolicy": POLICY,
            "driver": TEXT,
            "parameters": {"type": "object", "additionalProperties": TEXT},
        },
    }
    columns = [
        _column("Driver", ".driver", "string"),
        _column("DeletionPolicy", ".deletionPolicy", "string"),
        _column("Age", ".metadata.creationTimestamp", "date"),
    ]
    resource = VolumeSnapshotClass.resource
    return _definition(resource, ["vsclass", "vsclasses"], schema, columns, status=False)


def _column(name: str, path: str, kind: str) -> Obj:
    return {"name": name, "jsonPath": path, "type": kind}


def _definition(
    resource: Resource, short: list[str], schema: Obj, columns: list[Obj], *, status: bool
) -> Obj:
    version: Obj = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": columns,
    }
    if status:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{resource.plural}.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": APPROVED},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": short,
            },
            "versions": [version],
        },
    }
