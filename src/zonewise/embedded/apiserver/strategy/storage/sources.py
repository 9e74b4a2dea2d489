"""Where the bytes of a PersistentVolume are: one source each, and what each source needs."""

from __future__ import annotations

import re

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.pod.volumes import HOST_TYPES, no_backsteps

SOURCES = (
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
)
"""In the order in which they are looked for; of several the first one counts."""

NEEDS: dict[str, tuple[str, ...]] = {
    "awsElasticBlockStore": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "azureFile": ("secretName", "shareName"),
    "cephfs": ("monitors",),
    "cinder": ("volumeID",),
    "csi": ("driver", "volumeHandle"),
    "flexVolume": ("driver",),
    "gcePersistentDisk": ("pdName",),
    "glusterfs": ("endpoints", "path"),
    "hostPath": ("path",),
    "iscsi": ("targetPortal", "iqn"),
    "local": ("path",),
    "nfs": ("server", "path"),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "quobyte": ("registry", "volume"),
    "rbd": ("monitors", "image"),
    "scaleIO": ("gateway", "system", "volumeName"),
    "storageos": ("volumeName",),
    "vsphereVolume": ("volumePath",),
}
SHOWN = {"gcePersistentDisk": "persistentDisk"}
"""What faults call a source, where it is not its name."""

SECRETS = (
    "controllerPublishSecretRef",
    "nodePublishSecretRef",
    "controllerExpandSecretRef",
    "nodeExpandSecretRef",
)
CACHING_MODES = ("None", "ReadOnly", "ReadWrite")
LONGEST_DRIVER = 63
LARGEST_BYTE = 255

_IQN = re.compile(r"iqn\.\d{4}-\d{2}\.([A-Za-z0-9\-.]+)(:[^,;*&$|\s]+)$")
_EUI = re.compile(r"eui\.[A-Fa-f0-9]{16}$")
_NAA = re.compile(r"naa\.([A-Fa-f0-9]{16}|[A-Fa-f0-9]{32})$")
_BYTE = "must be between 0 and 255, inclusive"


def driver_faults(name: str, path: str) -> Faults:
    """What is wrong with the name of a CSI driver."""
    if not name:
        return [field_errors.required(path)]
    found: Faults = []
    if len(name) > LONGEST_DRIVER:
        found.append(field_errors.too_long(path, LONGEST_DRIVER))
    return found + [
        field_errors.invalid(path, name, text) for text in names.subdomain(name.lower())
    ]


def source_faults(spec: Obj, path: str) -> Faults:
    """What is wrong with where a volume is."""
    given = [key for key in SOURCES if spec.get(key) is not None]
    if not given:
        return [field_errors.required(path, "must specify a volume type")]
    text = "may not specify more than 1 volume type"
    found: Faults = [field_errors.forbidden(f"{path}.{key}", text) for key in given[1:]]
    first = given[0]
    source, at = spec[first], f"{path}.{SHOWN.get(first, first)}"
    for key in NEEDS.get(first, ()):
        if not source.get(key):
            found.append(field_errors.required(f"{at}.{key}"))
    target = source.get("path", "")
    match first:
        case "hostPath":
            found += no_backsteps(target, f"{at}.path")
            kind = source.get("type")
            if target and kind is not None and kind not in HOST_TYPES:
                found.append(field_errors.unsupported(f"{at}.type", kind, HOST_TYPES))
        case "local":
            found += no_backsteps(target, f"{at}.path")
            if target and spec.get("nodeAffinity") is None:
                why = "Local volume requires node affinity"
                found.append(field_errors.required(f"{path}.nodeAffinity", why))
        case "nfs":
            if not target.startswith("/"):
                found.append(field_errors.invalid(f"{at}.path", target, "must be an absolute path"))
        case "csi":
            found += _csi_faults(source, at)
        case "fc":
            found += _channel_faults(source, at)
        case "azureDisk":
            found += _azure_faults(source, at)
        case "gcePersistentDisk" | "awsElasticBlockStore":
            number = source.get("partition", 0)
            if not 0 <= number <= LARGEST_BYTE:
                found.append(field_errors.invalid(f"{at}.partition", number, _BYTE))
        case "flocker":
            if not source.get("datasetName") and not source.get("datasetUUID"):
                found.append(
                    field_errors.required(at, "one of datasetName and datasetUUID is required")
                )
        case "iscsi":
            found += _iscsi_faults(source, at)
    return found


def _iscsi_faults(source: Obj, path: str) -> Faults:
    found: Faults = []
    name, lun = source.get("iqn", ""), source.get("lun", 0)
    if name and not any(pattern.match(name) for pattern in (_IQN, _EUI, _NAA)):
        found.append(field_errors.invalid(f"{path}.iqn", name, "must be valid format"))
    if not 0 <= lun <= LARGEST_BYTE:
        found.append(field_errors.invalid(f"{path}.lun", lun, _BYTE))
    return found


def _csi_faults(source: Obj, path: str) -> Faults:
    found: Faults = []
    if source.get("driver"):
        found += driver_faults(source["driver"], f"{path}.driver")
    for key in SECRETS:
        secret = source.get(key)
        if secret is None:
            continue
        for part in ("name", "namespace"):
            at, name = f"{path}.{key}.{part}", secret.get(part, "")
            if not name:
                found.append(field_errors.required(at))
            elif part == "name":
                found += [field_errors.invalid(at, name, text) for text in names.subdomain(name)]
            else:
                found += [field_errors.invalid(at, name, text) for text in names.label(name)]
    return found


def _channel_faults(source: Obj, path: str) -> Faults:
    worlds, devices = source.get("targetWWNs"), source.get("wwids")
    at = f"{path}.targetWWNs"
    if not worlds and not devices:
        return [field_errors.required(at, "must specify either targetWWNs or wwids, but not both")]
    if worlds and devices:
        text = "targetWWNs and wwids can not be specified simultaneously"
        return [field_errors.invalid(at, worlds, text)]
    if worlds and source.get("lun") is None:
        return [field_errors.required(f"{path}.lun", "lun is required if targetWWNs is specified")]
    if worlds and not 0 <= source["lun"] <= LARGEST_BYTE:
        return [field_errors.invalid(f"{path}.lun", source["lun"], _BYTE)]
    return []


def _azure_faults(source: Obj, path: str) -> Faults:
    found: Faults = []
    caching = source.get("cachingMode")
    if caching is not None and caching not in CACHING_MODES:
        found.append(field_errors.unsupported(f"{path}.cachingMode", caching, CACHING_MODES))
    managed = source.get("kind") == "Managed"
    start = "/subscriptions/" if managed else "https://"
    if not source.get("diskURI", "").startswith(start):
        found.append(
            field_errors.unsupported(f"{path}.diskURI", source.get("diskURI", ""), (start,))
        )
    return found
