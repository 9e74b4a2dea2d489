"""What is allowed but old, oddly written or without effect: Warning headers of kinds without pods.

Each function gets an object that is accepted and gives the sentences to say about it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from zonewise.api.objects.storage import LEGACY_CLASS
from zonewise.api.values import quantity
from zonewise.embedded.apiserver.strategy.base import Obj
from zonewise.embedded.apiserver.strategy.pod.warnings import OLD_LABELS

OLD_HINTS = "service.kubernetes.io/topology-aware-hints"
NEW_HINTS = "service.kubernetes.io/topology-mode"
OLD_NOTES = {
    LEGACY_CLASS: 'deprecated since v1.8; use "storageClassName" attribute instead',
    "volume.beta.kubernetes.io/mount-options": (
        'deprecated since v1.31; use "mountOptions" attribute instead'
    ),
}
OLD_SOURCES = {
    "cephfs": "deprecated in v1.28, non-functional in v1.31+",
    "photonPersistentDisk": "deprecated in v1.11, non-functional in v1.16+",
    "scaleIO": "deprecated in v1.16, non-functional in v1.22+",
    "storageos": "deprecated in v1.22, non-functional in v1.25+",
    "glusterfs": "deprecated in v1.25, non-functional in v1.26+",
    "rbd": "deprecated in v1.28, non-functional in v1.31+",
}
STRING_FORMATS = frozenset(
    {
        "bsonobjectid",
        "byte",
        "cidr",
        "creditcard",
        "date",
        "datetime",
        "duration",
        "email",
        "hexcolor",
        "hostname",
        "ipv4",
        "ipv6",
        "isbn",
        "isbn10",
        "isbn13",
        "k8slongname",
        "k8sshortname",
        "mac",
        "password",
        "rgbcolor",
        "ssn",
        "uri",
        "uuid",
        "uuid3",
        "uuid4",
        "uuid5",
    }
)
FORMATS = {
    "": STRING_FORMATS,
    "string": STRING_FORMATS,
    "integer": frozenset({"int32", "int64"}),
    "number": frozenset({"float", "double"}),
}
BELOW = ("items", "not", "additionalProperties", "additionalItems")
BELOW_MANY = ("allOf", "anyOf", "oneOf")
BELOW_NAMED = ("properties", "patternProperties", "definitions", "dependencies")


def service_warnings(service: Obj) -> list[str]:
    """What is odd about a Service."""
    spec = service.get("spec") or {}
    kind = spec.get("type", "ClusterIP")
    headless = kind == "ClusterIP" and spec.get("clusterIP") == "None"
    outside = spec.get("externalIPs") or []
    balancer = spec.get("loadBalancerIP", "")
    found = []
    if OLD_HINTS in (service["metadata"].get("annotations") or {}):
        found.append(f"annotation {OLD_HINTS} is deprecated, please use {NEW_HINTS} instead")
    for index, address in enumerate(spec.get("clusterIPs") or ()):
        if address and address != "None":
            found += address_warnings(address, f"spec.clusterIPs[{index}]")
    if headless:
        for value, name in (
            (balancer, "loadBalancerIP"),
            (outside, "externalIPs"),
            (spec.get("sessionAffinity", "None") != "None", "SessionAffinity"),
        ):
            if value:
                found.append(f"spec.{name} is ignored for headless services")
    for index, address in enumerate(outside):
        found += address_warnings(address, f"spec.externalIPs[{index}]")
    if outside and not headless and kind != "ExternalName":
        found.append(
            "spec.externalIPs is deprecated and may no longer be implemented in some clusters"
        )
    if balancer:
        found += address_warnings(balancer, "spec.loadBalancerIP")
    for index, block in enumerate(spec.get("loadBalancerSourceRanges") or ()):
        found += block_warnings(block, f"spec.loadBalancerSourceRanges[{index}]")
    if kind == "ExternalName" and outside:
        found.append('spec.externalIPs is ignored when spec.type is "ExternalName"')
    if kind != "ExternalName" and spec.get("externalName"):
        found.append('spec.externalName is ignored when spec.type is not "ExternalName"')
    if spec.get("trafficDistribution") == "PreferClose":
        found.append('spec.trafficDistribution: "PreferClose" is deprecated; use "PreferSameZone"')
    return found


def address_warnings(text: str, path: str) -> list[str]:
    """What is odd about how an address is written."""
    plain = _plain(text)
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return []
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    if plain != text or mapped is not None:
        return [f'{path}: non-standard IP address "{text}" is invalid: use "{mapped or address}"']
    if address.version == 6 and str(address) != text:
        return [
            f'{path}: IPv6 address "{text}" should be in RFC 5952 canonical format ("{address}")'
        ]
    return []


def block_warnings(text: str, path: str) -> list[str]:
    """What is odd about how a block of addresses is written."""
    address, slash, length = text.partition("/")
    plain = f"{_plain(address)}{slash}{length}"
    try:
        face = ipaddress.ip_interface(plain)
    except ValueError:
        return []
    network = face.network
    found = []
    if face.ip != network.network_address:
        single = f"{face.ip}/{face.max_prefixlen}"
        found.append(
            f'{path}: CIDR value "{text}" is ambiguous in this context (should be "{network}" or'
            f' "{single}"?)'
        )
    if plain != text:
        found.append(f'{path}: non-standard CIDR value "{text}" is invalid: use "{network}"')
    if not found and network.version == 6 and str(network) != text:
        found.append(
            f'{path}: IPv6 CIDR value "{text}" should be in RFC 5952 canonical format ("{network}")'
        )
    return found


def _plain(text: str) -> str:
    """An IPv4 address without the zeros before its numbers, which other readers take for octal."""
    parts = text.split(".")
    if len(parts) != 4 or not all(part.isdigit() for part in parts):
        return text
    return ".".join(part.lstrip("0") or "0" for part in parts)


def volume_warnings(volume: Obj) -> list[str]:
    """What is odd about a PersistentVolume."""
    spec = volume.get("spec") or {}
    notes = volume["metadata"].get("annotations") or {}
    found = [f"metadata.annotations[{key}]: {OLD_NOTES[key]}" for key in OLD_NOTES if key in notes]
    if spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        found.append(
            "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead,"
            " the recommended approach is to use dynamic provisioning."
        )
    required = (spec.get("nodeAffinity") or {}).get("required") or {}
    for number, term in enumerate(required.get("nodeSelectorTerms") or ()):
        for index, one in enumerate(term.get("matchExpressions") or ()):
            key = one.get("key", "")
            if key in OLD_LABELS:
                at = f"spec.nodeAffinity.required.nodeSelectorTerms[{number}]"
                found.append(f"{at}.matchExpressions[{index}].key: {key} is {OLD_LABELS[key]}")
    for key, text in OLD_SOURCES.items():
        if spec.get(key) is not None:
            found.append(f"spec.{'storageOS' if key == 'storageos' else key}: {text}")
    return found


def claim_warnings(claim: Obj) -> list[str]:
    """What is odd about a PersistentVolumeClaim."""
    found = []
    if LEGACY_CLASS in (claim["metadata"].get("annotations") or {}):
        found.append(f"metadata.annotations[{LEGACY_CLASS}]: {OLD_NOTES[LEGACY_CLASS]}")
    resources = (claim.get("spec") or {}).get("resources") or {}
    for key in ("requests", "limits"):
        size = (resources.get(key) or {}).get("storage")
        if size is not None and quantity.parse(str(size)).value.denominator != 1:
            found.append(
                f'spec.resources.{key}[storage]: fractional byte value "{size}" is invalid, must be'
                " an integer"
            )
    return found


def class_warnings(storage_class: Obj) -> list[str]:
    """What is odd about a StorageClass."""
    return [
        f"allowedTopologies[{number}].matchLabelExpressions[{index}].key: {OLD_LABELS[one['key']]}"
        for number, topology in enumerate(storage_class.get("allowedTopologies") or ())
        for index, one in enumerate(topology.get("matchLabelExpressions") or ())
        if one.get("key") in OLD_LABELS
    ]


def format_warnings(definition: Obj, old: Obj | None) -> list[str]:
    """The formats of a definition that mean nothing, but for those it had before."""
    known = set(_strange(old)) if old is not None else set()
    return [
        f'unrecognized format "{one}"'
        for one in dict.fromkeys(_strange(definition))
        if one not in known
    ]


def _strange(definition: Obj) -> Iterator[str]:
    for version in (definition.get("spec") or {}).get("versions") or ():
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        for one in _schemas(schema):
            named = one.get("format") or ""
            kind = one.get("type", "")
            meant = named.replace("-", "") if kind in {"", "string"} else named
            if named and meant not in FORMATS.get(kind, frozenset()):
                yield named


def _schemas(schema: object) -> Iterator[Obj]:
    """A schema and all below it."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += reversed(one)
        if not isinstance(one, dict):
            continue
        yield one
        for key in reversed(BELOW_NAMED):
            waiting += reversed(list((one.get(key) or {}).values()))
        for key in reversed(BELOW_MANY + BELOW):
            waiting.append(one.get(key))
