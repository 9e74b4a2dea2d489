"""How a slice belongs to its Service: labels, owner reference, and its name.

A slice carries the labels of its Service, so that a selector of Services selects their slices, and
three of its own that are never copied: which Service, which controller writes it, and whether the
Service is headless. ``managed-by`` has the value of Kubernetes' own controller. That is how slices
are handed over from it and back to it in place.

A slice of an older Service of the same name (another uid) is not ours; it is deleted. One that
lost its owner reference to an edit is ours by its labels and gets it back.
"""

from __future__ import annotations

from collections.abc import Iterable

from zonewise.api.meta import Key, OwnerReference
from zonewise.api.objects.core import Service
from zonewise.api.objects.discovery import (
    HEADLESS_LABEL,
    SERVICE_LABEL,
    LeanEndpointSlice,
    service_name_of,
)

MANAGED_BY_LABEL = "endpointslice.kubernetes.io/managed-by"
MANAGER = "endpointslice-controller.k8s.io"
IPV4, IPV6 = "IPv4", "IPv6"

_RESERVED = (SERVICE_LABEL, MANAGED_BY_LABEL, HEADLESS_LABEL)
_LONGEST_NAME = 253
_NO_ADDRESS = ("", "None")


def service_keys_of(endpoint_slice: LeanEndpointSlice) -> tuple[Key, ...]:
    """The Service a slice belongs to, as the entries of an index; none if it names none."""
    name = service_name_of(endpoint_slice)
    return ((endpoint_slice.metadata.namespace, name),) if name else ()


def is_managed(endpoint_slice: LeanEndpointSlice) -> bool:
    """Whether this controller, or the one built into Kubernetes, writes the slice."""
    return endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL) == MANAGER


def has_endpoints(service: Service) -> bool:
    """Whether pods become endpoints: the Service selects some, and is not an ExternalName."""
    return bool(service.spec.selector) and service.spec.type != "ExternalName"


def families_of(
    service: Service, slices: Iterable[LeanEndpointSlice] | None = None
) -> tuple[str, ...]:
    """The address types of its slices, the primary one first.

    A server fills in ``ipFamilies``. Where they are missing (a dump that was cut down), the address
    of the Service decides. Without one, it is the families of its ``slices`` if they are given;
    planning slices uses both families, as its pods may have addresses of either.
    """
    spec = service.spec
    named = tuple(family for family in spec.ip_families if family in (IPV4, IPV6))
    if named:
        return named
    if spec.cluster_ip not in _NO_ADDRESS:
        return (IPV6,) if ":" in spec.cluster_ip else (IPV4,)
    if slices is None:
        return IPV4, IPV6
    present = {endpoint_slice.address_type for endpoint_slice in slices}
    return tuple(family for family in (IPV4, IPV6) if family in present) or (IPV4,)


def labels_of(service: Service) -> dict[str, str]:
    """The labels of its slices, in one order."""
    labels = {key: value for key, value in service.metadata.labels.items() if key not in _RESERVED}
    if service.spec.cluster_ip in _NO_ADDRESS:
        labels[HEADLESS_LABEL] = ""
    labels[SERVICE_LABEL] = service.metadata.name
    labels[MANAGED_BY_LABEL] = MANAGER
    return dict(sorted(labels.items()))


def owner_of(service: Service) -> OwnerReference:
    """The reference by which its slices are deleted with it."""
    return OwnerReference(
        api_version="v1",
        kind="Service",
        name=service.metadata.name,
        uid=service.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def name_prefix(service: Service) -> str:
    """What the names of its slices begin with."""
    name = service.metadata.name
    return f"{name}-" if len(name) < _LONGEST_NAME else name
