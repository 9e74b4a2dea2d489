"""What is allowed but old, oddly written or without effect: Warning headers of kinds without pods.

Each function gets an object that is accepted and gives the sentences to say about it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from zonewise.api.field_cursor import Field
from zonewise.api.objects.storage import LEGACY_CLASS
from zonewise.api.values import quantity
from zonewise.embedded.apiserver.strategy.addresses import is_mapped
from zonewise.embedded.apiserver.strategy.base import Obj
from zonewise.embedded.apiserver.strategy.pod.warnings import (
    OLD_LABELS,
    fraction_warning,
    old_label_warnings,
    source_warning,
)
from zonewise.embedded.machinery.crd.structural import Props, subschemas
from zonewise.embedded.machinery.schema import formats

OLD_HINTS = "service.kubernetes.io/topology-aware-hints"
NEW_HINTS = "service.kubernetes.io/topology-mode"
OLD_ANNOTATIONS = {
    LEGACY_CLASS: 'deprecated since v1.8; use "storageClassName" attribute instead',
    "volume.beta.kubernetes.io/mount-options": (
        'deprecated since v1.31; use "mountOptions" attribute instead'
    ),
}
OLD_SOURCES = ("cephfs", "photonPersistentDisk", "scaleIO", "storageos", "glusterfs", "rbd")
STRING_FORMATS = frozenset({*formats.FORMATS, "password"})
FORMATS = {
    "": STRING_FORMATS,
    "string": STRING_FORMATS,
    "integer": frozenset({"int32", "int64"}),
    "number": frozenset({"float", "double"}),
}


def service_warnings(service: Obj) -> Iterator[str]:
    """What is odd about a Service."""
    spec = Field(service, [])["spec"]
    fields = spec.value or {}
    kind = fields.get("type", "ClusterIP")
    headless = kind == "ClusterIP" and fields.get("clusterIP") == "None"
    external, balancer = spec["externalIPs"], spec["loadBalancerIP"]
    if OLD_HINTS in (service["metadata"].get("annotations") or {}):
        yield f"annotation {OLD_HINTS} is deprecated, please use {NEW_HINTS} instead"
    for address in spec["clusterIPs"].each():
        if address.value != "None":
            yield from address_warnings(address)
    if headless:
        for name, value in (
            ("loadBalancerIP", balancer.value),
            ("externalIPs", external.value),
            ("SessionAffinity", fields.get("sessionAffinity", "None") != "None"),
        ):
            if value:
                yield f"spec.{name} is ignored for headless services"
    for address in external.each():
        yield from address_warnings(address)
    if external.value and not headless and kind != "ExternalName":
        yield "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
    if balancer.value:
        yield from address_warnings(balancer)
    for block in spec["loadBalancerSourceRanges"].each():
        yield from block_warnings(block)
    if kind == "ExternalName" and external.value:
        yield 'spec.externalIPs is ignored when spec.type is "ExternalName"'
    if kind != "ExternalName" and fields.get("externalName"):
        yield 'spec.externalName is ignored when spec.type is not "ExternalName"'
    if fields.get("trafficDistribution") == "PreferClose":
        yield 'spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"'


def address_warnings(field: Field) -> Iterator[str]:
    """What is odd about how an address is written."""
    text = field.value
    decimal = _without_zeros(text)
    try:
        address = ipaddress.ip_address(decimal)
    except ValueError:
        return
    if decimal != text or is_mapped(address):
        canonical = getattr(address, "ipv4_mapped", None) or address
        yield f'{field.path}: non-standard IP address "{text}" is invalid: use "{canonical}"'
    elif address.version == 6 and str(address) != text:
        yield (
            f'{field.path}: IPv6 address "{text}" should be in RFC 5952 canonical format'
            f' ("{address}")'
        )


def block_warnings(field: Field) -> Iterator[str]:
    """What is odd about how a block of addresses is written."""
    text = field.value
    address, slash, length = text.partition("/")
    decimal = f"{_without_zeros(address)}{slash}{length}"
    try:
        interface = ipaddress.ip_interface(decimal)
    except ValueError:
        return
    network = interface.network
    is_ambiguous = interface.ip != network.network_address
    if is_ambiguous:
        yield (
            f'{field.path}: CIDR value "{text}" is ambiguous in this context (should be'
            f' "{network}" or "{interface.ip}/{interface.max_prefixlen}"?)'
        )
    if decimal != text:
        yield f'{field.path}: non-standard CIDR value "{text}" is invalid: use "{network}"'
    elif not is_ambiguous and network.version == 6 and str(network) != text:
        yield (
            f'{field.path}: IPv6 CIDR value "{text}" should be in RFC 5952 canonical format'
            f' ("{network}")'
        )


def _without_zeros(text: str) -> str:
    """An IPv4 address without the zeros before its numbers, which other readers take for octal."""
    parts = text.split(".")
    if len(parts) != 4 or not all(part.isdigit() for part in parts):
        return text
    return ".".join(part.lstrip("0") or "0" for part in parts)


def volume_warnings(volume: Obj) -> Iterator[str]:
    """What is odd about a PersistentVolume."""
    spec = Field(volume, [])["spec"]
    for key, text in OLD_ANNOTATIONS.items():
        if key in (volume["metadata"].get("annotations") or ()):
            yield f"metadata.annotations[{key}]: {text}"
    if spec["persistentVolumeReclaimPolicy"].value == "Recycle":
        yield (
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead,"
            " the recommended approach is to use dynamic provisioning."
        )
    for term in spec["nodeAffinity"]["required"]["nodeSelectorTerms"].each():
        for expression in term["matchExpressions"].each():
            yield from old_label_warnings(expression["key"])
    for key in OLD_SOURCES:
        if spec[key].value is not None:
            yield source_warning(spec[key])


def claim_warnings(claim: Obj) -> Iterator[str]:
    """What is odd about a PersistentVolumeClaim."""
    if LEGACY_CLASS in (claim["metadata"].get("annotations") or {}):
        yield f"metadata.annotations[{LEGACY_CLASS}]: {OLD_ANNOTATIONS[LEGACY_CLASS]}"
    for key in ("requests", "limits"):
        size = Field(claim, [])["spec"]["resources"][key].entry("storage")
        if size.value is not None and quantity.value(size.value).denominator != 1:
            yield fraction_warning(size)


def class_warnings(storage_class: Obj) -> Iterator[str]:
    """What is odd about a StorageClass."""
    for topology in Field(storage_class, [])["allowedTopologies"].each():
        for expression in topology["matchLabelExpressions"].each():
            key = expression["key"]
            if key.value in OLD_LABELS:
                yield f"{key.path}: {OLD_LABELS[key.value]}"


def format_warnings(definition: Obj, old: Obj | None) -> list[str]:
    """The formats of a definition that mean nothing, but for those it had before."""
    known = set(_unknown_formats(old)) if old is not None else set()
    names = dict.fromkeys(_unknown_formats(definition))
    return [f'unrecognized format "{name}"' for name in names if name not in known]


def _unknown_formats(definition: Obj) -> Iterator[str]:
    for version in (definition.get("spec") or {}).get("versions") or ():
        yield from _formats_below((version.get("schema") or {}).get("openAPIV3Schema") or {})


def _formats_below(props: Props) -> Iterator[str]:
    name, kind = props.get("format") or "", props.get("type", "")
    bare = name.replace("-", "") if kind in {"", "string"} else name
    if name and bare not in FORMATS.get(kind, frozenset()):
        yield name
    for _, below, _ in subschemas(props, ""):
        yield from _formats_below(below)
