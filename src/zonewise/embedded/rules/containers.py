"""The containers of a pod."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from zonewise.api import faults
from zonewise.api.errors import StatusCause
from zonewise.embedded.rules import names
from zonewise.embedded.rules.base import Faults, Obj
from zonewise.embedded.rules.downward import field_faults, resource_field_faults
from zonewise.embedded.rules.probes import lifecycle_faults, probe_faults
from zonewise.embedded.rules.resources import COMMON, requirement_faults
from zonewise.embedded.rules.security import container_context_faults
from zonewise.embedded.rules.volumes import PULL_POLICIES, local_path, no_backsteps

PROTOCOLS = ("SCTP", "TCP", "UDP")
MESSAGE_POLICIES = ("FallbackToLogsOnError", "File")
PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
RECURSIVE = ("Disabled", "Enabled", "IfPossible")
RESTARTS = ("Always", "Never", "OnFailure")
RULES_LIMIT = 20
CODES_LIMIT = 255
ENV_FIELDS = frozenset(
    {
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    }
)
EPHEMERAL_FORBIDDEN = (
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
)
_KEY = re.compile(r"[-._a-zA-Z0-9]+\Z")
_ENV_NAME = re.compile(r"[ -<>-~]+\Z")
_KEY_TEXT = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'"
_ENV_TEXT = "environment variable names must be printable ASCII characters other than '='"


@dataclass(slots=True)
class Surroundings:
    """What a container's faults depend on outside of it."""

    spec: Obj
    volumes: dict[str, Obj]
    claims: frozenset[str]
    grace: Any
    host_users: bool


def container_faults(around: Surroundings, path: str) -> Faults:
    """What is wrong with the containers of a pod, of all three sorts."""
    spec = around.spec
    containers = spec.get("containers") or ()
    at = f"{path}.containers"
    found = _main(containers, at, around) if containers else [faults.required(at)]
    if spec.get("initContainers"):
        found += _init(spec["initContainers"], f"{path}.initContainers", containers, around)
    if spec.get("ephemeralContainers"):
        found += _ephemeral(spec, f"{path}.ephemeralContainers", around)
    return found


def _main(containers: Any, path: str, around: Surroundings) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    held: set[str] = set()
    for index, one in enumerate(containers):
        at = f"{path}[{index}]"
        found += _common(one, at, around)
        name = one.get("name", "")
        if name in seen:
            found.append(faults.duplicate(f"{at}.name", name))
        seen.add(name)
        found += _watched(one, at, around)
        if one.get("restartPolicy") is not None or one.get("restartPolicyRules"):
            found += _restart_faults(one, at)
        if one.get("ports"):
            found += _host_ports(one["ports"], f"{at}.ports", held)
    return found


def _init(containers: Any, path: str, others: Any, around: Surroundings) -> Faults:
    found: Faults = []
    seen = {one.get("name", "") for one in others}
    for index, one in enumerate(containers):
        at = f"{path}[{index}]"
        found += _common(one, at, around)
        found += _restart_faults(one, at)
        name = one.get("name", "")
        if name in seen:
            found.append(faults.duplicate(f"{at}.name", name))
        elif name:
            seen.add(name)
        if one.get("ports"):
            # Every init container is judged as if it were the first of the list.
            found += _host_ports(one["ports"], f"{path}[0].ports", set())
        if one.get("restartPolicy") == "Always":
            found += _watched(one, at, around)
            continue
        for key in ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe"):
            if one.get(key) is not None:
                text = "may not be set for init containers without restartPolicy=Always"
                found.append(faults.forbidden(f"{at}.{key}", text))
        for number, policy in enumerate(one.get("resizePolicy") or ()):
            if policy.get("restartPolicy") == "RestartContainer":
                text = "must not be set to 'RestartContainer' for non-sidecar initContainers"
                field = f"{at}.resizePolicy[{number}].restartPolicy"
                found.append(faults.invalid(field, "RestartContainer", text))
    return found


def _ephemeral(spec: Obj, path: str, around: Surroundings) -> Faults:
    found: Faults = []
    others = {
        one.get("name", "")
        for group in ("containers", "initContainers")
        for one in spec.get(group) or ()
    }
    seen = set(others)
    text = "cannot be set for an Ephemeral Container"
    for index, one in enumerate(spec["ephemeralContainers"]):
        at = f"{path}[{index}]"
        found += _common(one, at, around)
        found += image_faults(one, at)
        name = one.get("name", "")
        if name in seen:
            found.append(faults.duplicate(f"{at}.name", name))
        seen.add(name)
        target = one.get("targetContainerName")
        if target and target not in others:
            found.append(faults.not_found(f"{at}.targetContainerName", target))
        for key in EPHEMERAL_FORBIDDEN:
            if one.get(key):
                found.append(faults.forbidden(f"{at}.{key}", text))
        for number, mount in enumerate(one.get("volumeMounts") or ()):
            for key in ("subPath", "subPathExpr"):
                if mount.get(key):
                    found.append(faults.forbidden(f"{at}.volumeMounts[{number}].{key}", text))
    return found


def image_faults(container: Obj, path: str) -> Faults:
    """What a pod, but not a template, demands of an image."""
    image = container.get("image", "")
    if image.strip() == image:
        return []
    text = "must not have leading or trailing whitespace"
    return [faults.invalid(f"{path}.image", image, text)]


def _watched(one: Obj, path: str, around: Surroundings) -> Faults:
    found: Faults = []
    if one.get("lifecycle") is not None:
        found += lifecycle_faults(one["lifecycle"], f"{path}.lifecycle", around.grace)
    if "livenessProbe" in one or "readinessProbe" in one or "startupProbe" in one:
        found += probe_faults(one, path, around.grace)
    return found


def _common(one: Obj, path: str, around: Surroundings) -> Faults:
    found: Faults = []
    name = one.get("name", "")
    if not name:
        found.append(faults.required(f"{path}.name"))
    else:
        for text in names.label(name):
            found.append(faults.invalid(f"{path}.name", name, text))
    if not one.get("image"):
        found.append(faults.required(f"{path}.image"))
    policy = one.get("terminationMessagePolicy", "")
    if policy not in MESSAGE_POLICIES:
        at = f"{path}.terminationMessagePolicy"
        found.append(_chosen(at, policy, MESSAGE_POLICIES))
    if one.get("ports"):
        found += _ports(one["ports"], f"{path}.ports")
    if one.get("env"):
        found += _env(one["env"], f"{path}.env", around.spec)
    if one.get("envFrom"):
        found += _env_from(one["envFrom"], f"{path}.envFrom")
    if one.get("volumeMounts"):
        found += _mounts(one, f"{path}.volumeMounts", around.volumes)
    if one.get("volumeDevices"):
        found += _devices(one, f"{path}.volumeDevices", around.volumes)
    policy = one.get("imagePullPolicy", "")
    if policy not in PULL_POLICIES:
        found.append(_chosen(f"{path}.imagePullPolicy", policy, PULL_POLICIES))
    if one.get("resources"):
        found += requirement_faults(one["resources"], f"{path}.resources", around.claims)
    if one.get("resizePolicy"):
        restart = around.spec.get("restartPolicy")
        found += _resize(one["resizePolicy"], f"{path}.resizePolicy", restart)
    if one.get("securityContext"):
        found += container_context_faults(
            one["securityContext"], f"{path}.securityContext", host_users=around.host_users
        )
    return found


def _chosen(path: str, value: str, known: tuple[str, ...]) -> StatusCause:
    return faults.unsupported(path, value, known) if value else faults.required(path)


def _ports(ports: list[Obj], path: str) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        at = f"{path}[{index}]"
        name = port.get("name", "")
        if name:
            wrong = names.port_name(name)
            if wrong:
                found += [faults.invalid(f"{at}.name", name, text) for text in wrong]
            elif name in seen:
                found.append(faults.duplicate(f"{at}.name", name))
            seen.add(name)
        number = port.get("containerPort", 0)
        if number == 0:
            found.append(faults.required(f"{at}.containerPort"))
        elif not 1 <= number <= 65_535:
            found.append(_port_range(f"{at}.containerPort", number))
        number = port.get("hostPort", 0)
        if number and not 1 <= number <= 65_535:
            found.append(_port_range(f"{at}.hostPort", number))
        protocol = port.get("protocol", "")
        if protocol not in PROTOCOLS:
            found.append(_chosen(f"{at}.protocol", protocol, PROTOCOLS))
    return found


def _port_range(path: str, number: int) -> StatusCause:
    return faults.invalid(path, number, "must be between 1 and 65535, inclusive")


def _host_ports(ports: list[Obj], path: str, held: set[str]) -> Faults:
    found: Faults = []
    for index, port in enumerate(ports):
        number = port.get("hostPort", 0)
        if number:
            key = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{number}"
            if key in held:
                found.append(faults.duplicate(f"{path}[{index}].hostPort", key))
            held.add(key)
    return found


def _env(variables: list[Obj], path: str, spec: Obj) -> Faults:
    found: Faults = []
    for index, one in enumerate(variables):
        name = one.get("name", "")
        if not name:
            found.append(faults.required(f"{path}[{index}].name"))
        elif not _ENV_NAME.match(name):
            found.append(faults.invalid(f"{path}[{index}].name", name, _ENV_TEXT))
        source = one.get("valueFrom")
        if source is not None:
            at = f"{path}[{index}].valueFrom"
            found += _value_from(source, at, one.get("value", ""), spec)
    return found


def _value_from(source: Obj, path: str, value: str, spec: Obj) -> Faults:
    found: Faults = []
    count = 0
    if source.get("fieldRef") is not None:
        count += 1
        found += field_faults(source["fieldRef"], ENV_FIELDS, f"{path}.fieldRef")
    if source.get("resourceFieldRef") is not None:
        count += 1
        found += resource_field_faults(source["resourceFieldRef"], f"{path}.resourceFieldRef")
    for kind in ("configMapKeyRef", "secretKeyRef"):
        reference = source.get(kind)
        if reference is not None:
            count += 1
            found += _key_reference(reference, f"{path}.{kind}")
    if source.get("fileKeyRef") is not None:
        count += 1
        found += _file_reference(source["fileKeyRef"], f"{path}.fileKeyRef", spec)
    if count == 0:
        text = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`,"
        found.append(faults.invalid(path, "", f"{text} `secretKeyRef` or `fileKeyRef`"))
    elif value:
        found.append(faults.invalid(path, "", "may not be specified when `value` is not empty"))
    elif count > 1:
        text = "may not have more than one field specified at a time"
        found.append(faults.invalid(path, "", text))
    return found


def _key_reference(reference: Obj, path: str) -> Faults:
    name, key = reference.get("name", ""), reference.get("key", "")
    found = [faults.invalid(f"{path}.name", name, text) for text in names.subdomain(name)]
    if not key:
        found.append(faults.required(f"{path}.key"))
    else:
        found += [faults.invalid(f"{path}.key", key, text) for text in key_sentences(key)]
    return found


def key_sentences(key: str) -> list[str]:
    """Why a text is no key of a ConfigMap or Secret."""
    found = []
    if len(key) > 253:
        found.append("must be no more than 253 bytes")
    if not _KEY.match(key):
        found.append(_KEY_TEXT)
    elif key in {".", ".."}:
        found.append(f"must not be '{key}'")
    elif key.startswith(".."):
        found.append("must not start with '..'")
    return found


def _file_reference(reference: Obj, path: str, spec: Obj) -> Faults:
    found: Faults = []
    key, target = reference.get("key", ""), reference.get("path", "")
    if not key:
        found.append(faults.required(f"{path}.key"))
    elif not _ENV_NAME.match(key):
        found.append(faults.invalid(f"{path}.key", key, _ENV_TEXT))
    if not target:
        found.append(faults.required(f"{path}.path"))
    else:
        found += no_backsteps(target, f"{path}.path")
    volume = reference.get("volumeName", "")
    at = f"{path}.volumeName"
    if not volume:
        found.append(faults.required(at))
    else:
        found += [faults.invalid(at, volume, text) for text in names.label(volume)]
    source = next((one for one in spec.get("volumes") or () if one.get("name") == volume), None)
    if source is None:
        found.append(faults.not_found(at, volume))
    elif source.get("emptyDir") is None:
        found.append(faults.invalid(at, volume, "referenced volume must be of type emptyDir"))
    return found


def _env_from(sources: list[Obj], path: str) -> Faults:
    found: Faults = []
    for index, one in enumerate(sources):
        at = f"{path}[{index}]"
        prefix = one.get("prefix", "")
        if prefix and not _ENV_NAME.match(prefix):
            found.append(faults.invalid(f"{at}.prefix", prefix, _ENV_TEXT))
        count = 0
        for kind in ("configMapRef", "secretRef"):
            reference = one.get(kind)
            if reference is None:
                continue
            count += 1
            name = reference.get("name", "")
            if not name:
                found.append(faults.required(f"{at}.{kind}.name"))
            else:
                # The name is judged as the start of a longer one, which may end with a dash.
                judged = f"{name[:-1]}a" if name.endswith("-") else name
                found += [
                    faults.invalid(f"{at}.{kind}.name", name, text)
                    for text in names.subdomain(judged)
                ]
        if count == 0:
            text = "must specify one of: `configMapRef` or `secretRef`"
            found.append(faults.invalid(path, "", text))
        elif count > 1:
            text = "may not have more than one field specified at a time"
            found.append(faults.invalid(path, "", text))
    return found


def _mounts(one: Obj, path: str, volumes: dict[str, Obj]) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    devices = {
        dev.get("name", ""): dev.get("devicePath", "") for dev in one.get("volumeDevices") or ()
    }
    for index, mount in enumerate(one["volumeMounts"]):
        name, target = mount.get("name", ""), mount.get("mountPath", "")
        at = f"{path}[{index}]"
        if not name:
            found.append(faults.required(f"{at}.name"))
        if name not in volumes:
            found.append(faults.not_found(f"{at}.name", name))
        if not target:
            found.append(faults.required(f"{at}.mountPath"))
        if target in seen:
            found.append(faults.invalid(f"{at}.mountPath", target, "must be unique"))
        seen.add(target)
        if devices:
            if name in devices:
                text = "must not already exist in volumeDevices"
                found.append(faults.invalid(f"{at}.name", name, text))
            if target in devices.values():
                text = "must not already exist as a path in volumeDevices"
                found.append(faults.invalid(f"{at}.mountPath", target, text))
        if mount.get("subPath"):
            found += local_path(mount["subPath"], f"{path}.subPath")
        if mount.get("subPathExpr"):
            if mount.get("subPath"):
                text = "subPathExpr and subPath are mutually exclusive"
                found.append(faults.invalid(f"{at}.subPathExpr", mount["subPathExpr"], text))
            found += local_path(mount["subPathExpr"], f"{path}.subPathExpr")
        if mount.get("mountPropagation") is not None:
            found += _propagation(mount["mountPropagation"], one, f"{path}.mountPropagation")
        if mount.get("recursiveReadOnly") is not None:
            found += _recursive(mount, f"{path}.recursiveReadOnly")
    return found


def _propagation(mode: str, container: Obj, path: str) -> Faults:
    if mode not in PROPAGATIONS:
        return [faults.unsupported(path, mode, PROPAGATIONS)]
    if mode == "Bidirectional" and not (container.get("securityContext") or {}).get("privileged"):
        text = "Bidirectional mount propagation is available only to privileged containers"
        return [faults.forbidden(path, text)]
    return []


def _recursive(mount: Obj, path: str) -> Faults:
    mode = mount["recursiveReadOnly"]
    if mode not in RECURSIVE:
        return [faults.unsupported(path, mode, RECURSIVE)]
    found: Faults = []
    if mode != "Disabled":
        if not mount.get("readOnly"):
            found.append(faults.forbidden(path, "may only be specified when readOnly is true"))
        if mount.get("mountPropagation") not in {None, "None"}:
            text = "may only be specified when mountPropagation is None or not specified"
            found.append(faults.forbidden(path, text))
    return found


def _devices(one: Obj, path: str, volumes: dict[str, Obj]) -> Faults:
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
            found.append(faults.required(f"{at}.name"))
        if name in seen_names:
            found.append(faults.invalid(f"{at}.name", name, "must be unique"))
        if source is None:
            found.append(faults.not_found(f"{at}.name", name))
        elif source.get("persistentVolumeClaim") is None and source.get("ephemeral") is None:
            text = "can only use volume source type of PersistentVolumeClaim or Ephemeral"
            found.append(faults.invalid(f"{at}.name", name, f"{text} for block mode"))
        if not target:
            found.append(faults.required(f"{at}.devicePath"))
        if target in seen_paths:
            found.append(faults.invalid(f"{at}.devicePath", target, "must be unique"))
        if target and ".." in target.split("/"):
            text = "can not contain backsteps ('..')"
            found.append(faults.invalid(f"{at}.devicePath", target, text))
        else:
            seen_paths.add(target)
        if name in mounts:
            text = "must not already exist in volumeMounts"
            found.append(faults.invalid(f"{at}.name", name, text))
        if target in mounts.values():
            text = "must not already exist as a path in volumeMounts"
            found.append(faults.invalid(f"{at}.devicePath", target, text))
        if name:
            seen_names.add(name)
    return found


def _resize(policies: list[Obj], path: str, restart: Any) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    for index, one in enumerate(policies):
        name, policy = one.get("resourceName", ""), one.get("restartPolicy", "")
        if name in seen:
            found.append(faults.duplicate(f"{path}[{index}]", name))
        seen.add(name)
        if name not in COMMON - {"ephemeral-storage"}:
            found.append(_chosen(path, name, ("cpu", "memory")))
        if policy not in {"NotRequired", "RestartContainer"}:
            found.append(_chosen(path, policy, ("NotRequired", "RestartContainer")))
        if restart == "Never" and policy != "NotRequired":
            text = "must be 'NotRequired' when pod `restartPolicy` is 'Never'"
            found.append(faults.invalid(path, policy, text))
    return found


def _restart_faults(one: Obj, path: str) -> Faults:
    """A container may have a restart policy of its own, and rules for exit codes."""
    policy, rules = one.get("restartPolicy"), one.get("restartPolicyRules") or ()
    found: Faults = []
    if policy is None:
        if rules:
            text = "must specify restartPolicy when restart rules are used"
            found.append(faults.required(f"{path}.restartPolicy", text))
    elif policy not in RESTARTS:
        found.append(faults.unsupported(f"{path}.restartPolicy", policy, RESTARTS))
    if len(rules) > RULES_LIMIT:
        found.append(faults.too_many(f"{path}.restartPolicyRules", len(rules), RULES_LIMIT))
    for index, rule in enumerate(rules):
        at = f"{path}.restartPolicyRules[{index}]"
        action = rule.get("action", "")
        if action not in {"Restart", "RestartAllContainers"}:
            found.append(faults.unsupported(f"{at}.action", action, ("Restart",)))
        codes = rule.get("exitCodes")
        if codes is None:
            found.append(faults.required(f"{at}.exitCodes", "must be specified"))
            continue
        operator, values = codes.get("operator", ""), codes.get("values") or ()
        if operator not in {"In", "NotIn"}:
            found.append(faults.unsupported(f"{at}.exitCodes.operator", operator, ("In", "NotIn")))
        if len(values) > CODES_LIMIT:
            found.append(faults.too_many(f"{at}.exitCodes.values", len(values), CODES_LIMIT))
    return found
