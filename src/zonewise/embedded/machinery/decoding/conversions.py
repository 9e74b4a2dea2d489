"""Kinds that are served in two forms and stored in one, and the conversion between them.

Events are stored as core/v1 and also served by `events.k8s.io`, where the same fields have other
names. Autoscalers are stored as autoscaling/v2; v1 has only one target, so everything else is in
annotations, in JSON that no API describes. Both conversions change the object in place and lose
nothing that the other form can express. Budgets are the same in both of their versions.

Fields that are printed in one form and not in the other are set here too, so the result needs no
further defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

Obj = dict[str, Any]

ANNOTATION_PREFIX = "autoscaling.alpha.kubernetes.io/"
METRICS = ANNOTATION_PREFIX + "metrics"
BEHAVIOR = ANNOTATION_PREFIX + "behavior"
CONDITIONS = ANNOTATION_PREFIX + "conditions"
CURRENT_METRICS = ANNOTATION_PREFIX + "current-metrics"
DEFAULT_CPU_PERCENT = 80

# Name in events.k8s.io: name in core.
EVENT_NAMES = {
    "regarding": "involvedObject",
    "note": "message",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
    "reportingController": "reportingComponent",
}
# A v1 metric's field, its target type in v2, and the field of that target.
TARGETS = (
    ("targetAverageUtilization", "Utilization", "averageUtilization"),
    ("targetAverageValue", "AverageValue", "averageValue"),
    ("averageValue", "AverageValue", "averageValue"),
    ("targetValue", "Value", "value"),
)
CURRENT_VALUES = (
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


class StorageConversion(NamedTuple):
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
    metrics = [_metric_from_v1(metric) for metric in _pop_annotation(scaler, METRICS, list)]
    target_percent = spec.pop("targetCPUUtilizationPercentage", None)
    if target_percent is not None or not metrics:
        metrics.append(
            _cpu_metric(
                {"target": _build_target("Utilization", target_percent or DEFAULT_CPU_PERCENT)}
            )
        )
    spec["metrics"] = metrics
    behavior = _pop_annotation(scaler, BEHAVIOR, dict)
    if behavior:
        spec["behavior"] = _lowercase_names(behavior)
    metrics = _pop_annotation(scaler, CURRENT_METRICS, list)
    current = [_current_from_v1(metric) for metric in metrics]
    cpu_percent = status.pop("currentCPUUtilizationPercentage", None)
    if cpu_percent is not None:
        current.append(_cpu_metric({"current": {"averageUtilization": cpu_percent}}))
    conditions = _pop_annotation(scaler, CONDITIONS, list)
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
    cpu_target = next(
        (metric for metric in metrics if _cpu_utilization(metric, "target") is not None), None
    )
    if cpu_target is not None:
        spec["targetCPUUtilizationPercentage"] = _cpu_utilization(cpu_target, "target")
    others = [_metric_to_v1(metric) for metric in metrics if metric is not cpu_target]
    _set_annotation(scaler, METRICS, others)
    behavior = spec.pop("behavior", None)
    _set_annotation(scaler, BEHAVIOR, _behavior_to_annotation(behavior) if behavior else None)
    current = status.pop("currentMetrics", None) or []
    cpu_metric = next(
        (metric for metric in current if _cpu_utilization(metric, "current") is not None), None
    )
    if cpu_metric is not None:
        status["currentCPUUtilizationPercentage"] = _cpu_utilization(cpu_metric, "current")
    _set_annotation(scaler, CURRENT_METRICS, [_current_to_v1(metric) for metric in current])
    _set_annotation(scaler, CONDITIONS, status.pop("conditions", None))
    status.setdefault("currentReplicas", 0)
    status.setdefault("desiredReplicas", 0)


def _cpu_metric(fields: Obj) -> Obj:
    return {"type": "Resource", "resource": {"name": "cpu", **fields}}


def _build_target(kind: str, value: Any) -> Obj:
    name = next(name for _, type_name, name in TARGETS if type_name == kind)
    return {"type": kind, name: value}


def _cpu_utilization(metric: Obj, which: str) -> Any:
    resource = metric.get("resource") or {}
    if metric.get("type") != "Resource" or resource.get("name") != "cpu":
        return None
    return (resource.get(which) or {}).get("averageUtilization")


def _metric_from_v1(metric: Obj) -> Obj:
    result = dict(metric)
    for name in SOURCES.values():
        if name in result:
            result[name] = _source_from_v1(name, dict(result[name]), "target")
    return result


def _current_from_v1(metric: Obj) -> Obj:
    result = dict(metric)
    for name in SOURCES.values():
        if name in result:
            result[name] = _source_from_v1(name, dict(result[name]), "current")
    return result


def _source_from_v1(name: str, source: Obj, which: str) -> Obj:
    """One source: v1 has its fields side by side, v2 in groups."""
    if name == "object":
        source["describedObject"] = source.pop("target", {})
    if name in ("object", "pods", "external"):
        selector = source.pop("metricSelector" if name == "external" else "selector", None)
        metric = {"name": source.pop("metricName", "")}
        source["metric"] = metric | ({"selector": selector} if selector else {})
    if which == "target":
        for field, kind, _ in TARGETS:
            if field in source:
                source["target"] = _build_target(kind, source.pop(field))
        return source
    numbers = {new: source.pop(old) for old, new in CURRENT_VALUES if old in source}
    return {**source, "current": numbers}


def _metric_to_v1(metric: Obj) -> Obj:
    result = dict(metric)
    for name in SOURCES.values():
        if name in result:
            result[name] = _source_to_v1(name, dict(result[name]))
    return result


def _source_to_v1(name: str, source: Obj) -> Obj:
    target = source.pop("target", {})
    result = _flatten_source(name, source)
    for _, kind, field in TARGETS:
        if target.get("type") == kind and field in target:
            average = name == "object" and kind == "AverageValue"
            field_name = next(old for old, target_type, _ in TARGETS if target_type == kind)
            result["averageValue" if average else field_name] = target[field]
            break
    return result


def _current_to_v1(metric: Obj) -> Obj:
    result = dict(metric)
    for name in SOURCES.values():
        if name in result:
            source = dict(result[name])
            numbers = source.pop("current", {})
            current = {old: numbers[new] for old, new in reversed(CURRENT_VALUES) if new in numbers}
            if name != "object":
                current.pop("averageValue", None)
            elif "averageValue" in current:
                current.pop("currentAverageValue", None)
            result[name] = _flatten_source(name, source) | current
    return result


def _flatten_source(name: str, source: Obj) -> Obj:
    """A v2 source without its groups."""
    metric = source.pop("metric", None)
    result: Obj = {}
    if name == "object":
        result["target"] = source.pop("describedObject", {})
    result.update(source)
    if metric is not None:
        result["metricName"] = metric.get("name", "")
        if "selector" in metric:
            result["metricSelector" if name == "external" else "selector"] = metric["selector"]
    return result


def _behavior_to_annotation(behavior: Obj) -> Obj:
    """Scaling behaviour as the annotation has it: Go's own names, absent fields as null."""
    fields = ("stabilizationWindowSeconds", "selectPolicy", "policies", "tolerance")
    result: Obj = {}
    for direction in ("scaleUp", "scaleDown"):
        rules = behavior.get(direction)
        result[_capitalize(direction)] = rules and {
            _capitalize(field): [
                {_capitalize(name): item for name, item in policy.items()}
                for policy in rules[field]
            ]
            if field == "policies" and rules.get(field)
            else rules.get(field)
            for field in fields
        }
    return result


def _lowercase_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name[:1].lower() + name[1:]: _lowercase_names(item)
            for name, item in value.items()
            if item is not None
        }
    return [_lowercase_names(item) for item in value] if isinstance(value, list) else value


def _capitalize(name: str) -> str:
    return name[:1].upper() + name[1:]


def _pop_annotation(scaler: Obj, name: str, expected: type) -> Any:
    """Remove an annotation and return its value, empty if it cannot be decoded."""
    meta = scaler.get("metadata") or {}
    annotations = meta.get("annotations") or {}
    text = annotations.pop(name, "")
    if not annotations:
        meta.pop("annotations", None)
    try:
        value = msgspec.json.decode(text.encode()) if text else expected()
    except (msgspec.DecodeError, RecursionError):
        return expected()
    if expected is list and isinstance(value, list):
        return [item for item in value if isinstance(item, dict)]
    return value if isinstance(value, expected) else expected()


def _set_annotation(scaler: Obj, name: str, value: Any) -> None:
    if value:
        annotations = scaler.setdefault("metadata", {}).setdefault("annotations", {})
        annotations[name] = msgspec.json.encode(value).decode()


def _leave_unchanged(_value: Obj) -> None:
    return


STORAGE_CONVERSIONS: dict[tuple[str, str, str], StorageConversion] = {
    ("events.k8s.io", "v1", "events"): StorageConversion(event_to_storage, event_from_storage),
    ("autoscaling", "v1", "horizontalpodautoscalers"): StorageConversion(
        autoscaler_to_storage, autoscaler_from_storage
    ),
    ("policy", "v1beta1", "poddisruptionbudgets"): StorageConversion(
        _leave_unchanged, _leave_unchanged
    ),
}
