"""WaitForFirstConsumer claims: set the selected node, wait for their volumes.

The scheduler writes the node on each claim (``volume.kubernetes.io/selected-node``); binder and
provisioner read it there. The pod is bound to its node only when all its claims are, and when each
volume can be used from that node: a provisioner may have put it elsewhere. A free volume that was
counted on is reserved meanwhile, so that two pods do not count on the same one.

A provisioner that cannot serve a node removes it from the claim. That ends the wait at once, and
the pod is scheduled again. If the volumes are not bound in time, the node is removed from the
claims. Nothing is lost by a restart: a claim with a selected node keeps the pod to it.

A store may show a claim as it was before the node was written on it; such an old version is
ignored, which is why the version of the write is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from zonewise.api.errors import Conflict, NotFound, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.versions import older
from zonewise.scheduling.volumes import BIND_COMPLETED, SELECTED_NODE, VolumeCache, usable_nodes

TIMEOUT = 600.0


class VolumeBinding:
    """The claims that pods wait for."""

    def __init__(
        self,
        client: Client,
        claims: Store[PersistentVolumeClaim],
        volumes: Store[PersistentVolume],
        nodes: Store[Node],
        volume_cache: VolumeCache,
    ) -> None:
        self._client = client
        self._claims = claims
        self._volumes = volumes
        self._nodes = nodes
        self._volume_cache = volume_cache
        self._events_by_claim: dict[Key, set[asyncio.Event]] = {}

    def claim_changed(self, key: Key) -> None:
        """A claim or its volume changed; waiters check again."""
        for event in self._events_by_claim.get(key, ()):
            event.set()

    def node_changed(self) -> None:
        """A node has other labels or is deleted; all waiters check again."""
        for events in self._events_by_claim.values():
            for event in events:
                event.set()

    def reserve(self, claims: Mapping[Key, str]) -> None:
        """Reserve the free volumes that a decision counted on."""
        for key, volume in claims.items():
            if volume:
                self._volume_cache.reserve(volume, key)

    async def bind_claims(self, claims: Mapping[Key, str], node: str) -> str:
        """Wait until the claims are bound for a node; returns why not, empty if they are."""
        try:
            async with asyncio.timeout(TIMEOUT):
                versions = {key: await self._set_selected_node(key, node) for key in claims}
                for key in claims:
                    if reason := await self._wait_until_bound(key, node, versions[key]):
                        return reason
        except (TimeoutError, ZonewiseError) as error:
            for key in claims:
                with suppress(ZonewiseError):
                    await self._set_selected_node(key, None)
            return str(error) or "timed out waiting for the condition"
        finally:
            for key in claims:
                self._volume_cache.release(key)
        return ""

    async def _set_selected_node(self, key: Key, node: str | None) -> str:
        """Write the node on a claim; returns the version of the claim that has it."""
        claim = self._claims.get(key)
        if claim is None or claim.metadata.annotations.get(SELECTED_NODE) == node:
            return ""
        if node is None and BIND_COMPLETED in claim.metadata.annotations:
            return ""
        namespace, name = key
        meta = {"uid": claim.metadata.uid, "annotations": {SELECTED_NODE: node}}
        with suppress(NotFound, Conflict):
            body = {"metadata": meta}
            written = await self._client.patch(PersistentVolumeClaim, name, namespace, body)
            return written.metadata.resource_version
        return ""

    async def _wait_until_bound(self, key: Key, node: str, written_version: str) -> str:
        event = asyncio.Event()
        self._events_by_claim.setdefault(key, set()).add(event)
        try:
            while True:
                event.clear()
                reason = self._check_bound(key, node, written_version)
                if reason is not None:
                    return reason
                await event.wait()
        finally:
            self._events_by_claim[key].discard(event)
            if not self._events_by_claim[key]:
                del self._events_by_claim[key]

    def _check_bound(self, key: Key, node_name: str, written_version: str) -> str | None:
        """Why a claim cannot be bound for a node; "" if it is bound, None if that is open."""
        claim, node = self._claims.get(key), self._nodes.get(("", node_name))
        name = key[1]
        if node is None:
            return f'failed to get node "{node_name}": node "{node_name}" not found'
        if claim is None:
            return f'persistentvolumeclaim "{name}" not found'
        if claim.metadata.deletion_timestamp is not None:
            return f'persistentvolumeclaim "{name}" is being deleted'
        if older(claim.metadata.resource_version, written_version):
            return None
        if claim.metadata.annotations.get(SELECTED_NODE) != node_name:
            return f'provisioning failed for PVC "{name}"'
        volume = self._volumes.get(("", claim.spec.volume_name))
        if volume is None:
            return None
        terms = usable_nodes(volume)
        if terms is not None and not terms.matches(node.metadata.labels, node_name):
            return (
                f'pv "{volume.metadata.name}" node affinity doesn\'t match node "{node_name}":'
                " no matching NodeSelectorTerms"
            )
        return "" if BIND_COMPLETED in claim.metadata.annotations else None
