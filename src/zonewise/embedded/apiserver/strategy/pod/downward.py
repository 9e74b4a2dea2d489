"""References of a container or a volume to fields of its own pod."""

from __future__ import annotations

import re

from zonewise.api import field_errors
from zonewise.api.values import quantity
from zonewise.embedded.apiserver.strategy import metadata
from zonewise.embedded.apiserver.strategy.base import Faults, Obj

FIELDS = frozenset(
    {
        *(f"metadata.{key}" for key in ("annotations", "labels", "name", "namespace", "uid")),
        *(
            f"spec.{key}"
            for key in ("nodeName", "restartPolicy", "serviceAccountName", "schedulerName")
        ),
        *(f"status.{key}" for key in ("phase", "hostIP", "hostIPs", "podIP", "podIPs")),
    }
)
RESOURCES = frozenset(
    f"{side}.{name}"
    for side in ("limits", "requests")
    for name in ("cpu", "memory", "ephemeral-storage")
)
HUGE = ("requests.hugepages-", "limits.hugepages-")
CPU_DIVISORS = frozenset({"1m", "1"})
SIZE_DIVISORS = frozenset(
    {"1", *(f"1{unit}{binary}" for unit in "MGTPE" for binary in ("", "i")), "1k", "1Ki"}
)
_SUBSCRIPT = re.compile(r"(.+)\['(.*)'\]\Z")


def field_faults(reference: Obj, allowed: frozenset[str], path: str) -> Faults:
    """What is wrong with a reference to a field of the pod."""
    if not reference.get("apiVersion"):
        return [field_errors.required(f"{path}.apiVersion")]
    field = reference.get("fieldPath", "")
    at = f"{path}.fieldPath"
    if not field:
        return [field_errors.required(at)]
    if reference["apiVersion"] != "v1":
        text = f"error converting fieldPath: unsupported pod version: {reference['apiVersion']}"
        return [field_errors.invalid(at, field, text)]
    subscript = _SUBSCRIPT.match(field)
    if subscript:
        base, key = subscript.groups()
        if base not in {"metadata.annotations", "metadata.labels"}:
            text = f"error converting fieldPath: field label does not support subscript: {field}"
            return [field_errors.invalid(at, field, text)]
        key = key.lower() if base == "metadata.annotations" else key
        return [field_errors.invalid(path, key, text) for text in metadata.qualified_name(key)]
    if field == "spec.host":
        field = "spec.nodeName"
    if field not in FIELDS:
        text = f"error converting fieldPath: field label not supported: {field}"
        return [field_errors.invalid(at, field, text)]
    if field not in allowed:
        return [field_errors.unsupported(at, field, allowed)]
    return []


def resource_field_faults(reference: Obj, path: str, *, volume: bool = False) -> Faults:
    """What is wrong with a reference to a container's resources."""
    found: Faults = []
    name = reference.get("resource", "")
    if volume and not reference.get("containerName"):
        found.append(field_errors.required(f"{path}.containerName"))
    elif not name:
        found.append(field_errors.required(f"{path}.resource"))
    elif name not in RESOURCES and not name.startswith(HUGE):
        found.append(field_errors.unsupported(f"{path}.resource", name, RESOURCES))
    divisor = quantity.parse(str(reference.get("divisor") or "0"))
    if divisor.value == 0:
        return found
    if name.endswith(".cpu"):
        if str(divisor) not in CPU_DIVISORS:
            text = "only divisor's values 1m and 1 are supported with the cpu resource"
            found.append(field_errors.invalid(f"{path}.divisor", name, text))
    elif (name in RESOURCES or name.startswith(HUGE)) and str(divisor) not in SIZE_DIVISORS:
        text = f"only powers of the known units are supported with the {name} resource"
        found.append(field_errors.invalid(f"{path}.divisor", name, text))
    return found
