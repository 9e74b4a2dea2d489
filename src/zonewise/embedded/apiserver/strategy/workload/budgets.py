"""PodDisruptionBudgets and PriorityClasses."""

from __future__ import annotations

import re

from zonewise.api.field_cursor import Field
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.pod.spec import PREEMPTION_POLICIES
from zonewise.embedded.apiserver.strategy.selectors import (
    validate_label_selector,
    validate_node_selector_term,
)
from zonewise.embedded.apiserver.strategy.workload.replicated import (
    validate_at_most_100_percent,
    validate_int_or_percent,
    validate_not_negative,
)

EXPECTED_PODS = ("Remembered", "ReplicasPerDomain")
EVICTION_POLICIES = ("AlwaysAllow", "IfHealthyBudget")
COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
STATUSES = ("False", "True", "Unknown")
HIGHEST_USER_PRIORITY = 1_000_000_000
SYSTEM_PRIORITIES = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
REASON_LIMIT = 1024
MESSAGE_LIMIT = 32 * 1024
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?\Z", re.ASCII)


class PodDisruptionBudgetRules(Rules):
    """The rules of PodDisruptionBudgets."""

    def name_errors(self, name: str) -> list[str]:
        """Almost every text is a valid name."""
        return names.path_segment_errors(name)

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing is counted yet, so nothing may be evicted."""
        obj["status"] = dict.fromkeys(COUNTS, 0)

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        bounds = (spec["minAvailable"], spec["maxUnavailable"])
        if all(bound.value is not None for bound in bounds):
            spec.invalid("minAvailable and maxUnavailable cannot be both set")
        for bound in bounds:
            validate_int_or_percent(bound)
            validate_at_most_100_percent(bound)
        validate_label_selector(spec["selector"])
        spec["unhealthyPodEvictionPolicy"].enum(EVICTION_POLICIES)
        validate_node_selector_term(spec["nodeSelectorTerm"])
        expected = spec["expectedPods"]
        expected.enum(EXPECTED_PODS)
        if expected.value is not None and spec["nodeSelectorTerm"].value is None:
            expected.forbid("may only be set together with nodeSelectorTerm")

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        _validate_conditions(obj["status"]["conditions"])
        if obj.value.get("apiVersion") != "policy/v1beta1":
            validate_not_negative(obj["status"], *COUNTS)


def _validate_conditions(conditions: Field) -> None:
    types: set[str] = set()
    for condition in conditions.each():
        kind = condition.get("type", "")
        kind.unique(types)
        kind.qualified_name()
        condition.get("status", "").enum(STATUSES)
        condition["observedGeneration"].minimum(0, "must be greater than or equal to zero")
        condition.require("lastTransitionTime")
        reason = condition["reason"]
        reason.required().matches(
            _REASON, "a condition reason must start with a letter and end with a letter or digit"
        )
        reason.max_length(REASON_LIMIT)
        condition["message"].max_length(MESSAGE_LIMIT)


class PriorityClassRules(Rules):
    """The rules of PriorityClasses."""

    def validate_create(self, obj: Field, context: StrategyContext) -> None:
        name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
        if name.value.startswith("system-"):
            if SYSTEM_PRIORITIES.get(name.value) != value.value or obj["globalDefault"].value:
                name.forbid(
                    "priority class names with 'system-' prefix are reserved for system use only"
                )
        elif value.value > HIGHEST_USER_PRIORITY:
            value.forbid(
                f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
            )
        if obj["preemptionPolicy"].value is not None:
            obj["preemptionPolicy"].required().enum(PREEMPTION_POLICIES)

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """What a class means does not change."""
        if obj.get("value", 0).value != old.get("value", 0):
            obj["value"].forbid("may not be changed in an update.")
        obj["preemptionPolicy"].immutable(old.get("preemptionPolicy"))

    def changed(self, obj: Obj, old: Obj) -> bool:
        """Nothing about a class that may change is counted."""
        return False
