"""Validation of the hints and topology keys of a Service when it is written.

An unknown mode would silently be off, so it is refused at the write, where the error is seen:
values without a domain, and values of our own domain. Modes of other domains are for other programs
and pass.

Only what a write changes is validated. A Service that was stored with such a value before
validation can still be changed in other respects; its hints are off, and the reason says why.
"""

from __future__ import annotations

from zonewise.api.errors import ParseError, StatusCause
from zonewise.api.field_errors import invalid, unsupported
from zonewise.api.objects.core import Service
from zonewise.traffic.host_key import HEALTH_PORT_ANNOTATION, health_port_error
from zonewise.traffic.limits import OVERLOAD_ANNOTATION, OverloadLimits
from zonewise.traffic.modes import (
    ANNOTATION_MODES,
    DISABLED_VALUES,
    HINTS_ANNOTATION,
    MODE_ANNOTATION,
    SHARE_NODES_ANNOTATION,
    Mode,
    ShareNodes,
)
from zonewise.traffic.topology_keys import topology_key_errors, topology_keys_of

OWN_DOMAIN = "zonewise.io"
KNOWN_MODES = (Mode.AUTO.value, "Disabled", Mode.SHARED.value, Mode.WEIGHTED.value)


def validate_service_traffic(service: Service, old: Service | None = None) -> list[StatusCause]:
    """The errors of a Service that its old version did not have."""
    previous_errors = _service_errors(old) if old is not None else []
    return [error for error in _service_errors(service) if error not in previous_errors]


def _service_errors(service: Service) -> list[StatusCause]:
    annotations = service.metadata.annotations
    errors: list[StatusCause] = []
    for key in (HINTS_ANNOTATION, MODE_ANNOTATION):
        value = annotations.get(key, "")
        domain, slash, _ = value.partition("/")
        if value not in (*ANNOTATION_MODES, *DISABLED_VALUES) and (
            not slash or domain == OWN_DOMAIN
        ):
            errors.append(unsupported(_annotation_path(key), value, KNOWN_MODES))
    old, new = annotations.get(HINTS_ANNOTATION), annotations.get(MODE_ANNOTATION)
    if old is not None and new is not None and old != new:
        text = f"must match annotations[{HINTS_ANNOTATION}] when both are specified"
        errors.append(invalid(_annotation_path(MODE_ANNOTATION), new, text))
    errors += topology_key_errors(service)
    if error := health_port_error(service, topology_keys_of(service)):
        value = annotations[HEALTH_PORT_ANNOTATION]
        errors.append(invalid(_annotation_path(HEALTH_PORT_ANNOTATION), value, error))
    if OVERLOAD_ANNOTATION in annotations:
        try:
            OverloadLimits.parse(annotations[OVERLOAD_ANNOTATION])
        except ParseError as error:
            value = annotations[OVERLOAD_ANNOTATION]
            errors.append(invalid(_annotation_path(OVERLOAD_ANNOTATION), value, str(error)))
    values = [choice.value for choice in ShareNodes]
    if annotations.get(SHARE_NODES_ANNOTATION, values[0]) not in values:
        value = annotations[SHARE_NODES_ANNOTATION]
        errors.append(unsupported(_annotation_path(SHARE_NODES_ANNOTATION), value, values))
    return errors


def _annotation_path(key: str) -> str:
    return f"metadata.annotations[{key}]"
