"""Events, in their two groups.

The old group accepts almost anything; the new one requires the reporter and the action, and lets
nothing but the series change afterwards. Whatever group an event comes from, faults name its fields
as the old group does.
"""

from __future__ import annotations

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, LegacyRules, Obj, StrategyContext

ABOUT = ("apiVersion", "fieldPath", "kind", "name", "namespace", "resourceVersion", "uid")
NEW_NAMES = {
    "count": "deprecatedCount",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "involvedObject": "regarding",
    "lastTimestamp": "deprecatedLastTimestamp",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
}
"""How the old group's fields are called in the new one, where they are called differently."""

LONGEST = {"reportingInstance": 128, "action": 128, "reason": 128}
LONGEST_MESSAGE = 1024
TYPES = ("Normal", "Warning")


class EventRules(LegacyRules):
    """Events of the core group."""

    controller = "reportingComponent"
    """The name of the reporter's field in faults."""

    by_place = True
    """Whether an event must be in the namespace its object says it is in."""

    selectable = frozenset(
        {
            *(f"involvedObject.{key}" for key in ABOUT),
            "reason",
            "reportingComponent",
            "source",
            "type",
        }
    )

    def name_errors(self, name: str) -> list[str]:
        """Any name is good enough for an event."""
        return []

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields of both groups; ``obj`` is a stored event."""
        about = obj.get("involvedObject") or {}
        reporter = obj.get("reportingComponent", "")
        found = {
            "reason": obj.get("reason", ""),
            "reportingComponent": reporter,
            "reportingController": reporter,
            "source": (obj.get("source") or {}).get("component") or reporter,
            "type": obj.get("type", ""),
        }
        for key in ABOUT:
            found[f"involvedObject.{key}"] = found[f"regarding.{key}"] = about.get(key, "")
        return found

    def find(self, obj: Obj, context: StrategyContext) -> Faults:
        """An event is in its object's namespace; one with an eventTime has reporter and action."""
        found: Faults = []
        place = (obj.get("involvedObject") or {}).get("namespace", "")
        mine = obj["metadata"].get("namespace", "")
        if (place or "default") != mine and (self.by_place or not place):
            text = "does not match event.namespace"
            found.append(field_errors.invalid("involvedObject.namespace", place, text))
        if obj.get("eventTime"):
            found += self._report_faults(obj)
        return found

    def _report_faults(self, obj: Obj) -> Faults:
        found: Faults = []
        reporter = obj.get("reportingComponent", "")
        if not reporter:
            found.append(field_errors.required(self.controller))
        found += [
            field_errors.invalid(self.controller, reporter, text)
            for text in metadata.qualified_name(reporter)
        ]
        for field, limit in LONGEST.items():
            value = obj.get(field, "")
            if not value:
                found.append(field_errors.required(field))
            elif len(value.encode()) > limit:
                found.append(
                    field_errors.invalid(field, "", f"can have at most {limit} characters")
                )
        if len(obj.get("message", "").encode()) > LONGEST_MESSAGE:
            text = f"can have at most {LONGEST_MESSAGE} characters"
            found.append(field_errors.invalid("message", "", text))
        return found


class NewEventRules(EventRules):
    """Events of the group events.k8s.io; what they are kept as is the other group's form."""

    controller = "reportingController"
    by_place = False
    selectable = frozenset(
        {*(f"regarding.{key}" for key in ABOUT), "reason", "reportingController", "type"}
    )

    def find_create(self, obj: Obj, context: StrategyContext) -> Faults:
        """What is wrong with a new event."""
        event = old_form(obj)
        found = self.find(event, context)
        name = obj["metadata"].get("name", "")
        found += [
            field_errors.invalid("metadata.name", name, text)
            for text in names.subdomain_errors(name)
        ]
        found += _series_faults(event)
        if not event.get("eventTime"):
            found.append(field_errors.required("eventTime"))
        if event.get("type") not in TYPES:
            found.append(field_errors.invalid("type", event.get("type", ""), "has invalid value"))
        found += [
            field_errors.invalid(field, event[field], "needs to be unset")
            for field in ("firstTimestamp", "lastTimestamp", "count", "source")
            if event.get(field)
        ]
        return found

    def find_update(self, obj: Obj, old: Obj, context: StrategyContext) -> Faults:
        """Only the series of an event may change."""
        event, before = old_form(obj), old_form(old)
        found = self.find(event, context)
        if event.get("series") != before.get("series"):
            found += _series_faults(event)
        for field in (
            "involvedObject",
            "reason",
            "message",
            "source",
            "firstTimestamp",
            "lastTimestamp",
            "count",
            "type",
            "eventTime",
            "action",
            "related",
            "reportingInstance",
        ):
            if event.get(field) != before.get(field):
                found.append(field_errors.invalid(field, event.get(field), "field is immutable"))
        if event.get("reportingComponent") != before.get("reportingComponent"):
            text = "field is immutable"
            found.append(
                field_errors.invalid(self.controller, event.get("reportingComponent"), text)
            )
        return found


def old_form(obj: Obj) -> Obj:
    """An event of the new group with the old group's names."""
    event = dict(obj)
    for old, new in NEW_NAMES.items():
        if new in event:
            event[old] = event.pop(new)
    return event


def _series_faults(event: Obj) -> Faults:
    series = event.get("series")
    if not series:
        return []
    found: Faults = []
    if series.get("count", 0) < 2:
        found.append(field_errors.invalid("series.count", "", "should be at least 2"))
    if not series.get("lastObservedTime"):
        found.append(field_errors.required("series.lastObservedTime"))
    return found
