"""What a kubelet does to containers: probes and hooks."""

from __future__ import annotations

import re
from typing import Any

from zonewise.api.field_cursor import Field
from zonewise.embedded.apiserver.strategy.base import words

SCHEMES = ("HTTP", "HTTPS")
PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
PROBE_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
LIFECYCLE_HANDLERS = ("exec", "httpGet", "tcpSocket", "sleep")
_HEADER_NAME = re.compile(r"[-A-Za-z0-9]+\Z")
_COUNTS = words(
    "initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold"
)


def validate_probes(container: Field, grace_period: Any) -> None:
    """The probes of a container."""
    for kind in PROBES:
        if container.value.get(kind) is not None:
            _validate_probe(container[kind], kind, grace_period)


def _validate_probe(probe: Field, kind: str, grace_period: Any) -> None:
    _validate_handler(probe, grace_period, PROBE_HANDLERS)
    fields = probe.value
    for key in _COUNTS:
        if fields.get(key, 0) < 0:
            probe[key].invalid("must be non-negative")
    if fields.get("terminationGracePeriodSeconds") is not None:
        seconds = probe["terminationGracePeriodSeconds"]
        seconds.positive()
        if kind == "readinessProbe":
            seconds.invalid("must not be set for readinessProbes")
    if kind != "readinessProbe" and fields.get("successThreshold", 1) != 1:
        probe["successThreshold"].invalid("must be 1")


def validate_lifecycle(lifecycle: Field, grace_period: Any) -> None:
    """The hooks of a container."""
    for key in ("postStart", "preStop"):
        if lifecycle.value.get(key) is not None:
            _validate_handler(lifecycle[key], grace_period, LIFECYCLE_HANDLERS)


def _validate_handler(holder: Field, grace_period: Any, handlers: tuple[str, ...]) -> None:
    chosen = [key for key in handlers if holder.value.get(key) is not None]
    if not chosen:
        holder.missing("must specify a handler type")
        return
    action = holder[chosen[0]]
    match action.key:
        case "exec":
            action["command"].required()
        case "httpGet":
            _validate_http_get_action(action)
        case "sleep":
            seconds = action.value.get("seconds", 0)
            if grace_period is not None and not 0 <= seconds <= grace_period:
                action.invalid(
                    "must be non-negative and less than terminationGracePeriodSeconds"
                    f" ({grace_period})",
                    seconds,
                )
        case _:
            action.get("port", 0).port()
    for key in chosen[1:]:
        holder[key].forbid("may not specify more than 1 handler type")


def _validate_http_get_action(action: Field) -> None:
    action["path"].required()
    action.get("port", 0).port()
    action.get("scheme", "").enum(SCHEMES)
    for header in action.value.get("httpHeaders") or ():
        action.child("httpHeaders", header.get("name", "")).matches(
            _HEADER_NAME, "a valid HTTP header must consist of alphanumeric characters or '-'"
        )
