"""What printers share: where they are registered, and the cells that many kinds have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from zonewise.api.errors import ParseError
from zonewise.api.meta import LabelSelector
from zonewise.api.values import selector, times

Obj = dict[str, Any]


Printer = Callable[[Obj, str], list[Any]]


NONE = "<none>"


UNKNOWN = "<unknown>"


UNSET = "<unset>"


PRINTERS: dict[str, Printer] = {}


def prints(*storages: str) -> Callable[[Printer], Printer]:
    def register(printer: Printer) -> Printer:
        for storage in storages:
            PRINTERS[storage] = printer
        return printer

    return register


def duration(seconds: float) -> str:
    """A length of time as people read it: two units at most, rounding down."""
    if seconds < -1:
        return "<invalid>"
    if seconds < 0:
        return "0s"
    whole = int(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return _two(minutes, "m", whole % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(first: int, unit: str, second: int, smaller: str) -> str:
    return f"{first}{unit}{second}{smaller}" if second else f"{first}{unit}"


def since(moment: str | None, now: str) -> str:
    """How long ago something was."""
    if not moment:
        return UNKNOWN
    try:
        return duration((times.parse(now) - times.parse(moment)).total_seconds())
    except ParseError:
        return UNKNOWN


def name_of(obj: Obj) -> str:
    name: str = obj["metadata"]["name"]
    return name


def age_of(obj: Obj, now: str) -> str:
    return since(obj["metadata"].get("creationTimestamp"), now)


def labels_of(wanted: Obj | None) -> str:
    if not wanted:
        return NONE
    if "matchLabels" in wanted or "matchExpressions" in wanted:
        try:
            text = str(selector.from_object(msgspec.convert(wanted, LabelSelector)))
        except (ParseError, msgspec.ValidationError):
            return "<error>"
        return text or NONE
    return ",".join(f"{key}={value}" for key, value in sorted(wanted.items()))


def containers_of(spec: Obj | None) -> list[str]:
    containers = (spec or {}).get("containers") or ()
    return [
        ",".join(one.get("name", "") for one in containers),
        ",".join(one.get("image", "") for one in containers),
    ]


def template_of(obj: Obj) -> Obj:
    spec: Obj = (obj.get("spec") or {}).get("template", {}).get("spec") or {}
    return spec


def status_of(obj: Obj) -> Obj:
    return obj.get("status") or {}


def spec_of(obj: Obj) -> Obj:
    return obj.get("spec") or {}


def joined(values: Iterable[str], empty: str = NONE) -> str:
    return ",".join(values) or empty


def short(values: list[str], empty: str) -> str:
    if not values:
        return empty
    text = ",".join(values[:3])
    return f"{text} + {len(values) - 3} more..." if len(values) > 3 else text
