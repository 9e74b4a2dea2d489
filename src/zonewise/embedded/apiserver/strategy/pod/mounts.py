"""The volumes of a container: where it mounts them, and which it has as devices."""

from __future__ import annotations

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.base import Obj
from zonewise.embedded.apiserver.strategy.pod.references import validate_local_descending_path

PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
RECURSIVE_MODES = ("Disabled", "Enabled", "IfPossible")
OPTIONS = frozenset({"subPath", "subPathExpr", "mountPropagation", "recursiveReadOnly"})


def validate_volume_mounts(container: Field, volumes: dict[str, Obj]) -> None:
    """Where a container mounts volumes; ``volumes`` are the valid ones of the pod."""
    mounts = container["volumeMounts"]
    devices = {
        device.get("name", ""): device.get("devicePath", "")
        for device in container.value.get("volumeDevices") or ()
    }
    targets: set[str] = set()
    for mount in mounts.each():
        name, target = mount.get("name", ""), mount.get("mountPath", "")
        name.required()
        if name.value not in volumes:
            name.not_found()
        target.required()
        if target.value in targets:
            target.invalid("must be unique")
        targets.add(target.value)
        if devices:
            if name.value in devices:
                name.invalid("must not already exist in volumeDevices")
            if target.value in devices.values():
                target.invalid("must not already exist as a path in volumeDevices")
        if not OPTIONS.isdisjoint(mount.value):
            # These are reported without the index of the mount.
            _validate_mount_options(mount, mounts.holding(mount.value), container)


def _validate_mount_options(mount: Field, reported: Field, container: Field) -> None:
    if mount.value.get("subPath"):
        validate_local_descending_path(reported["subPath"])
    if mount.value.get("subPathExpr"):
        if mount.value.get("subPath"):
            mount["subPathExpr"].invalid("subPathExpr and subPath are mutually exclusive")
        validate_local_descending_path(reported["subPathExpr"])
    propagation = reported["mountPropagation"].enum(PROPAGATIONS)
    if propagation.value == "Bidirectional":
        context = container.value.get("securityContext") or {}
        if not context.get("privileged"):
            propagation.forbid(
                "Bidirectional mount propagation is available only to privileged containers"
            )
    recursive = reported["recursiveReadOnly"].enum(RECURSIVE_MODES)
    if recursive.value not in {None, "Disabled"}:
        if not mount.value.get("readOnly"):
            recursive.forbid("may only be specified when readOnly is true")
        if mount.value.get("mountPropagation") not in {None, "None"}:
            recursive.forbid("may only be specified when mountPropagation is None or not specified")


def validate_volume_devices(container: Field, volumes: dict[str, Obj]) -> None:
    """The block devices of a container."""
    mounts = {
        mount.get("name", ""): mount.get("mountPath", "")
        for mount in container.value.get("volumeMounts") or ()
    }
    names: set[str] = set()
    targets: set[str] = set()
    for device in container["volumeDevices"].each():
        name, target = device.get("name", ""), device.get("devicePath", "")
        name.required()
        if name.value in names:
            name.invalid("must be unique")
        volume = volumes.get(name.value)
        if volume is None:
            name.not_found()
        elif volume.get("persistentVolumeClaim") is None and volume.get("ephemeral") is None:
            name.invalid(
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block"
                " mode"
            )
        target.required()
        if target.value in targets:
            target.invalid("must be unique")
        if ".." in target.value.split("/"):
            target.invalid("can not contain backsteps ('..')")
        else:
            targets.add(target.value)
        if name.value in mounts:
            name.invalid("must not already exist in volumeMounts")
        if target.value in mounts.values():
            target.invalid("must not already exist as a path in volumeMounts")
        if name.value:
            names.add(name.value)
