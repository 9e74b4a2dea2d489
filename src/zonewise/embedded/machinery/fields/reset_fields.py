"""Which fields a write through one path of the API cannot change.

A write to ``pods/status`` that carries a spec changes no spec, so it must not own one either; a
write to the pod itself owns no status. A real server keeps this list per kind and subresource, and
it is not uniform: here are the rule and its exceptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zonewise.embedded.machinery.fields.comparison import Comparison
from zonewise.embedded.machinery.fields.fieldset import (
    FieldsV1,
    from_paths,
    recursive_difference,
    select_matching,
)


@dataclass(frozen=True, slots=True)
class ResetFields:
    """Fields a write cannot change: everything in ``fields``, or all but what ``only`` matches."""

    fields: FieldsV1 = field(default_factory=dict)
    only: tuple[tuple[str, ...], ...] = ()

    def filter(self, fields: FieldsV1) -> FieldsV1:
        """The part of a set that the write can change."""
        if self.only:
            return select_matching(fields, self.only)
        return recursive_difference(fields, self.fields)

    def filter_comparison(self, comparison: Comparison) -> Comparison:
        """The part of a comparison that the write can change."""
        if not self.only and not self.fields:
            return comparison
        return Comparison(*map(self.filter, comparison))


RESET_NOTHING = ResetFields()


def _reset_paths(*paths: str) -> ResetFields:
    return ResetFields(from_paths([[f"f:{name}" for name in path.split(".")] for path in paths]))


_STATUS = _reset_paths("status")
_SPEC = _reset_paths("spec")
_SPEC_AND_METADATA = _reset_paths("metadata", "spec")

_MAIN_RESOURCES = {"certificates.k8s.io/certificatesigningrequests": _reset_paths("spec", "status")}
_SUBRESOURCES = {
    ("/namespaces", "finalize"): _STATUS,
    ("/pods", "status"): _reset_paths(
        "spec", "metadata.deletionTimestamp", "metadata.ownerReferences"
    ),
    ("/pods", "ephemeralcontainers"): ResetFields(only=(("f:spec", "f:ephemeralContainers"),)),
    ("/pods", "resize"): ResetFields(
        only=tuple(
            ("f:spec", containers, "*", part)
            for containers in ("f:containers", "f:initContainers")
            for part in ("f:resources", "f:resizePolicy")
        )
    ),
    ("apps/deployments", "status"): _reset_paths("spec", "metadata.labels"),
    ("certificates.k8s.io/certificatesigningrequests", "status"): _reset_paths(
        "spec", "status.conditions"
    ),
    ("certificates.k8s.io/certificatesigningrequests", "approval"): _reset_paths(
        "spec", "status.certificate"
    ),
}
STATUS_WITHOUT_METADATA = frozenset(
    {
        "admissionregistration.k8s.io/validatingadmissionpolicies",
        "apiregistration.k8s.io/apiservices",
        "flowcontrol.apiserver.k8s.io/flowschemas",
        "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations",
        "networking.k8s.io/servicecidrs",
        "resource.k8s.io/resourceclaims",
        "storage.k8s.io/volumeattachments",
    }
)
"""Kinds whose status subresource does not change labels and annotations."""


def reset_fields_of(
    group: str,
    plural: str,
    subresource: str = "",
    *,
    has_status: bool,
    custom: bool = False,
    replicas: str = ".spec.replicas",
) -> ResetFields:
    """The fields that a write to this resource, or to this subresource of it, cannot change.

    ``has_status`` says whether the resource has a status subresource; ``custom`` whether a
    CustomResourceDefinition made it; ``replicas`` is what its scale subresource writes.
    """
    if subresource == "scale":
        return ResetFields(only=(tuple(f"f:{name}" for name in replicas.strip(".").split(".")),))
    name = f"{group}/{plural}"
    if not subresource:
        return _MAIN_RESOURCES.get(name, _STATUS if has_status else RESET_NOTHING)
    if subresource == "status" and (custom or name in STATUS_WITHOUT_METADATA):
        return _SPEC_AND_METADATA
    usual = _SPEC if subresource == "status" else RESET_NOTHING
    return _SUBRESOURCES.get((name, subresource), usual)
