"""Claims that wait for their first consumer: tell them the node, wait for their volumes.

The scheduler writes the node on each claim (``volume.kubernetes.io/selected-node``); who binds and
provisions reads it there. The pod is bound to its node only when all its claims are. A free volume
that was counted on is reserved meanwhile, so that two pods do not count on the same one.

If the volumes do not come in time, the claims are told that no node is chosen, and the pod is
scheduled anew. Nothing is lost by a restart: a claim that was told a node keeps the pod to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from zonewise.api.errors import Conflict, NotFound, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.storage import PersistentVolumeClaim
from zonewise.runtime.client import Client
from zonewise.runtime.store import Store
from zonewise.scheduling.volumes import BIND_COMPLETED, SELECTED_NODE, Shelf

TIMEOUT = 600.0


class FirstUse:
    """The claims that pods wait for."""

    def __init__(self, client: Client, claims: Store[PersistentVolumeClaim], shelf: Shelf) -> None:
        self._client = client
        self._claims = claims
        self._shelf = shelf
        self._waiting: dict[Key, set[asyncio.Event]] = {}

    def changed(self, key: Key) -> None:
        """A claim changed; who waits for it looks."""
        for event in self._waiting.get(key, ()):
            event.set()

    def reserve(self, claims: Mapping[Key, str]) -> None:
        """Keep the volumes that were counted on."""
        for key, volume in claims.items():
            if volume:
                self._shelf.reserve(volume, key)

    async def prepare(self, claims: Mapping[Key, str], node: str) -> bool:
        """Have the claims bound for a node; False if that cannot be done."""
        try:
            async with asyncio.timeout(TIMEOUT):
                for key in claims:
                    await self._tell(key, node)
                for key in claims:
                    if not await self._bound(key):
                        return False
        except (TimeoutError, ZonewiseError):
            for key in claims:
                with suppress(ZonewiseError):
                    await self._tell(key, None)
            return False
        finally:
            for key in claims:
                self._shelf.release(key)
        return True

    async def _tell(self, key: Key, node: str | None) -> None:
        claim = self._claims.get(key)
        if claim is None or claim.metadata.annotations.get(SELECTED_NODE) == node:
            return
        if node is None and BIND_COMPLETED in claim.metadata.annotations:
            return
        namespace, name = key
        meta = {"uid": claim.metadata.uid, "annotations": {SELECTED_NODE: node}}
        with suppress(NotFound, Conflict):
            await self._client.patch(PersistentVolumeClaim, name, namespace, {"metadata": meta})

    async def _bound(self, key: Key) -> bool:
        event = asyncio.Event()
        self._waiting.setdefault(key, set()).add(event)
        try:
            while True:
                event.clear()
                claim = self._claims.get(key)
                if claim is None or claim.metadata.deletion_timestamp is not None:
                    return False
                if BIND_COMPLETED in claim.metadata.annotations and claim.spec.volume_name:
                    return True
                await event.wait()
        finally:
            self._waiting[key].discard(event)
            if not self._waiting[key]:
                del self._waiting[key]
