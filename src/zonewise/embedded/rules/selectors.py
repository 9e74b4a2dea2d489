"""Label selectors inside objects: are they well formed, and what do they match?"""

from __future__ import annotations

from typing import Any

from zonewise.api import faults
from zonewise.embedded import metadata
from zonewise.embedded.rules.base import Faults, Obj

WITH_VALUES = ("In", "NotIn")
WITHOUT_VALUES = ("Exists", "DoesNotExist")


def selector_faults(selector: Obj | None, path: str) -> Faults:
    """What is wrong with a label selector."""
    if not selector:
        return []
    found: Faults = []
    if selector.get("matchLabels"):
        found += metadata.label_faults(f"{path}.matchLabels", selector["matchLabels"])
    for index, one in enumerate(selector.get("matchExpressions") or ()):
        found += _expression_faults(one, f"{path}.matchExpressions[{index}]")
    return found


def _expression_faults(one: Obj, path: str) -> Faults:
    found: Faults = []
    operator, values = one.get("operator", ""), one.get("values") or ()
    if operator in WITH_VALUES:
        if not values:
            text = "must be specified when `operator` is 'In' or 'NotIn'"
            found.append(faults.required(f"{path}.values", text))
    elif operator in WITHOUT_VALUES:
        if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            found.append(faults.forbidden(f"{path}.values", text))
    else:
        text = "not a valid selector operator"
        found.append(faults.invalid(f"{path}.operator", operator, text))
    key = one.get("key", "")
    found += [faults.invalid(f"{path}.key", key, text) for text in metadata.qualified_name(key)]
    for index, value in enumerate(values):
        found += [
            faults.invalid(f"{path}.values[{index}]", value, text)
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
