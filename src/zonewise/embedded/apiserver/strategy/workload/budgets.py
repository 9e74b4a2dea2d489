"""PodDisruptionBudgets and PriorityClasses."""

from __future__ import annotations

import re

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.numbers import count_faults, portion_faults, too_much
from zonewise.embedded.apiserver.strategy.pod.affinity import term_faults
from zonewise.embedded.apiserver.strategy.pod.spec import PREEMPTION_POLICIES
from zonewise.embedded.apiserver.strategy.selectors import selector_faults

EVICTION_POLICIES = ("AlwaysAllow", "IfHealthyBudget")
COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
STATUSES = ("False", "True", "Unknown")
HIGHEST_OF_USERS = 1_000_000_000
SYSTEM = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
REASON_LENGTH = 1024
MESSAGE_LENGTH = 32 * 1024
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?\Z", re.ASCII)


class BudgetRules(Rules):
    """The rules of PodDisruptionBudgets."""

    def name_faults(self, name: str) -> list[str]:
        """Why a name is none: almost every text is one."""
        return names.path_segment(name)

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing is counted yet, so nothing may be evicted."""
        obj["status"] = dict.fromkeys(COUNTS, 0)

    def validate(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a budget."""
        spec = obj.get("spec") or {}
        found: Faults = []
        least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
        if least is not None and most is not None:
            text = "minAvailable and maxUnavailable cannot be both set"
            found.append(field_errors.invalid("spec", spec, text))
        for key, value in (("minAvailable", least), ("maxUnavailable", most)):
            if value is not None:
                found += portion_faults(value, f"spec.{key}") + too_much(value, f"spec.{key}")
        found += selector_faults(spec.get("selector"), "spec.selector")
        policy = spec.get("unhealthyPodEvictionPolicy")
        if policy is not None and policy not in EVICTION_POLICIES:
            at = "spec.unhealthyPodEvictionPolicy"
            found.append(field_errors.unsupported(at, policy, EVICTION_POLICIES))
        term = spec.get("nodeSelectorTerm")
        if term is not None:
            found += term_faults(term, "spec.nodeSelectorTerm")
        return found

    def validate_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new status."""
        status = obj.get("status") or {}
        found = condition_faults(status.get("conditions") or (), "status.conditions")
        if obj.get("apiVersion") == "policy/v1beta1":
            return found
        return found + count_faults(status, "status", *COUNTS)


def condition_faults(conditions: list[Obj] | tuple[Obj, ...], path: str) -> Faults:
    """What is wrong with conditions of the common shape."""
    found: Faults = []
    seen: set[str] = set()
    for index, one in enumerate(conditions):
        at = f"{path}[{index}]"
        kind, reason = one.get("type", ""), one.get("reason", "")
        if kind in seen:
            found.append(field_errors.duplicate(f"{at}.type", kind))
        seen.add(kind)
        found += [
            field_errors.invalid(f"{at}.type", kind, text) for text in metadata.qualified_name(kind)
        ]
        if one.get("status") not in STATUSES:
            found.append(field_errors.unsupported(f"{at}.status", one.get("status", ""), STATUSES))
        if one.get("observedGeneration", 0) < 0:
            text = "must be greater than or equal to zero"
            value = one["observedGeneration"]
            found.append(field_errors.invalid(f"{at}.observedGeneration", value, text))
        if not one.get("lastTransitionTime"):
            found.append(field_errors.required(f"{at}.lastTransitionTime"))
        if not reason:
            found.append(field_errors.required(f"{at}.reason"))
        elif not _REASON.match(reason):
            text = "a condition reason must start with a letter and end with a letter or digit"
            found.append(field_errors.invalid(f"{at}.reason", reason, text))
        if len(reason) > REASON_LENGTH:
            found.append(field_errors.too_long(f"{at}.reason", REASON_LENGTH))
        if len(one.get("message", "")) > MESSAGE_LENGTH:
            found.append(field_errors.too_long(f"{at}.message", MESSAGE_LENGTH))
    return found


class PriorityRules(Rules):
    """The rules of PriorityClasses."""

    def validate_create(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new class."""
        found: Faults = []
        name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
        if name.startswith("system-"):
            if SYSTEM.get(name) != value or obj.get("globalDefault"):
                text = "priority class names with 'system-' prefix are reserved for system use only"
                found.append(field_errors.forbidden("metadata.name", text))
        elif value > HIGHEST_OF_USERS:
            text = f"maximum allowed value of a user defined priority is {HIGHEST_OF_USERS}"
            found.append(field_errors.forbidden("value", text))
        policy = obj.get("preemptionPolicy")
        if policy is not None and policy not in PREEMPTION_POLICIES:
            if policy:
                found.append(
                    field_errors.unsupported("preemptionPolicy", policy, PREEMPTION_POLICIES)
                )
            else:
                found.append(field_errors.required("preemptionPolicy"))
        return found

    def validate_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What a class means stays."""
        found: Faults = []
        if obj.get("value", 0) != old.get("value", 0):
            found.append(field_errors.forbidden("value", "may not be changed in an update."))
        policy = obj.get("preemptionPolicy")
        if policy != old.get("preemptionPolicy"):
            found.append(field_errors.invalid("preemptionPolicy", policy, "field is immutable"))
        return found

    def changed(self, obj: Obj, old: Obj) -> bool:
        """Nothing about a class that may change is counted."""
        return False
