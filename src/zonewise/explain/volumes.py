"""Why a volume is where it is, or why a claim has none: pool, domain, what was tried, what helps.

A bound volume names its pool and from where it can be used. To find the reason, the driver's
decision is repeated: the requirement that the claim gives now, over the pools of the configuration,
with the volume's own bytes counted as free. For a waiting claim the same is done, or the report
says what is missing: a class, a pod, a node.

Promised bytes are counted from the PersistentVolumes; VolumeSnapshots are not read, so a pool may
in fact be fuller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from msgspec import structs

from zonewise.api.errors import ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.storage import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TypedReference,
)
from zonewise.api.reason import Reason
from zonewise.api.values import quantity
from zonewise.explain.volume_report import VolumeReport, read_access, select_takeover
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels, short_name
from zonewise.storage.errors import StorageError
from zonewise.storage.labelled_pools.selection import POOL_LABELS
from zonewise.storage.missing_pools import NO_POOL, find_missing_pool
from zonewise.storage.parameters import (
    RBD_KEYS,
    ClassParameters,
    PlacementPolicy,
    parse_placeable_class,
)
from zonewise.storage.placement import Placement, PlacementRequest, PlacementSource, place_volume
from zonewise.storage.placement_reasons import MENTION_LIMIT
from zonewise.storage.pools import existing_pools
from zonewise.storage.provisioning import accessibility_requirement, node_domains

SELECTED_NODE = "volume.kubernetes.io/selected-node"
PREFIX = "csi.storage.k8s.io/"
WAIT = "WaitForFirstConsumer"
LOST = "Lost"
"""The phase of a claim whose volume was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCluster:
    """The objects that reports are made from; ``events`` are notes by their claim."""

    claims: Mapping[Key, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, PersistentVolume] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    csi_nodes: tuple[CSINode, ...] = ()
    pods: tuple[Pod, ...] = ()
    events: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)
    configuration: StorageConfiguration | None = None
    """The pools of the driver, if it is known."""
    takeover: tuple[Reason, ...] = ()
    """Why a takeover waits, as the controller reported it."""


def explain_claim(cluster: VolumeCluster, claim: PersistentVolumeClaim) -> VolumeReport:
    """Why a claim has its volume, or none."""
    return _report(cluster, claim, cluster.volumes.get(claim.spec.volume_name))


def explain_volume(cluster: VolumeCluster, volume: PersistentVolume) -> VolumeReport:
    """Why a volume is where it is."""
    ref = volume.spec.claim_ref
    claim = cluster.claims.get((ref.namespace, ref.name)) if ref is not None else None
    if claim is not None and ref is not None and ref.uid not in ("", claim.metadata.uid):
        claim = None
    return _report(cluster, claim, volume)


def _report(
    cluster: VolumeCluster, claim: PersistentVolumeClaim | None, volume: PersistentVolume | None
) -> VolumeReport:
    name = _class_name_of(claim, volume)
    storage_class = cluster.classes.get(name)
    source = volume.spec.csi if volume is not None else None
    provisioner = storage_class.provisioner if storage_class is not None else ""
    phase = claim.status.phase if claim is not None else volume.status.phase if volume else ""
    draft = VolumeReport(
        claim=claim.metadata.name if claim is not None else "",
        namespace=claim.metadata.namespace if claim is not None else "",
        volume=volume.metadata.name if volume is not None else "",
        storage_class=name,
        driver=source.driver if source is not None else provisioner,
        phase=phase or "Pending",
        pool=_pool_of(volume),
        access=read_access(volume, cluster.nodes.values()),
        node=claim.metadata.annotations.get(SELECTED_NODE, "") if claim is not None else "",
        reason=Reason(code="Unknown", message="nothing is known about it"),
        events=cluster.events.get(claim.key, ()) if claim is not None else (),
    )
    if volume is not None:
        draft = replace(draft, takeover=select_takeover(cluster.takeover, draft.access))
        return _report_volume(cluster, draft, claim, volume, storage_class)
    assert claim is not None
    return _report_waiting(cluster, draft, claim, storage_class)


def _report_volume(
    cluster: VolumeCluster,
    draft: VolumeReport,
    claim: PersistentVolumeClaim | None,
    volume: PersistentVolume,
    storage_class: StorageClass | None,
) -> VolumeReport:
    domains = draft.access.text()
    if not draft.pool:
        text = f"volume {draft.volume} does not name a pool; it can be used from {domains}"
        return replace(draft, reason=Reason(code="NoPool", message=text))
    text = f"volume {draft.volume} is in pool {draft.pool} and can be used from {domains}"
    placed = replace(draft, reason=Reason(code="Placed", message=text))
    if claim is None or storage_class is None:
        return placed
    missing = _find_missing_pool(cluster, claim, storage_class)
    if (source := _source_of(claim)) is not None:
        why = f"{text}: it is a copy of {source.kind} {source.name}, and a copy stays in the domain"
        why += " of its source unless its class says crossDomain: copy; then its pod's comes first"
        why += f"; {missing.message}" if missing is not None else ""
        fix = missing.fix if missing is not None else ""
        return replace(draft, reason=Reason(code="Copied", message=why, fix=fix))
    placement = _decide_again(cluster, claim, storage_class, without=volume.metadata.name)
    if isinstance(placement, Reason):
        if missing is None:
            return placed
        message = f"{text}: {missing.message}"
        return replace(draft, reason=structs.replace(missing, message=message))
    if placement.pool is not None and placement.pool.name == draft.pool:
        why = f"{text}: {placement.reason.message}"
        reason = Reason(code=placement.reason.code, message=why, fix=placement.reason.fix)
    else:
        pool = f"pool {placement.pool.name}" if placement.pool is not None else "no pool"
        why = f"{text}; today it would get {pool}, as pools and nodes have changed since"
        reason = Reason(code="PlacedBefore", message=why)
        if missing is not None:
            # Which pool balancing takes changes with every volume; why it is balanced does not.
            why = f"{text}: {missing.message}; today it would get {pool}"
            reason = structs.replace(missing, message=why)
    return replace(draft, reason=reason, tried=placement.tried)


def _report_waiting(
    cluster: VolumeCluster,
    draft: VolumeReport,
    claim: PersistentVolumeClaim,
    storage_class: StorageClass | None,
) -> VolumeReport:
    obstacle = _find_obstacle(cluster, draft, claim, storage_class)
    if obstacle is not None:
        return replace(draft, reason=obstacle)
    assert storage_class is not None
    placement = _decide_again(cluster, claim, storage_class)
    if isinstance(placement, Reason):
        if placement.code == NO_POOL:
            message = f"claim {draft.claim} has no volume yet; {placement.message}"
            placement = structs.replace(placement, message=message)
        return replace(draft, reason=placement)
    if placement.refusal is not None:
        why = placement.refusal.reason
        text = f"claim {draft.claim} has no volume: {why.message}"
        reason = Reason(code=why.code, message=text, numbers=why.numbers, fix=why.fix)
        return replace(draft, reason=reason, tried=placement.tried)
    assert placement.pool is not None
    text = (
        f"claim {draft.claim} has no volume yet; the driver would take pool {placement.pool.name}:"
        f" {placement.reason.message}"
    )
    fix = "Check that the driver and its provisioner run, and read their latest events."
    reason = Reason(code="NotYetMade", message=text, fix=fix)
    return replace(draft, reason=reason, tried=placement.tried)


def _find_obstacle(
    cluster: VolumeCluster,
    draft: VolumeReport,
    claim: PersistentVolumeClaim,
    storage_class: StorageClass | None,
) -> Reason | None:
    """What must happen before a driver is called at all."""
    name = f"claim {draft.claim}"
    if claim.spec.volume_name:
        return Reason(
            code="VolumeMissing",
            message=f"{name} names volume {claim.spec.volume_name}, which does not exist",
            fix="Restore the volume, or create the claim again: its data is lost."
            if cluster.volumes or draft.phase == LOST
            else "Give the PersistentVolumes too, if there are any: no volume is known here.",
        )
    if storage_class is None:
        what = f"names class {draft.storage_class}, which does not exist"
        if not draft.storage_class:
            what = "names no class, and there is no default class"
        return Reason(
            code="ClassMissing",
            message=f"{name} {what}",
            fix="Create the StorageClass, or create the claim again with an existing class.",
        )
    if (fault := _find_class_fault(cluster, storage_class)) is not None:
        return fault
    if storage_class.volume_binding_mode != WAIT or draft.node:
        return None
    users = [
        pod
        for pod in cluster.pods
        if pod.metadata.namespace == claim.metadata.namespace and draft.claim in _claims_of(pod)
    ]
    if not users:
        return Reason(
            code="WaitsForPod",
            message=f"{name} waits for its first pod: class {draft.storage_class} makes volumes"
            " where the pod goes",
            fix="Start a pod that uses the claim.",
        )
    unscheduled = (
        f": {condition.message.removesuffix('.')}"
        for pod in users
        for condition in pod.status.conditions
        if condition.type == "PodScheduled" and condition.status == "False" and condition.message
    )
    pod = users[0].metadata.name
    missing = _list_domains_to_avoid(cluster, storage_class)
    fixes = ["Make room for the pod, or free storage where it may run.", *(r.fix for r in missing)]
    return Reason(
        code="WaitsForNode",
        message=f"{name} waits until a node is chosen for pod {pod}"
        + next(unscheduled, "")
        + "".join(f"; {reason.message}" for reason in missing),
        fix=" ".join(dict.fromkeys(fixes)),
    )


def _find_class_fault(cluster: VolumeCluster, storage_class: StorageClass) -> Reason | None:
    """Why no driver of ours can make a volume of a class: without that no pod or node helps."""
    configuration = cluster.configuration
    labels = _domain_labels_of(cluster, storage_class.provisioner)
    # Until a node has the driver, its labels and those of the pools cannot be compared.
    if configuration is None or not labels.labels or _asks_ceph(configuration, storage_class):
        return None
    try:
        _parse_class(configuration, storage_class, labels)
    except StorageError as error:
        return _explain_class_fault(storage_class, error)
    return None


def _asks_ceph(configuration: StorageConfiguration, storage_class: StorageClass) -> bool:
    """Whether a class takes pools by labels that only Ceph knows."""
    return POOL_LABELS in storage_class.parameters and bool(configuration.clusters)


def _parse_class(
    configuration: StorageConfiguration, storage_class: StorageClass, labels: DomainLabels
) -> ClassParameters:
    given = storage_class.parameters
    own = {key: given[key] for key in given if not key.startswith(PREFIX)}
    keys = RBD_KEYS if configuration.clusters else frozenset[str]()
    return parse_placeable_class(own, labels, configuration, backend_keys=keys)


def _explain_class_fault(storage_class: StorageClass, error: StorageError) -> Reason:
    text = f"class {storage_class.metadata.name} cannot be used: {error.reason.message}"
    return Reason(code=error.reason.code, message=text, fix=error.reason.fix)


def _list_domains_to_avoid(cluster: VolumeCluster, storage_class: StorageClass) -> list[Reason]:
    """Domains of nodes where a class that says ``placement: preferred`` has no pool."""
    given = storage_class.parameters
    if cluster.configuration is None or given.get("placement") != PlacementPolicy.PREFERRED.value:
        return []
    labels = _domain_labels_of(cluster, storage_class.provisioner)
    node_labels = {name: node.metadata.labels for name, node in cluster.nodes.items()}
    domains = node_domains(storage_class.provisioner, node_labels, cluster.csi_nodes)
    reasons = (
        find_missing_pool(
            storage_class.metadata.name,
            given,
            labels.segments_of(domain),
            labels,
            cluster.configuration,
            {} if cluster.configuration.clusters else None,
        )
        for domain in domains
    )
    return [reason for reason in reasons if reason is not None][:MENTION_LIMIT]


def _decide_again(
    cluster: VolumeCluster,
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    *,
    without: str = "",
) -> Placement | Reason:
    """The driver's decision, repeated; or why it cannot be."""
    configuration = cluster.configuration
    if configuration is None:
        return Reason(
            code="PoolsUnknown",
            message=f"claim {claim.metadata.name} is left to driver {storage_class.provisioner},"
            " whose pools are not known here",
            fix="Give the ConfigMap zonewise-system/csi too, if the driver is Zonewise's.",
        )
    origin = None
    if (source := _source_of(claim)) is not None:
        origin = _locate_source(cluster, configuration, claim.metadata.namespace, source)
        if origin is None:
            return Reason(
                code="SourceUnknown",
                message=f"claim {claim.metadata.name} has no volume: it is a copy of {source.kind}"
                f" {source.name}, whose pool is not known here, and stays in that pool's domain",
                fix="Read the latest events of the provisioner.",
            )
    labels = _domain_labels_of(cluster, storage_class.provisioner)
    try:
        requirement = accessibility_requirement(
            claim.metadata.name,
            storage_class.provisioner,
            {name: node.metadata.labels for name, node in cluster.nodes.items()},
            cluster.csi_nodes,
            selected_node=claim.metadata.annotations.get(SELECTED_NODE, ""),
            allowed=storage_class.allowed_topologies,
            # As the provisioner is set by ``zonewise up`` and ``zonewise install --csi``.
            immediate=False,
        )
        if _asks_ceph(configuration, storage_class):
            return _leave_to_ceph(cluster, claim, storage_class)
        parameters = _parse_class(configuration, storage_class, labels)
    except StorageError as error:
        return _explain_class_fault(storage_class, error)
    except ZonewiseError as error:
        return Reason(code="BadClass", message=str(error))
    pools = existing_pools(parameters.pools, configuration.pool_states)
    if configuration.clusters and not pools:
        return _leave_to_ceph(cluster, claim, storage_class)
    default = existing_pools(
        [parameters.default_pool] if parameters.default_pool else [], configuration.pool_states
    )
    request = PlacementRequest(
        required_bytes=_bytes_of(claim.spec.resources.requests),
        requirement=requirement,
        policy=parameters.placement,
        default_pool=default[0] if default else None,
        source=origin,
        cross_domain=parameters.cross_domain,
        seed=f"pvc-{claim.metadata.uid}",
        class_name=storage_class.metadata.name,
    )
    promised = _sum_promised(cluster, without)
    used = [
        replace(pool, state=replace(pool.state, promised=promised.get(pool.name, 0)))
        for pool in pools
    ]
    return place_volume(request, used, labels)


def _find_missing_pool(
    cluster: VolumeCluster, claim: PersistentVolumeClaim, storage_class: StorageClass
) -> Reason | None:
    """That a class has no pool where the claim's pod is; the state of Ceph's pools is not asked."""
    node = cluster.nodes.get(claim.metadata.annotations.get(SELECTED_NODE, ""))
    if node is None or cluster.configuration is None:
        return None
    labels = _domain_labels_of(cluster, storage_class.provisioner)
    return find_missing_pool(
        storage_class.metadata.name,
        storage_class.parameters,
        labels.segments_of(node.metadata.labels),
        labels,
        cluster.configuration,
        {} if cluster.configuration.clusters else None,
    )


def _leave_to_ceph(
    cluster: VolumeCluster,
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
) -> Reason:
    """What can be said of a class whose pools only Ceph knows: whether its list lacks a domain."""
    missing = _find_missing_pool(cluster, claim, storage_class)
    if missing is not None:
        return missing
    name, given = storage_class.metadata.name, storage_class.parameters
    what, command = "the state of its pools is in Ceph", "'ceph df'"
    if POOL_LABELS in given:
        what = f"class {name} takes pools by their own labels, which are in Ceph"
        command = "'ceph osd pool application get POOL'"
    return Reason(
        code="PoolsUnknown",
        message=f"claim {claim.metadata.name} is left to driver {storage_class.provisioner}: {what}"
        " and not known here",
        fix=f"See {command}; the driver's log says which pool it took, and why.",
    )


def _source_of(claim: PersistentVolumeClaim) -> TypedReference | None:
    """What a claim is a copy of."""
    return claim.spec.data_source_ref or claim.spec.data_source


def _locate_source(
    cluster: VolumeCluster,
    configuration: StorageConfiguration,
    namespace: str,
    source: TypedReference,
) -> PlacementSource | None:
    """The pool of a claim that is copied; None if it is not known, as that of a snapshot is not."""
    claim = cluster.claims.get((namespace, source.name))
    if source.kind != "PersistentVolumeClaim" or claim is None:
        return None
    pool = configuration.find_pool(_pool_of(cluster.volumes.get(claim.spec.volume_name)))
    return PlacementSource(pool.name, pool.segments) if pool is not None else None


def _pool_of(volume: PersistentVolume | None) -> str:
    """The pool that a volume names; "" if it names none."""
    source = volume.spec.csi if volume is not None else None
    return source.volume_attributes.get("pool", "") if source is not None else ""


def _sum_promised(cluster: VolumeCluster, without: str) -> dict[str, int]:
    """Bytes of volumes by their pool."""
    promised: dict[str, int] = {}
    for volume in cluster.volumes.values():
        if (pool := _pool_of(volume)) and volume.metadata.name != without:
            promised[pool] = promised.get(pool, 0) + _bytes_of(volume.spec.capacity)
    return promised


def _domain_labels_of(cluster: VolumeCluster, driver: str) -> DomainLabels:
    """The domain labels of a driver, as its nodes report them."""
    names = {
        short_name(key)
        for node in cluster.csi_nodes
        for reported in node.spec.drivers or ()
        if reported.name == driver
        for key in reported.topology_keys or ()
    }
    return DomainLabels(driver, tuple(sorted(names)))


def _class_name_of(claim: PersistentVolumeClaim | None, volume: PersistentVolume | None) -> str:
    if claim is not None and claim.storage_class is not None:
        return claim.storage_class
    return volume.spec.storage_class_name if volume is not None else ""


def _claims_of(pod: Pod) -> set[str]:
    names = set()
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            names.add(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            names.add(f"{pod.metadata.name}-{volume.name}")
    return names


def _bytes_of(resources: Mapping[str, str | int | float]) -> int:
    return ceil(quantity.value(resources.get("storage", 0)))
