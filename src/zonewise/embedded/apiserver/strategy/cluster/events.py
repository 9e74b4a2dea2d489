"""Events, in their two groups.

The old group accepts almost anything; the new one requires the reporter and the action, and lets
nothing but the series change afterwards. Whatever group an event comes from, errors name its fields
as the old group does.
"""

from __future__ import annotations

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.base import Obj, Rules, StrategyContext, words

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

DEPRECATED = ("firstTimestamp", "lastTimestamp", "count", "source")
UNCHANGED = words(
    "involvedObject reason message source firstTimestamp lastTimestamp count type eventTime action"
    " related reportingInstance"
)
TEXT_LIMIT = 128
MESSAGE_LIMIT = 1024
TYPES = ("Normal", "Warning")


class EventRules(Rules):
    """Events of the core group."""

    reporter_name = "reportingComponent"
    """The name of the reporter's field in errors."""

    in_objects_namespace = True
    """Whether an event must be in the namespace its object says it is in."""

    selectable = frozenset(
        [f"involvedObject.{key}" for key in ABOUT]
        + ["reason", "reportingComponent", "source", "type"]
    )

    def name_errors(self, name: str) -> list[str]:
        """An event may have any name."""
        return []

    def fields(self, obj: Obj) -> dict[str, str]:
        """The values of the selectable fields of both groups; ``obj`` is a stored event."""
        about, reporter = obj.get("involvedObject") or {}, obj.get("reportingComponent", "")
        return {
            "reason": obj.get("reason", ""),
            "reportingComponent": reporter,
            "reportingController": reporter,
            "source": (obj.get("source") or {}).get("component") or reporter,
            "type": obj.get("type", ""),
            **{f"involvedObject.{key}": about.get(key, "") for key in ABOUT},
            **{f"regarding.{key}": about.get(key, "") for key in ABOUT},
        }

    def validate(self, obj: Field, context: StrategyContext) -> None:
        """An event is in its object's namespace; one with an eventTime has reporter and action."""
        namespace = obj["involvedObject"].get("namespace", "")
        is_here = (namespace.value or "default") == obj["metadata"].get("namespace", "").value
        if not is_here and (self.in_objects_namespace or not namespace.value):
            namespace.invalid("does not match event.namespace")
        if not obj["eventTime"].value:
            return
        reporter = obj.get("reportingComponent", "").named(self.reporter_name)
        reporter.required()
        reporter.qualified_name()
        for key in ("reportingInstance", "action", "reason"):
            _validate_length(obj[key].required(), TEXT_LIMIT)
        _validate_length(obj["message"], MESSAGE_LIMIT)


class NewEventRules(EventRules):
    """Events of the group events.k8s.io, which are stored in the other group's form."""

    reporter_name = "reportingController"
    in_objects_namespace = False
    selectable = frozenset(
        {*(f"regarding.{key}" for key in ABOUT), "reason", "reportingController", "type"}
    )

    def validate_create(self, obj: Field, context: StrategyContext) -> None:
        event = obj.holding(old_form(obj.value))
        self.validate(event, context)
        event["metadata"].get("name", "").dns_subdomain()
        _validate_series(event["series"])
        event["eventTime"].required()
        kind = event.get("type", "")
        if kind.value not in TYPES:
            kind.invalid("has invalid value")
        for key in DEPRECATED:
            if event[key].value:
                event[key].invalid("needs to be unset")

    def validate_update(self, obj: Field, old: Obj, context: StrategyContext) -> None:
        """Only the series of an event may change."""
        event, old_event = obj.holding(old_form(obj.value)), old_form(old)
        self.validate(event, context)
        if event["series"].value != old_event.get("series"):
            _validate_series(event["series"])
        for key in UNCHANGED:
            event[key].immutable(old_event.get(key))
        reporter = event["reportingComponent"].named(self.reporter_name)
        reporter.immutable(old_event.get("reportingComponent"))


def old_form(obj: Obj) -> Obj:
    """An event of the new group with the old group's names."""
    event = dict(obj)
    for old, new in NEW_NAMES.items():
        if new in event:
            event[old] = event.pop(new)
    return event


def _validate_length(text: Field, limit: int) -> None:
    if len((text.value or "").encode()) > limit:
        text.invalid(f"can have at most {limit} characters", "")


def _validate_series(series: Field) -> None:
    if series.value:
        if series.get("count", 0).value < 2:
            series["count"].invalid("should be at least 2", "")
        series["lastObservedTime"].required()
