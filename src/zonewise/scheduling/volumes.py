"""What the volumes of a pod require of its node.

A bound claim restricts the pod to nodes from which its volume can be used. One of a
WaitForFirstConsumer class may be bound to any free volume that can be used from the node, or a
volume is provisioned there if its class can and its driver, if it reports capacity, has enough. One
that should be bound immediately and is not makes the pod wait, whatever the node.

The result is a plain value: pods whose volumes are in the same zone have equal requirements. Only
where a driver limits how many of its volumes a node can hold does it matter which volumes they are.
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
from zonewise.scheduling.terms import compile_selector
from zonewise.topology.nodes import REGION_LABEL, ZONE_LABEL

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
NO_PROVISIONER = ("", "kubernetes.io/no-provisioner")
ZONE_KEYS = (ZONE_LABEL, REGION_LABEL)

LimitedVolume = tuple[str, str]
"""A driver with a limit, and a volume's name, or its claim's namespace/name if it has none."""


@dataclass(frozen=True, slots=True)
class UnboundClaim:
    """A claim that waits for the pod's node; ``selected_node`` is from an earlier decision."""

    candidates: tuple[tuple[str, NodeTerms | None], ...] = ()
    """Volumes that match, the best first, and the nodes they can be used from."""
    can_provision: bool = False
    provisionable_on: NodeTerms | None = None
    """Whether a volume can be provisioned, and for which nodes."""
    capacity_selectors: tuple[Selector, ...] | None = None
    """Nodes for which enough storage is free; None if the driver does not report capacity."""
    selected_node: str = ""

    def choose_volume(self, labels: Mapping[str, str], name: str, taken: Iterable[str]) -> str:
        """The volume for the claim on a node; empty if one must be provisioned."""
        if not self.selected_node:
            for volume, terms in self.candidates:
                if volume not in taken and (terms is None or terms.matches(labels, name)):
                    return volume
        return ""

    def find_provisioning_refusal(self, labels: Mapping[str, str], name: str) -> NodeRefusal | None:
        """Why no volume can be provisioned for the claim on a node; None if it can."""
        if (
            not self.can_provision
            or self.selected_node not in ("", name)
            or not (self.provisionable_on is None or self.provisionable_on.matches(labels, name))
        ):
            return decision.NO_VOLUME_TO_BIND
        if self.capacity_selectors is not None and not any(
            capacity_selector.matches(labels) for capacity_selector in self.capacity_selectors
        ):
            return decision.NOT_ENOUGH_STORAGE
        return None


@dataclass(frozen=True, slots=True)
class VolumeRequirements:
    """What the volumes of a pod require of its node."""

    in_use: bool = False
    """Whether another pod uses a claim that only one pod may use."""
    bound: tuple[NodeTerms, ...] = ()
    unbound: tuple[UnboundClaim, ...] = ()
    zones: tuple[tuple[str, frozenset[str]], ...] = ()
    limited: frozenset[LimitedVolume] = frozenset()
    """The volumes of drivers that limit how many of them a node can hold."""

    def find_refusal(self, labels: Mapping[str, str], name: str) -> NodeRefusal | None:
        """Why a node does not meet the requirements; None if it does."""
        if self.in_use:
            return decision.CLAIM_IN_USE
        reasons: list[NodeRefusal] = []
        if not all(terms.matches(labels, name) for terms in self.bound):
            reasons.append(decision.VOLUME_AFFINITY_UNMET)
        assigned = self.assign(labels, name)
        if isinstance(assigned, NodeRefusal):
            reasons.append(assigned)
        if reasons:
            return decision.merge_refusals(reasons)
        if any(zone in labels for zone in ZONE_KEYS) and any(
            labels.get(key) not in values for key, values in self.zones
        ):
            return decision.VOLUME_ZONE_UNMET
        return None

    def assign(self, labels: Mapping[str, str], name: str) -> list[str] | NodeRefusal:
        """A volume for each unbound claim, "" if it must be provisioned; or why one gets none."""
        assigned: list[str] = []
        for claim in self.unbound:
            volume = claim.choose_volume(labels, name, assigned)
            if (
                not volume
                and (refusal := claim.find_provisioning_refusal(labels, name)) is not None
            ):
                return refusal
            assigned.append(volume)
        return assigned


NO_VOLUMES = VolumeRequirements()


class VolumeCache:
    """All claims, volumes, classes and drivers, and which pods use which claim."""

    def __init__(self) -> None:
        self._drivers: dict[str, CSIDriver] = {}
        self._capacities: dict[Key, CSIStorageCapacity] = {}
        self._limits: dict[str, dict[str, int]] = {}
        self._attachments: dict[str, dict[str, LimitedVolume]] = {}
        self._claims: dict[Key, PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._classes: dict[str, StorageClass] = {}
        self._pods_by_claim: dict[Key, set[Key]] = {}
        self._claims_by_reserved: dict[str, Key] = {}

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
            self._claims_by_reserved.pop(volume.metadata.name, None)

    def remove_volume(self, name: str) -> None:
        """A volume was deleted."""
        self._volumes.pop(name, None)
        self._claims_by_reserved.pop(name, None)

    def set_class(self, storage_class: StorageClass) -> None:
        """A class was added or changed."""
        self._classes[storage_class.metadata.name] = storage_class

    def remove_class(self, storage_class: StorageClass) -> None:
        """A class was deleted."""
        self._classes.pop(storage_class.metadata.name, None)

    def set_driver(self, driver: CSIDriver) -> None:
        """A driver was added or changed."""
        self._drivers[driver.metadata.name] = driver

    def remove_driver(self, driver: CSIDriver) -> None:
        """A driver was deleted."""
        self._drivers.pop(driver.metadata.name, None)

    def set_capacity(self, capacity: CSIStorageCapacity) -> None:
        """A driver reports its capacity in a domain."""
        self._capacities[capacity.key] = capacity

    def remove_capacity(self, capacity: CSIStorageCapacity) -> None:
        """A driver no longer reports its capacity in a domain."""
        self._capacities.pop(capacity.key, None)

    def set_limits(self, node: CSINode) -> None:
        """A node's drivers and how many volumes of each it can hold."""
        self._limits[node.metadata.name] = {
            driver.name: driver.allocatable.count
            for driver in node.spec.drivers or ()
            if driver.allocatable is not None and driver.allocatable.count is not None
        }

    def remove_limits(self, node: str) -> None:
        """A node no longer has drivers."""
        self._limits.pop(node, None)

    def set_attachment(self, attachment: VolumeAttachment) -> None:
        """A volume is attached to a node, or about to be."""
        spec = attachment.spec
        if spec.source.persistent_volume_name:
            attached = self._attachments.setdefault(spec.node_name, {})
            attached[attachment.metadata.name] = (spec.attacher, spec.source.persistent_volume_name)

    def remove_attachment(self, attachment: VolumeAttachment) -> None:
        """A volume is detached."""
        self._attachments.get(attachment.spec.node_name, {}).pop(attachment.metadata.name, None)

    def exceeds_limits(
        self, requested: frozenset[LimitedVolume], node: str, pods: Iterable[Pod]
    ) -> bool:
        """Whether volumes and those of the pods on a node exceed a driver's limit."""
        limits = self._limits.get(node)
        if not requested or not limits:
            return False
        used = {volume for pod in pods for volume in self._limited_volumes(pod)}
        new = Counter(driver for driver, _ in requested - used)
        current = {*self._attachments.get(node, {}).values()}
        attached = Counter(driver for driver, _ in used | current)
        return any(
            driver in limits and attached[driver] + count > limits[driver]
            for driver, count in new.items()
        )

    def _limited_volumes(self, pod: Pod) -> Iterator[LimitedVolume]:
        """The volumes of a pod that count against some node's limit."""
        limited = {driver for limits in self._limits.values() for driver in limits}
        if not limited:
            return
        for name, _ in _claim_names(pod):
            claim = self._claims.get((pod.metadata.namespace, name))
            if claim is None:
                continue
            volume = self._volumes.get(claim.spec.volume_name)
            if volume is not None:
                driver = volume.spec.csi.driver if volume.spec.csi is not None else ""
                identity = volume.metadata.name
            else:
                storage_class = self._classes.get(_class_name(claim))
                driver = storage_class.provisioner if storage_class is not None else ""
                identity = "/".join(claim.key)
            if driver in limited:
                yield driver, identity

    def add_pod(self, pod: Pod) -> None:
        """A pod on a node uses its claims."""
        for name, _ in _claim_names(pod):
            self._pods_by_claim.setdefault((pod.metadata.namespace, name), set()).add(pod.key)

    def remove_pod(self, pod: Pod) -> None:
        """A pod is no longer on its node."""
        for name, _ in _claim_names(pod):
            self._pods_by_claim.get((pod.metadata.namespace, name), set()).discard(pod.key)

    def reserve(self, volume: str, claim: Key) -> None:
        """Reserve a free volume for a claim until its claimRef is observed."""
        self._claims_by_reserved[volume] = claim

    def release(self, claim: Key) -> None:
        """Release the reservation of a claim."""
        for volume in [name for name, key in self._claims_by_reserved.items() if key == claim]:
            del self._claims_by_reserved[volume]

    def requirements_of(self, pod: Pod) -> VolumeRequirements | str:
        """The requirements of a pod's volumes, or why it has to wait, whatever the node."""
        names = list(_claim_names(pod))
        if not names:
            return NO_VOLUMES
        claims: list[PersistentVolumeClaim] = []
        for name, is_ephemeral in names:
            claim = self._claims.get((pod.metadata.namespace, name))
            problem = _find_claim_problem(pod, name, claim, is_ephemeral=is_ephemeral)
            if problem:
                return problem
            assert claim is not None
            claims.append(claim)
        bound = [claim for claim in claims if _is_bound(claim)]
        unbound = self.unbound_claims(pod)
        if not all(
            self._waits_for_consumer(claim) and not claim.spec.volume_name for claim in unbound
        ):
            return "pod has unbound immediate PersistentVolumeClaims"
        volumes = []
        for claim in bound:
            volume = self._volumes.get(claim.spec.volume_name)
            if volume is None:
                return f'persistentvolume "{claim.spec.volume_name}" not found'
            volumes.append(volume)
        return VolumeRequirements(
            in_use=any(self._is_in_use(pod, claim) for claim in claims),
            bound=tuple(terms for volume in volumes if (terms := usable_nodes(volume)) is not None),
            unbound=tuple(map(self._compile_unbound, unbound)),
            zones=tuple(zone for volume in volumes for zone in _zone_values(volume)),
            limited=frozenset(self._limited_volumes(pod)),
        )

    def unbound_claims(self, pod: Pod) -> list[PersistentVolumeClaim]:
        """The claims of a pod that are not bound yet, the smallest first."""
        namespace = pod.metadata.namespace
        claims = [self._claims.get((namespace, name)) for name, _ in _claim_names(pod)]
        unbound = [claim for claim in claims if claim is not None and not _is_bound(claim)]
        unbound.sort(key=lambda claim: (_size(claim.spec.resources.requests), claim.metadata.name))
        return unbound

    def _waits_for_consumer(self, claim: PersistentVolumeClaim) -> bool:
        storage_class = self._classes.get(_class_name(claim))
        mode = None if storage_class is None else storage_class.volume_binding_mode
        return mode == "WaitForFirstConsumer"

    def _is_in_use(self, pod: Pod, claim: PersistentVolumeClaim) -> bool:
        if "ReadWriteOncePod" not in claim.spec.access_modes:
            return False
        return bool(self._pods_by_claim.get(claim.key, set()) - {pod.key})

    def _compile_unbound(self, claim: PersistentVolumeClaim) -> UnboundClaim:
        storage_class = self._classes[_class_name(claim)]
        selected_node = claim.metadata.annotations.get(SELECTED_NODE, "")
        return UnboundClaim(
            candidates=() if selected_node else tuple(self._find_candidates(claim)),
            can_provision=storage_class.provisioner not in NO_PROVISIONER,
            provisionable_on=_allowed_nodes(storage_class),
            capacity_selectors=self._find_capacity(claim, storage_class),
            selected_node=selected_node,
        )

    def _find_capacity(
        self, claim: PersistentVolumeClaim, storage_class: StorageClass
    ) -> tuple[Selector, ...] | None:
        """Nodes for which a class has enough capacity, if its driver reports it."""
        driver = self._drivers.get(storage_class.provisioner)
        if (
            driver is None
            or not driver.spec.storage_capacity
            or "storage" not in claim.spec.resources.requests
        ):
            return None
        size = ceil(_size(claim.spec.resources.requests))
        return tuple(
            compile_selector(capacity.node_topology)
            for _, capacity in sorted(self._capacities.items())
            if capacity.storage_class_name == storage_class.metadata.name
            and capacity.node_topology is not None
            and _max_volume_size(capacity) >= size
        )

    def _find_candidates(
        self, claim: PersistentVolumeClaim
    ) -> Iterator[tuple[str, NodeTerms | None]]:
        """Volumes for a claim: those whose claimRef names it, else matches, the smallest first."""
        reserved_for_claim: list[PersistentVolume] = []
        matches: list[tuple[Fraction, str, PersistentVolume]] = []
        claim_selector = (
            None if claim.spec.selector is None else compile_selector(claim.spec.selector)
        )
        for name, volume in self._volumes.items():
            if (
                not _fits(volume, claim)
                or self._claims_by_reserved.get(name, claim.key) != claim.key
            ):
                continue
            if volume.spec.claim_ref is not None:
                if _is_for(volume, claim):
                    reserved_for_claim.append(volume)
            elif (
                volume.status.phase == "Available"
                and (claim_selector is None or claim_selector.matches(volume.metadata.labels))
                and volume.spec.storage_class_name == _class_name(claim)
                and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
            ):
                matches.append((_size(volume.spec.capacity), name, volume))
        for volume in reserved_for_claim or [
            volume for *_, volume in sorted(matches, key=lambda match: match[:2])
        ]:
            yield volume.metadata.name, usable_nodes(volume)


def _claim_names(pod: Pod) -> Iterator[tuple[str, bool]]:
    """The names of a pod's claims, and whether they are of ephemeral volumes."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name, False
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}", True


def _find_claim_problem(
    pod: Pod, name: str, claim: PersistentVolumeClaim | None, *, is_ephemeral: bool
) -> str:
    if claim is None:
        if is_ephemeral:
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
    if is_ephemeral and (owner is None or owner.uid != pod.metadata.uid):
        return (
            f"PVC {claim.metadata.namespace}/{name} was not created for pod"
            f" {pod.metadata.namespace}/{pod.metadata.name} (pod is not owner)"
        )
    return ""


def _is_bound(claim: PersistentVolumeClaim) -> bool:
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def _class_name(claim: PersistentVolumeClaim) -> str:
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


def _max_volume_size(capacity: CSIStorageCapacity) -> int:
    """The largest volume that can be provisioned; -1 if that is not known."""
    limit = capacity.maximum_volume_size
    if limit is None:
        limit = capacity.capacity
    return -1 if limit is None else ceil(quantity.value(limit))


def _size(resources: Mapping[str, str | int | float]) -> Fraction:
    return quantity.value(resources.get("storage", 0))


def usable_nodes(volume: PersistentVolume) -> NodeTerms | None:
    """The nodes a volume can be used from; None is all."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    return nodeselector.from_object(affinity.required)


def _zone_values(volume: PersistentVolume) -> Iterator[tuple[str, frozenset[str]]]:
    for key in ZONE_KEYS:
        if key in volume.metadata.labels:
            yield key, frozenset(volume.metadata.labels[key].split("__"))


def _allowed_nodes(storage_class: StorageClass) -> NodeTerms | None:
    """The nodes for which a class provisions volumes; None is all."""
    if not storage_class.allowed_topologies:
        return None
    return NodeTerms(
        tuple(
            NodeTerm(
                Selector(
                    Requirement(expression.key, Operator.IN, frozenset(expression.values or ()))
                    for expression in term.match_label_expressions
                )
            )
            for term in storage_class.allowed_topologies
        )
    )
