"""The registry of printers, and the cells that many kinds have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from zonewise.api.errors import ParseError
from zonewise.api.meta import LabelSelector
from zonewise.api.values import selector, times

Obj = dict[str, Any]
Printer = Callable[[Obj, str], list[Any]]
"""An object and the present time (RFC 3339) -> its cells."""

NONE = "<none>"
UNKNOWN = "<unknown>"
UNSET = "<unset>"
PRINTERS: dict[str, Printer] = {}


def printer_for(*storages: str) -> Callable[[Printer], Printer]:
    """Register the printer of some kinds."""

    def register(printer: Printer) -> Printer:
        for storage in storages:
            PRINTERS[storage] = printer
        return printer

    return register


def format_duration(seconds: float) -> str:
    """A duration for people: two units at most, rounded down."""
    if seconds < -1:
        return "<invalid>"
    if seconds < 0:
        return "0s"
    total = int(seconds)
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return _two_units(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two_units(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two_units(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 365 * 8:
        return _two_units(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two_units(first: int, unit: str, second: int, smaller: str) -> str:
    return f"{first}{unit}{second}{smaller}" if second else f"{first}{unit}"


def format_age(time: str | None, now: str) -> str:
    """How long ago a time was."""
    if not time:
        return UNKNOWN
    try:
        return format_duration((times.parse(now) - times.parse(time)).total_seconds())
    except ParseError:
        return UNKNOWN


def name_of(obj: Obj) -> str:
    name: str = obj["metadata"]["name"]
    return name


def age_of(obj: Obj, now: str) -> str:
    return format_age(obj["metadata"].get("creationTimestamp"), now)


def format_selector(label_selector: Obj | None) -> str:
    if not label_selector:
        return NONE
    if "matchLabels" in label_selector or "matchExpressions" in label_selector:
        try:
            text = str(selector.from_object(msgspec.convert(label_selector, LabelSelector)))
        except (ParseError, msgspec.ValidationError):
            return "<error>"
        return text or NONE
    return ",".join(f"{key}={value}" for key, value in sorted(label_selector.items()))


def container_cells(spec: Obj | None) -> list[str]:
    containers = (spec or {}).get("containers") or ()
    return [
        ",".join(container.get("name", "") for container in containers),
        ",".join(container.get("image", "") for container in containers),
    ]


def template_of(obj: Obj) -> Obj:
    spec: Obj = (obj.get("spec") or {}).get("template", {}).get("spec") or {}
    return spec


def status_of(obj: Obj) -> Obj:
    return obj.get("status") or {}


def spec_of(obj: Obj) -> Obj:
    return obj.get("spec") or {}


def join_or(values: Iterable[str], empty: str = NONE) -> str:
    return ",".join(values) or empty


def join_first(values: list[str], empty: str) -> str:
    if not values:
        return empty
    text = ",".join(values[:3])
    return f"{text} + {len(values) - 3} more..." if len(values) > 3 else text
