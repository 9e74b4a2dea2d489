"""Printers of volumes, claims, storage classes and drivers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zonewise.api.objects.storage import LEGACY_CLASS, is_default_class
from zonewise.embedded.apiserver.codec.printers.base import (
    UNSET,
    Obj,
    age_of,
    join_or,
    name_of,
    printer_for,
    spec_of,
    status_of,
)

_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def _format_access_modes(modes: Iterable[str] | None) -> str:
    present = set(modes or ())
    return ",".join(short for mode, short in _MODES.items() if mode in present)


@printer_for("/persistentvolumeclaims")
def _print_claim(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    phase = "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", "")
    bound = bool(spec.get("volumeName"))
    legacy = (obj["metadata"].get("annotations") or {}).get(LEGACY_CLASS)
    return [
        name_of(obj),
        phase,
        spec.get("volumeName", ""),
        (status.get("capacity") or {}).get("storage", "0") if bound else "",
        _format_access_modes(status.get("accessModes")) if bound else "",
        legacy or spec.get("storageClassName") or "",
        spec.get("volumeAttributesClassName") or UNSET,
        age_of(obj, now),
        spec.get("volumeMode") or UNSET,
    ]


@printer_for("/persistentvolumes")
def _print_volume(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    phase = "Terminating" if obj["metadata"].get("deletionTimestamp") else status.get("phase", "")
    claim = spec.get("claimRef")
    return [
        name_of(obj),
        (spec.get("capacity") or {}).get("storage", "0"),
        _format_access_modes(spec.get("accessModes")),
        spec.get("persistentVolumeReclaimPolicy", ""),
        phase,
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        spec.get("storageClassName", ""),
        spec.get("volumeAttributesClassName") or UNSET,
        status.get("reason", ""),
        age_of(obj, now),
        spec.get("volumeMode") or UNSET,
    ]


@printer_for("storage.k8s.io/storageclasses")
def _print_storage_class(obj: Obj, now: str) -> list[Any]:
    annotations = obj["metadata"].get("annotations") or {}
    name = name_of(obj)
    if is_default_class(annotations):
        name += " (default)"
    return [
        name,
        obj.get("provisioner", ""),
        obj.get("reclaimPolicy", "Delete"),
        obj.get("volumeBindingMode", "Immediate"),
        bool(obj.get("allowVolumeExpansion")),
        age_of(obj, now),
    ]


@printer_for("storage.k8s.io/csinodes")
def _print_csi_node(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), len(spec_of(obj).get("drivers") or ()), age_of(obj, now)]


@printer_for("storage.k8s.io/csidrivers")
def _print_csi_driver(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    audiences = [
        token_request.get("audience", "") for token_request in spec.get("tokenRequests") or ()
    ]
    return [
        name_of(obj),
        spec.get("attachRequired", True),
        spec.get("podInfoOnMount", False),
        spec.get("storageCapacity", False),
        ",".join(audiences) if spec.get("tokenRequests") else UNSET,
        spec.get("requiresRepublish", False),
        join_or(spec.get("volumeLifecycleModes") or ()),
        age_of(obj, now),
    ]


@printer_for("storage.k8s.io/volumeattachments")
def _print_attachment(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    return [
        name_of(obj),
        spec.get("attacher", ""),
        (spec.get("source") or {}).get("persistentVolumeName", ""),
        spec.get("nodeName", ""),
        bool(status_of(obj).get("attached")),
        age_of(obj, now),
    ]


@printer_for("storage.k8s.io/volumeattributesclasses")
def _print_attributes_class(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), obj.get("driverName", ""), age_of(obj, now)]
