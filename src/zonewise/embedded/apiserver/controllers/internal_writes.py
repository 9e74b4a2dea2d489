"""Reads and writes of the controllers in the server: the same path as clients', as one user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zonewise.api.errors import NotFound
from zonewise.embedded.apiserver.controllers.garbage_collector import GarbageActions, ObjectKey
from zonewise.embedded.apiserver.handlers.deleting import DeleteOptions, Deleter
from zonewise.embedded.apiserver.handlers.update_checks import set_or_remove
from zonewise.embedded.apiserver.handlers.writing import Writer
from zonewise.embedded.apiserver.registry import Registry, ServedKind
from zonewise.embedded.apiserver.request.call import Call, User
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.state import State

Obj = dict[str, Any]


class InternalWrites:
    """Reads and writes objects for a controller."""

    def __init__(
        self, *, state: State, registry: Registry, writer: Writer, deleter: Deleter, user: User
    ) -> None:
        self.state = state
        self.registry = registry
        self.writer = writer
        self._deleter = deleter
        self._user = user
        self.storages: dict[str, ServedKind] = {}
        """The served kind of each storage, as of now."""
        self._refresh()
        registry.on_change(self._refresh)

    def call(self, method: str) -> Call:
        """A request of the server itself."""
        return Call(
            method=method,
            path="",
            user=self._user,
            headers={"user-agent": "kube-controller-manager/1"},
        )

    def served(self, storage: str) -> ServedKind:
        """The served kind of a storage."""
        return self.storages[storage]

    def get_object(self, node: ObjectKey) -> Obj | None:
        """The latest version of an object, if it exists."""
        return self.writer.get_object(*node)

    async def change(self, node: ObjectKey, change: Callable[[Obj], Obj]) -> None:
        """Change an object, unless it was deleted."""
        served = self.served(node.storage)
        resource = served.kind.resource
        target = Target(
            resource.group, resource.version, resource.plural, node.namespace, node.name
        )
        try:
            await self.writer.change(self.call("PATCH"), served, target, change)
        except NotFound:
            return

    async def delete(self, node: ObjectKey, options: DeleteOptions) -> None:
        """Delete an object, unless it was deleted already."""
        served = self.served(node.storage)
        try:
            await self._deleter.delete(
                self.call("DELETE"), served, node.namespace, node.name, options
            )
        except NotFound:
            return

    def garbage_actions(self) -> GarbageActions:
        """The writes of the garbage collector."""
        return GarbageActions(
            get_object=self.get_object,
            delete=self._delete,
            drop_owners=self._drop_owners,
            drop_finalizer=self._drop_finalizer,
            unblock=self._unblock,
        )

    def _refresh(self) -> None:
        self.storages = self.registry.storages()

    async def _delete(self, node: ObjectKey, uid: str, policy: str) -> None:
        raw = {"propagationPolicy": policy}
        await self.delete(node, DeleteOptions(uid=uid, policy=policy, raw=raw))

    async def _drop_owners(self, node: ObjectKey, uids: frozenset[str]) -> None:
        def drop(obj: Obj) -> Obj:
            meta = obj["metadata"]
            remaining = [
                reference
                for reference in meta.get("ownerReferences") or ()
                if reference.get("uid") not in uids
            ]
            set_or_remove(meta, "ownerReferences", remaining)
            return obj

        await self.change(node, drop)

    async def _drop_finalizer(self, node: ObjectKey, finalizer: str) -> None:
        def drop(obj: Obj) -> Obj:
            meta = obj["metadata"]
            remaining = [name for name in meta.get("finalizers") or () if name != finalizer]
            set_or_remove(meta, "finalizers", remaining)
            return obj

        await self.change(node, drop)

    async def _unblock(self, node: ObjectKey) -> None:
        def unblock(obj: Obj) -> Obj:
            for reference in obj["metadata"].get("ownerReferences") or ():
                reference["blockOwnerDeletion"] = False
            return obj

        await self.change(node, unblock)
