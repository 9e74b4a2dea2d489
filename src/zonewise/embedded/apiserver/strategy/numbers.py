"""Numbers in objects: counts that may not be negative, and portions written as ``3`` or ``25%``."""

from __future__ import annotations

import re
from typing import Any

from zonewise.api import field_errors
from zonewise.embedded.apiserver.strategy.base import Faults, Obj

PERCENT_TEXT = "a valid percent string must be a numeric string followed by an ending '%'"
NEGATIVE = "must be greater than or equal to 0"
_PERCENT = re.compile(r"[0-9]{1,18}%\Z", re.ASCII)


def count_faults(holder: Obj, path: str, *keys: str) -> Faults:
    """Counts that are there and negative."""
    found: Faults = []
    for key in keys:
        value = holder.get(key)
        if value is not None and value < 0:
            found.append(field_errors.invalid(f"{path}.{key}", value, NEGATIVE))
    return found


def portion_faults(value: Any, path: str) -> Faults:
    """What is wrong with a number or percentage."""
    if isinstance(value, str):
        return [] if _PERCENT.match(value) else [field_errors.invalid(path, value, PERCENT_TEXT)]
    return [field_errors.invalid(path, value, NEGATIVE)] if value < 0 else []


def too_much(value: Any, path: str) -> Faults:
    """A percentage of more than all."""
    if isinstance(value, str) and _PERCENT.match(value) and int(value[:-1]) > 100:
        return [field_errors.invalid(path, value, "must not be greater than 100%")]
    return []


def size(value: Any) -> int:
    """The number before the percent sign, or the number; 0 where there is none."""
    if isinstance(value, str):
        if _PERCENT.match(value):
            return int(value[:-1])
        return int(value) if re.match(r"-?[0-9]{1,18}\Z", value, re.ASCII) else 0
    return int(value or 0)
