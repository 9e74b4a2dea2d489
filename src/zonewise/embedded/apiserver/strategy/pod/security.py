"""Security contexts of pods and containers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.base import words
from zonewise.embedded.apiserver.strategy.pod.references import validate_local_descending_path

MAX_ID = 2**31 - 1
PROFILE_TYPES = ("Localhost", "RuntimeDefault", "Unconfined")
PROC_MOUNTS = ("Default", "Unmasked")
SYSCTL_LIMIT = 253
PROFILE_LIMIT = 4095
_SYSCTL = re.compile(
    r"([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?\Z", re.ASCII
)
_IPC_NAMES = ("kernel.shmall", "kernel.shmmax", "kernel.shmmni", "kernel.shm_rmid_forced")
_IPC_PREFIXES = ("kernel.msg", "fs.mqueue.", "kernel.sem")
LINUX_UNSUPPORTED = words("windowsOptions")
WINDOWS_UNSUPPORTED = words(
    "appArmorProfile seLinuxOptions seccompProfile fsGroup fsGroupChangePolicy sysctls runAsUser"
    " runAsGroup supplementalGroups supplementalGroupsPolicy seLinuxChangePolicy"
)
WINDOWS_UNSUPPORTED_IN_CONTAINERS = words(
    "appArmorProfile seLinuxOptions seccompProfile capabilities readOnlyRootFilesystem privileged"
    " allowPrivilegeEscalation procMount runAsUser runAsGroup"
)
CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")


def validate_pod_security_context(spec: Field) -> None:
    """The security context of a pod."""
    context = spec["securityContext"]
    for key in ("fsGroup", "runAsUser", "runAsGroup"):
        context[key].between(0, MAX_ID)
    for group in context["supplementalGroups"].each():
        group.between(0, MAX_ID)
    _validate_sysctls(context["sysctls"], spec)
    context["fsGroupChangePolicy"].enum(("Always", "OnRootMismatch"))
    context["supplementalGroupsPolicy"].enum(("Merge", "Strict"))
    context["seLinuxChangePolicy"].enum(("MountOption", "Recursive"))
    _validate_profiles(context)


def validate_security_context(context: Field, *, host_users: bool) -> None:
    """The security context of a container."""
    context["runAsUser"].between(0, MAX_ID)
    context["runAsGroup"].between(0, MAX_ID)
    proc_mount = context["procMount"].enum(PROC_MOUNTS)
    if proc_mount.value == "Unmasked" and host_users:
        proc_mount.invalid("`hostUsers` must be false to use `Unmasked`")
    if context.value.get("allowPrivilegeEscalation") is False:
        if context.value.get("privileged"):
            context.invalid(
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            )
        if "CAP_SYS_ADMIN" in (context["capabilities"]["add"].value or ()):
            context.invalid("cannot set `allowPrivilegeEscalation` to false and add CAP_SYS_ADMIN")
    _validate_profiles(context)


def _validate_profiles(context: Field) -> None:
    if context.value.get("seccompProfile") is not None:
        _validate_seccomp_profile(context["seccompProfile"])
    if context.value.get("appArmorProfile") is not None:
        _validate_app_armor_profile(context["appArmorProfile"])


def _validate_sysctls(sysctls: Field, spec: Field) -> None:
    names: set[str] = set()
    for sysctl in sysctls.each():
        name = sysctl.get("name", "")
        if name.required():
            if len(name.value) > SYSCTL_LIMIT or not _SYSCTL.match(name.value):
                name.invalid(f"must have at most {SYSCTL_LIMIT} characters and look like a.b-c/d_e")
            elif name.value in names:
                name.duplicate()
        dotted = name.value.replace("/", ".")
        if spec.value.get("hostNetwork") and dotted.startswith("net."):
            name.invalid("may not be specified when 'hostNetwork' is true")
        elif spec.value.get("hostIPC") and (
            dotted in _IPC_NAMES or dotted.startswith(_IPC_PREFIXES)
        ):
            name.invalid("may not be specified when 'hostIPC' is true")
        names.add(name.value)


def _validate_seccomp_profile(profile: Field) -> None:
    kind, local = profile["type"], profile["localhostProfile"]
    kind.required("type is required when seccompProfile is set").enum(PROFILE_TYPES)
    if kind.value == "Localhost":
        local.present("must be set when seccomp type is Localhost")
        validate_local_descending_path(local)
    elif local.value is not None:
        local.invalid("can only be set when seccomp type is Localhost", profile.value)


def _validate_app_armor_profile(profile: Field) -> None:
    kind, local = profile["type"], profile["localhostProfile"]
    if not kind.required("type is required when appArmorProfile is set").enum(PROFILE_TYPES):
        return
    if kind.value != "Localhost":
        local.invalid_set("can only be set when AppArmor type is Localhost")
        return
    if local.value and local.value.strip() != local.value:
        local.invalid("must not be padded with whitespace")
    else:
        local.required("must be set when AppArmor type is Localhost")
    local.max_length(PROFILE_LIMIT)


def validate_os_fields(spec: Field) -> None:
    """What the operating system that the pod names rules out."""
    name = spec["os"]["name"]
    if not name.required():
        return
    if name.value not in {"linux", "windows"}:
        spec["os"].unsupported(("linux", "windows"), name.value)
        return
    if name.value == "windows":
        unsupported, in_containers = WINDOWS_UNSUPPORTED, WINDOWS_UNSUPPORTED_IN_CONTAINERS
        detail = "cannot be set for a windows pod"
        for key in ("hostUsers", "shareProcessNamespace"):
            spec[key].forbid_set(detail)
        for key in ("hostPID", "hostIPC"):
            spec[key].forbid_filled(detail)
    else:
        unsupported = in_containers = LINUX_UNSUPPORTED
        detail = "windows options cannot be set for a linux pod"
    for key in unsupported:
        spec["securityContext"][key].forbid_set(detail)
    for container in every_container(spec):
        for key in in_containers:
            container["securityContext"][key].forbid_set(detail)


def every_container(spec: Field) -> Iterator[Field]:
    """The containers of a pod, of all three kinds."""
    for containers in CONTAINER_LISTS:
        if spec.value and spec.value.get(containers):
            yield from spec[containers].each()
