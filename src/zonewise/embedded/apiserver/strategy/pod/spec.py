"""The spec of a pod, on its own or in a template.

Every new pod passes here, and most have few of the optional fields: a plain look into the dict
decides whether a rule runs.
"""

from __future__ import annotations

import re

from zonewise.api.field_cursor import Field
from zonewise.api.objects.pod_state import DELETION_COST, parse_deletion_cost
from zonewise.embedded.apiserver.strategy.addresses import validate_ip
from zonewise.embedded.apiserver.strategy.base import Obj
from zonewise.embedded.apiserver.strategy.metadata import validate_annotations, validate_labels
from zonewise.embedded.apiserver.strategy.pod.affinity import (
    validate_affinity,
    validate_tolerations,
    validate_topology_spread_constraints,
)
from zonewise.embedded.apiserver.strategy.pod.containers import (
    RESTART_POLICIES,
    PodFacts,
    validate_all_containers,
)
from zonewise.embedded.apiserver.strategy.pod.references import validate_local_descending_path
from zonewise.embedded.apiserver.strategy.pod.resources import (
    validate_pod_resources,
    validate_resource_requirements,
)
from zonewise.embedded.apiserver.strategy.pod.security import (
    every_container,
    validate_os_fields,
    validate_pod_security_context,
)
from zonewise.embedded.apiserver.strategy.pod.volumes import validate_volumes

DNS_POLICIES = ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")
PREEMPTION_POLICIES = ("Never", "PreemptLowerPriority")
MAX_DEADLINE = 2**31 - 1
MIRROR = "kubernetes.io/config.mirror"
SECCOMP_POD = "seccomp.security.alpha.kubernetes.io/pod"
SECCOMP_CONTAINER = "container.seccomp.security.alpha.kubernetes.io/"
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
NAMESERVERS_LIMIT = 3
SEARCHES_LIMIT = 32
SEARCH_LIST_LIMIT = 2048
HOSTNAME_LIMIT = 64
NO_CLAIMS: frozenset[str] = frozenset()
_SEARCH = re.compile(
    r"_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*\Z", re.ASCII
)


def validate_pod_template_spec(template: Field) -> None:
    """A pod template."""
    meta, spec = template["metadata"], template["spec"]
    if meta["labels"].value:
        validate_labels(template.child("labels", meta.value["labels"]))
    if meta["annotations"].value:
        annotations = template.child("annotations", meta.value["annotations"])
        validate_annotations(annotations)
        validate_pod_annotations(annotations, spec)
        validate_profiles_agree(annotations.value, spec)
    validate_pod_spec(spec)
    spec["ephemeralContainers"].forbid_filled("ephemeral containers not allowed in pod template")


def validate_pod_spec(spec: Field, pod_meta: Obj | None = None) -> None:
    """The spec of a pod; ``pod_meta`` is the metadata of the pod, None in a template."""
    fields = spec.value or {}
    if fields.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"].missing()
    volumes = {}
    if fields.get("volumes"):
        volumes = validate_volumes(spec["volumes"], pod_meta)
    claims = fields.get("resourceClaims")
    claim_names = frozenset(claim.get("name", "") for claim in claims) if claims else NO_CLAIMS
    host_users = fields.get("hostUsers")
    grace_period = fields.get("terminationGracePeriodSeconds")
    pod = PodFacts(fields, volumes, claim_names, grace_period, host_users is None or host_users)
    validate_all_containers(spec, pod)
    spec["restartPolicy"].required().enum(RESTART_POLICIES)
    spec["dnsPolicy"].required().enum(DNS_POLICIES)
    if fields.get("tolerations"):
        validate_tolerations(spec["tolerations"])
    if fields.get("serviceAccountName"):
        spec["serviceAccountName"].dns_subdomain()
    if fields.get("nodeName"):
        spec["nodeName"].dns_subdomain()
    if fields.get("securityContext"):
        validate_pod_security_context(spec)
    if fields.get("hostNetwork"):
        _validate_host_network(spec, pod_meta is not None)
    if fields.get("hostPID") and fields.get("shareProcessNamespace"):
        spec["securityContext"].child("shareProcessNamespace", True).invalid(
            "ShareProcessNamespace and HostPID cannot both be enabled"
        )
    if host_users is False:
        _validate_without_host_users(spec)
    if fields.get("affinity"):
        validate_affinity(spec["affinity"])
    if fields.get("dnsPolicy") == "None" or fields.get("dnsConfig") is not None:
        _validate_dns_config(spec["dnsConfig"], fields.get("dnsPolicy", ""))
    _validate_rare_fields(spec, fields, claim_names)


def _validate_rare_fields(spec: Field, fields: Obj, claim_names: frozenset[str]) -> None:
    if fields.get("nodeSelector"):
        validate_labels(spec["nodeSelector"])
    if fields.get("readinessGates"):
        for gate in spec["readinessGates"].each():
            gate.get("conditionType", "").qualified_name()
    if fields.get("schedulingGates"):
        _validate_scheduling_gates(spec["schedulingGates"])
    if fields.get("topologySpreadConstraints"):
        validate_topology_spread_constraints(spec["topologySpreadConstraints"])
    if fields.get("activeDeadlineSeconds") is not None:
        spec["activeDeadlineSeconds"].between(1, MAX_DEADLINE)
    if fields.get("hostname"):
        spec["hostname"].dns_label()
    if fields.get("subdomain"):
        spec["subdomain"].dns_label()
    if fields.get("hostAliases"):
        for alias in spec["hostAliases"].each():
            validate_ip(alias.get("ip", ""))
            for hostname in alias["hostnames"].each():
                hostname.dns_subdomain()
    if fields.get("priorityClassName"):
        spec["priorityClassName"].dns_subdomain()
    if fields.get("runtimeClassName") is not None:
        spec["runtimeClassName"].dns_subdomain()
    if fields.get("preemptionPolicy") not in (None, *PREEMPTION_POLICIES):
        spec["preemptionPolicy"].required().enum(PREEMPTION_POLICIES)
    if fields.get("overhead"):
        validate_resource_requirements(spec.child("overhead", {"limits": fields["overhead"]}))
    if fields.get("resources"):
        validate_pod_resources(spec, claim_names)
    if fields.get("resourceClaims"):
        _validate_resource_claims(spec["resourceClaims"])
    if fields.get("os") is not None:
        validate_os_fields(spec)
    if fields.get("hostnameOverride") is not None:
        _validate_hostname_override(spec)


def _validate_host_network(spec: Field, is_pod: bool) -> None:
    for container in spec["containers"].each():
        for port in container["ports"].each():
            host_port = port.get("hostPort", 0)
            if (is_pod or host_port.value) and host_port.value != port.get(
                "containerPort", 0
            ).value:
                host_port.invalid("must match `containerPort` when `hostNetwork` is true")


def _validate_without_host_users(spec: Field) -> None:
    detail = "when `hostUsers` is false"
    spec["hostNetwork"].forbid_filled(detail)
    spec["hostPID"].named("HostPID").forbid_filled(detail)
    spec["hostIPC"].named("HostIPC").forbid_filled(detail)
    for container in every_container(spec):
        container["volumeDevices"].forbid_filled(detail)


def _validate_dns_config(config: Field, policy: str) -> None:
    servers, searches = config["nameservers"], config["searches"]
    if policy == "None":
        if not config.present("must provide `dnsConfig` when `dnsPolicy` is None"):
            return
        if not servers.required(
            "must provide at least one DNS nameserver when `dnsPolicy` is None"
        ):
            return
    if len(servers.value or ()) > NAMESERVERS_LIMIT:
        servers.invalid(f"must not have more than {NAMESERVERS_LIMIT} nameservers")
    for server in servers.each():
        validate_ip(server)
    if len(searches.value or ()) > SEARCHES_LIMIT:
        searches.invalid(f"must not have more than {SEARCHES_LIMIT} search paths")
    if len(" ".join(searches.value or ())) > SEARCH_LIST_LIMIT:
        searches.invalid(
            f"must not have more than {SEARCH_LIST_LIMIT} characters in the search list"
        )
    for search in searches.each():
        domain = search.value.removesuffix(".") if search.value != "." else "."
        if domain != "." and (len(domain) > 253 or not _SEARCH.match(domain)):
            search.invalid("must be a DNS subdomain, underscores allowed", domain)
    for option in config["options"].each():
        if not option.value.get("name"):
            option.missing("must not be empty")


def _validate_scheduling_gates(gates: Field) -> None:
    names: set[str] = set()
    for gate in gates.each():
        name = gate.holding(gate.value.get("name", ""))
        name.qualified_name()
        name.unique(names)


def _validate_resource_claims(claims: Field) -> None:
    names: set[str] = set()
    for claim in claims.each():
        claim["name"].required().unique(names).dns_label()
        sources = [
            key
            for key in ("resourceClaimName", "resourceClaimTemplateName")
            if claim.value.get(key) is not None
        ]
        if len(sources) != 1:
            claim.invalid(
                "must specify exactly one of `resourceClaimName`, `resourceClaimTemplateName`"
            )
        for key in sources:
            claim[key].dns_subdomain()


def _validate_hostname_override(spec: Field) -> None:
    name = spec["hostnameOverride"]
    if spec.value.get("setHostnameAsFQDN"):
        name.forbid("may not be specified when setHostnameAsFQDN is true")
    if spec.value.get("hostNetwork"):
        name.forbid("may not be specified when hostNetwork is true")
    name.max_length(HOSTNAME_LIMIT)
    name.dns_subdomain()


def validate_pod_annotations(annotations: Field, spec: Field) -> None:
    """The annotations that mean something for pods."""
    mirror, cost = annotations.entry(MIRROR), annotations.entry(DELETION_COST)
    if mirror.value is not None and not spec["nodeName"].value:
        mirror.invalid("must set spec.nodeName if mirror pod annotation is set")
    if cost.value is not None and parse_deletion_cost(cost.value) is None:
        cost.invalid("must be a 32bit integer")
    for key, value in annotations.value.items():
        if key == SECCOMP_POD or key.startswith(SECCOMP_CONTAINER):
            if value in {"runtime/default", "docker/default", "unconfined"}:
                continue
            profile = annotations[key]
            if value.startswith("localhost/"):
                validate_local_descending_path(profile.holding(value.removeprefix("localhost/")))
            else:
                profile.invalid("must be a valid seccomp profile")
        elif key.startswith(APPARMOR):
            profile, container_name = annotations.entry(key), key.removeprefix(APPARMOR)
            containers = every_container(spec)
            if all(container.value.get("name") != container_name for container in containers):
                profile.invalid("container not found", container_name)
            is_known = value in {"", "runtime/default", "unconfined"}
            if not is_known and not value.startswith("localhost/"):
                profile.invalid(f'invalid AppArmor profile name: "{value}"')


def validate_profiles_agree(annotations: dict[str, str], spec: Field) -> None:
    """Old annotations and new fields for the same profile must say the same."""
    context = spec["securityContext"]
    _validate_profile_matches(annotations.get(SECCOMP_POD), context["seccompProfile"], "seccomp")
    for container in every_container(spec):
        name, own_context = container.value.get("name", ""), container["securityContext"]
        _validate_profile_matches(
            annotations.get(f"{SECCOMP_CONTAINER}{name}"), own_context["seccompProfile"], "seccomp"
        )
        if spec["os"]["name"].value != "windows":
            profile = own_context["appArmorProfile"]
            _validate_profile_matches(
                annotations.get(f"{APPARMOR}{name}"),
                profile.holding(profile.value or context["appArmorProfile"].value),
                "apparmor",
            )


def _validate_profile_matches(annotation: str | None, profile: Field, what: str) -> None:
    if annotation is None or not profile.value:
        return
    match profile.value.get("type"):
        case "Unconfined":
            matches = annotation == "unconfined"
        case "RuntimeDefault":
            matches = annotation == "runtime/default" or (
                what == "seccomp" and annotation == "docker/default"
            )
        case "Localhost":
            matches = annotation.startswith("localhost/")
            local = profile.value.get("localhostProfile")
            if matches and annotation.removeprefix("localhost/") != local:
                profile["localhostProfile"].forbid(
                    f"{what} profile in annotation and field must match"
                )
        case _:
            return
    if not matches:
        profile["type"].forbid(f"{what} type in annotation and field must match")
