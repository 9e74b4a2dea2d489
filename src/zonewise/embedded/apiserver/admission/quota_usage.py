"""How much objects use of a quota, as pure functions.

Every object counts as one of its kind (``count/deployments.apps``; a few kinds also by a short
name). Pods use what they request and may use at most, as long as they have not ended; Services use
node ports and load balancers; claims use storage, in all and per class. A quota with scopes counts
only pods that are in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from zonewise.api.objects.pod_state import FINISHED_PHASES
from zonewise.api.objects.storage import LEGACY_CLASS
from zonewise.api.resource import Resource
from zonewise.api.values import quantity, times
from zonewise.api.values.quantity import Quantity
from zonewise.embedded.machinery.decoding.pod_resources import effective_resources

Obj = dict[str, Any]
UsedAmounts = dict[str, Quantity]

COUNTED_BY_NAME = frozenset({"configmaps", "replicationcontrollers", "resourcequotas", "secrets"})
COMPUTE = ("cpu", "memory", "ephemeral-storage")
COMPUTE_QUOTAS = frozenset(
    f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in ("cpu", "memory")
)
UNIT = Quantity(Fraction(1))
NOTHING = Quantity(Fraction(0))


def usage_of(resource: Resource, obj: Obj, *, now: float) -> UsedAmounts:
    """The usage of an object."""
    usage: UsedAmounts = {f"count/{resource.qualified}": UNIT}
    if resource.group:
        return usage
    if resource.plural == "pods":
        usage |= _pod_usage(obj, now)
    elif resource.plural == "services":
        usage |= _service_usage(obj.get("spec") or {})
    elif resource.plural == "persistentvolumeclaims":
        usage |= _claim_usage(obj)
    elif resource.plural in COUNTED_BY_NAME:
        usage[resource.plural] = UNIT
    return usage


def applies_to(spec: Mapping[str, Any], resource: Resource, obj: Obj) -> bool:
    """Whether a quota counts an object; one with scopes counts only pods that are in all."""
    scopes: list[Mapping[str, Any]] = [
        {"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()
    ]
    scopes += (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    if not scopes:
        return True
    if resource.group or resource.plural != "pods":
        return False
    return all(_in_scope(scope, obj.get("spec") or {}) for scope in scopes)


def missing_amounts(hard: Iterable[str], pod: Obj) -> str:
    """The requests or limits that a quota requires and that containers do not specify."""
    spec = pod.get("spec") or {}
    required = COMPUTE_QUOTAS.intersection(hard)
    if not required or spec.get("resources"):
        return ""
    missing: dict[str, list[str]] = {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in required:
            amounts = limits if name.startswith("limits.") else requests
            if name.rpartition(".")[2] not in amounts:
                missing.setdefault(name, []).append(container["name"])
    parts = [
        f"{name} for: {','.join(sorted(containers))}"
        for name, containers in sorted(missing.items())
    ]
    return f"must specify {'; '.join(parts)}" if parts else ""


def add(total: UsedAmounts, usage: Mapping[str, Quantity], names: Iterable[str]) -> None:
    """Add the usage of these names to a total."""
    for name in names:
        if name in usage:
            current, amount = total.get(name, NOTHING), usage[name]
            family = current.family if current.value else amount.family
            total[name] = Quantity(current.value + amount.value, family)


def exceeded_names(
    hard: Mapping[str, Quantity], used: UsedAmounts, delta: UsedAmounts
) -> list[str]:
    """The resources that would exceed their limit."""
    return sorted(
        name
        for name, amount in delta.items()
        if name in hard
        and amount.value > 0
        and used.get(name, NOTHING).value + amount.value > hard[name].value
    )


def format_amounts(amounts: Mapping[str, Quantity], names: Iterable[str]) -> str:
    """Amounts in the form of refusals."""
    return ",".join(f"{name}={amounts.get(name, NOTHING)}" for name in names)


def _pod_usage(pod: Obj, now: float) -> UsedAmounts:
    if (pod.get("status") or {}).get("phase") in FINISHED_PHASES:
        return {}
    meta = pod.get("metadata") or {}
    if meta.get("deletionTimestamp"):
        grace = meta.get("deletionGracePeriodSeconds") or 0
        if now > times.parse(meta["deletionTimestamp"]).timestamp() + grace:
            return {}
    spec = pod.get("spec") or {}
    usage: UsedAmounts = {"pods": UNIT}
    for name, amount in effective_resources(spec, "requests").items():
        usage[f"requests.{name}"] = amount
        if name in COMPUTE or name.startswith("hugepages-"):
            usage[name] = amount
    for name, amount in effective_resources(spec, "limits").items():
        if name in COMPUTE:
            usage[f"limits.{name}"] = amount
    return usage


def _service_usage(spec: Mapping[str, Any]) -> UsedAmounts:
    service_type = spec.get("type")
    ports = Quantity(Fraction(len(spec.get("ports") or ())))
    usage: UsedAmounts = {"services": UNIT}
    usage["services.loadbalancers"] = UNIT if service_type == "LoadBalancer" else NOTHING
    allocates = (
        service_type == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False
    )
    usage["services.nodeports"] = ports if service_type == "NodePort" or allocates else NOTHING
    return usage


def _claim_usage(claim: Obj) -> UsedAmounts:
    spec, annotations = (
        claim.get("spec") or {},
        (claim.get("metadata") or {}).get("annotations") or {},
    )
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage", "0")
    usage: UsedAmounts = {"persistentvolumeclaims": UNIT, "requests.storage": quantity.parse(size)}
    if name := annotations.get(LEGACY_CLASS, spec.get("storageClassName")):
        prefix = f"{name}.storageclass.storage.k8s.io"
        usage[f"{prefix}/requests.storage"] = usage["requests.storage"]
        usage[f"{prefix}/persistentvolumeclaims"] = UNIT
    return usage


def _in_scope(scope: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    match scope.get("scopeName"):
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return _is_best_effort(spec)
        case "NotBestEffort":
            return not _is_best_effort(spec)
        case "PriorityClass":
            name, values = spec.get("priorityClassName") or "", scope.get("values") or ()
            match scope.get("operator"):
                case "In":
                    return name in values
                case "NotIn":
                    return name not in values
                case "DoesNotExist":
                    return not name
            return bool(name)
    return False


def _is_best_effort(spec: Mapping[str, Any]) -> bool:
    holders = (spec, *(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    return not any(
        name in COMPUTE[:2] and quantity.parse(amount).value > 0
        for holder in holders
        for which in ("requests", "limits")
        for name, amount in ((holder.get("resources") or {}).get(which) or {}).items()
    )
