"""Namespaces: what a new one needs, and the end of one.

A new namespace gets its account ``default`` and the ConfigMap with the CA. When one is deleted its
content is deleted, pods before everything they may need to terminate gracefully; what remains is
reported in its conditions, and when nothing remains it is finalized.
"""

from __future__ import annotations

import asyncio
from typing import Any

from zonewise.api.errors import ApiError
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.controllers.garbage_collector import GraphNode
from zonewise.embedded.apiserver.controllers.internal_writes import InternalWrites
from zonewise.embedded.apiserver.handlers.deleting import DeleteOptions
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

GRACE = 5.0
PAUSE = 2.0
AUTHORITY = "kube-root-ca.crt"
NAMESPACES = "/namespaces"
PODS = "/pods"

_log = logger("namespaces")


class NamespaceController:
    """Fills new namespaces and empties those that end."""

    def __init__(self, writes: InternalWrites, *, authority: str) -> None:
        self._writes = writes
        self._authority = authority
        self._due: dict[str, float] = {}  # name -> when to look after it
        self._wake = asyncio.Event()
        for entry in writes.state.list(NAMESPACES).entries:
            self.attend(entry.name, GRACE if entry.deleting else 0.0)

    def observe(self, storage: str, event: StoreEvent) -> None:
        """Something was written."""
        entry, gone = event.entry, event.type == "DELETED"
        if storage == NAMESPACES and not gone:
            self.attend(entry.name, GRACE if entry.deleting else 0.0)
        elif (storage == "/configmaps" and entry.name == AUTHORITY) or (
            gone and storage == "/serviceaccounts"
        ):
            self.attend(entry.namespace)

    def attend(self, name: str, after: float = 0.0) -> None:
        """Process a namespace in so many seconds, or earlier if that was requested before."""
        due = asyncio.get_running_loop().time() + after
        self._due[name] = min(due, self._due.get(name, due))
        self._wake.set()

    async def run(self) -> None:
        """Look after namespaces until cancelled; again at once for what was not finished."""
        # On the loop's clock: the time of day may be set back, which must not delay this.
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            due = [name for name, when in self._due.items() if when <= now]
            for name in due:
                del self._due[name]
                try:
                    await self._keep(name)
                except ApiError as error:
                    _log.info("a namespace is processed again", name=name, why=str(error))
                    self.attend(name, PAUSE)
            self._wake.clear()
            next_due = min(self._due.values(), default=None)
            wait = None if next_due is None else max(next_due - loop.time(), 0.01)
            try:
                await asyncio.wait_for(self._wake.wait(), wait)
            except TimeoutError:
                continue

    async def _keep(self, name: str) -> None:
        namespace = self._writes.writer.look(NAMESPACES, "", name)
        if namespace is None:
            return
        if namespace["metadata"].get("deletionTimestamp"):
            await self._empty(name, namespace)
            return
        await self._ensure(name, "serviceaccounts", {"metadata": {"name": "default"}})
        config = {
            "metadata": {
                "name": AUTHORITY,
                "annotations": {
                    "kubernetes.io/description": "Contains a CA bundle that can be used to verify"
                    " the kube-apiserver when using internal endpoints such as the internal service"
                    " IP or kubernetes.default.svc. No other usage is guaranteed across"
                    " distributions of Kubernetes clusters."
                },
            },
            "data": {"ca.crt": self._authority},
        }
        await self._ensure(name, "configmaps", config)
        published = self._writes.writer.look("/configmaps", name, AUTHORITY)
        if published is not None and published.get("data") != config["data"]:
            node = GraphNode("/configmaps", name, AUTHORITY)
            await self._writes.change(node, lambda obj: {**obj, "data": config["data"]})

    async def _ensure(self, namespace: str, plural: str, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        if self._writes.state.latest(f"/{plural}", namespace, name) is not None:
            return
        served = self._writes.registry.at("", "v1", plural)
        assert served is not None
        target = Target("", "v1", plural, namespace)
        try:
            await self._writes.writer.create(self._writes.call("POST"), served, target, obj)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _empty(self, name: str, namespace: Obj) -> None:
        left: list[str] = []
        finalizers: dict[str, int] = {}
        storages = self._writes.storages.items()
        for storage, served in sorted(storages, key=lambda one: (one[0] != PODS, one[0])):
            if not served.kind.resource.namespaced or not served.kind.verbs:
                continue
            for entry in self._writes.state.list(storage, name).entries:
                node = GraphNode(storage, name, entry.name)
                await self._writes.delete(node, DeleteOptions(policy="Background", raw={}))
            remaining = self._writes.state.list(storage, name).entries
            if remaining:
                left.append(
                    f"{served.kind.resource.qualified} has {len(remaining)} resource instances"
                )
            for entry in remaining:
                meta = bodies.decode_stored(entry.raw)["metadata"]
                for one in meta.get("finalizers") or ():
                    finalizers[one] = finalizers.get(one, 0) + 1
            if remaining and storage == PODS:
                break
        served = self._writes.served(NAMESPACES)
        target = Target("", "v1", "namespaces", "", name)
        if left:
            conditions = _conditions(
                left, finalizers, self._writes.writer.context(self._writes.call("PUT")).now
            )
            await self._writes.writer.change(
                self._writes.call("PATCH"),
                served,
                target,
                lambda obj: _with_conditions(obj, conditions),
                subresource="status",
            )
            self.attend(name, PAUSE)
            return
        if (namespace.get("spec") or {}).get("finalizers"):
            await self._writes.writer.change(
                self._writes.call("PUT"), served, target, _released, subresource="finalize"
            )


def _released(obj: Obj) -> Obj:
    obj["spec"] = {}
    return obj


def _conditions(left: list[str], finalizers: dict[str, int], now: str) -> list[Obj]:
    def condition(kind: str, holds: bool, reason: str, message: str) -> Obj:
        return {
            "type": kind,
            "status": "True" if holds else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
        }

    waiting = [
        f"{name} in {count} resource instances" for name, count in sorted(finalizers.items())
    ]
    return [
        condition(
            "NamespaceDeletionDiscoveryFailure",
            False,
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            False,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        condition(
            "NamespaceDeletionContentFailure",
            False,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        condition(
            "NamespaceContentRemaining",
            True,
            "SomeResourcesRemain",
            "Some resources are remaining: " + ", ".join(left),
        ),
        condition(
            "NamespaceFinalizersRemaining",
            bool(waiting),
            "SomeFinalizersRemain" if waiting else "ContentHasNoFinalizers",
            "Some content in the namespace has finalizers remaining: " + ", ".join(waiting)
            if waiting
            else "All content-preserving finalizers finished",
        ),
    ]


def _with_conditions(obj: Obj, conditions: list[Obj]) -> Obj:
    status = obj.setdefault("status", {})
    before = {one["type"]: one for one in status.get("conditions") or ()}
    for one in conditions:
        old = before.get(one["type"])
        if old and old["status"] == one["status"]:
            one["lastTransitionTime"] = old["lastTransitionTime"]
    kept = [one for kind, one in before.items() if kind not in {c["type"] for c in conditions}]
    status["conditions"] = conditions + kept
    return obj
