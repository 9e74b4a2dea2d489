"""Volumes, claims and storage classes of a dump, so that data stays where it was.

A volume is imported with its size, its class and its node affinity, and its claim with the name of
the volume: each names the other, without the uids of the other cluster, and the binder here
completes both. So a pod that is scheduled again goes to the zone of its data. There is no data
behind such a volume: the CSI drivers of the other cluster do not exist here, and the simulated
driver replaces them.

A dump often has claims without their volumes. Where a pod of the dump uses such a claim, its volume
is invented in the zone of that pod's node; the data was in no other zone. A claim that no pod uses
is left unbound and gets a volume when one does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zonewise.api.objects.storage import is_default_class
from zonewise.embedded.components.volumes.provisioner import STANDARD
from zonewise.embedded.components.volumes.well_known import (
    DRIVER,
    EMBEDDED,
    NO_PROVISIONER,
    PROVISIONED_BY,
    WAIT_FOR_FIRST_CONSUMER,
)
from zonewise.topology.nodes import HOSTNAME_LABEL, ZONE_LABEL

Obj = dict[str, Any]
ClaimKey = tuple[str, str]
"""Namespace and name."""

CLAIM_SIZE = "1Gi"
ENDED_PHASES = frozenset({"Released", "Failed"})
NO_EXPANSION = "volumes cannot be expanded here"
UNBOUND = "its volume is not in the dump; it gets one when a pod uses it"
ADDED_CLASS = "is added here, not as the default class"
ADDED_DEFAULT = "is added here, as the default class"

_CLASS_FIELDS = ("allowedTopologies", "mountOptions")


def simulate_class(source: Obj) -> tuple[Obj, list[str]]:
    """The class with simulated volumes, and how it differs from the source.

    A class whose volumes are created manually stays so.
    """
    provisioner = source.get("provisioner") or EMBEDDED
    is_manual = provisioner == NO_PROVISIONER
    differences = []
    if provisioner not in (EMBEDDED, NO_PROVISIONER):
        differences.append(f"its volumes are simulated here, not made by {provisioner}")
    if source.get("allowVolumeExpansion"):
        differences.append(NO_EXPANSION)
    simulated: Obj = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": source["metadata"],
        "provisioner": NO_PROVISIONER if is_manual else EMBEDDED,
        "reclaimPolicy": source.get("reclaimPolicy") or "Delete",
        "volumeBindingMode": source.get("volumeBindingMode") or WAIT_FOR_FIRST_CONSUMER,
        **{name: source[name] for name in _CLASS_FIELDS if source.get(name)},
    }
    return simulated, differences


def describe_added_class(objects: Iterable[Obj]) -> str:
    """How the class of every embedded cluster is added to those of a dump; "" if it is not."""
    annotations = {
        obj["metadata"]["name"]: obj["metadata"].get("annotations") or {}
        for obj in objects
        if obj["kind"] == "StorageClass"
    }
    if not annotations or STANDARD in annotations:
        return ""
    return ADDED_CLASS if any(map(is_default_class, annotations.values())) else ADDED_DEFAULT


def simulate_volume(obj: Obj, phase: str, *, provisioned: bool) -> list[str]:
    """Change a volume in place to a simulated one; returns how it differs from the source.

    The uid of a deleted claim stays, so that the volume is not bound to a new claim of its name.
    """
    spec = obj["spec"]
    claim = spec.get("claimRef")
    if claim and phase not in ENDED_PHASES:
        spec["claimRef"] = _claim_reference(claim["namespace"], claim["name"])
    if provisioned:
        # Its provisioner does not exist here; the simulated one deletes it if its policy says so.
        obj["metadata"].setdefault("annotations", {})[PROVISIONED_BY] = EMBEDDED
    source = spec.get("csi")
    if not source or source["driver"] == DRIVER:
        return []
    handle = source.get("volumeHandle") or obj["metadata"]["name"]
    spec["csi"] = {"driver": DRIVER, "volumeHandle": handle}
    return [f"is simulated here, without the driver {source['driver']}"]


class DumpVolumes:
    """The claims of a dump, and on which nodes its pods use them."""

    def __init__(self, *, keep_placement: bool) -> None:
        self._keep_placement = keep_placement
        self._nodes: dict[str, Mapping[str, str]] = {}
        self._users: dict[ClaimKey, list[tuple[str, str]]] = {}
        self._ephemeral: list[Obj] = []

    def add_node(self, node: Obj) -> None:
        """A node of the dump."""
        self._nodes[node["metadata"]["name"]] = mapping_at(node, "metadata", "labels")

    def add_pod(self, pod: Obj) -> None:
        """A pod of the dump that has not ended."""
        spec, name = mapping_at(pod, "spec"), pod["metadata"]["name"]
        node = spec.get("nodeName")
        if not isinstance(node, str):
            return
        for volume in spec.get("volumes") or ():
            claim = mapping_at(volume, "persistentVolumeClaim").get("claimName")
            if mapping_at(volume, "ephemeral"):
                claim = f"{name}-{volume['name']}"
            if claim:
                key = _claim_key({**pod, "metadata": {**pod["metadata"], "name": claim}})
                self._users.setdefault(key, []).append((name, node))

    def add_ephemeral_claim(self, claim: Obj) -> None:
        """A claim that is created for its pod again."""
        self._ephemeral.append(claim)

    def volumes_of_new_pods(self, objects: Iterable[Obj]) -> list[Obj]:
        """Volumes of claims that are named after their pods, which get new names here."""
        if self._keep_placement:
            return []
        claims = set(map(_claim_key, self._ephemeral))
        return [
            o for o in objects if o["kind"] == "PersistentVolume" and _key_of_claim(o) in claims
        ]

    def invent_volumes(self, objects: Iterable[Obj]) -> tuple[list[Obj], list[Obj]]:
        """Invent volumes for bound claims without one; also returns claims that get none.

        The latter no longer name a volume.
        """
        volumes: set[str] = set()
        claims: list[Obj] = []
        for obj in objects:
            if obj["kind"] == "PersistentVolume":
                volumes.add(obj["metadata"]["name"])
            elif obj["kind"] == "PersistentVolumeClaim":
                claims.append(obj)
        invented: list[Obj] = []
        unbound: list[Obj] = []
        for claim in [*claims, *(self._ephemeral if self._keep_placement else ())]:
            spec = mapping_at(claim, "spec")
            name = spec.get("volumeName")
            if not isinstance(name, str) or not name or name in volumes:
                continue
            affinity = self._affinity(_claim_key(claim))
            if affinity is not None:
                invented.append(_invent_volume(claim, affinity))
            elif claim not in self._ephemeral:
                del spec["volumeName"]
                unbound.append(claim)
        return invented, unbound

    def _affinity(self, claim: ClaimKey) -> Obj | None:
        """The node affinity of a claim's volume: the zone of its pod, or the node without one."""
        for _, node in sorted(self._users.get(claim, ())):
            labels = self._nodes.get(node)
            if labels is None:
                continue
            key = ZONE_LABEL if labels.get(ZONE_LABEL) else HOSTNAME_LABEL
            requirement = {"key": key, "operator": "In", "values": [labels.get(key) or node]}
            return {"required": {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}}
        return None


def _invent_volume(claim: Obj, affinity: Obj) -> Obj:
    """Invent the volume that a claim names."""
    spec = claim["spec"]
    size = mapping_at(spec, "resources", "requests").get("storage", CLAIM_SIZE)
    name = spec["volumeName"]
    volume: Obj = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: EMBEDDED}},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": spec.get("accessModes") or ["ReadWriteOnce"],
            "claimRef": _claim_reference(*_claim_key(claim)),
            "csi": {"driver": DRIVER, "volumeHandle": name},
            "nodeAffinity": affinity,
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": spec.get("storageClassName") or "",
        },
    }
    if spec.get("volumeMode"):
        volume["spec"]["volumeMode"] = spec["volumeMode"]
    return volume


def mapping_at(obj: Obj, *path: str) -> Obj:
    """The mapping below a path, or an empty one."""
    value: Any = obj
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _claim_reference(namespace: str, name: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": namespace,
        "name": name,
    }


def _claim_key(obj: Obj) -> ClaimKey:
    meta = obj["metadata"]
    return str(meta.get("namespace") or "default"), str(meta["name"])


def _key_of_claim(volume: Obj) -> ClaimKey:
    claim = mapping_at(volume, "spec", "claimRef")
    return str(claim.get("namespace")), str(claim.get("name"))
