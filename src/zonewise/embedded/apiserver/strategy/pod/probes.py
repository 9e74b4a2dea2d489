"""What a kubelet does to containers: probes and hooks."""

from __future__ import annotations

import re
from typing import Any

from zonewise.api import field_errors
from zonewise.api.values import names
from zonewise.embedded.apiserver.strategy.base import Faults, Obj

SCHEMES = ("HTTP", "HTTPS")
_HEADER = re.compile(r"[-A-Za-z0-9]+\Z")
_COUNTS = (
    "initialDelaySeconds",
    "timeoutSeconds",
    "periodSeconds",
    "successThreshold",
    "failureThreshold",
)


def probe_faults(container: Obj, path: str, grace: Any) -> Faults:
    """What is wrong with a container's probes."""
    found: Faults = []
    for key in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(key)
        if probe is not None:
            found += _probe(probe, f"{path}.{key}", key, grace)
    return found


def _probe(probe: Obj, path: str, kind: str, grace: Any) -> Faults:
    found = _handler(probe, path, grace, ("exec", "httpGet", "tcpSocket", "grpc"))
    for key in _COUNTS:
        value = probe.get(key, 0)
        if value < 0:
            found.append(field_errors.invalid(f"{path}.{key}", value, "must be non-negative"))
    seconds = probe.get("terminationGracePeriodSeconds")
    at = f"{path}.terminationGracePeriodSeconds"
    if seconds is not None and seconds <= 0:
        found.append(field_errors.invalid(at, seconds, "must be greater than 0"))
    if kind == "readinessProbe":
        if seconds is not None:
            found.append(field_errors.invalid(at, seconds, "must not be set for readinessProbes"))
    elif probe.get("successThreshold", 1) != 1:
        value = probe["successThreshold"]
        found.append(field_errors.invalid(f"{path}.successThreshold", value, "must be 1"))
    return found


def lifecycle_faults(lifecycle: Obj, path: str, grace: Any) -> Faults:
    """What is wrong with a container's hooks."""
    found: Faults = []
    for key in ("postStart", "preStop"):
        hook = lifecycle.get(key)
        if hook is not None:
            known = ("exec", "httpGet", "tcpSocket", "sleep")
            found += _handler(hook, f"{path}.{key}", grace, known)
    return found


def _handler(holder: Obj, path: str, grace: Any, known: tuple[str, ...]) -> Faults:
    found: Faults = []
    chosen = False
    for key in known:
        action = holder.get(key)
        if action is None:
            continue
        at = f"{path}.{key}"
        if chosen:
            found.append(field_errors.forbidden(at, "may not specify more than 1 handler type"))
            continue
        chosen = True
        if key == "exec":
            if not action.get("command"):
                found.append(field_errors.required(f"{at}.command"))
        elif key == "httpGet":
            found += _http(action, at)
        elif key == "sleep":
            seconds = action.get("seconds", 0)
            if grace is not None and not 0 <= seconds <= grace:
                text = f"must be non-negative and less than terminationGracePeriodSeconds ({grace})"
                found.append(field_errors.invalid(at, seconds, text))
        else:
            found += port_faults(action.get("port", 0), f"{at}.port")
    if not chosen:
        found.append(field_errors.required(path, "must specify a handler type"))
    return found


def _http(action: Obj, path: str) -> Faults:
    found: Faults = []
    if not action.get("path"):
        found.append(field_errors.required(f"{path}.path"))
    found += port_faults(action.get("port", 0), f"{path}.port")
    scheme = action.get("scheme", "")
    if scheme not in SCHEMES:
        found.append(field_errors.unsupported(f"{path}.scheme", scheme, SCHEMES))
    for header in action.get("httpHeaders") or ():
        name = header.get("name", "")
        if not _HEADER.match(name):
            text = "a valid HTTP header must consist of alphanumeric characters or '-'"
            found.append(field_errors.invalid(f"{path}.httpHeaders", name, text))
    return found


def port_faults(port: Any, path: str) -> Faults:
    """What is wrong with a port that may be a number or a name."""
    if isinstance(port, str):
        return [field_errors.invalid(path, port, text) for text in names.port_name(port)]
    if 1 <= port <= 65_535:
        return []
    return [field_errors.invalid(path, port, "must be between 1 and 65535, inclusive")]
