"""Label selectors inside objects: are they well formed, and what do they match?"""

from __future__ import annotations

from typing import Any

from zonewise.api import field_errors
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj

WITH_VALUES = ("In", "NotIn")
WITHOUT_VALUES = ("Exists", "DoesNotExist")
COMPARING = ("Gt", "Lt")


def selector_faults(selector: Obj | None, path: str) -> Faults:
    """What is wrong with a label selector."""
    if not selector:
        return []
    found: Faults = []
    if selector.get("matchLabels"):
        found += metadata.label_faults(f"{path}.matchLabels", selector["matchLabels"])
    for index, one in enumerate(selector.get("matchExpressions") or ()):
        found += expression_faults(one, f"{path}.matchExpressions[{index}]")
    return found


def expression_faults(
    one: Obj, path: str, *, of_nodes: bool = False, check_values: bool = True
) -> Faults:
    """What is wrong with one requirement on labels; those on nodes' may compare numbers."""
    found: Faults = []
    operator, values = one.get("operator", ""), one.get("values") or ()
    if operator in WITH_VALUES:
        if not values:
            text = "must be specified when `operator` is 'In' or 'NotIn'"
            found.append(field_errors.required(f"{path}.values", text))
    elif operator in WITHOUT_VALUES:
        if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            found.append(field_errors.forbidden(f"{path}.values", text))
    elif of_nodes and operator in COMPARING:
        if len(values) != 1:
            text = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            found.append(field_errors.required(f"{path}.values", text))
    else:
        text = "not a valid selector operator"
        found.append(field_errors.invalid(f"{path}.operator", operator, text))
    key = one.get("key", "")
    found += [
        field_errors.invalid(f"{path}.key", key, text) for text in metadata.qualified_name(key)
    ]
    for index, value in enumerate(values if check_values else ()):
        found += [
            field_errors.invalid(f"{path}.values[{index}]", value, text)
            for text in metadata.label_value(value)
        ]
    return found


def is_empty(selector: Obj) -> bool:
    """Whether a selector selects everything."""
    return not selector.get("matchLabels") and not selector.get("matchExpressions")


def matches(selector: Obj | None, labels: dict[str, str] | None) -> bool:
    """Whether a well formed selector selects these labels; none at all selects nothing."""
    if selector is None:
        return False
    have = labels or {}
    for key, value in (selector.get("matchLabels") or {}).items():
        if have.get(key) != value:
            return False
    return all(_holds(one, have) for one in selector.get("matchExpressions") or ())


def _holds(one: Obj, labels: dict[str, Any]) -> bool:
    key = one.get("key", "")
    match one.get("operator"):
        case "In":
            return key in labels and labels[key] in one["values"]
        case "NotIn":
            return key not in labels or labels[key] not in one["values"]
        case "Exists":
            return key in labels
        case _:
            return key not in labels
