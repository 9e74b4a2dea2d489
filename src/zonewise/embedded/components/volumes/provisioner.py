"""Simulated volumes: a claim of class ``standard`` gets one where its pod is going to run.

There is no disk behind them. What is real is everything a cluster decides by: the volume's size,
its reclaim policy, and its place. A volume is in the zone of the node that the scheduler chose, has
node affinity to it, and keeps its pods there from then on; on a node without a zone it is on that
node. A class that binds immediately has no node to use: claims are then spread over the zones by
name, those of one StatefulSet over neighbouring ones.

The class is created at every start if missing, as the default unless another class is that
already. Changes of it stay, and other classes may name the provisioner as well.
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
    WAIT,
)
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.scheduling.volumes import SELECTED_NODE
from zonewise.topology import HOSTNAME_LABEL, ZONE_LABEL, zone_of

STANDARD = "standard"
_NUMBERED = re.compile(r"(.*?)-?([0-9]{1,9})\Z")


class Provisioner:
    """Makes simulated volumes and takes them away."""

    def __init__(self, context: ComponentContext) -> None:
        self._context = context
        self._client = context.client
        self._controller = Controller(
            "provisioner", self._sync, cache=context.cache, rng=context.rng
        )
        self._claims = self._controller.watches(PersistentVolumeClaim, own_key)
        self._volumes = self._controller.watches(PersistentVolume, own_key, when=_released)
        self._classes = self._controller.reads(StorageClass)
        self._nodes = self._controller.reads(Node)

    async def run(self) -> None:
        """Provision until cancelled."""
        classes = await self._client.list(StorageClass)
        others = any(is_default_class(one.metadata.annotations) for one in classes)
        marks = {} if others else {DEFAULT_CLASS: "true"}
        standard = StorageClass(
            metadata=ObjectMeta(name=STANDARD, annotations=marks),
            provisioner=EMBEDDED,
            reclaim_policy="Delete",
            volume_binding_mode=WAIT,
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
        marks = claim.metadata.annotations
        made_by = self._classes.get(("", claim.storage_class or ""))
        if made_by is None or marks.get(PROVISIONER) != EMBEDDED:
            return
        name = f"pvc-{claim.metadata.uid}"
        if ("", name) in self._volumes:
            return
        place: tuple[str, str] | None
        if made_by.volume_binding_mode == WAIT:
            node = self._nodes.get(("", marks.get(SELECTED_NODE, "")))
            if node is None:
                return
            place = _place_of(node)
        else:
            zones = sorted({zone_of(node) for node in self._nodes} - {""})
            place = _spread(claim.metadata.name, zones)
        note = f'External provisioner is provisioning volume for claim "{"/".join(key)}"'
        self._tell(claim, "Provisioning", note)
        with suppress(AlreadyExists):
            await self._client.create(_volume(name, claim, made_by, place))
        self._tell(claim, "ProvisioningSucceeded", f"Successfully provisioned volume {name}")

    async def _reclaim(self, key: Key) -> None:
        volume = self._volumes.get(key)
        if volume is None or not _released(None, volume):
            return
        with suppress(NotFound):
            meta = volume.metadata
            await self._client.delete(PersistentVolume, meta.name, uid=meta.uid)

    def _tell(self, claim: PersistentVolumeClaim, reason: str, note: str) -> None:
        self._context.recorder.event(claim, reason=reason, action="Provision", note=note)


def _released(_: PersistentVolume | None, new: PersistentVolume | None) -> bool:
    """Whether a volume of ours is to be deleted."""
    return (
        new is not None
        and new.status.phase == "Released"
        and new.spec.persistent_volume_reclaim_policy == "Delete"
        and new.metadata.annotations.get(PROVISIONED_BY) == EMBEDDED
        and new.metadata.deletion_timestamp is None
    )


def _place_of(node: Node) -> tuple[str, str]:
    """The label by which a node's place is known, and its value."""
    zone = zone_of(node)
    if zone:
        return ZONE_LABEL, zone
    return HOSTNAME_LABEL, node.metadata.labels.get(HOSTNAME_LABEL, node.metadata.name)


def _spread(claim: str, zones: list[str]) -> tuple[str, str] | None:
    """A zone for a claim by its name; claims that differ in a last number get neighbours."""
    if not zones:
        return None
    numbered = _NUMBERED.match(claim)
    stem, number = (numbered[1], int(numbered[2])) if numbered else (claim, 0)
    return ZONE_LABEL, zones[(zlib.crc32(stem.encode()) + number) % len(zones)]


def _volume(
    name: str, claim: PersistentVolumeClaim, made_by: StorageClass, place: tuple[str, str] | None
) -> PersistentVolume:
    affinity = None
    if place is not None:
        key, value = place
        needs = NodeSelectorRequirement(key=key, operator="In", values=(value,))
        term = NodeSelectorTerm(match_expressions=(needs,))
        affinity = VolumeNodeAffinity(required=NodeSelector(node_selector_terms=(term,)))
    return PersistentVolume(
        metadata=ObjectMeta(name=name, annotations={PROVISIONED_BY: EMBEDDED}),
        spec=PersistentVolumeSpec(
            capacity={"storage": claim.spec.resources.requests.get("storage", "1Gi")},
            access_modes=claim.spec.access_modes,
            claim_ref=ObjectReference.to(claim),
            persistent_volume_reclaim_policy=made_by.reclaim_policy or "Delete",
            storage_class_name=made_by.metadata.name,
            mount_options=made_by.mount_options,
            volume_mode=claim.spec.volume_mode,
            node_affinity=affinity,
            csi=CSIPersistentVolumeSource(driver=DRIVER, volume_handle=claim.metadata.uid),
        ),
    )
