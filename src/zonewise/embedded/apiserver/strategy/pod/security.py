"""Security contexts of pods and containers."""

from __future__ import annotations

import re

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.pod.volumes import local_path

LARGEST_ID = 2**31 - 1
PROFILE_TYPES = ("Localhost", "RuntimeDefault", "Unconfined")
CHANGE_POLICIES = ("Always", "OnRootMismatch")
GROUP_POLICIES = ("Merge", "Strict")
LABEL_POLICIES = ("MountOption", "Recursive")
PROC_MOUNTS = ("Default", "Unmasked")
SYSCTL_LENGTH = 253
PROFILE_LENGTH = 4095
_SYSCTL = re.compile(
    r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?\Z", re.ASCII
)
_IPC_NAMES = ("kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced")
_IPC_PREFIXES = ("kernel.msg", "fs.mqueue.", "kernel.sem")
WINDOWS_POD = (
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "seLinuxChangePolicy",
)
WINDOWS_CONTAINER = (
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
)


def pod_context_faults(context: Obj, spec: Obj, path: str) -> Faults:
    """What is wrong with a pod's security context."""
    found: Faults = []
    for key in ("fsGroup", "runAsUser", "runAsGroup"):
        found += _id(context, key, path)
    for index, group in enumerate(context.get("supplementalGroups") or ()):
        if not 0 <= group <= LARGEST_ID:
            found.append(_range(f"{path}.supplementalGroups[{index}]", group))
    if context.get("sysctls"):
        found += _sysctls(context["sysctls"], spec, f"{path}.sysctls")
    for key, known in (
        ("fsGroupChangePolicy", CHANGE_POLICIES),
        ("supplementalGroupsPolicy", GROUP_POLICIES),
        ("seLinuxChangePolicy", LABEL_POLICIES),
    ):
        if context.get(key) is not None and context[key] not in known:
            found.append(field_errors.unsupported(f"{path}.{key}", context[key], known))
    return found + _profiles(context, path)


def container_context_faults(context: Obj, path: str, *, host_users: bool) -> Faults:
    """What is wrong with a container's security context."""
    found = _id(context, "runAsUser", path) + _id(context, "runAsGroup", path)
    mount = context.get("procMount")
    if mount is not None:
        if mount not in PROC_MOUNTS:
            found.append(field_errors.unsupported(f"{path}.procMount", mount, PROC_MOUNTS))
        elif mount == "Unmasked" and host_users:
            text = "`hostUsers` must be false to use `Unmasked`"
            found.append(field_errors.invalid(f"{path}.procMount", mount, text))
    if context.get("allowPrivilegeEscalation") is False:
        if context.get("privileged"):
            text = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            found.append(field_errors.invalid(path, context, text))
        if "CAP_SYS_ADMIN" in ((context.get("capabilities") or {}).get("add") or ()):
            text = "cannot set `allowPrivilegeEscalation` to false and add CAP_SYS_ADMIN"
            found.append(field_errors.invalid(path, context, text))
    return found + _profiles(context, path)


def _profiles(context: Obj, path: str) -> Faults:
    found: Faults = []
    if context.get("seccompProfile") is not None:
        found += _seccomp(context["seccompProfile"], f"{path}.seccompProfile")
    if context.get("appArmorProfile") is not None:
        found += _apparmor(context["appArmorProfile"], f"{path}.appArmorProfile")
    return found


def _id(context: Obj, key: str, path: str) -> Faults:
    value = context.get(key)
    if value is None or 0 <= value <= LARGEST_ID:
        return []
    return [_range(f"{path}.{key}", value)]


def _range(path: str, value: int) -> StatusCause:
    return field_errors.invalid(path, value, f"must be between 0 and {LARGEST_ID}, inclusive")


def _sysctls(wanted: list[Obj], spec: Obj, path: str) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    for index, one in enumerate(wanted):
        name = one.get("name", "")
        at = f"{path}[{index}].name"
        if not name:
            found.append(field_errors.required(at))
        elif len(name) > SYSCTL_LENGTH or not _SYSCTL.match(name):
            text = f"must have at most {SYSCTL_LENGTH} characters and look like a.b-c/d_e"
            found.append(field_errors.invalid(at, name, text))
        elif name in seen:
            found.append(field_errors.duplicate(at, name))
        dotted = name.replace("/", ".")
        if spec.get("hostNetwork") and dotted.startswith("net."):
            text = "may not be specified when 'hostNetwork' is true"
            found.append(field_errors.invalid(at, name, text))
        elif spec.get("hostIPC") and (dotted in _IPC_NAMES or dotted.startswith(_IPC_PREFIXES)):
            text = "may not be specified when 'hostIPC' is true"
            found.append(field_errors.invalid(at, name, text))
        seen.add(name)
    return found


def _seccomp(profile: Obj, path: str) -> Faults:
    found: Faults = []
    kind, local = profile.get("type", ""), profile.get("localhostProfile")
    if not kind:
        text = "type is required when seccompProfile is set"
        found.append(field_errors.required(f"{path}.type", text))
    elif kind not in PROFILE_TYPES:
        found.append(field_errors.unsupported(f"{path}.type", kind, PROFILE_TYPES))
    at = f"{path}.localhostProfile"
    if kind == "Localhost":
        if local is None:
            found.append(field_errors.required(at, "must be set when seccomp type is Localhost"))
        else:
            found += local_path(local, at)
    elif local is not None:
        found.append(
            field_errors.invalid(at, profile, "can only be set when seccomp type is Localhost")
        )
    return found


def _apparmor(profile: Obj, path: str) -> Faults:
    kind, local = profile.get("type", ""), profile.get("localhostProfile")
    at = f"{path}.localhostProfile"
    if not kind:
        return [
            field_errors.required(f"{path}.type", "type is required when appArmorProfile is set")
        ]
    if kind not in PROFILE_TYPES:
        return [field_errors.unsupported(f"{path}.type", kind, PROFILE_TYPES)]
    if kind != "Localhost":
        if local is None:
            return []
        return [field_errors.invalid(at, local, "can only be set when AppArmor type is Localhost")]
    if local is None:
        return [field_errors.required(at, "must be set when AppArmor type is Localhost")]
    found: Faults = []
    if local.strip() != local:
        found.append(field_errors.invalid(at, local, "must not be padded with whitespace"))
    elif not local:
        found.append(field_errors.required(at, "must be set when AppArmor type is Localhost"))
    if len(local) > PROFILE_LENGTH:
        found.append(field_errors.too_long(at, PROFILE_LENGTH))
    return found


def system_faults(spec: Obj, path: str) -> Faults:
    """What the named operating system rules out."""
    name = spec["os"].get("name", "")
    if not name:
        return [field_errors.required(f"{path}.os.name")]
    if name not in {"linux", "windows"}:
        return [field_errors.unsupported(f"{path}.os", name, ("linux", "windows"))]
    found: Faults = []
    context = spec.get("securityContext") or {}
    unfit: tuple[str, ...] = ("windowsOptions",)
    inner = unfit
    text = "windows options cannot be set for a linux pod"
    if name == "windows":
        unfit, inner = WINDOWS_POD, WINDOWS_CONTAINER
        text = "cannot be set for a windows pod"
        for key in ("hostUsers", "shareProcessNamespace"):
            if spec.get(key) is not None:
                found.append(field_errors.forbidden(f"{path}.{key}", text))
        for key in ("hostPID", "hostIPC"):
            if spec.get(key):
                found.append(field_errors.forbidden(f"{path}.{key}", text))
    for key in unfit:
        if context.get(key) is not None:
            found.append(field_errors.forbidden(f"{path}.securityContext.{key}", text))
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for index, one in enumerate(spec.get(group) or ()):
            mine = one.get("securityContext") or {}
            for key in inner:
                if mine.get(key) is not None:
                    at = f"{path}.{group}[{index}].securityContext.{key}"
                    found.append(field_errors.forbidden(at, text))
    return found
