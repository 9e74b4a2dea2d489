"""Kinds that are served in two forms and stored in one, and the conversion between them.

Events are stored as core/v1 and also served by `events.k8s.io`, where the same facts have other
names. Autoscalers are stored as autoscaling/v2; v1 has room for one target only, so everything else
is kept in annotations, in JSON that no API describes. Both conversions change the object in place
and lose nothing that the other form can express. Budgets are the same in both of their versions.

What an object prints in one form and not in the other is settled here too, so the result needs no
further completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

Obj = dict[str, Any]

PREFIX = "autoscaling.alpha.kubernetes.io/"
METRICS = PREFIX + "metrics"
BEHAVIOR = PREFIX + "behavior"
CONDITIONS = PREFIX + "conditions"
CURRENT = PREFIX + "current-metrics"
CPU = 80

# As events.k8s.io calls it: as core does.
EVENT_NAMES = {
    "regarding": "involvedObject",
    "note": "message",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "reportingController": "reportingComponent",
}
# Of a v1 metric's numbers: the kind of target they are in v2, and what the target calls them.
TARGETS = (
    ("targetAverageUtilization", "Utilization", "averageUtilization"),
    ("targetAverageValue", "AverageValue", "averageValue"),
    ("averageValue", "AverageValue", "averageValue"),
    ("targetValue", "Value", "value"),
)
CURRENTS = (
    ("currentAverageUtilization", "averageUtilization"),
    ("currentAverageValue", "averageValue"),
    ("averageValue", "averageValue"),
    ("currentValue", "value"),
)
SOURCES = {
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "External": "external",
}


class Ways(NamedTuple):
    """From the served form to the stored one and back, in place."""

    to_storage: Callable[[Obj], None]
    from_storage: Callable[[Obj], None]


def event_to_storage(event: Obj) -> None:
    """An event of events.k8s.io/v1 as one of core/v1."""
    _rename(event, EVENT_NAMES)
    event.setdefault("reportingComponent", "")
    event.setdefault("reportingInstance", "")


def event_from_storage(event: Obj) -> None:
    """An event of core/v1 as one of events.k8s.io/v1."""
    _rename(event, {core: name for name, core in EVENT_NAMES.items()})
    for name in ("reportingController", "reportingInstance"):
        if not event.get(name):
            event.pop(name, None)


def _rename(value: Obj, names: Mapping[str, str]) -> None:
    for old, new in names.items():
        if old in value:
            value[new] = value.pop(old)


def autoscaler_to_storage(scaler: Obj) -> None:
    """An autoscaler of autoscaling/v1 as one of v2."""
    spec = scaler.setdefault("spec", {})
    status = scaler.setdefault("status", {})
    metrics = [_metric_of_v1(metric) for metric in _taken(scaler, METRICS, list)]
    percent = spec.pop("targetCPUUtilizationPercentage", None)
    if percent is not None or not metrics:
        metrics.append(_cpu({"target": _target("Utilization", percent or CPU)}))
    spec["metrics"] = metrics
    behavior = _taken(scaler, BEHAVIOR, dict)
    if behavior:
        spec["behavior"] = _lowered(behavior)
    current = [_current_of_v1(metric) for metric in _taken(scaler, CURRENT, list)]
    used = status.pop("currentCPUUtilizationPercentage", None)
    if used is not None:
        current.append(_cpu({"current": {"averageUtilization": used}}))
    conditions = _taken(scaler, CONDITIONS, list)
    if conditions:
        status["conditions"] = conditions
    status["currentMetrics"] = current or None
    if not status.get("currentReplicas"):
        status.pop("currentReplicas", None)
    status.setdefault("desiredReplicas", 0)


def autoscaler_from_storage(scaler: Obj) -> None:
    """An autoscaler of autoscaling/v2 as one of v1."""
    spec = scaler.setdefault("spec", {})
    status = scaler.setdefault("status", {})
    metrics = spec.pop("metrics", None) or []
    main = next((one for one in metrics if _utilization(one, "target") is not None), None)
    if main is not None:
        spec["targetCPUUtilizationPercentage"] = _utilization(main, "target")
    others = [_metric_of_v2(metric) for metric in metrics if metric is not main]
    _keep(scaler, METRICS, others)
    behavior = spec.pop("behavior", None)
    _keep(scaler, BEHAVIOR, _raised(behavior) if behavior else None)
    current = status.pop("currentMetrics", None) or []
    used = next((one for one in current if _utilization(one, "current") is not None), None)
    if used is not None:
        status["currentCPUUtilizationPercentage"] = _utilization(used, "current")
    _keep(scaler, CURRENT, [_current_of_v2(metric) for metric in current])
    _keep(scaler, CONDITIONS, status.pop("conditions", None))
    status.setdefault("currentReplicas", 0)
    status.setdefault("desiredReplicas", 0)


def _cpu(facts: Obj) -> Obj:
    return {"type": "Resource", "resource": {"name": "cpu", **facts}}


def _target(kind: str, value: Any) -> Obj:
    name = next(name for _, known, name in TARGETS if known == kind)
    return {"type": kind, name: value}


def _utilization(metric: Obj, which: str) -> Any:
    resource = metric.get("resource") or {}
    if metric.get("type") != "Resource" or resource.get("name") != "cpu":
        return None
    return (resource.get(which) or {}).get("averageUtilization")


def _metric_of_v1(metric: Obj) -> Obj:
    made = dict(metric)
    for name in SOURCES.values():
        if name in made:
            made[name] = _source_of_v1(name, dict(made[name]), "target")
    return made


def _current_of_v1(metric: Obj) -> Obj:
    made = dict(metric)
    for name in SOURCES.values():
        if name in made:
            made[name] = _source_of_v1(name, dict(made[name]), "current")
    return made


def _source_of_v1(name: str, source: Obj, which: str) -> Obj:
    """One source of numbers: v1 has its facts side by side, v2 in groups."""
    if name == "object":
        source["describedObject"] = source.pop("target", {})
    if name in ("object", "pods", "external"):
        selector = source.pop("metricSelector" if name == "external" else "selector", None)
        metric = {"name": source.pop("metricName", "")}
        source["metric"] = metric | ({"selector": selector} if selector else {})
    if which == "target":
        for field, kind, _ in TARGETS:
            if field in source:
                source["target"] = _target(kind, source.pop(field))
        return source
    numbers = {new: source.pop(old) for old, new in CURRENTS if old in source}
    return {**source, "current": numbers}


def _metric_of_v2(metric: Obj) -> Obj:
    made = dict(metric)
    for name in SOURCES.values():
        if name in made:
            made[name] = _source_of_v2(name, dict(made[name]))
    return made


def _source_of_v2(name: str, source: Obj) -> Obj:
    target = source.pop("target", {})
    made = _unnamed(name, source)
    for _, kind, field in TARGETS:
        if target.get("type") == kind and field in target:
            average = name == "object" and kind == "AverageValue"
            known = next(old for old, one, _ in TARGETS if one == kind)
            made["averageValue" if average else known] = target[field]
            break
    return made


def _current_of_v2(metric: Obj) -> Obj:
    made = dict(metric)
    for name in SOURCES.values():
        if name in made:
            source = dict(made[name])
            numbers = source.pop("current", {})
            shown = {old: numbers[new] for old, new in reversed(CURRENTS) if new in numbers}
            if name != "object":
                shown.pop("averageValue", None)
            elif "averageValue" in shown:
                shown.pop("currentAverageValue", None)
            made[name] = _unnamed(name, source) | shown
    return made


def _unnamed(name: str, source: Obj) -> Obj:
    """A v2 source without its groups."""
    metric = source.pop("metric", None)
    made: Obj = {}
    if name == "object":
        made["target"] = source.pop("describedObject", {})
    made.update(source)
    if metric is not None:
        made["metricName"] = metric.get("name", "")
        if "selector" in metric:
            made["metricSelector" if name == "external" else "selector"] = metric["selector"]
    return made


def _raised(behavior: Obj) -> Obj:
    """Scaling behaviour as the annotation has it: Go's own names, absent fields as null."""
    fields = ("stabilizationWindowSeconds", "selectPolicy", "policies", "tolerance")
    shown: Obj = {}
    for way in ("scaleUp", "scaleDown"):
        rules = behavior.get(way)
        shown[_capital(way)] = rules and {
            _capital(field): [
                {_capital(name): item for name, item in policy.items()} for policy in rules[field]
            ]
            if field == "policies" and rules.get(field)
            else rules.get(field)
            for field in fields
        }
    return shown


def _lowered(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name[:1].lower() + name[1:]: _lowered(item)
            for name, item in value.items()
            if item is not None
        }
    return [_lowered(item) for item in value] if isinstance(value, list) else value


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _taken(scaler: Obj, name: str, form: type) -> Any:
    """The value of an annotation, which is removed; empty if it cannot be read."""
    meta = scaler.get("metadata") or {}
    annotations = meta.get("annotations") or {}
    text = annotations.pop(name, "")
    if not annotations:
        meta.pop("annotations", None)
    try:
        found = msgspec.json.decode(text.encode()) if text else form()
    except (msgspec.DecodeError, RecursionError):
        return form()
    if form is list and isinstance(found, list):
        return [item for item in found if isinstance(item, dict)]
    return found if isinstance(found, form) else form()


def _keep(scaler: Obj, name: str, value: Any) -> None:
    if value:
        annotations = scaler.setdefault("metadata", {}).setdefault("annotations", {})
        annotations[name] = msgspec.json.encode(value).decode()


def _same(_value: Obj) -> None:
    return


WAYS: dict[tuple[str, str, str], Ways] = {
    ("events.k8s.io", "v1", "events"): Ways(event_to_storage, event_from_storage),
    ("autoscaling", "v1", "horizontalpodautoscalers"): Ways(
        autoscaler_to_storage, autoscaler_from_storage
    ),
    ("policy", "v1beta1", "poddisruptionbudgets"): Ways(_same, _same),
}
