"""Namespaces: the content of new ones, and the deletion of namespaces.

A new namespace gets its account ``default`` and the ConfigMap with the CA. When one is deleted its
content is deleted, pods before everything they may need to terminate gracefully; what remains is
reported in its conditions, and when nothing remains it is finalized.
"""

from __future__ import annotations

import asyncio
from typing import Any

from zonewise.api.errors import ApiError
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.controllers.garbage_collector import ObjectKey
from zonewise.embedded.apiserver.controllers.internal_writes import InternalWrites
from zonewise.embedded.apiserver.handlers.deleting import DeleteOptions
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

DELETE_DELAY_SECONDS = 5.0
RETRY_SECONDS = 2.0
CA_CONFIG_MAP = "kube-root-ca.crt"
NAMESPACES = "/namespaces"
PODS = "/pods"

_log = logger("namespaces")


class NamespaceController:
    """Creates the content of new namespaces and deletes that of deleted ones."""

    def __init__(self, writes: InternalWrites, *, authority: str) -> None:
        self._writes = writes
        self._authority = authority
        self._due: dict[str, float] = {}  # name -> when it is processed
        self._wake = asyncio.Event()
        for entry in writes.state.list(NAMESPACES).entries:
            self.enqueue(entry.name, DELETE_DELAY_SECONDS if entry.deleting else 0.0)

    def observe(self, storage: str, event: StoreEvent) -> None:
        """Note a change."""
        entry, deleted = event.entry, event.type == "DELETED"
        if storage == NAMESPACES and not deleted:
            self.enqueue(entry.name, DELETE_DELAY_SECONDS if entry.deleting else 0.0)
        elif (storage == "/configmaps" and entry.name == CA_CONFIG_MAP) or (
            deleted and storage == "/serviceaccounts"
        ):
            self.enqueue(entry.namespace)

    def enqueue(self, name: str, delay: float = 0.0) -> None:
        """Process a namespace after ``delay`` seconds, or earlier if that was requested before."""
        due = asyncio.get_running_loop().time() + delay
        self._due[name] = min(due, self._due.get(name, due))
        self._wake.set()

    async def run(self) -> None:
        """Process namespaces until cancelled."""
        # On the loop's clock: the time of day may be set back, which must not delay this.
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            due = [name for name, when in self._due.items() if when <= now]
            for name in due:
                del self._due[name]
                try:
                    await self._process(name)
                except ApiError as error:
                    _log.info("a namespace is processed again", name=name, why=str(error))
                    self.enqueue(name, RETRY_SECONDS)
            self._wake.clear()
            next_due = min(self._due.values(), default=None)
            wait = None if next_due is None else max(next_due - loop.time(), 0.01)
            try:
                await asyncio.wait_for(self._wake.wait(), wait)
            except TimeoutError:
                continue

    async def _process(self, name: str) -> None:
        namespace = self._writes.writer.get_object(NAMESPACES, "", name)
        if namespace is None:
            return
        if namespace["metadata"].get("deletionTimestamp"):
            await self._delete_content(name, namespace)
            return
        await self._ensure(name, "serviceaccounts", {"metadata": {"name": "default"}})
        config = {
            "metadata": {
                "name": CA_CONFIG_MAP,
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
        published = self._writes.writer.get_object("/configmaps", name, CA_CONFIG_MAP)
        if published is not None and published.get("data") != config["data"]:
            node = ObjectKey("/configmaps", name, CA_CONFIG_MAP)
            await self._writes.change(node, lambda obj: {**obj, "data": config["data"]})

    async def _ensure(self, namespace: str, plural: str, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        if self._writes.state.latest(f"/{plural}", namespace, name) is not None:
            return
        served = self._writes.registry.by_path("", "v1", plural)
        assert served is not None
        target = Target("", "v1", plural, namespace)
        try:
            await self._writes.writer.create(self._writes.call("POST"), served, target, obj)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _delete_content(self, name: str, namespace: Obj) -> None:
        remaining_texts: list[str] = []
        finalizers: dict[str, int] = {}
        storages = self._writes.storages.items()
        for storage, served in sorted(storages, key=lambda item: (item[0] != PODS, item[0])):
            if not served.kind.resource.namespaced or not served.kind.verbs:
                continue
            for entry in self._writes.state.list(storage, name).entries:
                node = ObjectKey(storage, name, entry.name)
                await self._writes.delete(node, DeleteOptions(policy="Background", raw={}))
            remaining = self._writes.state.list(storage, name).entries
            if remaining:
                remaining_texts.append(
                    f"{served.kind.resource.qualified} has {len(remaining)} resource instances"
                )
            for entry in remaining:
                meta = bodies.decode_stored(entry.raw)["metadata"]
                for finalizer in meta.get("finalizers") or ():
                    finalizers[finalizer] = finalizers.get(finalizer, 0) + 1
            if remaining and storage == PODS:
                break
        served = self._writes.served(NAMESPACES)
        target = Target("", "v1", "namespaces", "", name)
        if remaining_texts:
            conditions = _deletion_conditions(
                remaining_texts,
                finalizers,
                self._writes.writer.context(self._writes.call("PUT")).now,
            )
            await self._writes.writer.change(
                self._writes.call("PATCH"),
                served,
                target,
                lambda obj: _set_conditions(obj, conditions),
                subresource="status",
            )
            self.enqueue(name, RETRY_SECONDS)
            return
        if (namespace.get("spec") or {}).get("finalizers"):
            await self._writes.writer.change(
                self._writes.call("PUT"), served, target, _drop_finalizers, subresource="finalize"
            )


def _drop_finalizers(obj: Obj) -> Obj:
    obj["spec"] = {}
    return obj


def _deletion_conditions(remaining: list[str], finalizers: dict[str, int], now: str) -> list[Obj]:
    def condition(kind: str, holds: bool, reason: str, message: str) -> Obj:
        return {
            "type": kind,
            "status": "True" if holds else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
        }

    finalizer_texts = [
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
            "Some resources are remaining: " + ", ".join(remaining),
        ),
        condition(
            "NamespaceFinalizersRemaining",
            bool(finalizer_texts),
            "SomeFinalizersRemain" if finalizer_texts else "ContentHasNoFinalizers",
            "Some content in the namespace has finalizers remaining: " + ", ".join(finalizer_texts)
            if finalizer_texts
            else "All content-preserving finalizers finished",
        ),
    ]


def _set_conditions(obj: Obj, conditions: list[Obj]) -> Obj:
    status = obj.setdefault("status", {})
    previous = {condition["type"]: condition for condition in status.get("conditions") or ()}
    for condition in conditions:
        old = previous.get(condition["type"])
        if old and old["status"] == condition["status"]:
            condition["lastTransitionTime"] = old["lastTransitionTime"]
    others = [
        condition
        for kind, condition in previous.items()
        if kind not in {condition["type"] for condition in conditions}
    ]
    status["conditions"] = conditions + others
    return obj
