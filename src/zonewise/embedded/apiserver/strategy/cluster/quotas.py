"""ResourceQuotas and LimitRanges, judged as data: nothing here counts what is used."""

from __future__ import annotations

from fractions import Fraction

from zonewise.api.field_cursor import IMMUTABLE, Field
from zonewise.api.values import quantity
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext
from zonewise.embedded.apiserver.strategy.pod.resources import (
    CONTAINER_RESOURCES,
    CPU_AND_MEMORY,
    HUGE_PAGES,
    NOT_STANDARD,
    STANDARD_RESOURCES,
    validate_resource_quantity,
)
from zonewise.embedded.apiserver.strategy.selectors import NOT_AN_OPERATOR

COMPUTE = frozenset(
    f"{side}{name}" for side in ("", "limits.", "requests.") for name in CPU_AND_MEMORY
)
QUOTA_RESOURCES = STANDARD_RESOURCES - {"storage"}
OPPOSITES = (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))
WITHOUT_VALUES = frozenset({"CrossNamespacePodAffinity"}).union(*OPPOSITES)
SCOPES = WITHOUT_VALUES | {"PriorityClass", "VolumeAttributesClass"}
DOES_NOT_FIT = "unsupported scope applied to resource"
LIMIT_TYPES = frozenset({"Container", "PersistentVolumeClaim", "Pod"})
ORDER = (
    ("min", "max", "min"),
    ("min", "defaultRequest", "defaultRequest"),
    ("defaultRequest", "max", "defaultRequest"),
    ("defaultRequest", "default", "defaultRequest"),
    ("min", "default", "default"),
    ("default", "max", "default"),
)
"""Which amount may not be greater than which, and the field of the error."""


class QuotaRules(Rules):
    """The rules of ResourceQuotas."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """Nothing is counted yet."""
        obj["status"] = {}

    def validate(self, obj: Field, context: StrategyContext) -> None:
        spec = obj["spec"]
        _validate_amounts(spec["hard"])
        _validate_scopes(spec["scopes"], spec["hard"].value or {})
        _validate_scope_selector(
            spec["scopeSelector"]["matchExpressions"], spec["hard"].value or {}
        )

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """What a quota counts does not change, only how much it allows."""
        scopes = set(obj["spec"]["scopes"].value or ())
        if scopes != set((old.get("spec") or {}).get("scopes") or ()):
            obj["spec"]["scopes"].invalid(IMMUTABLE, sorted(scopes))
        self.validate(obj, context)

    def validate_status(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        _validate_amounts(obj["status"]["hard"])
        _validate_amounts(obj["status"]["used"])


class LimitRangeRules(Rules):
    """The rules of LimitRanges."""

    def prepare_create(self, obj: Obj, context: StrategyContext) -> None:
        """A LimitRange needs no name of its client's choice."""
        meta = obj["metadata"]
        if not meta.get("name"):
            meta["name"] = meta["uid"]

    def validate(self, obj: Field, context: StrategyContext) -> None:
        types: set[str] = set()
        for limit in obj["spec"]["limits"].each():
            kind = limit.get("type", "")
            if kind.qualified_name() and "/" not in kind.value and kind.value not in LIMIT_TYPES:
                kind.invalid("must be a standard limit type or fully qualified")
            kind.unique(types)
            _validate_limit(limit, kind.value)


def _validate_amounts(amounts: Field) -> None:
    for resource, amount in amounts.entries():
        _validate_resource_name(amount.holding(resource), QUOTA_RESOURCES)
        validate_resource_quantity(amount, resource)


def _validate_resource_name(name: Field, known: frozenset[str]) -> None:
    text = name.value
    if not name.qualified_name() or "/" in text or text in known:
        return
    is_quota = known is QUOTA_RESOURCES
    if HUGE_PAGES not in text if is_quota else not text.startswith(HUGE_PAGES):
        name.invalid(NOT_STANDARD)


def _scope_fits(scope: str, resource: str) -> bool:
    if scope == "BestEffort":
        return resource == "pods"
    if scope == "VolumeAttributesClass":
        return resource in {"persistentvolumeclaims", "requests.storage"}
    return resource == "pods" or resource in COMPUTE


def _fits_all(scope: str, hard: Obj) -> bool:
    return all(name not in QUOTA_RESOURCES or _scope_fits(scope, name) for name in hard)


def _validate_conflicts(field: Field, scopes: set[str]) -> None:
    for pair in OPPOSITES:
        if scopes.issuperset(pair):
            field.invalid("conflicting scopes")


def _validate_scopes(scopes: Field, hard: Obj) -> None:
    for scope in scopes.value or ():
        if scope not in SCOPES:
            scopes.invalid("unsupported scope")
        elif not _fits_all(scope, hard):
            scopes.invalid(DOES_NOT_FIT)
    _validate_conflicts(scopes, set(scopes.value or ()))


def _validate_scope_selector(terms: Field, hard: Obj) -> None:
    for fields in terms.value or ():
        term = terms.holding(fields)  # reported without its index
        scope, operator, values = (
            term.get("scopeName", ""),
            term.get("operator", ""),
            term["values"],
        )
        if scope.value not in SCOPES:
            scope.invalid("unsupported scope")
        elif not _fits_all(scope.value, hard):
            terms.invalid(DOES_NOT_FIT)
        if scope.value in WITHOUT_VALUES and operator.value != "Exists":
            operator.invalid("must be 'Exist' only operator for this scope")
        match operator.value:
            case "In" | "NotIn":
                values.required("must be at least one value when `operator` is 'In' or 'NotIn'")
            case "Exists" | "DoesNotExist":
                if values.value:
                    values.invalid("must be no value when `operator` is 'Exist' or 'DoesNotExist'")
            case _:
                operator.invalid(NOT_AN_OPERATOR)
    _validate_conflicts(terms, {term.get("scopeName", "") for term in terms.value or ()})


def _validate_limit(limit: Field, kind: str) -> None:
    known = CONTAINER_RESOURCES if kind in {"Container", "Pod"} else STANDARD_RESOURCES
    keys = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"]
    if kind == "Pod":
        for key in ("default", "defaultRequest"):
            keys.remove(key)
            limit[key].forbid_filled("may not be specified when `type` is 'Pod'")
    by_resource: dict[str, dict[str, Fraction]] = {}
    for key in keys:
        for resource, amount in limit[key].entries():
            _validate_resource_name(amount.holding(resource), known)
            by_resource.setdefault(resource, {})[key] = quantity.value(amount.value)
    if (
        kind == "PersistentVolumeClaim"
        and not {"min", "max"} & by_resource.get("storage", {}).keys()
    ):
        limit["limits"].missing(
            "either minimum or maximum storage value is required, but neither was provided"
        )
    for resource, amounts in by_resource.items():
        _validate_order(limit, resource, amounts)


def _validate_order(limit: Field, resource: str, amounts: dict[str, Fraction]) -> None:
    for low, high, reported in ORDER:
        if low in amounts and high in amounts and amounts[low] > amounts[high]:
            limit[reported].entry(resource).invalid(
                f"{low} value is greater than {high} value", str(amounts[reported])
            )
    ratio = amounts.get("maxLimitRequestRatio")
    if ratio is not None:
        field = limit["maxLimitRequestRatio"].entry(resource).holding(str(ratio))
        if ratio < 1:
            field.invalid("ratio is less than 1")
        if amounts.get("min") and "max" in amounts and ratio > amounts["max"] / amounts["min"]:
            field.invalid("ratio is greater than max/min")
    if "/" in resource or resource.startswith(HUGE_PAGES):
        default = amounts.get("default", ratio)
        request = limit["defaultRequest"].entry(resource).holding(resource)
        if amounts.get("defaultRequest", default) != default:
            request.invalid("default value must be equal to defaultRequest value")
