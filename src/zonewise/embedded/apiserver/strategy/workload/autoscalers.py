"""HorizontalPodAutoscalers."""

from __future__ import annotations

from zonewise.api.field_cursor import Field
from zonewise.api.values import quantity
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.pod.resources import validate_container_resource_name
from zonewise.embedded.apiserver.strategy.workload.replicated import validate_not_negative

SOURCES = {
    "Object": "object",
    "External": "external",
    "Pods": "pods",
    "Resource": "resource",
    "ContainerResource": "containerResource",
}
POLICY_TYPES = ("Percent", "Pods")
SELECT_POLICIES = ("Disabled", "Max", "Min")
TARGET_TYPES = ("AverageValue", "Utilization", "Value")
MAX_WINDOW = 3600
MAX_PERIOD = 1800


class HorizontalPodAutoscalerRules(Rules):
    """The rules of HorizontalPodAutoscalers."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing was measured yet."""
        obj["status"] = {"desiredReplicas": 0, "currentMetrics": None}

    def validate_create(self, obj: Field, context: StrategyContext) -> None:
        """A new one names the group of its target."""
        self.validate(obj, context)
        _validate_target_group(obj["spec"])

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """One that never named a group stays valid."""
        self.validate(obj, context)
        if Field(old["spec"], []).is_valid(_validate_target_group):
            _validate_target_group(obj["spec"])

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        least, most = spec["minReplicas"], spec.get("maxReplicas", 0)
        least.minimum(1)
        most.required()
        most.minimum(1)
        if least.value is not None:
            most.minimum(least.value, "must be greater than or equal to `minReplicas`")
        _validate_reference(spec["scaleTargetRef"])
        metrics = spec["metrics"]
        for metric in metrics.each():
            _validate_metric(metric)
        if least.value == 0 and not any(
            metric.get("type") in {"Object", "External"} for metric in metrics.value or ()
        ):
            metrics.forbid("must specify at least one Object or External metric to scale to zero")
        for direction in ("scaleUp", "scaleDown"):
            rules = spec["behavior"][direction]
            if rules.value is not None:
                _validate_scaling_rules(rules)

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        validate_not_negative(obj["status"], "currentReplicas", "desiredReplicas")


def _validate_target_group(spec: Field) -> None:
    version = spec["scaleTargetRef"].get("apiVersion", "")
    if "/" not in version.value:
        version.invalid("apiVersion must specify API group")


def _validate_reference(reference: Field) -> None:
    reference["kind"].required().path_segment()
    reference["name"].required().path_segment()
    version = reference.get("apiVersion", "")
    if version.value.count("/") > 1:
        version.invalid(f"unexpected GroupVersion string: {version.value}")


def _validate_metric(metric: Field) -> None:
    kind = metric.get("type", "")
    kind.required("must specify a metric source type")
    kind.enum(SOURCES)
    sources = [key for key in SOURCES.values() if metric.value.get(key) is not None]
    if sources:
        _validate_source(metric[sources[0]], sources[0])
    expected = SOURCES.get(kind.value)
    if expected and expected not in sources:
        metric[expected].missing("must populate information for the given metric source")
    if len(sources) != 1:
        for key in sources:
            if key != expected:
                metric[key].forbid("must populate the given metric source only")


def _validate_source(source: Field, kind: str) -> None:
    if kind == "object":
        _validate_reference(source["describedObject"])
    if kind in {"object", "external", "pods"}:
        source["metric"]["name"].required("must specify a metric name").path_segment()
    elif source["name"].required("must specify a resource name") and kind == "containerResource":
        validate_container_resource_name(source["name"])
    if kind == "containerResource":
        source["container"].required("must specify a container").dns_label()
    _validate_target(source["target"])
    _validate_target_values(source["target"], kind)


def _validate_target_values(target: Field, kind: str) -> None:
    """Each source requires one of two kinds of target value."""
    value, average = target["value"], target["averageValue"]
    utilization = target["averageUtilization"]
    has_average = average.value is not None
    if kind == "pods":
        average.present("must specify a positive value")
    elif kind in {"object", "external"}:
        if value.value is None and not has_average:
            average.missing("must set either of the two values")
        elif kind == "external" and has_average:
            value.forbid_set("may not set both values")
    elif utilization.value is None and not has_average:
        utilization.missing("must set either a target raw value or a target utilization")
    elif utilization.value is not None:
        average.forbid_set("may not set both a target raw value and a target utilization")


def _validate_target(target: Field) -> None:
    kind = target.get("type", "")
    kind.required("must specify a metric target type")
    if kind.value not in TARGET_TYPES:
        kind.invalid("must be either Utilization, Value, or AverageValue")
    for amount in (target["value"], target["averageValue"]):
        if amount.value is not None and quantity.value(amount.value) <= 0:
            amount.invalid("must be positive")
    target["averageUtilization"].minimum(1, "must be above 0")


def _validate_scaling_rules(rules: Field) -> None:
    rules["stabilizationWindowSeconds"].between(0, MAX_WINDOW)
    rules["selectPolicy"].enum(SELECT_POLICIES)
    rules["policies"].required("must specify at least one Policy")
    for policy in rules["policies"].each():
        policy.get("type", "").enum(POLICY_TYPES)
        policy.get("value", 0).minimum(1, "must be greater than zero")
        policy.get("periodSeconds", 0).between(
            1, MAX_PERIOD, f"must be greater than zero and at most {MAX_PERIOD}"
        )
    tolerance = rules["tolerance"]
    if tolerance.value is not None and quantity.value(tolerance.value) < 0:
        tolerance.invalid("must be greater than or equal to 0")
