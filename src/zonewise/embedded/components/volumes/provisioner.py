"""Simulated volumes: a claim of class ``standard`` gets one in the zone its pod is scheduled to.

There is no disk behind them. What is real is everything a cluster decides by: the volume's size,
its reclaim policy, and its node affinity. A volume is in the zone of the node that the scheduler
chose, and its pods stay there from then on; on a node without a zone it is on that node. A class
that binds immediately has no selected node: claims are then spread over the zones by name, those of
one StatefulSet over neighbouring ones.

The class is created at every start if it is missing, as the default unless another class is the
default already. It may be changed, and other classes may name the provisioner as well.
"""

from __future__ import annotations

import re
import zlib
from contextlib import suppress

from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import Key, ObjectMeta, ObjectReference
from zonewise.api.objects.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from zonewise.api.objects.storage import (
    DEFAULT_CLASS,
    CSIPersistentVolumeSource,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeSpec,
    StorageClass,
    VolumeNodeAffinity,
    is_default_class,
)
from zonewise.embedded.components.volumes.well_known import (
    DRIVER,
    EMBEDDED,
    PROVISIONED_BY,
    PROVISIONER,
    WAIT_FOR_FIRST_CONSUMER,
)
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.program.context import ControllerContext
from zonewise.scheduling.volumes import SELECTED_NODE
from zonewise.topology.nodes import HOSTNAME_LABEL, ZONE_LABEL, zone_of

STANDARD = "standard"
_NUMBERED = re.compile(r"(.*?)-?([0-9]{1,9})\Z")


class SimulatedProvisioner:
    """Creates simulated volumes and deletes them."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._controller = context.controller("simulated provisioner", self._sync)
        self._claims = self._controller.watches(PersistentVolumeClaim, own_key)
        self._volumes = self._controller.watches(PersistentVolume, own_key, when=_released)
        self._classes = self._controller.reads(StorageClass)
        self._nodes = self._controller.reads(Node)

    async def run(self) -> None:
        """Provision until cancelled."""
        classes = await self._client.list(StorageClass)
        has_default = any(is_default_class(item.metadata.annotations) for item in classes)
        annotations = {} if has_default else {DEFAULT_CLASS: "true"}
        standard = StorageClass(
            metadata=ObjectMeta(name=STANDARD, annotations=annotations),
            provisioner=EMBEDDED,
            reclaim_policy="Delete",
            volume_binding_mode=WAIT_FOR_FIRST_CONSUMER,
        )
        with suppress(AlreadyExists):
            await self._client.create(standard)
        await self._controller.run()

    async def _sync(self, key: Key) -> float | None:
        if key[0]:
            await self._provision(key)
        else:
            await self._reclaim(key)
        return None

    async def _provision(self, key: Key) -> None:
        claim = self._claims.get(key)
        if claim is None or claim.spec.volume_name or claim.metadata.deletion_timestamp is not None:
            return
        annotations = claim.metadata.annotations
        storage_class = self._classes.get(("", claim.storage_class or ""))
        if storage_class is None or annotations.get(PROVISIONER) != EMBEDDED:
            return
        name = f"pvc-{claim.metadata.uid}"
        if ("", name) in self._volumes:
            return
        domain: tuple[str, str] | None
        if storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER:
            node = self._nodes.get(("", annotations.get(SELECTED_NODE, "")))
            if node is None:
                return
            domain = _domain_of(node)
        else:
            zones = sorted({zone_of(node) for node in self._nodes} - {""})
            domain = _choose_zone(claim.metadata.name, zones)
        note = f'External provisioner is provisioning volume for claim "{"/".join(key)}"'
        self._record_event(claim, "Provisioning", note)
        with suppress(AlreadyExists):
            await self._client.create(_make_volume(name, claim, storage_class, domain))
        note = f"Successfully provisioned volume {name}"
        self._record_event(claim, "ProvisioningSucceeded", note)

    async def _reclaim(self, key: Key) -> None:
        volume = self._volumes.get(key)
        if volume is None or not _released(None, volume):
            return
        with suppress(NotFound):
            meta = volume.metadata
            await self._client.delete(PersistentVolume, meta.name, uid=meta.uid)

    def _record_event(self, claim: PersistentVolumeClaim, reason: str, note: str) -> None:
        self._context.recorder.event(claim, reason, "Provision", note)


def _released(_: PersistentVolume | None, new: PersistentVolume | None) -> bool:
    """Whether a simulated volume has to be deleted."""
    return (
        new is not None
        and new.status.phase == "Released"
        and new.spec.persistent_volume_reclaim_policy == "Delete"
        and new.metadata.annotations.get(PROVISIONED_BY) == EMBEDDED
        and new.metadata.deletion_timestamp is None
    )


def _domain_of(node: Node) -> tuple[str, str]:
    """The topology key and domain of volumes for a node."""
    zone = zone_of(node)
    if zone:
        return ZONE_LABEL, zone
    return HOSTNAME_LABEL, node.metadata.labels.get(HOSTNAME_LABEL, node.metadata.name)


def _choose_zone(claim: str, zones: list[str]) -> tuple[str, str] | None:
    """A zone for a claim by its name; claims that differ in a last number get neighbouring ones."""
    if not zones:
        return None
    numbered = _NUMBERED.match(claim)
    stem, number = (numbered[1], int(numbered[2])) if numbered else (claim, 0)
    return ZONE_LABEL, zones[(zlib.crc32(stem.encode()) + number) % len(zones)]


def _make_volume(
    name: str,
    claim: PersistentVolumeClaim,
    storage_class: StorageClass,
    domain: tuple[str, str] | None,
) -> PersistentVolume:
    affinity = None
    if domain is not None:
        key, value = domain
        requirement = NodeSelectorRequirement(key=key, operator="In", values=(value,))
        term = NodeSelectorTerm(match_expressions=(requirement,))
        affinity = VolumeNodeAffinity(required=NodeSelector(node_selector_terms=(term,)))
    return PersistentVolume(
        metadata=ObjectMeta(name=name, annotations={PROVISIONED_BY: EMBEDDED}),
        spec=PersistentVolumeSpec(
            capacity={"storage": claim.spec.resources.requests.get("storage", "1Gi")},
            access_modes=claim.spec.access_modes,
            claim_ref=ObjectReference.to(claim),
            persistent_volume_reclaim_policy=storage_class.reclaim_policy or "Delete",
            storage_class_name=storage_class.metadata.name,
            mount_options=storage_class.mount_options,
            volume_mode=claim.spec.volume_mode,
            node_affinity=affinity,
            csi=CSIPersistentVolumeSource(driver=DRIVER, volume_handle=claim.metadata.uid),
        ),
    )
