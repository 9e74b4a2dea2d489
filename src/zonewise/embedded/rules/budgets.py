"""PodDisruptionBudgets and PriorityClasses."""

from __future__ import annotations

import re

from zonewise.api import faults
from zonewise.embedded import metadata
from zonewise.embedded.rules import names
from zonewise.embedded.rules.affinity import term_faults
from zonewise.embedded.rules.base import Faults, Obj, Rules, Scene
from zonewise.embedded.rules.podspec import PREEMPTION_POLICIES
from zonewise.embedded.rules.portions import count_faults, portion_faults, too_much
from zonewise.embedded.rules.selectors import selector_faults

EVICTION_POLICIES = ("AlwaysAllow", "IfHealthyBudget")
COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
STATUSES = ("False", "True", "Unknown")
HIGHEST_OF_USERS = 1_000_000_000
SYSTEM = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
ALLOWED = "DisruptionAllowed"
NOT_COUNTED = (
    "spec.nodeSelectorTerm asks for a budget per domain, which is not counted here yet;"
    " until it is, no disruption is allowed"
)
REASON_LENGTH = 1024
MESSAGE_LENGTH = 32 * 1024
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?\Z", re.ASCII)


class BudgetRules(Rules):
    """The rules of PodDisruptionBudgets."""

    def name_faults(self, name: str) -> list[str]:
        """Why a name is none: almost every text is one."""
        return names.path_segment(name)

    def prepare_create(self, obj: Obj, scene: Scene) -> None:
        """Nobody counted yet, so nothing may be evicted."""
        obj["status"] = dict.fromkeys(COUNTS, 0)
        _hold(obj, scene)

    def prepare_update(self, obj: Obj, old: Obj, scene: Scene) -> None:
        """A budget per domain allows nothing."""
        _hold(obj, scene)

    def prepare_status(self, obj: Obj, old: Obj, scene: Scene) -> None:
        """The same, whatever was counted."""
        _hold(obj, scene)

    def validate(self, obj: Obj, scene: Scene) -> Faults:
        """What is wrong with a budget."""
        spec = obj.get("spec") or {}
        found: Faults = []
        least, most = spec.get("minAvailable"), spec.get("maxUnavailable")
        if least is not None and most is not None:
            text = "minAvailable and maxUnavailable cannot be both set"
            found.append(faults.invalid("spec", spec, text))
        for key, value in (("minAvailable", least), ("maxUnavailable", most)):
            if value is not None:
                found += portion_faults(value, f"spec.{key}") + too_much(value, f"spec.{key}")
        found += selector_faults(spec.get("selector"), "spec.selector")
        policy = spec.get("unhealthyPodEvictionPolicy")
        if policy is not None and policy not in EVICTION_POLICIES:
            at = "spec.unhealthyPodEvictionPolicy"
            found.append(faults.unsupported(at, policy, EVICTION_POLICIES))
        term = spec.get("nodeSelectorTerm")
        if term is not None:
            found += term_faults(term, "spec.nodeSelectorTerm")
        return found

    def validate_status(self, obj: Obj, old: Obj, scene: Scene) -> Faults:
        """What is wrong with a new status."""
        status = obj.get("status") or {}
        found = condition_faults(status.get("conditions") or (), "status.conditions")
        if obj.get("apiVersion") == "policy/v1beta1":
            return found
        return found + count_faults(status, "status", *COUNTS)


def _hold(obj: Obj, scene: Scene) -> None:
    """Budgets per domain are not counted yet: such a budget allows nothing, and says why."""
    if (obj.get("spec") or {}).get("nodeSelectorTerm") is None:
        return
    status = obj.setdefault("status", {})
    status["disruptionsAllowed"] = 0
    conditions: list[Obj] = status.get("conditions") or []
    since = scene.now
    for one in conditions:
        if one.get("type") == ALLOWED and one.get("status") == "False":
            since = one.get("lastTransitionTime") or since
    status["conditions"] = [
        *(one for one in conditions if one.get("type") != ALLOWED),
        {
            "type": ALLOWED,
            "status": "False",
            "reason": "DomainsNotCounted",
            "message": NOT_COUNTED,
            "lastTransitionTime": since,
        },
    ]


def condition_faults(conditions: list[Obj] | tuple[Obj, ...], path: str) -> Faults:
    """What is wrong with conditions of the common shape."""
    found: Faults = []
    seen: set[str] = set()
    for index, one in enumerate(conditions):
        at = f"{path}[{index}]"
        kind, reason = one.get("type", ""), one.get("reason", "")
        if kind in seen:
            found.append(faults.duplicate(f"{at}.type", kind))
        seen.add(kind)
        found += [
            faults.invalid(f"{at}.type", kind, text) for text in metadata.qualified_name(kind)
        ]
        if one.get("status") not in STATUSES:
            found.append(faults.unsupported(f"{at}.status", one.get("status", ""), STATUSES))
        if one.get("observedGeneration", 0) < 0:
            text = "must be greater than or equal to zero"
            value = one["observedGeneration"]
            found.append(faults.invalid(f"{at}.observedGeneration", value, text))
        if not one.get("lastTransitionTime"):
            found.append(faults.required(f"{at}.lastTransitionTime"))
        if not reason:
            found.append(faults.required(f"{at}.reason"))
        elif not _REASON.match(reason):
            text = "a condition reason must start with a letter and end with a letter or digit"
            found.append(faults.invalid(f"{at}.reason", reason, text))
        if len(reason) > REASON_LENGTH:
            found.append(faults.too_long(f"{at}.reason", REASON_LENGTH))
        if len(one.get("message", "")) > MESSAGE_LENGTH:
            found.append(faults.too_long(f"{at}.message", MESSAGE_LENGTH))
    return found


class PriorityRules(Rules):
    """The rules of PriorityClasses."""

    def validate_create(self, obj: Obj, scene: Scene) -> Faults:
        """What is wrong with a new class."""
        found: Faults = []
        name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
        if name.startswith("system-"):
            if SYSTEM.get(name) != value or obj.get("globalDefault"):
                text = "priority class names with 'system-' prefix are reserved for system use only"
                found.append(faults.forbidden("metadata.name", text))
        elif value > HIGHEST_OF_USERS:
            text = f"maximum allowed value of a user defined priority is {HIGHEST_OF_USERS}"
            found.append(faults.forbidden("value", text))
        policy = obj.get("preemptionPolicy")
        if policy is not None and policy not in PREEMPTION_POLICIES:
            if policy:
                found.append(faults.unsupported("preemptionPolicy", policy, PREEMPTION_POLICIES))
            else:
                found.append(faults.required("preemptionPolicy"))
        return found

    def validate_update(self, obj: Obj, old: Obj, scene: Scene) -> Faults:
        """What a class means stays."""
        found: Faults = []
        if obj.get("value", 0) != old.get("value", 0):
            found.append(faults.forbidden("value", "may not be changed in an update."))
        policy = obj.get("preemptionPolicy")
        if policy != old.get("preemptionPolicy"):
            found.append(faults.invalid("preemptionPolicy", policy, "field is immutable"))
        return found

    def changed(self, obj: Obj, old: Obj) -> bool:
        """Nothing about a class that may change is counted."""
        return False
