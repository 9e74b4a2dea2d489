"""What objects use of a quota. Pure.

Every object counts as one of its kind (``count/deployments.apps``; a few kinds also by a short
name). Pods use what they request and may use at most, as long as they have not ended; Services use
node ports and load balancers; claims use storage, in all and per class. A quota with scopes counts
only pods that are in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from zonewise.api.objects.pod_state import FINISHED
from zonewise.api.objects.storage import LEGACY_CLASS
from zonewise.api.resource import Resource
from zonewise.api.values import quantity, times
from zonewise.api.values.quantity import Quantity
from zonewise.embedded.machinery.decoding.pod_resources import needed

Obj = dict[str, Any]
UsedAmounts = dict[str, Quantity]

SHORT = frozenset({"configmaps", "replicationcontrollers", "resourcequotas", "secrets"})
COMPUTE = ("cpu", "memory", "ephemeral-storage")
REQUIRED = frozenset(
    f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in ("cpu", "memory")
)
ONE = Quantity(Fraction(1))
NOTHING = Quantity(Fraction(0))


def used_by(resource: Resource, obj: Obj, *, now: float) -> UsedAmounts:
    """What an object uses."""
    found: UsedAmounts = {f"count/{resource.qualified}": ONE}
    if resource.group:
        return found
    if resource.plural == "pods":
        found |= _pod(obj, now)
    elif resource.plural == "services":
        found |= _service(obj.get("spec") or {})
    elif resource.plural == "persistentvolumeclaims":
        found |= _claim(obj)
    elif resource.plural in SHORT:
        found[resource.plural] = ONE
    return found


def concerns(spec: Mapping[str, Any], resource: Resource, obj: Obj) -> bool:
    """Whether a quota counts an object; one with scopes counts only pods that are in them all."""
    scopes: list[Mapping[str, Any]] = [
        {"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()
    ]
    scopes += (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    if not scopes:
        return True
    if resource.group or resource.plural != "pods":
        return False
    return all(_in_scope(one, obj.get("spec") or {}) for one in scopes)


def unsaid(hard: Iterable[str], pod: Obj) -> str:
    """What a quota on processors or memory requires every container to set, and which does not."""
    spec = pod.get("spec") or {}
    wanted = REQUIRED.intersection(hard)
    if not wanted or spec.get("resources"):
        return ""
    missing: dict[str, list[str]] = {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in wanted:
            given = limits if name.startswith("limits.") else requests
            if name.rpartition(".")[2] not in given:
                missing.setdefault(name, []).append(container["name"])
    told = [f"{name} for: {','.join(sorted(who))}" for name, who in sorted(missing.items())]
    return f"must specify {'; '.join(told)}" if told else ""


def add(total: UsedAmounts, more: Mapping[str, Quantity], names: Iterable[str]) -> None:
    """Add usage to a total, as far as names are counted."""
    for name in names:
        if name in more:
            have, amount = total.get(name, NOTHING), more[name]
            family = have.family if have.value else amount.family
            total[name] = Quantity(have.value + amount.value, family)


def exceeded(hard: Mapping[str, Quantity], used: UsedAmounts, delta: UsedAmounts) -> list[str]:
    """The resources of which there would be too much."""
    return sorted(
        name
        for name, amount in delta.items()
        if name in hard
        and amount.value > 0
        and used.get(name, NOTHING).value + amount.value > hard[name].value
    )


def text_of(amounts: Mapping[str, Quantity], names: Iterable[str]) -> str:
    """Amounts as a refusal prints them."""
    return ",".join(f"{name}={amounts.get(name, NOTHING)}" for name in names)


def _pod(pod: Obj, now: float) -> UsedAmounts:
    if (pod.get("status") or {}).get("phase") in FINISHED:
        return {}
    meta = pod.get("metadata") or {}
    if meta.get("deletionTimestamp"):
        grace = meta.get("deletionGracePeriodSeconds") or 0
        if now > times.parse(meta["deletionTimestamp"]).timestamp() + grace:
            return {}
    spec = pod.get("spec") or {}
    found: UsedAmounts = {"pods": ONE}
    for name, amount in needed(spec, "requests").items():
        found[f"requests.{name}"] = amount
        if name in COMPUTE or name.startswith("hugepages-"):
            found[name] = amount
    for name, amount in needed(spec, "limits").items():
        if name in COMPUTE:
            found[f"limits.{name}"] = amount
    return found


def _service(spec: Mapping[str, Any]) -> UsedAmounts:
    kind = spec.get("type")
    ports = Quantity(Fraction(len(spec.get("ports") or ())))
    found: UsedAmounts = {"services": ONE}
    found["services.loadbalancers"] = ONE if kind == "LoadBalancer" else NOTHING
    allocates = kind == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is not False
    found["services.nodeports"] = ports if kind == "NodePort" or allocates else NOTHING
    return found


def _claim(claim: Obj) -> UsedAmounts:
    spec, annotations = (
        claim.get("spec") or {},
        (claim.get("metadata") or {}).get("annotations") or {},
    )
    size = ((spec.get("resources") or {}).get("requests") or {}).get("storage", "0")
    found: UsedAmounts = {"persistentvolumeclaims": ONE, "requests.storage": quantity.parse(size)}
    if name := annotations.get(LEGACY_CLASS, spec.get("storageClassName")):
        prefix = f"{name}.storageclass.storage.k8s.io"
        found[f"{prefix}/requests.storage"] = found["requests.storage"]
        found[f"{prefix}/persistentvolumeclaims"] = ONE
    return found


def _in_scope(scope: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    match scope.get("scopeName"):
        case "Terminating":
            return spec.get("activeDeadlineSeconds") is not None
        case "NotTerminating":
            return spec.get("activeDeadlineSeconds") is None
        case "BestEffort":
            return _best_effort(spec)
        case "NotBestEffort":
            return not _best_effort(spec)
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


def _best_effort(spec: Mapping[str, Any]) -> bool:
    holders = (
        spec,
        *(spec.get("containers") or ()),
        *(spec.get("initContainers") or ()),
    )
    return not any(
        name in COMPUTE[:2] and quantity.parse(amount).value > 0
        for holder in holders
        for which in ("requests", "limits")
        for name, amount in ((holder.get("resources") or {}).get(which) or {}).items()
    )
