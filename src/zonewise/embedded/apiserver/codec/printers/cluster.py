"""Printers of nodes, namespaces, events, configuration, permissions, API server and devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zonewise.embedded.apiserver.codec.printers.base import (
    NONE,
    UNKNOWN,
    UNSET,
    Obj,
    age_of,
    format_age,
    format_duration,
    join_or,
    name_of,
    printer_for,
    spec_of,
    status_of,
)


@printer_for("/nodes")
def _print_node(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    conditions = {
        condition.get("type"): condition.get("status")
        for condition in status.get("conditions") or ()
    }
    if "Ready" in conditions:
        state = "Ready" if conditions["Ready"] == "True" else "NotReady"
    else:
        state = "Unknown"
    if spec_of(obj).get("unschedulable"):
        state += ",SchedulingDisabled"
    roles = sorted(
        key.removeprefix("node-role.kubernetes.io/") if "/role" not in key else value
        for key, value in (obj["metadata"].get("labels") or {}).items()
        if key.startswith("node-role.kubernetes.io/") or (key == "kubernetes.io/role" and value)
    )
    info = status.get("nodeInfo") or {}

    def address(address_type: str) -> str:
        for entry in status.get("addresses") or ():
            if entry.get("type") == address_type:
                return str(entry.get("address"))
        return NONE

    return [
        name_of(obj),
        state,
        join_or(role for role in roles if role),
        age_of(obj, now),
        info.get("kubeletVersion", ""),
        address("InternalIP"),
        address("ExternalIP"),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


@printer_for("/componentstatuses")
def _print_component_status(obj: Obj, _: str) -> list[Any]:
    for condition in obj.get("conditions") or ():
        if condition.get("type") == "Healthy":
            state = "Healthy" if condition.get("status") == "True" else "Unhealthy"
            return [name_of(obj), state, condition.get("message", ""), condition.get("error", "")]
    return [name_of(obj), "Unknown", "", ""]


@printer_for("/namespaces")
def _print_namespace(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), status_of(obj).get("phase", ""), age_of(obj, now)]


@printer_for("/events")
def _print_event(obj: Obj, now: str) -> list[Any]:
    involved = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    series = obj.get("series") or {}
    event_time = obj.get("eventTime")
    first = obj.get("firstTimestamp") or obj.get("deprecatedFirstTimestamp") or event_time
    last = (
        series.get("lastObservedTime")
        or obj.get("lastTimestamp")
        or obj.get("deprecatedLastTimestamp")
        or first
    )
    count = series.get("count") or obj.get("count") or obj.get("deprecatedCount") or 1
    component = source.get("component") or obj.get("reportingComponent", "")
    host = source.get("host") or obj.get("reportingInstance", "")
    return [
        format_age(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{involved.get('kind', '').lower()}/{involved.get('name', '')}",
        involved.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        (obj.get("message") or obj.get("note") or "").strip(),
        format_age(first, now),
        count,
        name_of(obj),
    ]


@printer_for("/configmaps")
def _print_config_map(obj: Obj, now: str) -> list[Any]:
    count = len(obj.get("data") or ()) + len(obj.get("binaryData") or ())
    return [name_of(obj), count, age_of(obj, now)]


@printer_for("/secrets")
def _print_secret(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), obj.get("type", ""), len(obj.get("data") or ()), age_of(obj, now)]


@printer_for("coordination.k8s.io/leases")
def _print_lease(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), spec_of(obj).get("holderIdentity", ""), age_of(obj, now)]


@printer_for("/resourcequotas")
def _print_quota(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    hard: Mapping[str, Any] = status.get("hard") or {}
    used: Mapping[str, Any] = status.get("used") or {}
    requests: list[str] = []
    limits: list[str] = []
    for name in sorted(hard):
        text = f"{name}: {used.get(name, 0)}/{hard[name]}"
        (limits if name.startswith("limits.") else requests).append(text)
    return [name_of(obj), ", ".join(requests), ", ".join(limits), age_of(obj, now)]


@printer_for(
    "rbac.authorization.k8s.io/rolebindings", "rbac.authorization.k8s.io/clusterrolebindings"
)
def _print_binding(obj: Obj, now: str) -> list[Any]:
    role = obj.get("roleRef") or {}
    subjects = obj.get("subjects") or ()

    def names_of(kind: str) -> str:
        return ", ".join(
            f"{subject['namespace']}/{subject['name']}"
            if kind == "ServiceAccount"
            else subject["name"]
            for subject in subjects
            if subject.get("kind") == kind
        )

    return [
        name_of(obj),
        f"{role.get('kind', '')}/{role.get('name', '')}",
        age_of(obj, now),
        names_of("User"),
        names_of("Group"),
        names_of("ServiceAccount"),
    ]


@printer_for(
    "admissionregistration.k8s.io/mutatingwebhookconfigurations",
    "admissionregistration.k8s.io/validatingwebhookconfigurations",
)
def _print_webhooks(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), len(obj.get("webhooks") or ()), age_of(obj, now)]


@printer_for(
    "admissionregistration.k8s.io/mutatingadmissionpolicies",
    "admissionregistration.k8s.io/validatingadmissionpolicies",
)
def _print_policy(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    kind = spec.get("paramKind")
    return [
        name_of(obj),
        len(spec.get("validations") or spec.get("mutations") or ()),
        UNSET if kind is None else f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}",
        age_of(obj, now),
    ]


@printer_for(
    "admissionregistration.k8s.io/mutatingadmissionpolicybindings",
    "admissionregistration.k8s.io/validatingadmissionpolicybindings",
)
def _print_policy_binding(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    parameters = spec.get("paramRef") or {}
    if parameters.get("name"):
        parameters_text = f"{parameters.get('namespace') or '*'}/{parameters['name']}"
    elif parameters.get("selector") is not None:
        parameters_text = _format_go_selector(parameters["selector"])
    else:
        parameters_text = UNSET
    return [name_of(obj), spec.get("policyName", ""), parameters_text, age_of(obj, now)]


def _format_go_selector(selector: Obj) -> str:
    """A selector as Go prints the struct, which is what a real server has in this cell."""
    labels = "".join(f"{k}: {v}," for k, v in sorted((selector.get("matchLabels") or {}).items()))
    requirements = "".join(
        f"LabelSelectorRequirement{{Key:{term.get('key', '')},Operator:{term.get('operator', '')},"
        f"Values:[{' '.join(term.get('values') or ())}],}},"
        for term in selector.get("matchExpressions") or ()
    )
    return (
        f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},"
        f"MatchExpressions:[]LabelSelectorRequirement{{{requirements}}},}}"
    )


@printer_for("apiregistration.k8s.io/apiservices")
def _print_api_service(obj: Obj, now: str) -> list[Any]:
    service = spec_of(obj).get("service")
    service_text = "Local"
    if service is not None:
        service_text = f"{service.get('namespace', '')}/{service.get('name', '')}"
    state = "Unknown"
    for condition in status_of(obj).get("conditions") or ():
        if condition.get("type") == "Available":
            state = condition.get("status", "")
            if state != "True" and condition.get("reason"):
                state += f" ({condition['reason']})"
            break
    return [name_of(obj), service_text, state, age_of(obj, now)]


@printer_for("certificates.k8s.io/certificatesigningrequests")
def _print_signing_request(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    conditions = [condition.get("type") for condition in status.get("conditions") or ()]
    state = next(
        (decision for decision in ("Denied", "Approved") if decision in conditions), "Pending"
    )
    if "Failed" in conditions:
        state += ",Failed"
    if status.get("certificate"):
        state += ",Issued"
    seconds = spec.get("expirationSeconds")
    return [
        name_of(obj),
        age_of(obj, now),
        spec.get("signerName") or NONE,
        spec.get("username", ""),
        format_duration(seconds) if seconds is not None else NONE,
        state,
    ]


@printer_for("flowcontrol.apiserver.k8s.io/flowschemas")
def _print_flow_schema(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    dangling = next(
        (
            condition.get("status")
            for condition in status_of(obj).get("conditions") or ()
            if condition.get("type") == "Dangling"
        ),
        "?",
    )
    return [
        name_of(obj),
        (spec.get("priorityLevelConfiguration") or {}).get("name", ""),
        spec.get("matchingPrecedence", 0),
        (spec.get("distinguisherMethod") or {}).get("type") or NONE,
        age_of(obj, now),
        dangling,
    ]


@printer_for("flowcontrol.apiserver.k8s.io/prioritylevelconfigurations")
def _print_priority_level(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    configuration = spec.get("limited") or spec.get("exempt") or {}
    queuing = (configuration.get("limitResponse") or {}).get("queuing") or {}
    return [
        name_of(obj),
        spec.get("type", ""),
        configuration.get("nominalConcurrencyShares", NONE),
        queuing.get("queues", NONE),
        queuing.get("handSize", NONE),
        queuing.get("queueLengthLimit", NONE),
        age_of(obj, now),
    ]


@printer_for("resource.k8s.io/resourceclaims")
def _print_resource_claim(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    states: list[str] = []
    if obj["metadata"].get("deletionTimestamp"):
        states.append("deleted")
    if status.get("allocation") is not None:
        states.append("allocated")
        if status.get("reservedFor"):
            states.append("reserved")
    return [name_of(obj), ",".join(states or ["pending"]), age_of(obj, now)]


@printer_for("resource.k8s.io/resourceslices")
def _print_resource_slice(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    return [
        name_of(obj),
        spec.get("nodeName") or "",
        spec.get("driver", ""),
        (spec.get("pool") or {}).get("name", ""),
        age_of(obj, now),
    ]
