"""HorizontalPodAutoscalers."""

from __future__ import annotations

from typing import Any

from zonewise.api import field_errors
from zonewise.api.values import names, quantity
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.numbers import count_faults
from zonewise.embedded.apiserver.strategy.pod.resources import name_faults

SOURCES = {
    "Object": "object",
    "External": "external",
    "Pods": "pods",
    "Resource": "resource",
    "ContainerResource": "containerResource",
}
POLICIES = ("Percent", "Pods")
SELECTIONS = ("Disabled", "Max", "Min")
TARGETS = ("AverageValue", "Utilization", "Value")
LONGEST_WINDOW = 3600
LONGEST_PERIOD = 1800


class AutoscalerRules(Rules):
    """The rules of HorizontalPodAutoscalers."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing was measured yet."""
        obj["status"] = {"desiredReplicas": 0, "currentMetrics": None}

    def validate_create(self, obj: Obj, context: StrategyContext) -> Faults:
        """A new one names the group of its target."""
        return self.validate(obj, context) + _group_faults(obj.get("spec") or {})

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """One that never named a group stays valid."""
        found = self.validate(obj, context)
        if _group_faults(old["spec"]):
            return found
        return found + _group_faults(obj.get("spec") or {})

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with an autoscaler."""
        spec = obj.get("spec") or {}
        found: Faults = []
        least, most = spec.get("minReplicas"), spec.get("maxReplicas", 0)
        if least is not None and least < 1:
            text = "must be greater than or equal to 1"
            found.append(field_errors.invalid("spec.minReplicas", least, text))
        if most == 0:
            found.append(field_errors.required("spec.maxReplicas"))
        if most < 1:
            text = "must be greater than or equal to 1"
            found.append(field_errors.invalid("spec.maxReplicas", most, text))
        if least is not None and most < least:
            text = "must be greater than or equal to `minReplicas`"
            found.append(field_errors.invalid("spec.maxReplicas", most, text))
        found += _reference(spec.get("scaleTargetRef") or {}, "spec.scaleTargetRef")
        metrics = spec.get("metrics") or ()
        for index, metric in enumerate(metrics):
            found += _metric(metric, f"spec.metrics[{index}]")
        outer = {"Object", "External"}
        if least == 0 and not any(one.get("type") in outer for one in metrics):
            text = "must specify at least one Object or External metric to scale to zero"
            found.append(field_errors.forbidden("spec.metrics", text))
        behavior = spec.get("behavior") or {}
        for key in ("scaleUp", "scaleDown"):
            if behavior.get(key) is not None:
                found += _scaling(behavior[key], f"spec.behavior.{key}")
        return found

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new status."""
        status = obj.get("status") or {}
        return count_faults(status, "status", "currentReplicas", "desiredReplicas")


def _group_faults(spec: Obj) -> Faults:
    version = (spec.get("scaleTargetRef") or {}).get("apiVersion", "")
    if "/" in version:
        return []
    text = "apiVersion must specify API group"
    return [field_errors.invalid("spec.scaleTargetRef.apiVersion", version, text)]


def _reference(target: Obj, path: str) -> Faults:
    found: Faults = []
    for key in ("kind", "name"):
        value = target.get(key, "")
        if not value:
            found.append(field_errors.required(f"{path}.{key}"))
        else:
            found += [
                field_errors.invalid(f"{path}.{key}", value, text)
                for text in names.path_segment(value)
            ]
    version = target.get("apiVersion", "")
    if version.count("/") > 1:
        text = f"unexpected GroupVersion string: {version}"
        found.append(field_errors.invalid(f"{path}.apiVersion", version, text))
    return found


def _metric(metric: Obj, path: str) -> Faults:
    found: Faults = []
    kind = metric.get("type", "")
    if not kind:
        found.append(field_errors.required(f"{path}.type", "must specify a metric source type"))
    if kind not in SOURCES:
        found.append(field_errors.unsupported(f"{path}.type", kind, SOURCES))
    given = [key for key in SOURCES.values() if metric.get(key) is not None]
    if given:
        found += _source(metric[given[0]], given[0], f"{path}.{given[0]}")
    expected = SOURCES.get(kind)
    if expected and expected not in given:
        text = "must populate information for the given metric source"
        found.append(field_errors.required(f"{path}.{expected}", text))
    if len(given) != 1:
        for key in given:
            if key != expected:
                text = "must populate the given metric source only"
                found.append(field_errors.forbidden(f"{path}.{key}", text))
    return found


def _source(source: Obj, kind: str, path: str) -> Faults:
    found: Faults = []
    target = source.get("target") or {}
    at = f"{path}.target"
    if kind == "object":
        found += _reference(source.get("describedObject") or {}, f"{path}.describedObject")
    if kind in {"object", "external", "pods"}:
        name = (source.get("metric") or {}).get("name", "")
        if not name:
            found.append(field_errors.required(f"{path}.metric.name", "must specify a metric name"))
        else:
            found += [
                field_errors.invalid(f"{path}.metric.name", name, text)
                for text in names.path_segment(name)
            ]
    elif not source.get("name"):
        found.append(field_errors.required(f"{path}.name", "must specify a resource name"))
    elif kind == "containerResource":
        found += name_faults(source["name"], f"{path}.name")
    if kind == "containerResource":
        container = source.get("container", "")
        if not container:
            found.append(field_errors.required(f"{path}.container", "must specify a container"))
        else:
            found += [
                field_errors.invalid(f"{path}.container", container, text)
                for text in names.label(container)
            ]
    return found + _target(target, at) + _enough(target, kind, at)


def _enough(target: Obj, kind: str, path: str) -> Faults:
    """Each source requires one of two kinds of target value."""
    value, average = target.get("value"), target.get("averageValue")
    portion = target.get("averageUtilization")
    if kind == "pods":
        if average is None:
            return [field_errors.required(f"{path}.averageValue", "must specify a positive value")]
        return []
    if kind in {"object", "external"}:
        if value is None and average is None:
            return [
                field_errors.required(f"{path}.averageValue", "must set either of the two values")
            ]
        if kind == "external" and value is not None and average is not None:
            return [field_errors.forbidden(f"{path}.value", "may not set both values")]
        return []
    if portion is None and average is None:
        text = "must set either a target raw value or a target utilization"
        return [field_errors.required(f"{path}.averageUtilization", text)]
    if portion is not None and average is not None:
        text = "may not set both a target raw value and a target utilization"
        return [field_errors.forbidden(f"{path}.averageValue", text)]
    return []


def _target(target: Obj, path: str) -> Faults:
    found: Faults = []
    kind = target.get("type", "")
    if not kind:
        found.append(field_errors.required(f"{path}.type", "must specify a metric target type"))
    if kind not in TARGETS:
        text = "must be either Utilization, Value, or AverageValue"
        found.append(field_errors.invalid(f"{path}.type", kind, text))
    for key in ("value", "averageValue"):
        amount: Any = target.get(key)
        if amount is not None and quantity.value(amount) <= 0:
            found.append(field_errors.invalid(f"{path}.{key}", amount, "must be positive"))
    portion = target.get("averageUtilization")
    if portion is not None and portion < 1:
        found.append(field_errors.invalid(f"{path}.averageUtilization", portion, "must be above 0"))
    return found


def _scaling(rules: Obj, path: str) -> Faults:
    found: Faults = []
    window = rules.get("stabilizationWindowSeconds")
    if window is not None and not 0 <= window <= LONGEST_WINDOW:
        text = f"must be between 0 and {LONGEST_WINDOW}, inclusive"
        found.append(field_errors.invalid(f"{path}.stabilizationWindowSeconds", window, text))
    choice = rules.get("selectPolicy")
    if choice is not None and choice not in SELECTIONS:
        found.append(field_errors.unsupported(f"{path}.selectPolicy", choice, SELECTIONS))
    policies = rules.get("policies") or ()
    if not policies:
        text = "must specify at least one Policy"
        found.append(field_errors.required(f"{path}.policies", text))
    for index, policy in enumerate(policies):
        at = f"{path}.policies[{index}]"
        if policy.get("type") not in POLICIES:
            found.append(field_errors.unsupported(f"{at}.type", policy.get("type", ""), POLICIES))
        if policy.get("value", 0) <= 0:
            text = "must be greater than zero"
            found.append(field_errors.invalid(f"{at}.value", policy.get("value", 0), text))
        period = policy.get("periodSeconds", 0)
        if not 0 < period <= LONGEST_PERIOD:
            text = f"must be greater than zero and at most {LONGEST_PERIOD}"
            found.append(field_errors.invalid(f"{at}.periodSeconds", period, text))
    tolerance = rules.get("tolerance")
    if tolerance is not None and quantity.value(tolerance) < 0:
        text = "must be greater than or equal to 0"
        found.append(field_errors.invalid(f"{path}.tolerance", tolerance, text))
    return found
