"""What a Service may not be written with, as far as hints go.

A mode nobody knows would be off in silence, so it is refused while somebody is there to read the
refusal: values without a domain, and values of our own domain. Modes of other domains are for
other programs and pass.

Only what a write brings is judged. A Service that was stored with such a value before anybody
looked can still be changed in other respects; its hints are off, and the reason says why.
"""

from __future__ import annotations

from zonewise.api import faults
from zonewise.api.core import Service
from zonewise.api.errors import ParseError, StatusCause
from zonewise.traffic.limits import OVERLOAD_ANNOTATION, Limits
from zonewise.traffic.modes import (
    AUTO,
    HINTS_ANNOTATION,
    MODE_ANNOTATION,
    SHARE_NODES_ANNOTATION,
    SILENT,
    TOPOLOGY_KEYS_ANNOTATION,
    ShareNodes,
)

OWN_DOMAIN = "zonewise.io"


def service_faults(service: Service, before: Service | None = None) -> list[StatusCause]:
    """What is wrong with a Service that was not wrong before."""
    known = _faults(before) if before is not None else []
    return [fault for fault in _faults(service) if fault not in known]


def _faults(service: Service) -> list[StatusCause]:
    annotations, spec = service.metadata.annotations, service.spec
    found: list[StatusCause] = []
    for key in (HINTS_ANNOTATION, MODE_ANNOTATION):
        value = annotations.get(key, "")
        domain, slash, _ = value.partition("/")
        if value not in (*AUTO, *SILENT) and (not slash or domain == OWN_DOMAIN):
            found.append(faults.unsupported(_path(key), value, ("Auto", "Disabled")))
    old, new = annotations.get(HINTS_ANNOTATION), annotations.get(MODE_ANNOTATION)
    if old is not None and new is not None and old != new:
        text = f"must match annotations[{HINTS_ANNOTATION}] when both are specified"
        found.append(faults.invalid(_path(MODE_ANNOTATION), new, text))
    if spec.traffic_policy == "PreferZone":
        text = "may not be used with trafficPolicy PreferZone: choose one of the two"
        if spec.topology_keys:
            found.append(faults.forbidden("spec.topologyKeys", text))
        if TOPOLOGY_KEYS_ANNOTATION in annotations:
            found.append(faults.forbidden(_path(TOPOLOGY_KEYS_ANNOTATION), text))
    if OVERLOAD_ANNOTATION in annotations:
        try:
            Limits.parse(annotations[OVERLOAD_ANNOTATION])
        except ParseError as error:
            value = annotations[OVERLOAD_ANNOTATION]
            found.append(faults.invalid(_path(OVERLOAD_ANNOTATION), value, str(error)))
    values = [choice.value for choice in ShareNodes]
    if annotations.get(SHARE_NODES_ANNOTATION, values[0]) not in values:
        value = annotations[SHARE_NODES_ANNOTATION]
        found.append(faults.unsupported(_path(SHARE_NODES_ANNOTATION), value, values))
    return found


def _path(key: str) -> str:
    return f"metadata.annotations[{key}]"
