"""Requests and limits of containers."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from zonewise.api import field_errors
from zonewise.api.errors import ParseError
from zonewise.api.values import names, quantity
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj

COMMON = frozenset({"cpu", "memory", "ephemeral-storage"})
SCARCE = frozenset({"cpu", "memory"})
WHOLE = frozenset(
    {
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    }
)
STANDARD = WHOLE | {
    *COMMON,
    "storage",
    *(f"{side}.{name}" for side in ("limits", "requests") for name in COMMON),
    "requests.storage",
}
HUGE = "hugepages-"
POD_LEVEL = ("cpu", "hugepages-", "memory")


def requirement_faults(
    resources: Obj, path: str, claims: frozenset[str] = frozenset(), *, pod: bool = False
) -> Faults:
    """What is wrong with limits and requests; ``pod`` for those of a whole pod."""
    found: Faults = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for side, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            if not pod and _sound(name, text):
                continue
            value = quantity.value(text)
            at = f"{path}.{side}[{name}]"
            found += _pod_level_name(name, at) if pod else name_faults(name, at)
            found += amount_faults(name, text, value, at)
            if name.startswith(HUGE) and not _divisible(name, value):
                why = f"{text} is not positive integer multiple of {name}"
                found.append(field_errors.invalid(at, text, why))
    for name, text in requests.items():
        if name in COMMON and (name not in limits or _fits(text, limits[name])):
            continue
        value = quantity.value(text)
        free = _native(name) and not name.startswith(HUGE)
        limit = limits.get(name)
        if limit is None:
            if not free:
                why = "Limit must be set for non overcommitable resources"
                found.append(field_errors.required(f"{path}.limits", why))
            continue
        most = quantity.value(limit)
        if value != most and not free:
            why = f"must be equal to {name} limit of {limit}"
            found.append(field_errors.invalid(f"{path}.requests", text, why))
        elif value > most:
            why = f"must be less than or equal to {name} limit of {limit}"
            found.append(field_errors.invalid(f"{path}.requests", text, why))
    asked = limits.keys() | requests.keys()
    if not asked & SCARCE and any(name.startswith(HUGE) for name in asked):
        found.append(field_errors.forbidden(path, "HugePages require cpu or memory"))
    if resources.get("claims"):
        found += _claim_faults(resources["claims"], f"{path}.claims", claims)
    return found


@lru_cache(maxsize=4096)
def _sound(name: str, text: str) -> bool:
    """Whether this is an amount of a common resource, and not a negative one."""
    return name in COMMON and quantity.value(text) >= 0


@lru_cache(maxsize=4096)
def _fits(request: str, limit: str) -> bool:
    return quantity.value(request) <= quantity.value(limit)


def name_faults(name: str, path: str) -> Faults:
    """What is wrong with the name of a resource of containers."""
    found = [field_errors.invalid(path, name, text) for text in metadata.qualified_name(name)]
    if "/" not in name:
        if not found and name not in STANDARD and not name.startswith((HUGE, f"requests.{HUGE}")):
            text = "must be a standard resource type or fully qualified"
            found.append(field_errors.invalid(path, name, text))
        if name not in COMMON and not name.startswith(HUGE):
            text = "must be a standard resource for containers"
            found.append(field_errors.invalid(path, name, text))
    elif not _native(name) and not _extended(name):
        text = "doesn't follow extended resource name standard"
        found.append(field_errors.invalid(path, name, text))
    return found


def amount_faults(name: str, text: str, value: Fraction, path: str) -> Faults:
    """What is wrong with an amount of a resource."""
    found: Faults = []
    if value < 0:
        found.append(field_errors.invalid(path, text, "must be greater than or equal to 0"))
    if (name in WHOLE or _extended(name)) and value.denominator != 1:
        found.append(field_errors.invalid(path, text, "must be an integer"))
    return found


def _pod_level_name(name: str, path: str) -> Faults:
    found = [field_errors.invalid(path, name, text) for text in metadata.qualified_name(name)]
    if not found and "/" not in name and name not in STANDARD and not name.startswith(HUGE):
        text = "must be a standard resource type or fully qualified"
        found.append(field_errors.invalid(path, name, text))
    if not found and name not in SCARCE and not name.startswith(HUGE):
        found.append(field_errors.unsupported(path, name, POD_LEVEL))
    return found


def _native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def _extended(name: str) -> bool:
    if _native(name) or name.startswith("requests."):
        return False
    return not metadata.qualified_name(f"requests.{name}")


def _divisible(name: str, value: Fraction) -> bool:
    try:
        page = quantity.value(name.removeprefix(HUGE))
    except ParseError:
        return False
    if page <= 0 or page.denominator != 1:
        return False
    return -(-value.numerator // value.denominator) % page.numerator == 0


def _claim_faults(wanted: list[Obj], path: str, known: frozenset[str]) -> Faults:
    found: Faults = []
    seen: set[str] = set()
    for index, claim in enumerate(wanted):
        at = f"{path}[{index}]"
        name, request = claim.get("name", ""), claim.get("request", "")
        if not name:
            found.append(field_errors.required(at))
            continue
        if name in seen:
            found.append(field_errors.duplicate(at, name))
        else:
            key = f"{name}/{request}" if request else name
            if request:
                found += [
                    field_errors.invalid(f"{at}.request", request, text)
                    for text in names.label(request)
                ]
            if key in seen or (not request and any(other.startswith(f"{name}/") for other in seen)):
                found.append(field_errors.duplicate(at, key))
            seen.add(key)
        if name not in known:
            found.append(field_errors.not_found(at, name))
    return found


def pod_level_faults(spec: Obj, path: str, claims: frozenset[str]) -> Faults:
    """What is wrong with the resources of a whole pod."""
    resources = spec["resources"]
    if (spec.get("os") or {}).get("name") == "windows":
        return [field_errors.forbidden(path, "may not be set for a windows pod")]
    found: Faults = []
    if resources.get("claims"):
        text = "claims may not be set for Resources at pod-level"
        found.append(field_errors.forbidden(f"{path}.claims", text))
    found += requirement_faults(resources, path, claims, pod=True)
    asked = resources.get("requests") or {}
    for name, needed in container_sum(spec, "requests").items():
        if name in asked and needed > quantity.value(asked[name]):
            text = f"must be greater than or equal to aggregate container requests of {needed}"
            found.append(field_errors.invalid(f"{path}.requests[{name}]", asked[name], text))
    limits = resources.get("limits") or {}
    for name, needed in container_sum(spec, "limits").items():
        if name.startswith(HUGE) and name in limits and needed > quantity.value(limits[name]):
            text = f"must be greater than or equal to aggregate container limits of {needed}"
            found.append(field_errors.invalid(f"{path}.limits[{name}]", limits[name], text))
    for index, one in enumerate(spec.get("containers") or ()):
        for name, limit in ((one.get("resources") or {}).get("limits") or {}).items():
            if name in limits and quantity.value(limit) > quantity.value(limits[name]):
                text = f"must be less than or equal to pod limits of {limits[name]}"
                at = f"{path}.containers[{index}][{name}].limits"
                found.append(field_errors.invalid(at, limit, text))
    return found


def container_sum(spec: Obj, side: str) -> dict[str, Fraction]:
    """What all containers of a pod need together.

    Containers and sidecars run side by side; an init container runs beside the sidecars that
    started before it, so it counts only where it alone needs more than all that run later.
    """
    total: dict[str, Fraction] = {}
    for one in spec.get("containers") or ():
        _add(total, (one.get("resources") or {}).get(side) or {})
    sidecars: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for one in spec.get("initContainers") or ():
        amounts = (one.get("resources") or {}).get(side) or {}
        if one.get("restartPolicy") == "Always":
            _add(total, amounts)
            _add(sidecars, amounts)
            now = dict(sidecars)
        else:
            now = dict(sidecars)
            _add(now, amounts)
        for name, value in now.items():
            peak[name] = max(peak.get(name, value), value)
    for name, value in peak.items():
        total[name] = max(total.get(name, value), value)
    return total


def _add(total: dict[str, Fraction], amounts: Obj) -> None:
    for name, text in amounts.items():
        total[name] = total.get(name, Fraction(0)) + quantity.value(text)
