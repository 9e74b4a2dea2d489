"""How controllers inside the server write: on the same path as clients, as their own user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zonewise.api.errors import NotFound
from zonewise.embedded.apiserver.controllers.garbage_collector import GarbageActions, GraphNode
from zonewise.embedded.apiserver.handlers.deleting import DeleteOptions, Deleter
from zonewise.embedded.apiserver.handlers.writing import Writer
from zonewise.embedded.apiserver.registry import Registry, Served
from zonewise.embedded.apiserver.request.call import Call, User
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.state import State

Obj = dict[str, Any]


class InternalWrites:
    """What a controller reads and writes with."""

    def __init__(
        self, *, state: State, registry: Registry, writer: Writer, deleter: Deleter, user: User
    ) -> None:
        self.state = state
        self.registry = registry
        self.writer = writer
        self._deleter = deleter
        self._user = user
        self.storages: dict[str, Served] = {}
        """The served kind of each storage, as of now."""
        self._refresh()
        registry.on_change(self._refresh)

    def call(self, method: str) -> Call:
        """A request of our own."""
        return Call(
            method=method,
            path="",
            user=self._user,
            headers={"user-agent": "kube-controller-manager/1"},
        )

    def served(self, storage: str) -> Served:
        """What is kept there."""
        return self.storages[storage]

    def look(self, node: GraphNode) -> Obj | None:
        """The latest version of an object, if it exists."""
        return self.writer.look(*node)

    async def change(self, node: GraphNode, change: Callable[[Obj], Obj]) -> None:
        """Change an object, unless it is deleted."""
        served = self.served(node.storage)
        resource = served.kind.resource
        target = Target(
            resource.group, resource.version, resource.plural, node.namespace, node.name
        )
        try:
            await self.writer.change(self.call("PATCH"), served, target, change)
        except NotFound:
            return

    async def delete(self, node: GraphNode, options: DeleteOptions) -> None:
        """Delete an object, unless it is deleted already."""
        served = self.served(node.storage)
        try:
            await self._deleter.delete(
                self.call("DELETE"), served, node.namespace, node.name, options
            )
        except NotFound:
            return

    def garbage_actions(self) -> GarbageActions:
        """What the garbage collector does to objects, done through these writes."""
        return GarbageActions(
            look=self.look,
            delete=self._delete,
            drop_owners=self._drop_owners,
            drop_finalizer=self._drop_finalizer,
            unblock=self._unblock,
        )

    def _refresh(self) -> None:
        self.storages = self.registry.storages()

    async def _delete(self, node: GraphNode, uid: str, policy: str) -> None:
        raw = {"propagationPolicy": policy}
        await self.delete(node, DeleteOptions(uid=uid, policy=policy, raw=raw))

    async def _drop_owners(self, node: GraphNode, uids: frozenset[str]) -> None:
        def without(obj: Obj) -> Obj:
            meta = obj["metadata"]
            kept = [one for one in meta.get("ownerReferences") or () if one.get("uid") not in uids]
            if kept:
                meta["ownerReferences"] = kept
            else:
                meta.pop("ownerReferences", None)
            return obj

        await self.change(node, without)

    async def _drop_finalizer(self, node: GraphNode, finalizer: str) -> None:
        def without(obj: Obj) -> Obj:
            meta = obj["metadata"]
            kept = [one for one in meta.get("finalizers") or () if one != finalizer]
            if kept:
                meta["finalizers"] = kept
            else:
                meta.pop("finalizers", None)
            return obj

        await self.change(node, without)

    async def _unblock(self, node: GraphNode) -> None:
        def freed(obj: Obj) -> Obj:
            for one in obj["metadata"].get("ownerReferences") or ():
                one["blockOwnerDeletion"] = False
            return obj

        await self.change(node, freed)
