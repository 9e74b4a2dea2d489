"""Where the bytes of a PersistentVolume are: one source each, and what each source requires."""

from __future__ import annotations

import re

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.pod.references import validate_path_no_backsteps
from zonewise.embedded.apiserver.strategy.pod.volumes import (
    HOST_PATH_TYPES,
    TOO_MANY_SOURCES,
    validate_absolute_path,
    validate_csi_driver_name,
)

SOURCES: dict[str, tuple[str, ...]] = {
    "hostPath": ("path",),
    "gcePersistentDisk": ("pdName",),
    "awsElasticBlockStore": ("volumeID",),
    "glusterfs": ("endpoints", "path"),
    "flocker": (),
    "nfs": ("server", "path"),
    "rbd": ("monitors", "image"),
    "quobyte": ("registry", "volume"),
    "cephfs": ("monitors",),
    "iscsi": ("targetPortal", "iqn"),
    "cinder": ("volumeID",),
    "fc": (),
    "flexVolume": ("driver",),
    "azureFile": ("secretName", "shareName"),
    "vsphereVolume": ("volumePath",),
    "photonPersistentDisk": ("pdID",),
    "portworxVolume": ("volumeID",),
    "azureDisk": ("diskName", "diskURI"),
    "scaleIO": ("gateway", "system", "volumeName"),
    "local": ("path",),
    "storageos": ("volumeName",),
    "csi": ("driver", "volumeHandle"),
}
"""The fields that each source requires; of several sources the first one counts."""

REPORTED_NAMES = {"gcePersistentDisk": "persistentDisk"}
"""What errors call a source, where it is not its name."""

SECRET_REFERENCES = (
    "controllerPublishSecretRef",
    "nodePublishSecretRef",
    "controllerExpandSecretRef",
    "nodeExpandSecretRef",
)
CACHING_MODES = ("None", "ReadOnly", "ReadWrite")

_ISCSI_NAME = re.compile(
    r"iqn\.\d{4}-\d{2}\.([A-Za-z0-9\-.]+)(:[^,;*&$|\s]+)$"
    r"|eui\.[A-Fa-f0-9]{16}$"
    r"|naa\.([A-Fa-f0-9]{16}|[A-Fa-f0-9]{32})$"
)


def validate_volume_source(spec: Field) -> None:
    """The source of a volume."""
    fields = spec.value or {}
    chosen = [key for key in SOURCES if fields.get(key) is not None]
    if not chosen:
        spec.missing("must specify a volume type")
        return
    for key in chosen[1:]:
        spec[key].forbid(TOO_MANY_SOURCES)
    key = chosen[0]
    source = spec[key].named(REPORTED_NAMES.get(key, key))
    source.require(*SOURCES[key])
    path = source["path"]
    match key:
        case "hostPath":
            validate_path_no_backsteps(path)
            if path.value:
                source["type"].enum(HOST_PATH_TYPES)
        case "local":
            validate_path_no_backsteps(path)
            if path.value:
                spec["nodeAffinity"].present("Local volume requires node affinity")
        case "nfs":
            validate_absolute_path(source.get("path", ""))
        case "csi":
            _validate_csi(source)
        case "fc":
            _validate_fibre_channel(source)
        case "azureDisk":
            _validate_azure_disk(source)
        case "gcePersistentDisk" | "awsElasticBlockStore":
            source["partition"].between(0, 255)
        case "flocker":
            if not source["datasetName"].value and not source["datasetUUID"].value:
                source.missing("one of datasetName and datasetUUID is required")
        case "iscsi":
            source["iqn"].optional().matches(_ISCSI_NAME, "must be valid format")
            source["lun"].between(0, 255)


def _validate_csi(source: Field) -> None:
    if source["driver"].value:
        validate_csi_driver_name(source["driver"])
    for key in SECRET_REFERENCES:
        if source[key].value is not None:
            source[key]["name"].required().dns_subdomain()
            source[key]["namespace"].required().dns_label()


def _validate_fibre_channel(source: Field) -> None:
    names, ids, lun = source["targetWWNs"], source["wwids"], source["lun"]
    if not names.value and not ids.value:
        names.missing("must specify either targetWWNs or wwids, but not both")
    elif names.value and ids.value:
        names.invalid("targetWWNs and wwids can not be specified simultaneously")
    elif names.value:
        lun.present("lun is required if targetWWNs is specified").between(0, 255)


def _validate_azure_disk(source: Field) -> None:
    source["cachingMode"].enum(CACHING_MODES)
    prefix = "/subscriptions/" if source["kind"].value == "Managed" else "https://"
    uri = source.get("diskURI", "")
    if not uri.value.startswith(prefix):
        uri.unsupported((prefix,))
