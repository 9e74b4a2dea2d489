"""The volumes of a container: where it mounts them, and which it has as devices."""

from __future__ import annotations

from zonewise.api import field_errors
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.pod.volumes import local_path

PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
RECURSIVE = ("Disabled", "Enabled", "IfPossible")


def mount_faults(one: Obj, path: str, volumes: dict[str, Obj]) -> Faults:
    """What is wrong with where a container mounts volumes."""
    found: Faults = []
    seen: set[str] = set()
    devices = {
        dev.get("name", ""): dev.get("devicePath", "") for dev in one.get("volumeDevices") or ()
    }
    for index, mount in enumerate(one["volumeMounts"]):
        name, target = mount.get("name", ""), mount.get("mountPath", "")
        at = f"{path}[{index}]"
        if not name:
            found.append(field_errors.required(f"{at}.name"))
        if name not in volumes:
            found.append(field_errors.not_found(f"{at}.name", name))
        if not target:
            found.append(field_errors.required(f"{at}.mountPath"))
        if target in seen:
            found.append(field_errors.invalid(f"{at}.mountPath", target, "must be unique"))
        seen.add(target)
        if devices:
            if name in devices:
                text = "must not already exist in volumeDevices"
                found.append(field_errors.invalid(f"{at}.name", name, text))
            if target in devices.values():
                text = "must not already exist as a path in volumeDevices"
                found.append(field_errors.invalid(f"{at}.mountPath", target, text))
        if mount.get("subPath"):
            found += local_path(mount["subPath"], f"{path}.subPath")
        if mount.get("subPathExpr"):
            if mount.get("subPath"):
                text = "subPathExpr and subPath are mutually exclusive"
                found.append(field_errors.invalid(f"{at}.subPathExpr", mount["subPathExpr"], text))
            found += local_path(mount["subPathExpr"], f"{path}.subPathExpr")
        if mount.get("mountPropagation") is not None:
            found += _propagation(mount["mountPropagation"], one, f"{path}.mountPropagation")
        if mount.get("recursiveReadOnly") is not None:
            found += _recursive(mount, f"{path}.recursiveReadOnly")
    return found


def _propagation(mode: str, container: Obj, path: str) -> Faults:
    if mode not in PROPAGATIONS:
        return [field_errors.unsupported(path, mode, PROPAGATIONS)]
    if mode == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
        text = "Bidirectional mount propagation is available only to privileged containers"
        return [field_errors.forbidden(path, text)]
    return []


def _recursive(mount: Obj, path: str) -> Faults:
    mode = mount["recursiveReadOnly"]
    if mode not in RECURSIVE:
        return [field_errors.unsupported(path, mode, RECURSIVE)]
    found: Faults = []
    if mode != "Disabled":
        if not mount.get("readOnly"):
            found.append(
                field_errors.forbidden(path, "may only be specified when readOnly is true")
            )
        if mount.get("mountPropagation") not in {None, "None"}:
            text = "may only be specified when mountPropagation is None or not specified"
            found.append(field_errors.forbidden(path, text))
    return found


def device_faults(one: Obj, path: str, volumes: dict[str, Obj]) -> Faults:
    """What is wrong with the block devices of a container."""
    found: Faults = []
    mounts = {
        mnt.get("name", ""): mnt.get("mountPath", "") for mnt in one.get("volumeMounts") or ()
    }
    seen_names: set[str] = set()
    seen_paths: set[str] = set()
    for index, device in enumerate(one["volumeDevices"]):
        name, target = device.get("name", ""), device.get("devicePath", "")
        at = f"{path}[{index}]"
        source = volumes.get(name)
        if not name:
            found.append(field_errors.required(f"{at}.name"))
        if name in seen_names:
            found.append(field_errors.invalid(f"{at}.name", name, "must be unique"))
        if source is None:
            found.append(field_errors.not_found(f"{at}.name", name))
        elif source.get("persistentVolumeClaim") is None and source.get("ephemeral") is None:
            text = "can only use volume source type of PersistentVolumeClaim or Ephemeral"
            found.append(field_errors.invalid(f"{at}.name", name, f"{text} for block mode"))
        if not target:
            found.append(field_errors.required(f"{at}.devicePath"))
        if target in seen_paths:
            found.append(field_errors.invalid(f"{at}.devicePath", target, "must be unique"))
        if target and ".." in target.split("/"):
            text = "can not contain backsteps ('..')"
            found.append(field_errors.invalid(f"{at}.devicePath", target, text))
        else:
            seen_paths.add(target)
        if name in mounts:
            text = "must not already exist in volumeMounts"
            found.append(field_errors.invalid(f"{at}.name", name, text))
        if target in mounts.values():
            text = "must not already exist as a path in volumeMounts"
            found.append(field_errors.invalid(f"{at}.devicePath", target, text))
        if name:
            seen_names.add(name)
    return found
