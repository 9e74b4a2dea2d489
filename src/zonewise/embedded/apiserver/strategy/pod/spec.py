"""The spec of a pod, on its own or in a template.

The checks run in no particular order for the client: what it sees is the set of faults. The common
fields come first and are tested inline, since every new pod passes here.
"""

from __future__ import annotations

import ipaddress
import re

from zonewise.api import field_errors
from zonewise.api.errors import StatusCause
from zonewise.api.objects.pod_state import DELETION_COST, parse_deletion_cost
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj
from zonewise.embedded.apiserver.strategy.pod.affinity import (
    affinity_faults,
    spread_faults,
    toleration_faults,
)
from zonewise.embedded.apiserver.strategy.pod.containers import Surroundings, container_faults
from zonewise.embedded.apiserver.strategy.pod.resources import pod_level_faults, requirement_faults
from zonewise.embedded.apiserver.strategy.pod.security import pod_context_faults, system_faults
from zonewise.embedded.apiserver.strategy.pod.volumes import local_path, usable, volume_faults

RESTART_POLICIES = ("Always", "Never", "OnFailure")
DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
PREEMPTION_POLICIES = ("Never", "PreemptLowerPriority")
LONGEST_DEADLINE = 2**31 - 1
MIRROR = "kubernetes.io/config.mirror"
SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
SECCOMP_CONTAINER = "container.seccomp.security.alpha.kubernetes.io/"
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
NAMESERVERS = 3
SEARCHES = 32
SEARCH_LENGTH = 2048
HOSTNAME_LENGTH = 64
ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
_SEARCH = re.compile(
    r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*\Z", re.ASCII
)


def template_faults(template: Obj, path: str) -> Faults:
    """What is wrong with a pod template."""
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    found: Faults = []
    if meta.get("labels"):
        found += metadata.label_faults(f"{path}.labels", meta["labels"])
    annotations = meta.get("annotations")
    if annotations:
        found += metadata.annotation_faults(f"{path}.annotations", annotations)
        found += annotation_faults(annotations, spec, f"{path}.annotations")
        found += profile_faults(annotations, spec, f"{path}.spec")
    found += spec_faults(spec, f"{path}.spec")
    if spec.get("ephemeralContainers"):
        text = "ephemeral containers not allowed in pod template"
        found.append(field_errors.forbidden(f"{path}.spec.ephemeralContainers", text))
    return found


def spec_faults(spec: Obj, path: str, pod: Obj | None = None) -> Faults:
    """What is wrong with a pod's spec; ``pod`` is the metadata of the pod, if it is one."""
    found: Faults = []
    grace = spec.get("terminationGracePeriodSeconds")
    if grace is None:
        found.append(field_errors.required(f"{path}.terminationGracePeriodSeconds"))
    users = spec.get("hostUsers")
    volumes = spec.get("volumes") or []
    bad: Faults = []
    if volumes:
        at = f"{path}.volumes"
        bad = volume_faults(volumes, at, (pod or {}).get("name", ""), pod=pod is not None)
        found += bad
    claims = frozenset(one.get("name", "") for one in spec.get("resourceClaims") or ())
    around = Surroundings(
        spec=spec,
        volumes=usable(volumes, bad, f"{path}.volumes"),
        claims=claims,
        grace=grace,
        host_users=users is None or users,
    )
    found += container_faults(around, path)
    policy = spec.get("restartPolicy", "")
    if policy not in RESTART_POLICIES:
        found.append(_chosen(f"{path}.restartPolicy", policy, RESTART_POLICIES))
    policy = spec.get("dnsPolicy", "")
    if policy not in DNS_POLICIES:
        found.append(_chosen(f"{path}.dnsPolicy", policy, DNS_POLICIES))
    if spec.get("tolerations"):
        found += toleration_faults(spec["tolerations"], f"{path}.tolerations")
    name = spec.get("serviceAccountName")
    if name:
        for text in names.subdomain(name):
            found.append(field_errors.invalid(f"{path}.serviceAccountName", name, text))
    name = spec.get("nodeName")
    if name:
        for text in names.subdomain(name):
            found.append(field_errors.invalid(f"{path}.nodeName", name, text))
    if spec.get("securityContext"):
        at = f"{path}.securityContext"
        found += pod_context_faults(spec["securityContext"], spec, at)
    if spec.get("hostNetwork"):
        found += _host_network(spec, path, pod is not None)
    if spec.get("hostPID") and spec.get("shareProcessNamespace"):
        text = "ShareProcessNamespace and HostPID cannot both be enabled"
        at = f"{path}.securityContext.shareProcessNamespace"
        found.append(field_errors.invalid(at, True, text))
    if users is False:
        found += _own_users(spec, path)
    if spec.get("affinity"):
        found += affinity_faults(spec["affinity"], f"{path}.affinity")
    if policy == "None" or spec.get("dnsConfig") is not None:
        found += _dns(spec.get("dnsConfig"), policy, f"{path}.dnsConfig")
    return found + _rest(spec, path, claims)


def _rest(spec: Obj, path: str, claims: frozenset[str]) -> Faults:
    """The fields most pods do not have."""
    found: Faults = []
    if spec.get("nodeSelector"):
        found += metadata.label_faults(f"{path}.nodeSelector", spec["nodeSelector"])
    for index, gate in enumerate(spec.get("readinessGates") or ()):
        kind = gate.get("conditionType", "")
        at = f"{path}.readinessGates[{index}].conditionType"
        found += [field_errors.invalid(at, kind, text) for text in metadata.qualified_name(kind)]
    if spec.get("schedulingGates"):
        found += _gates(spec["schedulingGates"], f"{path}.schedulingGates")
    if spec.get("topologySpreadConstraints"):
        at = f"{path}.topologySpreadConstraints"
        found += spread_faults(spec["topologySpreadConstraints"], at)
    seconds = spec.get("activeDeadlineSeconds")
    if seconds is not None and not 1 <= seconds <= LONGEST_DEADLINE:
        text = f"must be between 1 and {LONGEST_DEADLINE}, inclusive"
        found.append(field_errors.invalid(f"{path}.activeDeadlineSeconds", seconds, text))
    for key in ("hostname", "subdomain"):
        if spec.get(key):
            found += [
                field_errors.invalid(f"{path}.{key}", spec[key], text)
                for text in names.label(spec[key])
            ]
    for index, alias in enumerate(spec.get("hostAliases") or ()):
        at = f"{path}.hostAliases[{index}]"
        if not is_address(alias.get("ip", "")):
            found.append(field_errors.invalid(f"{at}.ip", alias.get("ip", ""), ADDRESS))
        for number, name in enumerate(alias.get("hostnames") or ()):
            found += [
                field_errors.invalid(f"{at}.hostnames[{number}]", name, text)
                for text in names.subdomain(name)
            ]
    for key in ("priorityClassName", "runtimeClassName"):
        name = spec.get(key)
        if name or (name is not None and key == "runtimeClassName"):
            found += [
                field_errors.invalid(f"{path}.{key}", name, text) for text in names.subdomain(name)
            ]
    policy = spec.get("preemptionPolicy")
    if policy is not None and policy not in PREEMPTION_POLICIES:
        found.append(_chosen(f"{path}.preemptionPolicy", policy, PREEMPTION_POLICIES))
    if spec.get("overhead"):
        found += requirement_faults({"limits": spec["overhead"]}, f"{path}.overhead")
    if spec.get("resources"):
        found += pod_level_faults(spec, f"{path}.resources", claims)
    if spec.get("resourceClaims"):
        found += _claims(spec["resourceClaims"], f"{path}.resourceClaims")
    if spec.get("os") is not None:
        found += system_faults(spec, path)
    if spec.get("hostnameOverride") is not None:
        found += _hostname(spec, path)
    return found


def _chosen(path: str, value: str, known: tuple[str, ...]) -> StatusCause:
    return field_errors.unsupported(path, value, known) if value else field_errors.required(path)


def is_address(text: str) -> bool:
    """Whether a text is an IP address; one of IPv4 in the clothes of IPv6 is none."""
    try:
        if ":" in text:
            return "%" not in text and ipaddress.IPv6Address(text).ipv4_mapped is None
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _host_network(spec: Obj, path: str, is_pod: bool) -> Faults:
    found: Faults = []
    for index, one in enumerate(spec.get("containers") or ()):
        for number, port in enumerate(one.get("ports") or ()):
            outside, inside = port.get("hostPort", 0), port.get("containerPort", 0)
            if (is_pod or outside) and outside != inside:
                text = "must match `containerPort` when `hostNetwork` is true"
                at = f"{path}.containers[{index}].ports[{number}].hostPort"
                found.append(field_errors.invalid(at, outside, text))
    return found


def _own_users(spec: Obj, path: str) -> Faults:
    found: Faults = []
    text = "when `hostUsers` is false"
    if spec.get("hostNetwork"):
        found.append(field_errors.forbidden(f"{path}.hostNetwork", text))
    if spec.get("hostPID"):
        found.append(field_errors.forbidden(f"{path}.HostPID", text))
    if spec.get("hostIPC"):
        found.append(field_errors.forbidden(f"{path}.HostIPC", text))
    for group in ("initContainers", "containers", "ephemeralContainers"):
        for index, one in enumerate(spec.get(group) or ()):
            if one.get("volumeDevices"):
                found.append(field_errors.forbidden(f"{path}.{group}[{index}].volumeDevices", text))
    return found


def _dns(config: Obj | None, policy: str, path: str) -> Faults:
    if policy == "None":
        if config is None:
            text = "must provide `dnsConfig` when `dnsPolicy` is None"
            return [field_errors.required(path, text)]
        if not config.get("nameservers"):
            text = "must provide at least one DNS nameserver when `dnsPolicy` is None"
            return [field_errors.required(f"{path}.nameservers", text)]
    found: Faults = []
    config = config or {}
    servers, searches = config.get("nameservers") or (), config.get("searches") or ()
    if len(servers) > NAMESERVERS:
        text = f"must not have more than {NAMESERVERS} nameservers"
        found.append(field_errors.invalid(f"{path}.nameservers", servers, text))
    for index, server in enumerate(servers):
        if not is_address(server):
            found.append(field_errors.invalid(f"{path}.nameservers[{index}]", server, ADDRESS))
    if len(searches) > SEARCHES:
        text = f"must not have more than {SEARCHES} search paths"
        found.append(field_errors.invalid(f"{path}.searches", searches, text))
    if len(" ".join(searches)) > SEARCH_LENGTH:
        text = f"must not have more than {SEARCH_LENGTH} characters in the search list"
        found.append(field_errors.invalid(f"{path}.searches", searches, text))
    for index, search in enumerate(searches):
        judged = search if search == "." else search.removesuffix(".")
        if judged != "." and (len(judged) > 253 or not _SEARCH.match(judged)):
            text = "must be a DNS subdomain, underscores allowed"
            found.append(field_errors.invalid(f"{path}.searches[{index}]", judged, text))
    for index, option in enumerate(config.get("options") or ()):
        if not option.get("name"):
            found.append(field_errors.required(f"{path}.options[{index}]", "must not be empty"))
    return found


def _gates(gates: list[Obj], path: str) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        name = gate.get("name", "")
        at = f"{path}[{index}]"
        found += [field_errors.invalid(at, name, text) for text in metadata.qualified_name(name)]
        if name in seen:
            found.append(field_errors.duplicate(at, name))
        seen.add(name)
    return found


def _claims(claims: list[Obj], path: str) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        at = f"{path}[{index}]"
        name = claim.get("name", "")
        if not name:
            found.append(field_errors.required(f"{at}.name"))
        elif name in seen:
            found.append(field_errors.duplicate(f"{at}.name", name))
        else:
            found += [field_errors.invalid(f"{at}.name", name, text) for text in names.label(name)]
            seen.add(name)
        keys = ("resourceClaimName", "resourceClaimTemplateName")
        given = [key for key in keys if claim.get(key) is not None]
        if len(given) != 1:
            text = "must specify exactly one of `resourceClaimName`, `resourceClaimTemplateName`"
            found.append(field_errors.invalid(at, claim, text))
        for key in given:
            found += [
                field_errors.invalid(f"{at}.{key}", claim[key], text)
                for text in names.subdomain(claim[key])
            ]
    return found


def _hostname(spec: Obj, path: str) -> Faults:
    name = spec["hostnameOverride"]
    at = f"{path}.hostnameOverride"
    found: Faults = []
    if spec.get("setHostnameAsFQDN"):
        found.append(
            field_errors.forbidden(at, "may not be specified when setHostnameAsFQDN is true")
        )
    if spec.get("hostNetwork"):
        found.append(field_errors.forbidden(at, "may not be specified when hostNetwork is true"))
    if len(name) > HOSTNAME_LENGTH:
        found.append(field_errors.too_long(at, HOSTNAME_LENGTH))
    return found + [field_errors.invalid(at, name, text) for text in names.subdomain(name)]


def annotation_faults(annotations: dict[str, str], spec: Obj, path: str) -> Faults:
    """What is wrong with the annotations that mean something for pods."""
    found: Faults = []
    if MIRROR in annotations and not spec.get("nodeName"):
        text = "must set spec.nodeName if mirror pod annotation is set"
        found.append(field_errors.invalid(f"{path}[{MIRROR}]", annotations[MIRROR], text))
    cost = annotations.get(DELETION_COST)
    if cost is not None and parse_deletion_cost(cost) is None:
        found.append(
            field_errors.invalid(f"{path}[{DELETION_COST}]", cost, "must be a 32bit integer")
        )
    for key, value in annotations.items():
        if key == SECCOMP_POD or key.startswith(SECCOMP_CONTAINER):
            if value in {"runtime/default", "docker/default", "unconfined"}:
                continue
            if value.startswith("localhost/"):
                found += local_path(value.removeprefix("localhost/"), f"{path}.{key}")
            else:
                text = "must be a valid seccomp profile"
                found.append(field_errors.invalid(f"{path}.{key}", value, text))
        elif key.startswith(APPARMOR):
            name = key.removeprefix(APPARMOR)
            if not any(one.get("name") == name for _, one in _every(spec, "")):
                found.append(field_errors.invalid(f"{path}[{key}]", name, "container not found"))
            if value not in {"", "runtime/default", "unconfined"} and not value.startswith(
                "localhost/"
            ):
                text = f'invalid AppArmor profile name: "{value}"'
                found.append(field_errors.invalid(f"{path}[{key}]", value, text))
    return found


def profile_faults(annotations: dict[str, str], spec: Obj, path: str) -> Faults:
    """Old annotations and new fields for the same profile must say the same."""
    found: Faults = []
    security = spec.get("securityContext") or {}
    profile = security.get("seccompProfile")
    if profile and SECCOMP_POD in annotations:
        at = f"{path}.securityContext.seccompProfile"
        found += _agree(annotations[SECCOMP_POD], profile, at, "seccomp")
    for at, one in _every(spec, path):
        mine = one.get("securityContext") or {}
        key = f"{SECCOMP_CONTAINER}{one.get('name', '')}"
        if mine.get("seccompProfile") and key in annotations:
            where = f"{at}.securityContext.seccompProfile"
            found += _agree(annotations[key], mine["seccompProfile"], where, "seccomp")
        key = f"{APPARMOR}{one.get('name', '')}"
        profile = mine.get("appArmorProfile") or security.get("appArmorProfile")
        if profile and key in annotations and (spec.get("os") or {}).get("name") != "windows":
            where = f"{at}.securityContext.appArmorProfile"
            found += _agree(annotations[key], profile, where, "apparmor")
    return found


def _agree(annotation: str, profile: Obj, path: str, what: str) -> Faults:
    kind = profile.get("type")
    text = f"{what} type in annotation and field must match"
    if kind == "Unconfined" and annotation != "unconfined":
        return [field_errors.forbidden(f"{path}.type", text)]
    if kind == "RuntimeDefault":
        fine = {"runtime/default", "docker/default"} if what == "seccomp" else {"runtime/default"}
        if annotation not in fine:
            return [field_errors.forbidden(f"{path}.type", text)]
    if kind == "Localhost":
        if not annotation.startswith("localhost/"):
            return [field_errors.forbidden(f"{path}.type", text)]
        if annotation.removeprefix("localhost/") != profile.get("localhostProfile"):
            text = f"{what} profile in annotation and field must match"
            return [field_errors.forbidden(f"{path}.localhostProfile", text)]
    return []


def _every(spec: Obj, path: str) -> list[tuple[str, Obj]]:
    return [
        (f"{path}.{group}[{index}]", one)
        for group in ("initContainers", "containers", "ephemeralContainers")
        for index, one in enumerate(spec.get(group) or ())
    ]
