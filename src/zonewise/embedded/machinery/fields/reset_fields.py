"""Which fields a write through one path of the API cannot change.

A write to ``pods/status`` that carries a spec changes no spec, so it must not own one either; a
write to the pod itself owns no status. A real server keeps this list per kind and subresource, and
it is not uniform: that is the whole table here, in terms of the exceptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zonewise.embedded.machinery.fields.comparison import Comparison
from zonewise.embedded.machinery.fields.fieldset import FieldsV1, matching, of_paths, without


@dataclass(frozen=True, slots=True)
class Reset:
    """What a write does not reach: everything in ``fields``, or all but what ``only`` matches."""

    fields: FieldsV1 = field(default_factory=dict)
    only: tuple[tuple[str, ...], ...] = ()

    def kept(self, fields: FieldsV1) -> FieldsV1:
        """The part of a set that the write reaches."""
        if self.only:
            return matching(fields, self.only)
        return without(fields, self.fields)

    def kept_of(self, comparison: Comparison) -> Comparison:
        """The part of a comparison that the write reaches."""
        if not self.only and not self.fields:
            return comparison
        return Comparison(*map(self.kept, comparison))


NOTHING = Reset()


def _fields(*paths: str) -> Reset:
    return Reset(of_paths([[f"f:{name}" for name in path.split(".")] for path in paths]))


_STATUS = _fields("status")
_SPEC = _fields("spec")
_SPEC_AND_METADATA = _fields("metadata", "spec")

_MAIN = {
    "certificates.k8s.io/certificatesigningrequests": _fields("spec", "status"),
}
_SUBRESOURCES = {
    ("/namespaces", "finalize"): _STATUS,
    ("/pods", "status"): _fields("spec", "metadata.deletionTimestamp", "metadata.ownerReferences"),
    ("/pods", "ephemeralcontainers"): Reset(only=(("f:spec", "f:ephemeralContainers"),)),
    ("/pods", "resize"): Reset(
        only=tuple(
            ("f:spec", containers, "*", part)
            for containers in ("f:containers", "f:initContainers")
            for part in ("f:resources", "f:resizePolicy")
        )
    ),
    ("apps/deployments", "status"): _fields("spec", "metadata.labels"),
    ("certificates.k8s.io/certificatesigningrequests", "status"): _fields(
        "spec", "status.conditions"
    ),
    ("certificates.k8s.io/certificatesigningrequests", "approval"): _fields(
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
"""Kinds whose status subresource leaves labels and annotations alone."""


def reset_of(
    group: str,
    plural: str,
    subresource: str = "",
    *,
    has_status: bool,
    custom: bool = False,
    replicas: str = ".spec.replicas",
) -> Reset:
    """What a write to this resource, or to this subresource of it, does not reach.

    ``has_status`` says whether the resource has a status subresource; ``custom`` whether a
    CustomResourceDefinition made it; ``replicas`` is what its scale subresource writes.
    """
    if subresource == "scale":
        return Reset(only=(tuple(f"f:{name}" for name in replicas.strip(".").split(".")),))
    name = f"{group}/{plural}"
    if not subresource:
        return _MAIN.get(name, _STATUS if has_status else NOTHING)
    if subresource == "status" and (custom or name in STATUS_WITHOUT_METADATA):
        return _SPEC_AND_METADATA
    return _SUBRESOURCES.get((name, subresource), _SPEC if subresource == "status" else NOTHING)
