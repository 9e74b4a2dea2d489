"""Garbage collection: what happens to objects whose owners are deleted.

A graph of owner references is kept from the state's events: which objects exist (by uid), and their
dependents. Four events make work, and each only names an object that is then read again:

- an owner is deleted: its dependents may have to be deleted;
- an object names an owner that does not exist (by uid, so a successor of the same name does not
  count);
- an owner waits for its dependents (``foregroundDeletion``): those that block it are deleted first;
- an owner orphans its dependents (``orphan``): they lose the reference, then it is deleted.

Objects that own each other in a circle would wait for each other forever: one that is to wait for a
dependent that waits already no longer blocks its owners.

An object with at least one existing owner stays and only loses the dangling references. Owners of a
kind this server does not serve count as existing: an unknown kind is no reason to delete. A
namespaced owner counts only in its own namespace.

Work is done with a short delay, in batches, as a controller beside the server would.
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
PAUSE = 0.5


class GraphNode(NamedTuple):
    """Where an object is."""

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
    """What the collector may do; each looks at the latest version and leaves what is moot."""

    look: Callable[[GraphNode], Obj | None]
    delete: Callable[[GraphNode, str, str], Awaitable[None]]  # node, uid, propagation policy
    drop_owners: Callable[[GraphNode, frozenset[str]], Awaitable[None]]  # node, owners' uids
    drop_finalizer: Callable[[GraphNode, str], Awaitable[None]]
    unblock: Callable[[GraphNode], Awaitable[None]]


class Collector:
    """Keeps the graph and does the work it gives."""

    def __init__(self, registry: Registry, actions: GarbageActions) -> None:
        self._registry = registry
        self._actions = actions
        self._alive: dict[str, GraphNode] = {}
        self._owners: dict[GraphNode, tuple[Owner, ...]] = {}
        self._dependents: dict[str, set[GraphNode]] = {}
        self._waiting: dict[str, GraphNode] = {}  # uid -> owners that wait for their dependents
        self._work: dict[GraphNode, None] = {}
        self._wake = asyncio.Event()

    def observe(self, node: GraphNode, uid: str, raw: bytes | None) -> None:
        """An object is now this, or (None) deleted."""
        if raw is None:
            self._gone(node, uid)
            return
        self._alive[uid] = node
        if b'"ownerReferences"' not in raw and node not in self._owners:
            if b'"deletionTimestamp"' in raw:
                self._marked(node, uid, _DECODER.decode(raw).metadata)
            return
        meta = _DECODER.decode(raw).metadata
        owners = meta.owner_references or ()
        if owners != self._owners.get(node, ()):
            self._link(node, owners)
        if meta.deletion_timestamp:
            self._marked(node, uid, meta)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(PAUSE)
            await self.settle()

    async def settle(self) -> None:
        """Do all that is to do now."""
        while self._work:
            batch, self._work = list(self._work), {}
            self._wake.clear()
            refused = []
            for node in batch:
                try:
                    await self._attend(node)
                except ApiError:
                    refused.append(node)  # by a webhook, or in a race: again after the pause
            if refused:
                self._todo(refused)
                return

    def _gone(self, node: GraphNode, uid: str) -> None:
        if self._alive.get(uid) == node:
            del self._alive[uid]
        self._waiting.pop(uid, None)
        self._link(node, ())
        self._todo(self._dependents.get(uid, ()))

    def _link(self, node: GraphNode, owners: tuple[Owner, ...]) -> None:
        for owner in self._owners.pop(node, ()):
            dependents = self._dependents.get(owner.uid)
            if dependents is not None:
                dependents.discard(node)
                if not dependents:
                    del self._dependents[owner.uid]
            if owner.uid in self._waiting:
                self._todo([self._waiting[owner.uid]])
        if not owners:
            return
        self._owners[node] = owners
        for owner in owners:
            self._dependents.setdefault(owner.uid, set()).add(node)
            if not self._lives(owner, node) or owner.uid in self._waiting:
                self._todo([node])

    def _marked(self, node: GraphNode, uid: str, meta: _Meta) -> None:
        finalizers = meta.finalizers or ()
        if FOREGROUND in finalizers:
            self._waiting[uid] = node
        if FOREGROUND in finalizers or ORPHAN in finalizers:
            self._todo([node])

    def _todo(self, nodes: Iterable[GraphNode]) -> None:
        for node in nodes:
            self._work[node] = None
        if self._work:
            self._wake.set()

    async def _attend(self, node: GraphNode) -> None:
        obj = self._actions.look(node)
        if obj is None:
            return
        meta = obj["metadata"]
        finalizers = meta.get("finalizers") or ()
        if meta.get("deletionTimestamp"):
            if ORPHAN in finalizers:
                await self._let_go(node, meta["uid"])
                return
            if FOREGROUND in finalizers:
                await self._foreground(node, meta["uid"])
        if node in self._owners:
            await self._judge(node, meta["uid"], finalizers)

    async def _let_go(self, node: GraphNode, uid: str) -> None:
        for dependent in sorted(self._dependents.get(uid, ())):
            await self._actions.drop_owners(dependent, frozenset({uid}))
        await self._actions.drop_finalizer(node, ORPHAN)

    async def _foreground(self, node: GraphNode, uid: str) -> None:
        dependents = sorted(self._dependents.get(uid, ()))
        blocking = [one for one in dependents if self._blocks(one, uid)]
        if not blocking:
            await self._actions.drop_finalizer(node, FOREGROUND)
            return
        for one in dependents:
            await self._attend(one)

    def _blocks(self, dependent: GraphNode, uid: str) -> bool:
        return any(
            owner.uid == uid and owner.block_owner_deletion
            for owner in self._owners.get(dependent, ())
        )

    async def _judge(self, node: GraphNode, uid: str, finalizers: Iterable[str]) -> None:
        owners = self._owners[node]
        waiting = {owner.uid for owner in owners if owner.uid in self._waiting}
        dead = {owner.uid for owner in owners if not self._lives(owner, node)}
        solid = {owner.uid for owner in owners} - waiting - dead
        if solid:
            if dead or waiting:
                await self._actions.drop_owners(node, frozenset(dead | waiting))
            return
        if not (dead or waiting):
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

    def _lives(self, owner: Owner, dependent: GraphNode) -> bool:
        served = self._registry.of(owner.api_version, owner.kind)
        if served is None:
            return True
        place = self._alive.get(owner.uid)
        if place is None:
            return False
        return place.name == owner.name and place.namespace in {"", dependent.namespace}
