"""Garbage collection of objects whose owners are deleted.

A graph of owner references is built from the state's events: which objects exist (by uid), and
their dependents. Four events queue an object, which is then read again:

- an owner is deleted: its dependents may have to be deleted;
- an object names an owner that does not exist (by uid, so a successor of the same name does not
  count);
- an owner waits for its dependents (``foregroundDeletion``): those that block it are deleted first;
- an owner orphans its dependents (``orphan``): they lose the reference, then it is deleted.

Objects that own each other in a circle would wait for each other forever: one whose dependent waits
already no longer blocks its owners.

An object with at least one existing owner stays and only loses the dangling references. Owners of a
kind that this server does not serve count as existing: an unknown kind is no reason to delete. A
namespaced owner counts only in its own namespace.

The queue is processed after a short delay, in batches, as a controller beside the server would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from zonewise.api.errors import ApiError
from zonewise.embedded.apiserver.registry import Registry

Obj = dict[str, Any]

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
BATCH_SECONDS = 0.5


class ObjectKey(NamedTuple):
    """The storage, namespace and name of an object."""

    storage: str
    namespace: str
    name: str


class Owner(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A reference to an owner."""

    uid: str = ""
    api_version: str = ""
    kind: str = ""
    name: str = ""
    block_owner_deletion: bool | None = None


class _Meta(msgspec.Struct, gc=False, rename="camel"):
    owner_references: tuple[Owner, ...] | None = ()
    finalizers: tuple[str, ...] | None = ()
    deletion_timestamp: str | None = None


class _Head(msgspec.Struct, gc=False):
    metadata: _Meta


_DECODER = msgspec.json.Decoder(_Head)


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageActions:
    """The writes of the collector; each reads the latest version and skips what is obsolete."""

    get_object: Callable[[ObjectKey], Obj | None]
    delete: Callable[[ObjectKey, str, str], Awaitable[None]]  # node, uid, propagation policy
    drop_owners: Callable[[ObjectKey, frozenset[str]], Awaitable[None]]  # node, owners' uids
    drop_finalizer: Callable[[ObjectKey, str], Awaitable[None]]
    unblock: Callable[[ObjectKey], Awaitable[None]]


class GarbageCollector:
    """Maintains the graph and processes its queue."""

    def __init__(self, registry: Registry, actions: GarbageActions) -> None:
        self._registry = registry
        self._actions = actions
        self._nodes_by_uid: dict[str, ObjectKey] = {}
        self._owners: dict[ObjectKey, tuple[Owner, ...]] = {}
        self._dependents: dict[str, set[ObjectKey]] = {}
        self._waiting: dict[str, ObjectKey] = {}  # uid -> owners that wait for their dependents
        self._queue: dict[ObjectKey, None] = {}
        self._wake = asyncio.Event()

    def observe(self, node: ObjectKey, uid: str, raw: bytes | None) -> None:
        """Note the present bytes of an object, None if it was deleted."""
        if raw is None:
            self._remove(node, uid)
            return
        self._nodes_by_uid[uid] = node
        if b'"ownerReferences"' not in raw and node not in self._owners:
            if b'"deletionTimestamp"' in raw:
                self._note_deletion(node, uid, _DECODER.decode(raw).metadata)
            return
        meta = _DECODER.decode(raw).metadata
        owners = meta.owner_references or ()
        if owners != self._owners.get(node, ()):
            self._set_owners(node, owners)
        if meta.deletion_timestamp:
            self._note_deletion(node, uid, meta)

    async def run(self) -> None:
        """Process the queue until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(BATCH_SECONDS)
            await self.process_queue()

    async def process_queue(self) -> None:
        """Process all objects in the queue."""
        while self._queue:
            batch, self._queue = list(self._queue), {}
            self._wake.clear()
            refused = []
            for node in batch:
                try:
                    await self._process(node)
                except ApiError:
                    refused.append(node)  # by a webhook, or in a race: tried again after the pause
            if refused:
                self._enqueue(refused)
                return

    def _remove(self, node: ObjectKey, uid: str) -> None:
        if self._nodes_by_uid.get(uid) == node:
            del self._nodes_by_uid[uid]
        self._waiting.pop(uid, None)
        self._set_owners(node, ())
        self._enqueue(self._dependents.get(uid, ()))

    def _set_owners(self, node: ObjectKey, owners: tuple[Owner, ...]) -> None:
        for owner in self._owners.pop(node, ()):
            dependents = self._dependents.get(owner.uid)
            if dependents is not None:
                dependents.discard(node)
                if not dependents:
                    del self._dependents[owner.uid]
            if owner.uid in self._waiting:
                self._enqueue([self._waiting[owner.uid]])
        if not owners:
            return
        self._owners[node] = owners
        for owner in owners:
            self._dependents.setdefault(owner.uid, set()).add(node)
            if not self._owner_exists(owner, node) or owner.uid in self._waiting:
                self._enqueue([node])

    def _note_deletion(self, node: ObjectKey, uid: str, meta: _Meta) -> None:
        finalizers = meta.finalizers or ()
        if FOREGROUND in finalizers:
            self._waiting[uid] = node
        if FOREGROUND in finalizers or ORPHAN in finalizers:
            self._enqueue([node])

    def _enqueue(self, nodes: Iterable[ObjectKey]) -> None:
        for node in nodes:
            self._queue[node] = None
        if self._queue:
            self._wake.set()

    async def _process(self, node: ObjectKey) -> None:
        obj = self._actions.get_object(node)
        if obj is None:
            return
        meta = obj["metadata"]
        finalizers = meta.get("finalizers") or ()
        if meta.get("deletionTimestamp"):
            if ORPHAN in finalizers:
                await self._orphan_dependents(node, meta["uid"])
                return
            if FOREGROUND in finalizers:
                await self._process_foreground(node, meta["uid"])
        if node in self._owners:
            await self._collect(node, meta["uid"], finalizers)

    async def _orphan_dependents(self, node: ObjectKey, uid: str) -> None:
        for dependent in sorted(self._dependents.get(uid, ())):
            await self._actions.drop_owners(dependent, frozenset({uid}))
        await self._actions.drop_finalizer(node, ORPHAN)

    async def _process_foreground(self, node: ObjectKey, uid: str) -> None:
        dependents = sorted(self._dependents.get(uid, ()))
        blocking = [dependent for dependent in dependents if self._blocks(dependent, uid)]
        if not blocking:
            await self._actions.drop_finalizer(node, FOREGROUND)
            return
        for dependent in dependents:
            await self._process(dependent)

    def _blocks(self, dependent: ObjectKey, uid: str) -> bool:
        return any(
            owner.uid == uid and owner.block_owner_deletion
            for owner in self._owners.get(dependent, ())
        )

    async def _collect(self, node: ObjectKey, uid: str, finalizers: Iterable[str]) -> None:
        owners = self._owners[node]
        waiting = {owner.uid for owner in owners if owner.uid in self._waiting}
        dangling = {owner.uid for owner in owners if not self._owner_exists(owner, node)}
        solid = {owner.uid for owner in owners} - waiting - dangling
        if solid:
            if dangling or waiting:
                await self._actions.drop_owners(node, frozenset(dangling | waiting))
            return
        if not (dangling or waiting):
            return
        if waiting and (dependents := self._dependents.get(uid)):
            policy = "Foreground"
            if not dependents.isdisjoint(self._waiting.values()):
                await self._actions.unblock(node)
        elif ORPHAN in finalizers:
            policy = "Orphan"
        elif FOREGROUND in finalizers:
            policy = "Foreground"
        else:
            policy = "Background"
        await self._actions.delete(node, uid, policy)

    def _owner_exists(self, owner: Owner, dependent: ObjectKey) -> bool:
        served = self._registry.by_kind(owner.api_version, owner.kind)
        if served is None:
            return True
        owner_node = self._nodes_by_uid.get(owner.uid)
        if owner_node is None:
            return False
        return owner_node.name == owner.name and owner_node.namespace in {"", dependent.namespace}
