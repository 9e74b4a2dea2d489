"""What the volumes of a pod require of its node.

A claim that is bound ties the pod to where its volume can be used. One of a WaitForFirstConsumer
class may be bound to any volume that is free and can be used from the node, or gets one made there
if its class can and its driver, if it reports capacity, has enough. One that should be bound
immediately and is not keeps the pod waiting on every node.

What follows for nodes is a plain value: pods whose volumes are in the same zone require the same.
Only where a driver limits how many of its volumes a node can hold does it matter which volumes they
are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from zonewise.api.meta import Key
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from zonewise.api.values import nodeselector, quantity
from zonewise.api.values.nodeselector import NodeTerm, NodeTerms
from zonewise.api.values.selector import Operator, Requirement, Selector
from zonewise.scheduling import decision
from zonewise.scheduling.decision import NodeRefusal
from zonewise.scheduling.terms import understood
from zonewise.topology import REGION_LABEL, ZONE_LABEL

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
NO_PROVISIONER = ("", "kubernetes.io/no-provisioner")
ZONES = (ZONE_LABEL, REGION_LABEL)

Attached = tuple[str, str]
"""A driver and a volume of it: its name, or its claim's namespace/name before there is one."""


@dataclass(frozen=True, slots=True)
class Unbound:
    """A claim that waits for the pod's node; ``node`` is the one selected before."""

    free: tuple[tuple[str, NodeTerms | None], ...] = ()
    """Volumes that would do, the best first, and from where they can be used."""
    made: bool = False
    where: NodeTerms | None = None
    """Whether a volume can be made, and for which nodes."""
    room: tuple[Selector, ...] | None = None
    """The nodes that can reach enough free storage; None if the driver does not report it."""
    node: str = ""

    def volume(self, labels: Mapping[str, str], name: str, taken: Iterable[str]) -> str:
        """The volume that the claim gets on a node; empty if one must be made."""
        if not self.node:
            for volume, terms in self.free:
                if volume not in taken and (terms is None or terms.matches(labels, name)):
                    return volume
        return ""

    def unmakable(self, labels: Mapping[str, str], name: str) -> NodeRefusal | None:
        """Why no volume can be made for the claim on a node."""
        if (
            not self.made
            or self.node not in ("", name)
            or not (self.where is None or self.where.matches(labels, name))
        ):
            return decision.VOLUME_NONE
        if self.room is not None and not any(one.matches(labels) for one in self.room):
            return decision.VOLUME_TOO_BIG
        return None


@dataclass(frozen=True, slots=True)
class Volumes:
    """Conditions on the node."""

    in_use: bool = False
    """Whether another pod has a claim that only one pod may use."""
    bound: tuple[NodeTerms, ...] = ()
    unbound: tuple[Unbound, ...] = ()
    zones: tuple[tuple[str, frozenset[str]], ...] = ()
    attached: frozenset[Attached] = frozenset()
    """The volumes of drivers that limit how many of them a node can hold."""

    def refused_by(self, labels: Mapping[str, str], name: str) -> NodeRefusal | None:
        """Why a node of this name with these labels cannot have the volumes."""
        if self.in_use:
            return decision.CLAIM_IN_USE
        reasons: list[NodeRefusal] = []
        if not all(terms.matches(labels, name) for terms in self.bound):
            reasons.append(decision.VOLUME_ELSEWHERE)
        taken = self.taken(labels, name)
        if isinstance(taken, NodeRefusal):
            reasons.append(taken)
        if reasons:
            return decision.together(reasons)
        if any(zone in labels for zone in ZONES) and any(
            labels.get(key) not in values for key, values in self.zones
        ):
            return decision.VOLUME_ZONE
        return None

    def taken(self, labels: Mapping[str, str], name: str) -> list[str] | NodeRefusal:
        """The volume of each claim that waits, "" if it must be made; or why one gets none."""
        found: list[str] = []
        for one in self.unbound:
            volume = one.volume(labels, name, found)
            if not volume and (refusal := one.unmakable(labels, name)) is not None:
                return refusal
            found.append(volume)
        return found


NO_VOLUMES = Volumes()


class VolumeCache:
    """All claims, volumes, classes and drivers, and which pods use which claim."""

    def __init__(self) -> None:
        self._drivers: dict[str, CSIDriver] = {}
        self._capacities: dict[Key, CSIStorageCapacity] = {}
        self._limits: dict[str, dict[str, int]] = {}
        self._attachments: dict[str, dict[str, Attached]] = {}
        self._claims: dict[Key, PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._classes: dict[str, StorageClass] = {}
        self._users: dict[Key, set[Key]] = {}
        self._reserved: dict[str, Key] = {}

    def set_claim(self, claim: PersistentVolumeClaim) -> None:
        """A claim was added or changed."""
        self._claims[claim.key] = claim

    def remove_claim(self, key: Key) -> None:
        """A claim was deleted."""
        self._claims.pop(key, None)
        self.release(key)

    def set_volume(self, volume: PersistentVolume) -> None:
        """A volume was added or changed; one with a claim needs no reservation."""
        self._volumes[volume.metadata.name] = volume
        if volume.spec.claim_ref is not None:
            self._reserved.pop(volume.metadata.name, None)

    def remove_volume(self, name: str) -> None:
        """A volume was deleted."""
        self._volumes.pop(name, None)
        self._reserved.pop(name, None)

    def set_class(self, item: StorageClass) -> None:
        """A class was added or changed."""
        self._classes[item.metadata.name] = item

    def remove_class(self, name: str) -> None:
        """A class was deleted."""
        self._classes.pop(name, None)

    def set_driver(self, driver: CSIDriver) -> None:
        """A driver was added or changed."""
        self._drivers[driver.metadata.name] = driver

    def remove_driver(self, name: str) -> None:
        """A driver was deleted."""
        self._drivers.pop(name, None)

    def set_capacity(self, capacity: CSIStorageCapacity) -> None:
        """A driver reports its capacity in a domain."""
        self._capacities[capacity.key] = capacity

    def remove_capacity(self, key: Key) -> None:
        """A driver no longer reports its capacity in a domain."""
        self._capacities.pop(key, None)

    def set_limits(self, node: CSINode) -> None:
        """A node's drivers and how many volumes of each it can hold."""
        self._limits[node.metadata.name] = {
            driver.name: driver.allocatable.count
            for driver in node.spec.drivers or ()
            if driver.allocatable is not None and driver.allocatable.count is not None
        }

    def remove_limits(self, node: str) -> None:
        """A node has no drivers any more."""
        self._limits.pop(node, None)

    def set_attachment(self, item: VolumeAttachment) -> None:
        """A volume is attached to a node, or about to be."""
        spec = item.spec
        if spec.source.persistent_volume_name:
            there = self._attachments.setdefault(spec.node_name, {})
            there[item.metadata.name] = (spec.attacher, spec.source.persistent_volume_name)

    def remove_attachment(self, item: VolumeAttachment) -> None:
        """A volume is detached."""
        self._attachments.get(item.spec.node_name, {}).pop(item.metadata.name, None)

    def exceeded(self, wanted: frozenset[Attached], node: str, pods: Iterable[Pod]) -> bool:
        """Whether a node, with these pods on it, cannot hold further volumes."""
        limits = self._limits.get(node)
        if not wanted or not limits:
            return False
        used = {one for pod in pods for one in self._attached(pod)}
        new = Counter(driver for driver, _ in wanted - used)
        there = Counter(driver for driver, _ in used | {*self._attachments.get(node, {}).values()})
        return any(
            driver in limits and there[driver] + count > limits[driver]
            for driver, count in new.items()
        )

    def _attached(self, pod: Pod) -> Iterator[Attached]:
        """The volumes of a pod that count against some node's limit."""
        limited = {driver for limits in self._limits.values() for driver in limits}
        if not limited:
            return
        for name, _ in _claims(pod):
            claim = self._claims.get((pod.metadata.namespace, name))
            if claim is None:
                continue
            volume = self._volumes.get(claim.spec.volume_name)
            if volume is not None:
                driver = volume.spec.csi.driver if volume.spec.csi is not None else ""
                identity = volume.metadata.name
            else:
                made_by = self._classes.get(_class(claim))
                driver = made_by.provisioner if made_by is not None else ""
                identity = "/".join(claim.key)
            if driver in limited:
                yield driver, identity

    def use(self, pod: Pod) -> None:
        """A pod on a node uses its claims."""
        for name, _ in _claims(pod):
            self._users.setdefault((pod.metadata.namespace, name), set()).add(pod.key)

    def unuse(self, pod: Pod) -> None:
        """A pod is no longer on its node."""
        for name, _ in _claims(pod):
            self._users.get((pod.metadata.namespace, name), set()).discard(pod.key)

    def reserve(self, volume: str, claim: Key) -> None:
        """Keep a free volume for a claim until the cluster shows that it is the claim's."""
        self._reserved[volume] = claim

    def release(self, claim: Key) -> None:
        """A claim needs no reservation."""
        for volume in [name for name, key in self._reserved.items() if key == claim]:
            del self._reserved[volume]

    def asked(self, pod: Pod) -> Volumes | str:
        """What the volumes of a pod require of its node, or why it has to wait for them anyway."""
        names = list(_claims(pod))
        if not names:
            return NO_VOLUMES
        claims: list[PersistentVolumeClaim] = []
        for name, own in names:
            claim = self._claims.get((pod.metadata.namespace, name))
            said = _unusable(pod, name, claim, own=own)
            if said:
                return said
            assert claim is not None
            claims.append(claim)
        bound = [claim for claim in claims if _bound(claim)]
        waiting = self.waiting(pod)
        if not all(self._waits(claim) and not claim.spec.volume_name for claim in waiting):
            return "pod has unbound immediate PersistentVolumeClaims"
        volumes = []
        for claim in bound:
            volume = self._volumes.get(claim.spec.volume_name)
            if volume is None:
                return f'persistentvolume "{claim.spec.volume_name}" not found'
            volumes.append(volume)
        return Volumes(
            in_use=any(self._taken(pod, claim) for claim in claims),
            bound=tuple(terms for volume in volumes if (terms := reach(volume)) is not None),
            unbound=tuple(map(self._unbound, waiting)),
            zones=tuple(zone for volume in volumes for zone in _zones(volume)),
            attached=frozenset(self._attached(pod)),
        )

    def waiting(self, pod: Pod) -> list[PersistentVolumeClaim]:
        """The claims of a pod that are not bound yet, the smallest first."""
        namespace = pod.metadata.namespace
        claims = [self._claims.get((namespace, name)) for name, _ in _claims(pod)]
        waiting = [claim for claim in claims if claim is not None and not _bound(claim)]
        waiting.sort(key=lambda claim: (_size(claim.spec.resources.requests), claim.metadata.name))
        return waiting

    def _waits(self, claim: PersistentVolumeClaim) -> bool:
        item = self._classes.get(_class(claim))
        return item is not None and item.volume_binding_mode == "WaitForFirstConsumer"

    def _taken(self, pod: Pod, claim: PersistentVolumeClaim) -> bool:
        if "ReadWriteOncePod" not in claim.spec.access_modes:
            return False
        return bool(self._users.get(claim.key, set()) - {pod.key})

    def _unbound(self, claim: PersistentVolumeClaim) -> Unbound:
        item = self._classes[_class(claim)]
        node = claim.metadata.annotations.get(SELECTED_NODE, "")
        return Unbound(
            free=() if node else tuple(self._free(claim)),
            made=item.provisioner not in NO_PROVISIONER,
            where=_allowed(item),
            room=self._room(claim, item),
            node=node,
        )

    def _room(
        self, claim: PersistentVolumeClaim, made_by: StorageClass
    ) -> tuple[Selector, ...] | None:
        """Where a class has room for a claim, if its driver reports it."""
        driver = self._drivers.get(made_by.provisioner)
        if (
            driver is None
            or not driver.spec.storage_capacity
            or "storage" not in claim.spec.resources.requests
        ):
            return None
        size = ceil(_size(claim.spec.resources.requests))
        return tuple(
            understood(capacity.node_topology)
            for _, capacity in sorted(self._capacities.items())
            if capacity.storage_class_name == made_by.metadata.name
            and capacity.node_topology is not None
            and _limit(capacity) >= size
        )

    def _free(self, claim: PersistentVolumeClaim) -> Iterator[tuple[str, NodeTerms | None]]:
        """Volumes for a claim: the one that is meant for it, else the smallest first."""
        own: list[PersistentVolume] = []
        fitting: list[tuple[Fraction, str, PersistentVolume]] = []
        selects = None if claim.spec.selector is None else understood(claim.spec.selector)
        for name, volume in self._volumes.items():
            if not _fits(volume, claim) or self._reserved.get(name, claim.key) != claim.key:
                continue
            if volume.spec.claim_ref is not None:
                if _is_for(volume, claim):
                    own.append(volume)
            elif (
                volume.status.phase == "Available"
                and (selects is None or selects.matches(volume.metadata.labels))
                and volume.spec.storage_class_name == _class(claim)
                and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
            ):
                fitting.append((_size(volume.spec.capacity), name, volume))
        for volume in own or [volume for *_, volume in sorted(fitting, key=lambda one: one[:2])]:
            yield volume.metadata.name, reach(volume)


def _claims(pod: Pod) -> Iterator[tuple[str, bool]]:
    """The names of a pod's claims, and whether they are made with the pod."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


def _unusable(pod: Pod, name: str, claim: PersistentVolumeClaim | None, *, own: bool) -> str:
    if claim is None:
        if own:
            return (
                "waiting for ephemeral volume controller to create the persistentvolumeclaim"
                f' "{name}"'
            )
        return f'persistentvolumeclaim "{name}" not found'
    if claim.status.phase == "Lost":
        return (
            f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume'
            f' "{claim.spec.volume_name}"'
        )
    if claim.metadata.deletion_timestamp is not None:
        return f'persistentvolumeclaim "{name}" is being deleted'
    owner = claim.metadata.controller
    if own and (owner is None or owner.uid != pod.metadata.uid):
        return (
            f"PVC {claim.metadata.namespace}/{name} was not created for pod"
            f" {pod.metadata.namespace}/{pod.metadata.name} (pod is not owner)"
        )
    return ""


def _bound(claim: PersistentVolumeClaim) -> bool:
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def _class(claim: PersistentVolumeClaim) -> str:
    return claim.storage_class or ""


def _fits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    return (
        volume.metadata.deletion_timestamp is None
        and _size(volume.spec.capacity) >= _size(claim.spec.resources.requests)
        and (volume.spec.volume_mode or "Filesystem") == (claim.spec.volume_mode or "Filesystem")
        and (volume.spec.volume_attributes_class_name or "")
        == (claim.spec.volume_attributes_class_name or "")
    )


def _is_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    ref = volume.spec.claim_ref
    return (
        ref is not None
        and (ref.namespace, ref.name) == claim.key
        and ref.uid in ("", claim.metadata.uid)
    )


def _limit(capacity: CSIStorageCapacity) -> int:
    """How large a volume can be; -1 if nothing is known."""
    limit = capacity.maximum_volume_size
    if limit is None:
        limit = capacity.capacity
    return -1 if limit is None else ceil(quantity.value(limit))


def _size(resources: Mapping[str, str | int | float]) -> Fraction:
    return quantity.value(resources.get("storage", 0))


def reach(volume: PersistentVolume) -> NodeTerms | None:
    """From where a volume can be used; None is everywhere."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    return nodeselector.from_object(affinity.required)


def _zones(volume: PersistentVolume) -> Iterator[tuple[str, frozenset[str]]]:
    for key in ZONES:
        if key in volume.metadata.labels:
            yield key, frozenset(volume.metadata.labels[key].split("__"))


def _allowed(item: StorageClass) -> NodeTerms | None:
    """For which nodes a class makes volumes; None is all."""
    if not item.allowed_topologies:
        return None
    return NodeTerms(
        tuple(
            NodeTerm(
                Selector(
                    Requirement(one.key, Operator.IN, frozenset(one.values or ()))
                    for one in term.match_label_expressions
                )
            )
            for term in item.allowed_topologies
        )
    )
