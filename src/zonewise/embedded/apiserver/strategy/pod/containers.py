"""The containers of a pod."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.pod.environment import env_faults, env_from_faults
from zonewise.embedded.apiserver.strategy.pod.mounts import device_faults, mount_faults
from zonewise.embedded.apiserver.strategy.pod.probes import lifecycle_faults, probe_faults
from zonewise.embedded.apiserver.strategy.pod.resources import COMMON, requirement_faults
from zonewise.embedded.apiserver.strategy.pod.security import container_context_faults
from zonewise.embedded.apiserver.strategy.pod.volumes import PULL_POLICIES

PROTOCOLS = ("SCTP", "TCP", "UDP")
MESSAGE_POLICIES = ("FallbackToLogsOnError", "File")
RESTARTS = ("Always", "Never", "OnFailure")
RULES_LIMIT = 20
CODES_LIMIT = 255
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
    found = _main(containers, at, around) if containers else [field_errors.required(at)]
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
            found.append(field_errors.duplicate(f"{at}.name", name))
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
            found.append(field_errors.duplicate(f"{at}.name", name))
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
                found.append(field_errors.forbidden(f"{at}.{key}", text))
        for number, policy in enumerate(one.get("resizePolicy") or ()):
            if policy.get("restartPolicy") == "RestartContainer":
                text = "must not be set to 'RestartContainer' for non-sidecar initContainers"
                field = f"{at}.resizePolicy[{number}].restartPolicy"
                found.append(field_errors.invalid(field, "RestartContainer", text))
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
            found.append(field_errors.duplicate(f"{at}.name", name))
        seen.add(name)
        target = one.get("targetContainerName")
        if target and target not in others:
            found.append(field_errors.not_found(f"{at}.targetContainerName", target))
        for key in EPHEMERAL_FORBIDDEN:
            if one.get(key):
                found.append(field_errors.forbidden(f"{at}.{key}", text))
        for number, mount in enumerate(one.get("volumeMounts") or ()):
            for key in ("subPath", "subPathExpr"):
                if mount.get(key):
                    found.append(field_errors.forbidden(f"{at}.volumeMounts[{number}].{key}", text))
    return found


def image_faults(container: Obj, path: str) -> Faults:
    """What a pod, but not a template, demands of an image."""
    image = container.get("image", "")
    if image.strip() == image:
        return []
    text = "must not have leading or trailing whitespace"
    return [field_errors.invalid(f"{path}.image", image, text)]


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
        found.append(field_errors.required(f"{path}.name"))
    else:
        for text in names.label(name):
            found.append(field_errors.invalid(f"{path}.name", name, text))
    if not one.get("image"):
        found.append(field_errors.required(f"{path}.image"))
    policy = one.get("terminationMessagePolicy", "")
    if policy not in MESSAGE_POLICIES:
        at = f"{path}.terminationMessagePolicy"
        found.append(_chosen(at, policy, MESSAGE_POLICIES))
    if one.get("ports"):
        found += _ports(one["ports"], f"{path}.ports")
    if one.get("env"):
        found += env_faults(one["env"], f"{path}.env", around.spec)
    if one.get("envFrom"):
        found += env_from_faults(one["envFrom"], f"{path}.envFrom")
    if one.get("volumeMounts"):
        found += mount_faults(one, f"{path}.volumeMounts", around.volumes)
    if one.get("volumeDevices"):
        found += device_faults(one, f"{path}.volumeDevices", around.volumes)
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
    return field_errors.unsupported(path, value, known) if value else field_errors.required(path)


def _ports(ports: list[Obj], path: str) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        at = f"{path}[{index}]"
        name = port.get("name", "")
        if name:
            wrong = names.port_name(name)
            if wrong:
                found += [field_errors.invalid(f"{at}.name", name, text) for text in wrong]
            elif name in seen:
                found.append(field_errors.duplicate(f"{at}.name", name))
            seen.add(name)
        number = port.get("containerPort", 0)
        if number == 0:
            found.append(field_errors.required(f"{at}.containerPort"))
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
    return field_errors.invalid(path, number, "must be between 1 and 65535, inclusive")


def _host_ports(ports: list[Obj], path: str, held: set[str]) -> Faults:
    found: Faults = []
    for index, port in enumerate(ports):
        number = port.get("hostPort", 0)
        if number:
            key = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{number}"
            if key in held:
                found.append(field_errors.duplicate(f"{path}[{index}].hostPort", key))
            held.add(key)
    return found


def _resize(policies: list[Obj], path: str, restart: Any) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    for index, one in enumerate(policies):
        name, policy = one.get("resourceName", ""), one.get("restartPolicy", "")
        if name in seen:
            found.append(field_errors.duplicate(f"{path}[{index}]", name))
        seen.add(name)
        if name not in COMMON - {"ephemeral-storage"}:
            found.append(_chosen(path, name, ("cpu", "memory")))
        if policy not in {"NotRequired", "RestartContainer"}:
            found.append(_chosen(path, policy, ("NotRequired", "RestartContainer")))
        if restart == "Never" and policy != "NotRequired":
            text = "must be 'NotRequired' when pod `restartPolicy` is 'Never'"
            found.append(field_errors.invalid(path, policy, text))
    return found


def _restart_faults(one: Obj, path: str) -> Faults:
    """A container may have a restart policy of its own, and rules for exit codes."""
    policy, rules = one.get("restartPolicy"), one.get("restartPolicyRules") or ()
    found: Faults = []
    if policy is None:
        if rules:
            text = "must specify restartPolicy when restart rules are used"
            found.append(field_errors.required(f"{path}.restartPolicy", text))
    elif policy not in RESTARTS:
        found.append(field_errors.unsupported(f"{path}.restartPolicy", policy, RESTARTS))
    if len(rules) > RULES_LIMIT:
        found.append(field_errors.too_many(f"{path}.restartPolicyRules", len(rules), RULES_LIMIT))
    for index, rule in enumerate(rules):
        at = f"{path}.restartPolicyRules[{index}]"
        action = rule.get("action", "")
        if action not in {"Restart", "RestartAllContainers"}:
            found.append(field_errors.unsupported(f"{at}.action", action, ("Restart",)))
        codes = rule.get("exitCodes")
        if codes is None:
            found.append(field_errors.required(f"{at}.exitCodes", "must be specified"))
            continue
        operator, values = codes.get("operator", ""), codes.get("values") or ()
        if operator not in {"In", "NotIn"}:
            found.append(
                field_errors.unsupported(f"{at}.exitCodes.operator", operator, ("In", "NotIn"))
            )
        if len(values) > CODES_LIMIT:
            found.append(field_errors.too_many(f"{at}.exitCodes.values", len(values), CODES_LIMIT))
    return found
