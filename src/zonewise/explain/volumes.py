"""Why a volume is where it is, or why a claim has none: pool, domain, what was tried, what helps.

A bound volume says itself which pool it is in and from where it can be used. The reason follows by
making the driver's decision once more: the requirement that the claim gives now, over the pools of
the configuration, with the volume's own bytes free again. For a claim that waits the same is done,
or the report says what must come first: a class, a pod, a node.

Bytes that are promised are counted from the volumes of the snapshot; snapshots of volumes are not
in it, so a pool may in fact be fuller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

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
from zonewise.explain.columns import table
from zonewise.explain.volume_places import VolumePlaces, volume_places, where
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels, short_name
from zonewise.storage.errors import StorageError
from zonewise.storage.parameters import parse_placeable_class
from zonewise.storage.placement import (
    Placement,
    PlacementRequest,
    PlacementSource,
    TriedPool,
    place_volume,
)
from zonewise.storage.pools import Pool, existing_pools
from zonewise.storage.provisioning import accessibility_requirement

SELECTED_NODE = "volume.kubernetes.io/selected-node"
PREFIX = "csi.storage.k8s.io/"
WAIT = "WaitForFirstConsumer"
LOST = "Lost"
"""The phase of a claim whose volume was deleted."""


@dataclass(frozen=True, slots=True)
class VolumeReport:
    """One claim, one volume, or both."""

    claim: str
    namespace: str
    volume: str
    storage_class: str
    driver: str
    phase: str
    pool: str
    places: VolumePlaces
    """From where the volume can be used; empty is from everywhere, or there is no volume."""
    node: str
    """The node that was chosen for the first pod, if the class waits for one."""
    reason: Reason
    tried: tuple[TriedPool, ...] = ()
    said: tuple[str, ...] = ()
    """The last messages of the provisioner and the scheduler."""

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "claim": self.claim or None,
            "namespace": self.namespace or None,
            "volume": self.volume or None,
            "storageClass": self.storage_class,
            "driver": self.driver,
            "phase": self.phase,
            "pool": self.pool or None,
            "domains": [dict(one) for one in self.places.terms],
            "node": self.node or None,
            "reason": {
                "code": self.reason.code,
                "message": self.reason.message,
                "fix": self.reason.fix,
            },
            "tried": [
                {
                    "pool": one.pool or None,
                    "domain": dict(one.term),
                    "code": one.reason.code,
                    "message": one.reason.message,
                }
                for one in self.tried
            ],
            "events": list(self.said),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeCluster:
    """What reports are made from; ``events`` are notes by the claim they are about."""

    claims: Mapping[Key, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: Mapping[str, PersistentVolume] = field(default_factory=dict)
    classes: Mapping[str, StorageClass] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    csi_nodes: tuple[CSINode, ...] = ()
    pods: tuple[Pod, ...] = ()
    events: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)
    configuration: StorageConfiguration | None = None
    """The pools of the driver, if it is known."""


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
    name = _class_name(claim, volume)
    made_by = cluster.classes.get(name)
    source = volume.spec.csi if volume is not None else None
    blank = VolumeReport(
        claim=claim.metadata.name if claim is not None else "",
        namespace=claim.metadata.namespace if claim is not None else "",
        volume=volume.metadata.name if volume is not None else "",
        storage_class=name,
        driver=source.driver if source is not None else made_by.provisioner if made_by else "",
        phase=(claim.status.phase if claim is not None else volume.status.phase if volume else "")
        or "Pending",
        pool=source.volume_attributes.get("pool", "") if source is not None else "",
        places=volume_places(volume, cluster.nodes.values()),
        node=claim.metadata.annotations.get(SELECTED_NODE, "") if claim is not None else "",
        reason=Reason(code="Unknown", message="nothing is known about it"),
        said=cluster.events.get(claim.key, ()) if claim is not None else (),
    )
    if volume is not None:
        return _placed(cluster, blank, claim, volume, made_by)
    assert claim is not None
    return _waiting(cluster, blank, claim, made_by)


def _placed(
    cluster: VolumeCluster,
    blank: VolumeReport,
    claim: PersistentVolumeClaim | None,
    volume: PersistentVolume,
    made_by: StorageClass | None,
) -> VolumeReport:
    places = blank.places.text()
    if not blank.pool:
        text = f"volume {blank.volume} does not name a pool; it can be used from {places}"
        return replace(blank, reason=Reason(code="NoPool", message=text))
    text = f"volume {blank.volume} is in pool {blank.pool} and can be used from {places}"
    plain = replace(blank, reason=Reason(code="Placed", message=text))
    if claim is None or made_by is None:
        return plain
    if (source := _source(claim)) is not None:
        why = f"{text}: it is a copy of {source.kind} {source.name}, and a copy stays in the domain"
        why += " of its source unless its class says crossDomain: copy"
        return replace(blank, reason=Reason(code="Copied", message=why))
    again = _decided(cluster, claim, made_by, without=volume.metadata.name)
    if isinstance(again, Reason):
        return plain
    if again.pool is not None and again.pool.name == blank.pool:
        why = f"{text}: {again.reason.message}"
        reason = Reason(code=again.reason.code, message=why, fix=again.reason.fix)
    else:
        now = f"pool {again.pool.name}" if again.pool is not None else "no pool"
        why = f"{text}; today it would get {now}, as pools and nodes have changed since"
        reason = Reason(code="PlacedBefore", message=why)
    return replace(blank, reason=reason, tried=again.tried)


def _waiting(
    cluster: VolumeCluster,
    blank: VolumeReport,
    claim: PersistentVolumeClaim,
    made_by: StorageClass | None,
) -> VolumeReport:
    first = _first(cluster, blank, claim, made_by)
    if first is not None:
        return replace(blank, reason=first)
    assert made_by is not None
    found = _decided(cluster, claim, made_by)
    if isinstance(found, Reason):
        return replace(blank, reason=found)
    if found.refusal is not None:
        why = found.refusal.reason
        text = f"claim {blank.claim} has no volume: {why.message}"
        reason = Reason(code=why.code, message=text, numbers=why.numbers, fix=why.fix)
        return replace(blank, reason=reason, tried=found.tried)
    assert found.pool is not None
    text = (
        f"claim {blank.claim} has no volume yet; the driver would take pool {found.pool.name}:"
        f" {found.reason.message}"
    )
    fix = "See that the driver and its provisioner run, and what they said last."
    return replace(
        blank, reason=Reason(code="NotYetMade", message=text, fix=fix), tried=found.tried
    )


def _first(
    cluster: VolumeCluster,
    blank: VolumeReport,
    claim: PersistentVolumeClaim,
    made_by: StorageClass | None,
) -> Reason | None:
    """What must happen before a driver is called at all."""
    name = f"claim {blank.claim}"
    if claim.spec.volume_name:
        return Reason(
            code="VolumeMissing",
            message=f"{name} names volume {claim.spec.volume_name}, which is not there",
            fix="Restore the volume, or make the claim anew: its data is lost."
            if cluster.volumes or blank.phase == LOST
            else "Give the PersistentVolumes too, if there are any: no volume is known here.",
        )
    if made_by is None:
        what = (
            f"names class {blank.storage_class}, which is not there"
            if (blank.storage_class)
            else "names no class, and there is no default one"
        )
        return Reason(
            code="ClassMissing",
            message=f"{name} {what}",
            fix="Make the StorageClass, or make the claim anew with one that is there.",
        )
    if made_by.volume_binding_mode != WAIT or blank.node:
        return None
    users = [
        pod
        for pod in cluster.pods
        if pod.metadata.namespace == claim.metadata.namespace and blank.claim in _claims(pod)
    ]
    if not users:
        return Reason(
            code="WaitsForPod",
            message=f"{name} waits for its first pod: class {blank.storage_class} makes volumes"
            " where the pod goes",
            fix="Start a pod that uses the claim.",
        )
    said = next(
        (
            one.message.removesuffix(".")
            for pod in users
            for one in pod.status.conditions
            if one.type == "PodScheduled" and one.status == "False"
        ),
        "",
    )
    pod = users[0].metadata.name
    return Reason(
        code="WaitsForNode",
        message=f"{name} waits until a node is chosen for pod {pod}"
        + (f": {said}" if said else ""),
        fix="Make room for the pod, or free storage where it may run.",
    )


def _decided(
    cluster: VolumeCluster,
    claim: PersistentVolumeClaim,
    made_by: StorageClass,
    *,
    without: str = "",
) -> Placement | Reason:
    """The driver's decision, made once more; or why it cannot be."""
    configuration = cluster.configuration
    if configuration is None:
        return Reason(
            code="PoolsUnknown",
            message=f"claim {claim.metadata.name} is left to driver {made_by.provisioner}, whose"
            " pools are not known here",
            fix="Give the ConfigMap zonewise-system/csi too, if the driver is Zonewise's.",
        )
    origin = None
    if (source := _source(claim)) is not None:
        origin = _source_place(cluster, configuration, claim.metadata.namespace, source)
        if origin is None:
            return Reason(
                code="SourceUnknown",
                message=f"claim {claim.metadata.name} has no volume: it is a copy of {source.kind}"
                f" {source.name}, whose pool is not known here, and stays in that pool's domain",
                fix="See what the provisioner said last.",
            )
    labels = _labels(cluster, made_by.provisioner)
    try:
        told = accessibility_requirement(
            claim.metadata.name,
            made_by.provisioner,
            {name: node.metadata.labels for name, node in cluster.nodes.items()},
            cluster.csi_nodes,
            selected_node=claim.metadata.annotations.get(SELECTED_NODE, ""),
            allowed=made_by.allowed_topologies,
        )
        own = {key: one for key, one in made_by.parameters.items() if not key.startswith(PREFIX)}
        parameters = parse_placeable_class(own, labels, configuration)
    except StorageError as error:
        text = f"class {made_by.metadata.name} cannot be used: {error.reason.message}"
        return Reason(code=error.reason.code, message=text, fix=error.reason.fix)
    except ZonewiseError as error:
        return Reason(code="BadClass", message=str(error))
    pools = existing_pools(parameters.pools, configuration.pool_states)
    default = existing_pools(
        [parameters.default_pool] if parameters.default_pool else [], configuration.pool_states
    )
    request = PlacementRequest(
        required_bytes=_bytes(claim.spec.resources.requests),
        requirement=told,
        policy=parameters.placement,
        default_pool=default[0] if default else None,
        source=origin,
        cross_domain=parameters.cross_domain,
        seed=f"pvc-{claim.metadata.uid}",
    )
    promised = _promised(cluster, without)
    return place_volume(request, [_used(pool, promised) for pool in pools], labels)


def _source(claim: PersistentVolumeClaim) -> TypedReference | None:
    """What a claim is a copy of."""
    return claim.spec.data_source_ref or claim.spec.data_source


def _source_place(
    cluster: VolumeCluster,
    configuration: StorageConfiguration,
    namespace: str,
    source: TypedReference,
) -> PlacementSource | None:
    """The pool of a claim that is copied; None if it is not known, as that of a snapshot is not."""
    claim = cluster.claims.get((namespace, source.name))
    if source.kind != "PersistentVolumeClaim" or claim is None:
        return None
    volume = cluster.volumes.get(claim.spec.volume_name)
    made = volume.spec.csi if volume is not None else None
    pool = (
        configuration.find_pool(made.volume_attributes.get("pool", ""))
        if made is not None
        else None
    )
    return PlacementSource(pool.name, pool.segments) if pool is not None else None


def _promised(cluster: VolumeCluster, without: str) -> dict[str, int]:
    """Bytes of volumes by their pool."""
    found: dict[str, int] = {}
    for volume in cluster.volumes.values():
        source = volume.spec.csi
        pool = source.volume_attributes.get("pool", "") if source is not None else ""
        if pool and volume.metadata.name != without:
            found[pool] = found.get(pool, 0) + _bytes(volume.spec.capacity)
    return found


def _used(pool: Pool, promised: Mapping[str, int]) -> Pool:
    return replace(pool, state=replace(pool.state, promised=promised.get(pool.name, 0)))


def _labels(cluster: VolumeCluster, driver: str) -> DomainLabels:
    """The domain labels of a driver, as its nodes report them."""
    names = {
        short_name(key): key
        for node in cluster.csi_nodes
        for one in node.spec.drivers or ()
        if one.name == driver
        for key in one.topology_keys or ()
    }
    return DomainLabels(driver, tuple(sorted(names)))


def _class_name(claim: PersistentVolumeClaim | None, volume: PersistentVolume | None) -> str:
    if claim is not None and claim.storage_class is not None:
        return claim.storage_class
    return volume.spec.storage_class_name if volume is not None else ""


def _claims(pod: Pod) -> set[str]:
    found = set()
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found.add(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            found.add(f"{pod.metadata.name}-{volume.name}")
    return found


def _bytes(resources: Mapping[str, str | int | float]) -> int:
    return ceil(quantity.value(resources.get("storage", 0)))


def volume_page(report: VolumeReport) -> str:
    """A report for people."""
    text = report.reason.message
    blocks = [[f"{text[:1].upper()}{text[1:]}."]]
    about = [
        ("claim", f"{report.namespace}/{report.claim}" if report.claim else "–"),
        ("volume", report.volume or "–"),
        ("class", report.storage_class or "–"),
        ("driver", report.driver or "–"),
        ("phase", report.phase),
        ("pool", report.pool or "–"),
        ("domain", report.places.text() if report.volume else "–"),
        ("node chosen", report.node or "–"),
    ]
    blocks.append(table(["WHAT", ""], [list(row) for row in about])[1:])
    if report.tried:
        rows = [
            [one.pool or "–", where([one.term]) if one.term else "any", one.reason.message]
            for one in report.tried
        ]
        blocks.append(table(["POOL", "ASKED FOR", "OUTCOME"], rows))
    if report.said:
        blocks.append(["Latest events:", *(f"  {note}" for note in report.said)])
    if report.reason.fix:
        blocks.append([f"What would help: {report.reason.fix}"])
    return "\n\n".join("\n".join(block) for block in blocks)
