"""The containers of a pod: images, ports, restarts, mounts, devices, probes and hooks."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.base import Obj, words
from zonewise.embedded.apiserver.strategy.pod.environment import validate_env, validate_env_from
from zonewise.embedded.apiserver.strategy.pod.references import validate_local_descending_path
from zonewise.embedded.apiserver.strategy.pod.resources import validate_resource_requirements
from zonewise.embedded.apiserver.strategy.pod.security import validate_security_context
from zonewise.embedded.apiserver.strategy.pod.volumes import PULL_POLICIES

PROTOCOLS = ("SCTP", "TCP", "UDP")
MESSAGE_POLICIES = ("FallbackToLogsOnError", "File")
RESTART_POLICIES = ("Always", "Never", "OnFailure")
RESTART_RULES_LIMIT = 20
EXIT_CODES_LIMIT = 255
NOT_EPHEMERAL = words(
    "ports resources resizePolicy restartPolicy restartPolicyRules livenessProbe readinessProbe"
    " startupProbe lifecycle"
)
PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
RECURSIVE_MODES = ("Disabled", "Enabled", "IfPossible")
MOUNT_OPTIONS = frozenset({"subPath", "subPathExpr", "mountPropagation", "recursiveReadOnly"})
SCHEMES = ("HTTP", "HTTPS")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
LIFECYCLE_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")
_HEADER_NAME = re.compile(r"[-A-Za-z0-9]+\Z")
PROBE_COUNTS = words(
    "initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold"
)


class PodFacts(msgspec.Struct, frozen=True, gc=False):
    """What the rules of a container depend on outside of it."""

    spec: Obj
    volumes: dict[str, Obj]
    claim_names: frozenset[str]
    grace_period: Any
    host_users: bool


def validate_all_containers(spec: Field, pod: PodFacts) -> None:
    """The containers of a pod, of all three kinds."""
    if spec["containers"].required():
        _validate_containers(spec["containers"], pod)
    if pod.spec.get("initContainers"):
        _validate_init_containers(spec["initContainers"], pod)
    if pod.spec.get("ephemeralContainers"):
        _validate_ephemeral_containers(spec["ephemeralContainers"], pod)


def _validate_containers(containers: Field, pod: PodFacts) -> None:
    names: set[str] = set()
    host_ports: set[str] = set()
    for container in containers.each():
        fields = container.value
        _validate_container_common(container, pod)
        if fields.get("name", "") in names:
            container.get("name", "").duplicate()
        names.add(fields.get("name", ""))
        _validate_lifecycle_and_probes(container, pod)
        if fields.get("restartPolicy") is not None or fields.get("restartPolicyRules"):
            _validate_restart_policy(container)
        if fields.get("ports"):
            _validate_host_ports(container["ports"], host_ports)


def _validate_init_containers(containers: Field, pod: PodFacts) -> None:
    names = {container.get("name", "") for container in pod.spec.get("containers") or ()}
    for container in containers.each():
        _validate_container_common(container, pod)
        _validate_restart_policy(container)
        name = container.get("name", "")
        if name.value in names:
            name.duplicate()
        elif name.value:
            names.add(name.value)
        # Host ports of every init container are reported as if it were the first of the list.
        _validate_host_ports(container.named(0)["ports"], set())
        if container.value.get("restartPolicy") == "Always":
            _validate_lifecycle_and_probes(container, pod)
            continue
        for key in ("lifecycle", *PROBES):
            container[key].forbid_set(
                "may not be set for init containers without restartPolicy=Always"
            )
        for policy in container["resizePolicy"].each():
            if policy.value.get("restartPolicy") == "RestartContainer":
                policy["restartPolicy"].invalid(
                    "must not be set to 'RestartContainer' for non-sidecar initContainers"
                )


def _validate_ephemeral_containers(containers: Field, pod: PodFacts) -> None:
    targets = {
        container.get("name", "")
        for key in ("containers", "initContainers")
        for container in pod.spec.get(key) or ()
    }
    names = set(targets)
    detail = "cannot be set for an Ephemeral Container"
    for container in containers.each():
        _validate_container_common(container, pod)
        validate_image(container["image"])
        container.get("name", "").unique(names)
        target = container["targetContainerName"]
        if target.value and target.value not in targets:
            target.not_found()
        for key in NOT_EPHEMERAL:
            container[key].forbid_filled(detail)
        for mount in container["volumeMounts"].each():
            mount["subPath"].forbid_filled(detail)
            mount["subPathExpr"].forbid_filled(detail)


def validate_image(image: Field) -> None:
    """What a pod, but not a template, requires of an image."""
    if image.value and image.value.strip() != image.value:
        image.invalid("must not have leading or trailing whitespace")


def _validate_lifecycle_and_probes(container: Field, pod: PodFacts) -> None:
    fields = container.value
    if fields.get("lifecycle") is not None:
        for key in ("postStart", "preStop"):
            if fields["lifecycle"].get(key) is not None:
                handler = container["lifecycle"][key]
                _validate_handler(handler, pod.grace_period, LIFECYCLE_HANDLERS)
    for kind in PROBES:
        if fields.get(kind) is not None:
            _validate_probe(container[kind], kind, pod.grace_period)


def _validate_container_common(container: Field, pod: PodFacts) -> None:
    """What containers of all three kinds have in common; most have few of these fields."""
    fields = container.value
    container["name"].required().dns_label()
    container["image"].required()
    container["terminationMessagePolicy"].required().enum(MESSAGE_POLICIES)
    if fields.get("ports"):
        _validate_ports(container["ports"])
    if fields.get("env"):
        validate_env(container["env"], pod.spec)
    if fields.get("envFrom"):
        validate_env_from(container["envFrom"])
    if fields.get("volumeMounts"):
        _validate_volume_mounts(container, pod.volumes)
    if fields.get("volumeDevices"):
        _validate_volume_devices(container, pod.volumes)
    container["imagePullPolicy"].required().enum(PULL_POLICIES)
    if fields.get("resources"):
        validate_resource_requirements(container["resources"], pod.claim_names)
    if fields.get("resizePolicy"):
        _validate_resize_policy(container["resizePolicy"], pod.spec.get("restartPolicy"))
    if fields.get("securityContext"):
        validate_security_context(container["securityContext"], host_users=pod.host_users)


def _validate_ports(ports: Field) -> None:
    names: set[str] = set()
    for port in ports.each():
        port["name"].optional().port_name().unique(names)
        port["containerPort"].required().port_number()
        port["hostPort"].optional().port_number()
        port["protocol"].required().enum(PROTOCOLS)


def _validate_host_ports(ports: Field, taken: set[str]) -> None:
    for index, fields in enumerate(ports.value or ()):
        number = fields.get("hostPort", 0)
        if number:
            key = f"{fields.get('protocol', '')}/{fields.get('hostIP', '')}/{number}"
            if key in taken:
                ports.item(index)["hostPort"].duplicate(key)
            taken.add(key)


def _validate_resize_policy(policies: Field, restart_policy: Any) -> None:
    resources: set[str] = set()
    for policy in policies.each():
        name, restart = policy.value.get("resourceName", ""), policy.value.get("restartPolicy", "")
        policy.holding(name).unique(resources)
        policies.holding(name).required().enum(("cpu", "memory"))
        policies.holding(restart).required().enum(("NotRequired", "RestartContainer"))
        if restart_policy == "Never" and restart != "NotRequired":
            policies.invalid("must be 'NotRequired' when pod `restartPolicy` is 'Never'", restart)


def _validate_restart_policy(container: Field) -> None:
    """A container may have a restart policy of its own, and rules for exit codes."""
    policy, rules = container["restartPolicy"], container["restartPolicyRules"]
    if policy.value is None:
        if rules.value:
            policy.missing("must specify restartPolicy when restart rules are used")
    else:
        policy.enum(RESTART_POLICIES)
    rules.max_items(RESTART_RULES_LIMIT)
    for rule in rules.each():
        action, codes = rule.get("action", ""), rule["exitCodes"]
        if action.value != "RestartAllContainers":
            action.enum(("Restart",))
        if codes.present("must be specified"):
            codes.get("operator", "").enum(("In", "NotIn"))
            codes["values"].max_items(EXIT_CODES_LIMIT)


def _validate_volume_mounts(container: Field, volumes: dict[str, Obj]) -> None:
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
        if not MOUNT_OPTIONS.isdisjoint(mount.value):
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


def _validate_volume_devices(container: Field, volumes: dict[str, Obj]) -> None:
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


def _validate_probe(probe: Field, kind: str, grace_period: Any) -> None:
    _validate_handler(probe, grace_period, PROBE_HANDLERS)
    fields = probe.value
    for key in PROBE_COUNTS:
        if fields.get(key, 0) < 0:
            probe[key].invalid("must be non-negative")
    if fields.get("terminationGracePeriodSeconds") is not None:
        seconds = probe["terminationGracePeriodSeconds"]
        seconds.positive()
        if kind == "readinessProbe":
            seconds.invalid("must not be set for readinessProbes")
    if kind != "readinessProbe" and fields.get("successThreshold", 1) != 1:
        probe["successThreshold"].invalid("must be 1")


def _validate_handler(holder: Field, grace_period: Any, handlers: tuple[str, ...]) -> None:
    chosen = [key for key in handlers if holder.value.get(key) is not None]
    if not chosen:
        holder.missing("must specify a handler type")
        return
    action = holder[chosen[0]]
    match action.key:
        case "exec":
            action["command"].required()
        case "httpGet":
            _validate_http_get_action(action)
        case "sleep":
            seconds = action.value.get("seconds", 0)
            if grace_period is not None and not 0 <= seconds <= grace_period:
                action.invalid(
                    "must be non-negative and less than terminationGracePeriodSeconds"
                    f" ({grace_period})",
                    seconds,
                )
        case _:
            action.get("port", 0).port()
    for key in chosen[1:]:
        holder[key].forbid("may not specify more than 1 handler type")


def _validate_http_get_action(action: Field) -> None:
    action["path"].required()
    action.get("port", 0).port()
    action.get("scheme", "").enum(SCHEMES)
    for header in action.value.get("httpHeaders") or ():
        action.child("httpHeaders", header.get("name", "")).matches(
            _HEADER_NAME, "a valid HTTP header must consist of alphanumeric characters or '-'"
        )
