"""Requests and limits of containers and of whole pods."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from zonewise.api.errors import ParseError
from zonewise.api.field_cursor import Field
from zonewise.api.values import names, quantity
from zonewise.embedded.apiserver.strategy.base import Obj, words

CONTAINER_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage"})
CPU_AND_MEMORY = frozenset({"cpu", "memory"})
COUNTED_OBJECTS = frozenset(
    words(
        "pods resourcequotas services replicationcontrollers secrets configmaps"
        " persistentvolumeclaims services.nodeports services.loadbalancers"
    )
)
STANDARD_RESOURCES = COUNTED_OBJECTS | {
    *CONTAINER_RESOURCES,
    "storage",
    *(f"{side}.{name}" for side in ("limits", "requests") for name in CONTAINER_RESOURCES),
    "requests.storage",
}
HUGE_PAGES = "hugepages-"
POD_RESOURCES = ("cpu", "hugepages-", "memory")
NOT_STANDARD = "must be a standard resource type or fully qualified"


def validate_resource_requirements(
    resources: Field, claim_names: frozenset[str] = frozenset(), *, of_pod: bool = False
) -> None:
    """Limits and requests of a container, or of a whole pod.

    ``claim_names`` are the resource claims that the pod has.
    """
    limits = resources.value.get("limits") or {}
    requests = resources.value.get("requests") or {}
    for side, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            if of_pod or not _is_common_amount(name, text):
                _validate_amount(resources[side].entry(name), name, of_pod)
    for name, text in requests.items():
        if name in CONTAINER_RESOURCES and (name not in limits or _fits(text, limits[name])):
            continue
        can_overcommit = _is_native(name) and not name.startswith(HUGE_PAGES)
        limit = limits.get(name)
        if limit is None:
            if not can_overcommit:
                resources["limits"].missing("Limit must be set for non overcommitable resources")
            continue
        requested, most = quantity.value(text), quantity.value(limit)
        if requested != most and not can_overcommit:
            resources["requests"].invalid(f"must be equal to {name} limit of {limit}", text)
        elif requested > most:
            resources["requests"].invalid(
                f"must be less than or equal to {name} limit of {limit}", text
            )
    resource_names = limits.keys() | requests.keys()
    if not resource_names & CPU_AND_MEMORY and any(
        name.startswith(HUGE_PAGES) for name in resource_names
    ):
        resources.forbid("HugePages require cpu or memory")
    if resources.value.get("claims"):
        _validate_claims(resources["claims"], claim_names)


def _validate_amount(amount: Field, name: str, of_pod: bool) -> None:
    if of_pod:
        _validate_pod_resource_name(amount.holding(name))
    else:
        validate_container_resource_name(amount.holding(name))
    validate_resource_quantity(amount, name)
    if name.startswith(HUGE_PAGES) and not _is_divisible(name, quantity.value(amount.value)):
        amount.invalid(f"{amount.value} is not positive integer multiple of {name}")


@lru_cache(maxsize=4096)
def _is_common_amount(name: str, text: str) -> bool:
    """Whether this is an amount of a common resource, and not a negative one."""
    return name in CONTAINER_RESOURCES and quantity.value(text) >= 0


@lru_cache(maxsize=4096)
def _fits(request: str, limit: str) -> bool:
    return quantity.value(request) <= quantity.value(limit)


def validate_container_resource_name(name: Field) -> None:
    """The name of a resource of containers."""
    text: str = name.value
    is_qualified = name.qualified_name()
    if "/" not in text:
        if (
            is_qualified
            and text not in STANDARD_RESOURCES
            and not text.startswith((HUGE_PAGES, f"requests.{HUGE_PAGES}"))
        ):
            name.invalid(NOT_STANDARD)
        if text not in CONTAINER_RESOURCES and not text.startswith(HUGE_PAGES):
            name.invalid("must be a standard resource for containers")
    elif not _is_native(text) and not is_extended_resource(text):
        name.invalid("doesn't follow extended resource name standard")


def validate_resource_quantity(amount: Field, name: str) -> None:
    """An amount of a resource."""
    value = quantity.value(amount.value)
    if value < 0:
        amount.invalid("must be greater than or equal to 0")
    if value.denominator != 1 and (name in COUNTED_OBJECTS or is_extended_resource(name)):
        amount.invalid("must be an integer")


def _validate_pod_resource_name(name: Field) -> None:
    text: str = name.value
    if not name.qualified_name() or text.startswith(HUGE_PAGES):
        return
    if "/" not in text and text not in STANDARD_RESOURCES:
        name.invalid(NOT_STANDARD)
    elif text not in CPU_AND_MEMORY:
        name.unsupported(POD_RESOURCES)


def _is_native(name: str) -> bool:
    return "/" not in name or "kubernetes.io/" in name


def is_extended_resource(name: str) -> bool:
    """Whether a resource is one of a domain that is not Kubernetes' own."""
    if _is_native(name) or name.startswith("requests."):
        return False
    return not names.qualified_name_errors(f"requests.{name}")


def _is_divisible(name: str, value: Fraction) -> bool:
    try:
        page = quantity.value(name.removeprefix(HUGE_PAGES))
    except ParseError:
        return False
    if page <= 0 or page.denominator != 1:
        return False
    return -(-value.numerator // value.denominator) % page.numerator == 0


def _validate_claims(claims: Field, claim_names: frozenset[str]) -> None:
    seen: set[str] = set()
    for claim in claims.each():
        name, request = claim.value.get("name", ""), claim["request"]
        if not name:
            claim.missing()
            continue
        if name in seen:
            claim.duplicate(name)
        else:
            request.optional().dns_label()
            key = f"{name}/{request.value}" if request.value else name
            if key in seen or (
                not request.value and any(other.startswith(f"{name}/") for other in seen)
            ):
                claim.duplicate(key)
            seen.add(key)
        if name not in claim_names:
            claim.holding(name).not_found()


def validate_pod_resources(spec: Field, claim_names: frozenset[str]) -> None:
    """The resources of a whole pod."""
    resources = spec["resources"]
    if (spec.value.get("os") or {}).get("name") == "windows":
        resources.forbid("may not be set for a windows pod")
        return
    resources["claims"].forbid_filled("claims may not be set for Resources at pod-level")
    validate_resource_requirements(resources, claim_names, of_pod=True)
    requests, limits = resources["requests"], resources["limits"]
    for name, needed in container_sum(spec.value, "requests").items():
        request = requests.entry(name)
        if request.value is not None and needed > quantity.value(request.value):
            request.invalid(
                f"must be greater than or equal to aggregate container requests of {needed}"
            )
    for name, needed in container_sum(spec.value, "limits").items():
        limit = limits.entry(name)
        if (
            name.startswith(HUGE_PAGES)
            and limit.value is not None
            and needed > quantity.value(limit.value)
        ):
            limit.invalid(
                f"must be greater than or equal to aggregate container limits of {needed}"
            )
    for container in resources.child("containers", spec.value.get("containers")).each():
        for name, limit in container["resources"]["limits"].entries():
            most = limits.entry(name).value
            if most is not None and quantity.value(limit.value) > quantity.value(most):
                container.entry(name).child("limits", limit.value).invalid(
                    f"must be less than or equal to pod limits of {most}"
                )


def container_sum(spec: Obj, side: str) -> dict[str, Fraction]:
    """What all containers of a pod need together.

    Containers and sidecars run side by side; an init container runs beside the sidecars that
    started before it, so it counts only where it alone needs more than all that run later.
    """
    total: dict[str, Fraction] = {}
    for container in spec.get("containers") or ():
        _add(total, (container.get("resources") or {}).get(side) or {})
    sidecars: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for container in spec.get("initContainers") or ():
        amounts = (container.get("resources") or {}).get(side) or {}
        if container.get("restartPolicy") == "Always":
            _add(total, amounts)
            _add(sidecars, amounts)
            running = dict(sidecars)
        else:
            running = dict(sidecars)
            _add(running, amounts)
        for name, value in running.items():
            peak[name] = max(peak.get(name, value), value)
    for name, value in peak.items():
        total[name] = max(total.get(name, value), value)
    return total


def _add(total: dict[str, Fraction], amounts: Obj) -> None:
    for name, text in amounts.items():
        total[name] = total.get(name, Fraction(0)) + quantity.value(text)
