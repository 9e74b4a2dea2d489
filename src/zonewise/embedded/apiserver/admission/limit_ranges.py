"""LimitRanges: defaults for containers without requests or limits, and minimum and maximum.

Defaults are set when a pod is created, and an annotation says which; then minimum, maximum and the
ratio of limit to request are checked for containers, whole pods and claims. All LimitRanges of the
namespace apply, in the order of their names; of two defaults the first counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from zonewise.api.values.quantity import Quantity, parse
from zonewise.embedded.apiserver.admission.admission import Attributes
from zonewise.embedded.machinery.decoding.pod_resources import effective_resources

Obj = dict[str, Any]
Amounts = Mapping[str, Quantity]

ANNOTATION = "kubernetes.io/limit-ranger"
STORAGE = "/limitranges"
PODS, CLAIMS = "/pods", "/persistentvolumeclaims"


class LimitRanges:
    """The two plugins of LimitRanges."""

    def __init__(self, list_objects: Callable[[str], Iterable[Obj]]) -> None:
        self._list_objects = list_objects

    def apply_defaults(self, attributes: Attributes) -> None:
        """Set defaults in the containers of a new pod."""
        if attributes.served.storage != PODS or attributes.operation != "CREATE":
            return
        pod = attributes.obj
        if pod is None or attributes.subresource:
            return
        for limits in self._limits_of(attributes.namespace):
            _apply_defaults(pod, limits)

    def check(self, attributes: Attributes) -> None:
        """Refuse a pod or claim that requests too little or too much."""
        storage, obj = attributes.served.storage, attributes.obj
        if storage not in {PODS, CLAIMS} or obj is None or attributes.subresource:
            return
        if attributes.operation != "CREATE" and (
            storage == PODS or attributes.operation != "UPDATE"
        ):
            return
        for limits in self._limits_of(attributes.namespace):
            errors = [error for limit in limits for error in _check_limit(limit, storage, obj)]
            if errors:
                text = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
                raise attributes.forbidden(text)

    def _limits_of(self, namespace: str) -> list[list[Obj]]:
        ranges = [
            obj
            for obj in self._list_objects(STORAGE)
            if obj["metadata"].get("namespace") == namespace
        ]
        ranges.sort(key=lambda obj: obj["metadata"]["name"])
        return [(obj.get("spec") or {}).get("limits") or [] for obj in ranges]


def _apply_defaults(pod: Obj, limits: Iterable[Obj]) -> None:
    requests: dict[str, Any] = {}
    limits_by_name: dict[str, Any] = {}
    for limit in limits:
        if limit.get("type") == "Container":
            requests |= limit.get("defaultRequest") or {}
            limits_by_name |= limit.get("default") or {}
    changes: list[str] = []
    spec = pod.get("spec") or {}
    for key, container_kind in (("containers", "container"), ("initContainers", "init container")):
        for container in spec.get(key) or ():
            resources = container.setdefault("resources", {})
            for resource_field, noun, defaults in (
                ("requests", "request", requests),
                ("limits", "limit", limits_by_name),
            ):
                current = resources.get(resource_field) or {}
                added = {name: amount for name, amount in defaults.items() if name not in current}
                if added:
                    resources[resource_field] = {**current, **added}
                    names = ", ".join(sorted(added))
                    changes.append(
                        f"{names} {noun} for {container_kind} {container.get('name', '')}"
                    )
    if changes:
        annotations = pod["metadata"].setdefault("annotations", {})
        annotations[ANNOTATION] = f"LimitRanger plugin set: {'; '.join(changes)}"


def _check_limit(limit: Obj, storage: str, obj: Obj) -> list[str]:
    spec, limit_type = obj.get("spec") or {}, limit.get("type", "")
    if storage == CLAIMS:
        if limit_type != "PersistentVolumeClaim":
            return []
        requests = _parse_amounts((spec.get("resources") or {}).get("requests"))
        return _check_claim(limit, limit_type, requests)
    if limit_type == "Container":
        errors = []
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            resources = container.get("resources") or {}
            errors += _check_bounds(
                limit,
                limit_type,
                _parse_amounts(resources.get("requests")),
                _parse_amounts(resources.get("limits")),
            )
        return errors
    if limit_type == "Pod":
        return _check_bounds(
            limit,
            limit_type,
            effective_resources(spec, "requests"),
            effective_resources(spec, "limits"),
        )
    return []


def _check_bounds(limit: Obj, limit_type: str, requests: Amounts, limits: Amounts) -> list[str]:
    errors: list[str] = []
    for name, bound in _parse_amounts(limit.get("min")).items():
        prefix = f"minimum {name} usage per {limit_type} is {bound}"
        request, limit_amount = requests.get(name), limits.get(name)
        if request is None:
            errors.append(f"{prefix}.  No request is specified")
        elif request.value < bound.value:
            errors.append(f"{prefix}, but request is {request}")
        elif limit_amount is not None and limit_amount.value < bound.value:
            errors.append(f"{prefix}, but limit is {limit_amount}")
    for name, bound in _parse_amounts(limit.get("max")).items():
        prefix = f"maximum {name} usage per {limit_type} is {bound}"
        request, limit_amount = requests.get(name), limits.get(name)
        if limit_amount is None:
            errors.append(f"{prefix}.  No limit is specified")
        elif limit_amount.value > bound.value:
            errors.append(f"{prefix}, but limit is {limit_amount}")
        elif request is not None and request.value > bound.value:
            errors.append(f"{prefix}, but request is {request}")
    for name, bound in _parse_amounts(limit.get("maxLimitRequestRatio")).items():
        prefix = f"{name} max limit to request ratio per {limit_type} is {bound}, but"
        request, limit_amount = requests.get(name), limits.get(name)
        if request is None or not request.value:
            errors.append(f"{prefix} no request is specified or request is 0")
        elif limit_amount is None or not limit_amount.value:
            errors.append(f"{prefix} no limit is specified or limit is 0")
        elif limit_amount.value / request.value > bound.value:
            errors.append(
                f"{prefix} provided ratio is {float(limit_amount.value / request.value):f}"
            )
    return errors


def _check_claim(limit: Obj, limit_type: str, requests: Amounts) -> list[str]:
    errors: list[str] = []
    for key, noun in (("min", "minimum"), ("max", "maximum")):
        for name, bound in _parse_amounts(limit.get(key)).items():
            prefix = f"{noun} {name} usage per {limit_type} is {bound}"
            amount = requests.get(name)
            if amount is None:
                errors.append(f"{prefix}.  No request is specified")
            elif amount.value < bound.value if key == "min" else amount.value > bound.value:
                errors.append(f"{prefix}, but request is {amount}")
    return errors


def _parse_amounts(amounts: Mapping[str, Any] | None) -> dict[str, Quantity]:
    return {name: parse(text) for name, text in (amounts or {}).items()}
