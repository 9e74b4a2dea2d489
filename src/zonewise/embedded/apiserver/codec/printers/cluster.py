"""Nodes, namespaces, events, configuration, permissions and the API server itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zonewise.embedded.apiserver.codec.printers.base import (
    NONE,
    UNKNOWN,
    UNSET,
    Obj,
    age_of,
    duration,
    joined,
    name_of,
    prints,
    since,
    spec_of,
    status_of,
)


@prints("/nodes")
def _node(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
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

    def address(kind: str) -> str:
        for one in status.get("addresses") or ():
            if one.get("type") == kind:
                return str(one.get("address"))
        return NONE

    return [
        name_of(obj),
        state,
        joined(role for role in roles if role),
        age_of(obj, now),
        info.get("kubeletVersion", ""),
        address("InternalIP"),
        address("ExternalIP"),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


@prints("/componentstatuses")
def _component_status(obj: Obj, _: str) -> list[Any]:
    for one in obj.get("conditions") or ():
        if one.get("type") == "Healthy":
            state = "Healthy" if one.get("status") == "True" else "Unhealthy"
            return [name_of(obj), state, one.get("message", ""), one.get("error", "")]
    return [name_of(obj), "Unknown", "", ""]


@prints("/namespaces")
def _namespace(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), status_of(obj).get("phase", ""), age_of(obj, now)]


@prints("/events")
def _event(obj: Obj, now: str) -> list[Any]:
    about = obj.get("involvedObject") or obj.get("regarding") or {}
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
    where = source.get("component") or obj.get("reportingComponent", "")
    host = source.get("host") or obj.get("reportingInstance", "")
    return [
        since(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        f"{where}, {host}" if host else where,
        (obj.get("message") or obj.get("note") or "").strip(),
        since(first, now),
        count,
        name_of(obj),
    ]


@prints("/configmaps")
def _config_map(obj: Obj, now: str) -> list[Any]:
    count = len(obj.get("data") or ()) + len(obj.get("binaryData") or ())
    return [name_of(obj), count, age_of(obj, now)]


@prints("/secrets")
def _secret(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), obj.get("type", ""), len(obj.get("data") or ()), age_of(obj, now)]


@prints("coordination.k8s.io/leases")
def _lease(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), spec_of(obj).get("holderIdentity", ""), age_of(obj, now)]


@prints("/resourcequotas")
def _quota(obj: Obj, now: str) -> list[Any]:
    status = status_of(obj)
    hard: Mapping[str, Any] = status.get("hard") or {}
    used: Mapping[str, Any] = status.get("used") or {}
    requests: list[str] = []
    limits: list[str] = []
    for name in sorted(hard):
        text = f"{name}: {used.get(name, 0)}/{hard[name]}"
        (limits if name.startswith("limits.") else requests).append(text)
    return [name_of(obj), ", ".join(requests), ", ".join(limits), age_of(obj, now)]


@prints("rbac.authorization.k8s.io/rolebindings", "rbac.authorization.k8s.io/clusterrolebindings")
def _binding(obj: Obj, now: str) -> list[Any]:
    role = obj.get("roleRef") or {}
    subjects = obj.get("subjects") or ()

    def named(kind: str) -> str:
        return ", ".join(
            f"{one['namespace']}/{one['name']}" if kind == "ServiceAccount" else one["name"]
            for one in subjects
            if one.get("kind") == kind
        )

    return [
        name_of(obj),
        f"{role.get('kind', '')}/{role.get('name', '')}",
        age_of(obj, now),
        named("User"),
        named("Group"),
        named("ServiceAccount"),
    ]


@prints(
    "admissionregistration.k8s.io/mutatingwebhookconfigurations",
    "admissionregistration.k8s.io/validatingwebhookconfigurations",
)
def _webhooks(obj: Obj, now: str) -> list[Any]:
    return [name_of(obj), len(obj.get("webhooks") or ()), age_of(obj, now)]


@prints(
    "admissionregistration.k8s.io/mutatingadmissionpolicies",
    "admissionregistration.k8s.io/validatingadmissionpolicies",
)
def _policy(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    kind = spec.get("paramKind")
    return [
        name_of(obj),
        len(spec.get("validations") or spec.get("mutations") or ()),
        UNSET if kind is None else f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}",
        age_of(obj, now),
    ]


@prints(
    "admissionregistration.k8s.io/mutatingadmissionpolicybindings",
    "admissionregistration.k8s.io/validatingadmissionpolicybindings",
)
def _policy_binding(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    parameters = spec.get("paramRef") or {}
    if parameters.get("name"):
        named = f"{parameters.get('namespace') or '*'}/{parameters['name']}"
    elif parameters.get("selector") is not None:
        named = _selector_in_go(parameters["selector"])
    else:
        named = UNSET
    return [name_of(obj), spec.get("policyName", ""), named, age_of(obj, now)]


def _selector_in_go(selector: Obj) -> str:
    """A selector as Go shows the value itself, which is what a real server puts into this cell."""
    labels = "".join(f"{k}: {v}," for k, v in sorted((selector.get("matchLabels") or {}).items()))
    wanted = "".join(
        f"LabelSelectorRequirement{{Key:{one.get('key', '')},Operator:{one.get('operator', '')},"
        f"Values:[{' '.join(one.get('values') or ())}],}},"
        for one in selector.get("matchExpressions") or ()
    )
    return (
        f"&LabelSelector{{MatchLabels:map[string]string{{{labels}}},"
        f"MatchExpressions:[]LabelSelectorRequirement{{{wanted}}},}}"
    )


@prints("apiregistration.k8s.io/apiservices")
def _api_service(obj: Obj, now: str) -> list[Any]:
    service = spec_of(obj).get("service")
    served = "Local"
    if service is not None:
        served = f"{service.get('namespace', '')}/{service.get('name', '')}"
    state = "Unknown"
    for one in status_of(obj).get("conditions") or ():
        if one.get("type") == "Available":
            state = one.get("status", "")
            if state != "True" and one.get("reason"):
                state += f" ({one['reason']})"
            break
    return [name_of(obj), served, state, age_of(obj, now)]


@prints("certificates.k8s.io/certificatesigningrequests")
def _signing_request(obj: Obj, now: str) -> list[Any]:
    spec, status = spec_of(obj), status_of(obj)
    conditions = [one.get("type") for one in status.get("conditions") or ()]
    state = next((one for one in ("Denied", "Approved") if one in conditions), "Pending")
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
        duration(seconds) if seconds is not None else NONE,
        state,
    ]


@prints("flowcontrol.apiserver.k8s.io/flowschemas")
def _flow_schema(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    missing = next(
        (
            one.get("status")
            for one in status_of(obj).get("conditions") or ()
            if one.get("type") == "Dangling"
        ),
        "?",
    )
    return [
        name_of(obj),
        (spec.get("priorityLevelConfiguration") or {}).get("name", ""),
        spec.get("matchingPrecedence", 0),
        (spec.get("distinguisherMethod") or {}).get("type") or NONE,
        age_of(obj, now),
        missing,
    ]


@prints("flowcontrol.apiserver.k8s.io/prioritylevelconfigurations")
def _priority_level(obj: Obj, now: str) -> list[Any]:
    spec = spec_of(obj)
    part = spec.get("limited") or spec.get("exempt") or {}
    queuing = (part.get("limitResponse") or {}).get("queuing") or {}
    return [
        name_of(obj),
        spec.get("type", ""),
        part.get("nominalConcurrencyShares", NONE),
        queuing.get("queues", NONE),
        queuing.get("handSize", NONE),
        queuing.get("queueLengthLimit", NONE),
        age_of(obj, now),
    ]
