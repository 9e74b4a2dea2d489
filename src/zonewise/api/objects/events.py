"""Events of events.k8s.io/v1, in full as far as we write them.

``note`` is limited to 1,024 bytes and ``action`` and ``reason`` to 128 by the API server.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar

from zonewise.api.meta import Object, ObjectReference
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct


def event_name_suffix(uid: str, reason: str, note: str, *, only: str = "") -> str:
    """The suffix of the name of an Event that several programs send, so that all use one name.

    ``uid`` is that of the object it regards; ``only`` limits it, for example to a node.
    """
    return hashlib.sha256("\0".join((uid, reason, note, only)).encode()).hexdigest()[:16]


class EventSeries(Struct):
    """How often an event was repeated, and when last."""

    count: int = 0
    last_observed_time: str | None = None


class EventSource(Struct):
    """The reporter, in the older form."""

    component: str = ""
    host: str = ""


class Event(Object):
    """Something that happened to ``regarding``."""

    resource: ClassVar = Resource("events.k8s.io", "v1", "Event", "events")

    event_time: str | None = None
    series: EventSeries | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    note: str = ""
    type: str = ""
    deprecated_source: EventSource = EventSource()
    deprecated_first_timestamp: str | None = None
    deprecated_last_timestamp: str | None = None
    deprecated_count: int = 0
