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
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.machinery.decoding.pod_resources import needed

Obj = dict[str, Any]
Amounts = Mapping[str, Quantity]

ANNOTATION = "kubernetes.io/limit-ranger"
STORAGE = "/limitranges"
PODS, CLAIMS = "/pods", "/persistentvolumeclaims"


class LimitRanges:
    """The two plugins, over a way to see all LimitRanges."""

    def __init__(self, every: Callable[[str], Iterable[Obj]]) -> None:
        self._every = every

    def give(self, attributes: Attributes) -> None:
        """Defaults for the containers of a new pod."""
        if attributes.served.storage != PODS or attributes.operation != "CREATE":
            return
        pod = attributes.obj
        if pod is None or attributes.subresource:
            return
        for limits in self._limits(attributes.namespace):
            _give(pod, limits)

    def check(self, attributes: Attributes) -> None:
        """Refuse a pod or claim that requests too little or too much."""
        storage, obj = attributes.served.storage, attributes.obj
        if storage not in {PODS, CLAIMS} or obj is None or attributes.subresource:
            return
        if attributes.operation != "CREATE" and (
            storage == PODS or attributes.operation != "UPDATE"
        ):
            return
        for limits in self._limits(attributes.namespace):
            found = [why for limit in limits for why in _faults(limit, storage, obj)]
            if found:
                text = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
                resource = attributes.served.kind.resource
                raise status_errors.forbidden(resource, attributes.called, text)

    def _limits(self, namespace: str) -> list[list[Obj]]:
        found = [
            obj for obj in self._every(STORAGE) if obj["metadata"].get("namespace") == namespace
        ]
        found.sort(key=lambda obj: obj["metadata"]["name"])
        return [(obj.get("spec") or {}).get("limits") or [] for obj in found]


def _give(pod: Obj, limits: Iterable[Obj]) -> None:
    requests: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for limit in limits:
        if limit.get("type") == "Container":
            requests |= limit.get("defaultRequest") or {}
            most |= limit.get("default") or {}
    told: list[str] = []
    spec = pod.get("spec") or {}
    for key, what in (("containers", "container"), ("initContainers", "init container")):
        for container in spec.get(key) or ():
            resources = container.setdefault("resources", {})
            for which, word, given in (
                ("requests", "request", requests),
                ("limits", "limit", most),
            ):
                have = resources.get(which) or {}
                new = {name: amount for name, amount in given.items() if name not in have}
                if new:
                    resources[which] = {**have, **new}
                    names = ", ".join(sorted(new))
                    told.append(f"{names} {word} for {what} {container.get('name', '')}")
    if told:
        notes = pod["metadata"].setdefault("annotations", {})
        notes[ANNOTATION] = f"LimitRanger plugin set: {'; '.join(told)}"


def _faults(limit: Obj, storage: str, obj: Obj) -> list[str]:
    spec, kind = obj.get("spec") or {}, limit.get("type", "")
    if storage == CLAIMS:
        if kind != "PersistentVolumeClaim":
            return []
        asked = _amounts((spec.get("resources") or {}).get("requests"))
        return _claim_faults(limit, kind, asked)
    if kind == "Container":
        found = []
        for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
            resources = container.get("resources") or {}
            found += _bounds(
                limit, kind, _amounts(resources.get("requests")), _amounts(resources.get("limits"))
            )
        return found
    if kind == "Pod":
        return _bounds(limit, kind, needed(spec, "requests"), needed(spec, "limits"))
    return []


def _bounds(limit: Obj, kind: str, requests: Amounts, limits: Amounts) -> list[str]:
    found: list[str] = []
    for name, bound in _amounts(limit.get("min")).items():
        head = f"minimum {name} usage per {kind} is {bound}"
        request, most = requests.get(name), limits.get(name)
        if request is None:
            found.append(f"{head}.  No request is specified")
        elif request.value < bound.value:
            found.append(f"{head}, but request is {request}")
        elif most is not None and most.value < bound.value:
            found.append(f"{head}, but limit is {most}")
    for name, bound in _amounts(limit.get("max")).items():
        head = f"maximum {name} usage per {kind} is {bound}"
        request, most = requests.get(name), limits.get(name)
        if most is None:
            found.append(f"{head}.  No limit is specified")
        elif most.value > bound.value:
            found.append(f"{head}, but limit is {most}")
        elif request is not None and request.value > bound.value:
            found.append(f"{head}, but request is {request}")
    for name, bound in _amounts(limit.get("maxLimitRequestRatio")).items():
        head = f"{name} max limit to request ratio per {kind} is {bound}, but"
        request, most = requests.get(name), limits.get(name)
        if request is None or not request.value:
            found.append(f"{head} no request is specified or request is 0")
        elif most is None or not most.value:
            found.append(f"{head} no limit is specified or limit is 0")
        elif most.value / request.value > bound.value:
            found.append(f"{head} provided ratio is {float(most.value / request.value):f}")
    return found


def _claim_faults(limit: Obj, kind: str, asked: Amounts) -> list[str]:
    found: list[str] = []
    for key, word in (("min", "minimum"), ("max", "maximum")):
        for name, bound in _amounts(limit.get(key)).items():
            head = f"{word} {name} usage per {kind} is {bound}"
            amount = asked.get(name)
            if amount is None:
                found.append(f"{head}.  No request is specified")
            elif amount.value < bound.value if key == "min" else amount.value > bound.value:
                found.append(f"{head}, but request is {amount}")
    return found


def _amounts(given: Mapping[str, Any] | None) -> dict[str, Quantity]:
    return {name: parse(text) for name, text in (given or {}).items()}
