"""What a Service may not be written with, as far as hints and topology keys go.

An unknown mode would silently be off, so it is refused at the write, where the error is seen:
values without a domain, and values of our own domain. Modes of other domains are for other programs
and pass.

Only what a write changes is validated. A Service that was stored with such a value before
validation can still be changed in other respects; its hints are off, and the reason says why.
"""

from __future__ import annotations

from zonewise.api import field_errors
from zonewise.api.errors import ParseError, StatusCause
from zonewise.api.objects.core import Service
from zonewise.traffic.keys import keys_faults
from zonewise.traffic.limits import OVERLOAD_ANNOTATION, OverloadLimits
from zonewise.traffic.modes import (
    HINTS_ANNOTATION,
    MODE_ANNOTATION,
    MODES,
    SHARE_NODES_ANNOTATION,
    SILENT,
    Mode,
    ShareNodes,
)

OWN_DOMAIN = "zonewise.io"
KNOWN_MODES = (Mode.AUTO.value, "Disabled", Mode.SHARED.value, Mode.WEIGHTED.value)


def service_faults(service: Service, before: Service | None = None) -> list[StatusCause]:
    """What is wrong with a Service that was not wrong before."""
    known = _faults(before) if before is not None else []
    return [fault for fault in _faults(service) if fault not in known]


def _faults(service: Service) -> list[StatusCause]:
    annotations = service.metadata.annotations
    found: list[StatusCause] = []
    for key in (HINTS_ANNOTATION, MODE_ANNOTATION):
        value = annotations.get(key, "")
        domain, slash, _ = value.partition("/")
        if value not in (*MODES, *SILENT) and (not slash or domain == OWN_DOMAIN):
            found.append(field_errors.unsupported(_path(key), value, KNOWN_MODES))
    old, new = annotations.get(HINTS_ANNOTATION), annotations.get(MODE_ANNOTATION)
    if old is not None and new is not None and old != new:
        text = f"must match annotations[{HINTS_ANNOTATION}] when both are specified"
        found.append(field_errors.invalid(_path(MODE_ANNOTATION), new, text))
    found += keys_faults(service)
    if OVERLOAD_ANNOTATION in annotations:
        try:
            OverloadLimits.parse(annotations[OVERLOAD_ANNOTATION])
        except ParseError as error:
            value = annotations[OVERLOAD_ANNOTATION]
            found.append(field_errors.invalid(_path(OVERLOAD_ANNOTATION), value, str(error)))
    values = [choice.value for choice in ShareNodes]
    if annotations.get(SHARE_NODES_ANNOTATION, values[0]) not in values:
        value = annotations[SHARE_NODES_ANNOTATION]
        found.append(field_errors.unsupported(_path(SHARE_NODES_ANNOTATION), value, values))
    return found


def _path(key: str) -> str:
    return f"metadata.annotations[{key}]"
