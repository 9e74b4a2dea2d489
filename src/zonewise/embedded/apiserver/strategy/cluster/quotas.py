"""ResourceQuotas and LimitRanges, judged as data: nothing here counts what is used."""

from __future__ import annotations

from fractions import Fraction

from zonewise.api import field_errors
from zonewise.api.values import quantity
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, LegacyRules, Obj, StrategyContext

COMPUTE = frozenset(
    {"cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"}
)
COUNTS = frozenset(
    {
        "configmaps",
        "persistentvolumeclaims",
        "pods",
        "replicationcontrollers",
        "resourcequotas",
        "secrets",
        "services",
        "services.loadbalancers",
        "services.nodeports",
    }
)
QUOTA_RESOURCES = (
    COMPUTE
    | COUNTS
    | {
        "ephemeral-storage",
        "limits.ephemeral-storage",
        "requests.ephemeral-storage",
        "requests.storage",
    }
)
CONTAINER_RESOURCES = frozenset({"cpu", "ephemeral-storage", "memory"})
RESOURCES = QUOTA_RESOURCES | {"storage"}
SCOPES = frozenset(
    {
        "BestEffort",
        "CrossNamespacePodAffinity",
        "NotBestEffort",
        "NotTerminating",
        "PriorityClass",
        "Terminating",
        "VolumeAttributesClass",
    }
)
WITHOUT_VALUES = SCOPES - {"PriorityClass", "VolumeAttributesClass"}
OPPOSITES = (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))
LIMIT_TYPES = frozenset({"Container", "PersistentVolumeClaim", "Pod"})


class QuotaRules(LegacyRules):
    """The rules of ResourceQuotas."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing is counted yet."""
        obj["status"] = {}

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a quota."""
        spec = obj.get("spec") or {}
        hard = spec.get("hard") or {}
        return (
            _amounts("spec.hard", hard)
            + _scope_faults(spec.get("scopes") or [], hard)
            + _selector_faults((spec.get("scopeSelector") or {}).get("matchExpressions"), hard)
        )

    def find_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What a quota counts does not change, only how much it allows."""
        found: Faults = []
        now = set((obj.get("spec") or {}).get("scopes") or ())
        if now != set((old.get("spec") or {}).get("scopes") or ()):
            found.append(field_errors.invalid("spec.scopes", sorted(now), "field is immutable"))
        return found + self.find(obj, context)

    def find_status(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a count."""
        status = obj.get("status") or {}
        return [
            fault
            for key in ("hard", "used")
            for fault in _amounts(f"status.{key}", status.get(key) or {})
        ]


class LimitRangeRules(LegacyRules):
    """The rules of LimitRanges."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A LimitRange needs no name of its client's choice."""
        meta = obj["metadata"]
        if not meta.get("name"):
            meta["name"] = meta["uid"]

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with limits."""
        found: Faults = []
        seen: set[str] = set()
        for index, limit in enumerate((obj.get("spec") or {}).get("limits") or ()):
            path = f"spec.limits[{index}]"
            kind = limit.get("type", "")
            found += _limit_type(f"{path}.type", kind)
            if kind in seen:
                found.append(field_errors.duplicate(f"{path}.type", kind))
            seen.add(kind)
            found += _limit_faults(path, kind, limit)
        return found


def amount_faults(path: str, name: str, value: str) -> Faults:
    """What is wrong with an amount of a resource, whose name is fine."""
    number = quantity.value(value)
    if number < 0:
        text = "must be greater than or equal to 0"
        return [field_errors.invalid(path, str(value), text)]
    if (name in COUNTS or _extended(name)) and number.denominator != 1:
        return [field_errors.invalid(path, str(value), "must be an integer")]
    return []


def _extended(name: str) -> bool:
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return not metadata.qualified_name(f"requests.{name}")


def _amounts(path: str, amounts: Obj) -> Faults:
    found: Faults = []
    for name, value in amounts.items():
        at = f"{path}[{name}]"
        found += _name_faults(at, name, QUOTA_RESOURCES)
        found += amount_faults(at, name, value)
    return found


def _name_faults(path: str, name: str, known: frozenset[str]) -> Faults:
    texts = metadata.qualified_name(name)
    if not texts and "/" not in name and name not in known:
        huge = known is not QUOTA_RESOURCES and name.startswith("hugepages-")
        if not huge and not (known is QUOTA_RESOURCES and "hugepages-" in name):
            texts = ["must be a standard resource type or fully qualified"]
    return [field_errors.invalid(path, name, text) for text in texts]


def _scope_fits(scope: str, resource: str) -> bool:
    if scope == "BestEffort":
        return resource == "pods"
    if scope == "VolumeAttributesClass":
        return resource in {"persistentvolumeclaims", "requests.storage"}
    return resource == "pods" or resource in COMPUTE


def _misfit(scope: str, hard: Obj) -> bool:
    return any(name in QUOTA_RESOURCES and not _scope_fits(scope, name) for name in hard)


def _scope_faults(scopes: list[str], hard: Obj) -> Faults:
    found: Faults = []
    for scope in scopes:
        if scope not in SCOPES:
            found.append(field_errors.invalid("spec.scopes", scopes, "unsupported scope"))
        elif _misfit(scope, hard):
            text = "unsupported scope applied to resource"
            found.append(field_errors.invalid("spec.scopes", scopes, text))
    for pair in OPPOSITES:
        if set(pair) <= set(scopes):
            found.append(field_errors.invalid("spec.scopes", scopes, "conflicting scopes"))
    return found


def _selector_faults(terms: list[Obj] | None, hard: Obj) -> Faults:
    path = "spec.scopeSelector.matchExpressions"
    found: Faults = []
    names = set()
    for term in terms or ():
        scope, operator = term.get("scopeName", ""), term.get("operator", "")
        values = term.get("values") or ()
        names.add(scope)
        if scope not in SCOPES:
            found.append(field_errors.invalid(f"{path}.scopeName", scope, "unsupported scope"))
        elif _misfit(scope, hard):
            text = "unsupported scope applied to resource"
            found.append(field_errors.invalid(path, terms, text))
        if scope in WITHOUT_VALUES and operator != "Exists":
            text = "must be 'Exist' only operator for this scope"
            found.append(field_errors.invalid(f"{path}.operator", operator, text))
        if operator in {"In", "NotIn"}:
            if not values:
                text = "must be at least one value when `operator` is 'In' or 'NotIn'"
                found.append(field_errors.required(f"{path}.values", text))
        elif operator in {"Exists", "DoesNotExist"}:
            if values:
                text = "must be no value when `operator` is 'Exist' or 'DoesNotExist'"
                found.append(field_errors.invalid(f"{path}.values", list(values), text))
        else:
            text = "not a valid selector operator"
            found.append(field_errors.invalid(f"{path}.operator", operator, text))
    for pair in OPPOSITES:
        if set(pair) <= names:
            found.append(field_errors.invalid(path, terms, "conflicting scopes"))
    return found


def _limit_type(path: str, kind: str) -> Faults:
    texts = metadata.qualified_name(kind)
    if not texts and "/" not in kind and kind not in LIMIT_TYPES:
        texts = ["must be a standard limit type or fully qualified"]
    return [field_errors.invalid(path, kind, text) for text in texts]


def _limit_faults(path: str, kind: str, limit: Obj) -> Faults:
    found: Faults = []
    known = CONTAINER_RESOURCES if kind in {"Container", "Pod"} else RESOURCES
    keys = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"]
    if kind == "Pod":
        for key in ("default", "defaultRequest"):
            keys.remove(key)
            if limit.get(key):
                text = "may not be specified when `type` is 'Pod'"
                found.append(field_errors.forbidden(f"{path}.{key}", text))
    amounts: dict[str, dict[str, Fraction]] = {}
    for key in keys:
        for name, value in (limit.get(key) or {}).items():
            found += _name_faults(f"{path}.{key}[{name}]", name, known)
            amounts.setdefault(name, {})[key] = quantity.value(value)
    if kind == "PersistentVolumeClaim" and not {"min", "max"} & amounts.get("storage", {}).keys():
        text = "either minimum or maximum storage value is required, but neither was provided"
        found.append(field_errors.required(f"{path}.limits", text))
    for name, given in amounts.items():
        found += _order_faults(path, name, given)
    return found


def _order_faults(path: str, name: str, given: dict[str, Fraction]) -> Faults:
    found: Faults = []
    for low, high, blamed in (
        ("min", "max", "min"),
        ("min", "defaultRequest", "defaultRequest"),
        ("defaultRequest", "max", "defaultRequest"),
        ("defaultRequest", "default", "defaultRequest"),
        ("min", "default", "default"),
        ("default", "max", "default"),
    ):
        if low in given and high in given and given[low] > given[high]:
            text = f"{low} value is greater than {high} value"
            found.append(field_errors.invalid(f"{path}.{blamed}[{name}]", str(given[blamed]), text))
    ratio = given.get("maxLimitRequestRatio")
    at = f"{path}.maxLimitRequestRatio[{name}]"
    if ratio is not None:
        if ratio < 1:
            found.append(field_errors.invalid(at, str(ratio), "ratio is less than 1"))
        if given.get("min") and "max" in given and ratio > given["max"] / given["min"]:
            text = "ratio is greater than max/min"
            found.append(field_errors.invalid(at, str(ratio), text))
    if ("/" in name or name.startswith("hugepages-")) and given.get("default", ratio) != given.get(
        "defaultRequest", given.get("default", ratio)
    ):
        text = "default value must be equal to defaultRequest value"
        found.append(field_errors.invalid(f"{path}.defaultRequest[{name}]", name, text))
    return found
