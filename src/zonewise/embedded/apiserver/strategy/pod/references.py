"""What containers and volumes refer to: fields of their own pod, keys, and paths of files."""

from __future__ import annotations

import re

from zonewise.api.field_cursor import Field
from zonewise.api.values import quantity

FIELDS = frozenset(
    {
        *(f"metadata.{key}" for key in ("annotations", "labels", "name", "namespace", "uid")),
        *(f"spec.{key}" for key in ("nodeName", "restartPolicy", "schedulerName")),
        "spec.serviceAccountName",
        *(f"status.{key}" for key in ("phase", "hostIP", "hostIPs", "podIP", "podIPs")),
    }
)
RESOURCES = frozenset(
    f"{side}.{name}"
    for side in ("limits", "requests")
    for name in ("cpu", "memory", "ephemeral-storage")
)
HUGE_PAGES = ("requests.hugepages-", "limits.hugepages-")
CPU_DIVISORS = frozenset({"1m", "1"})
SIZE_DIVISORS = frozenset(
    {"1", *(f"1{unit}{binary}" for unit in "MGTPE" for binary in ("", "i")), "1k", "1Ki"}
)
_SUBSCRIPT = re.compile(r"(.+)\['(.*)'\]\Z")


def validate_object_field_selector(reference: Field, supported: frozenset[str]) -> None:
    """A reference to a field of the pod."""
    version, field = reference["apiVersion"], reference["fieldPath"]
    if not version.required() or not field.required():
        return
    if version.value != "v1":
        field.invalid(f"error converting fieldPath: unsupported pod version: {version.value}")
        return
    subscript = _SUBSCRIPT.match(field.value)
    if subscript:
        base, key = subscript.groups()
        if base == "metadata.annotations":
            reference.holding(key.lower()).qualified_name()
        elif base == "metadata.labels":
            reference.holding(key).qualified_name()
        else:
            field.invalid(
                f"error converting fieldPath: field label does not support subscript: {field.value}"
            )
        return
    if field.value == "spec.host":
        field = field.holding("spec.nodeName")
    if field.value not in FIELDS:
        field.invalid(f"error converting fieldPath: field label not supported: {field.value}")
    else:
        field.enum(supported)


def validate_resource_field_selector(reference: Field, *, volume: bool = False) -> None:
    """A reference to a container's resources."""
    resource = reference.get("resource", "")
    name: str = resource.value
    is_known = name in RESOURCES or name.startswith(HUGE_PAGES)
    if volume and not reference.value.get("containerName"):
        reference["containerName"].missing()
    elif resource.required() and not is_known:
        resource.unsupported(RESOURCES)
    divisor = quantity.parse(str(reference.value.get("divisor") or "0"))
    if divisor.value == 0:
        return
    if name.endswith(".cpu"):
        if str(divisor) not in CPU_DIVISORS:
            reference["divisor"].invalid(
                "only divisor's values 1m and 1 are supported with the cpu resource", name
            )
    elif is_known and str(divisor) not in SIZE_DIVISORS:
        reference["divisor"].invalid(
            f"only powers of the known units are supported with the {name} resource", name
        )


def validate_local_descending_path(path: Field) -> None:
    """A path that goes down from where it starts."""
    if path.value and path.value.startswith("/"):
        path.invalid("must be a relative path")
    validate_path_no_backsteps(path)


def validate_path_no_backsteps(path: Field) -> None:
    """A path without ``..``."""
    target = path.value
    if target and ".." in target and ".." in target.split("/"):
        path.invalid("must not contain '..'")


def validate_local_non_reserved_path(path: Field) -> None:
    """A path that goes down, and whose first name is not reserved by the kubelet."""
    validate_local_descending_path(path)
    target = path.value
    if target and target.startswith("..") and not target.startswith("../"):
        path.invalid("must not start with '..'")
