"""The PodLocator controller: follows pods and nodes, writes what differs.

A pod's key is enqueued when the pod was added, deleted, finished, or got another node or other
addresses; when the labels of its node changed, or its node was added or deleted; and when another
client changed its locator. Everything else about pods and nodes (heartbeats, conditions, restarts)
enqueues nothing and makes no request. One write updates a locator; a restart compares, writes only
differences, and removes locators whose pods are deleted.

*Parallel* are ``workers`` pods. *Bounded*: a locator is not written again before the store shows
what was written last, or ``PATIENCE`` has passed; so a watch that is late causes no second write.
A pod without an address is not looked up: its locator waits ``ADDRESS_WAIT`` for one, so that
adding, binding and starting a pod is one write.
*Retried* with backoff is what the server refuses, except what only means that the store is late.

It works while the kind is served: ``run`` waits for the CustomResourceDefinition to appear.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from prometheus_client import CollectorRegistry, Counter

from zonewise.api.errors import AlreadyExists, Forbidden, NotFound, ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.locator import PodLocator
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import Request
from zonewise.runtime.client.versions import older
from zonewise.runtime.controller.controller import Controller
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.topology.pod_locators import (
    PodLocation,
    location_in,
    location_of,
    locator_patch,
    new_locator,
    select_labels,
)

POLL = 15.0
"""How often to look whether the kind is served, in seconds."""

PATIENCE = 10.0
ADDRESS_WAIT = 10.0
NODE_INDEX = "locators:node"

ADDED, CHANGED, FINISHED, DELETED = "pod-added", "pod-changed", "pod-finished", "pod-deleted"
NODE_LABELS, NODE_ADDED, NODE_DELETED = "node-labels", "node-added", "node-deleted"
EDITED, STARTED = "foreign-edit", "start"

_log = logger("locators")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatorsSettings:
    """``labels``: which labels of nodes locators have, None for all. ``batch`` is in seconds."""

    labels: tuple[str, ...] | None = None
    workers: int = 10
    batch: float = 0.0
    poll: float = POLL


@dataclass(frozen=True, slots=True)
class _Written:
    """A write that the store does not show yet: the version it made, or the uid that it deleted.

    Not ``Expectations``: a key is one object here, so its own change ends the wait, and nothing is
    kept for each of fifty thousand pods afterwards.
    """

    version: str
    deleted: str
    until: float


class LocatorsController:
    """Keeps the locators of all pods."""

    def __init__(
        self, context: ControllerContext, settings: LocatorsSettings | None = None
    ) -> None:
        self.settings = settings or LocatorsSettings()
        self._context = context
        self._client = context.client
        self._metrics = LocatorsMetrics(context.metrics.registry) if context.metrics else None
        self._causes: dict[Key, str] = {}
        self._written: dict[Key, _Written] = {}
        self._stopping = asyncio.Event()
        self._starting = True
        self._controller: Controller[Key] | None = None
        self._pods: Store[Pod]
        self._nodes: Store[Node]
        self._locators: Store[PodLocator]

    async def run(self) -> None:
        """Wait until locators are served, then keep them until stopped."""
        if not await self._until_served():
            return
        controller: Controller[Key]
        controller = self._controller = self._context.controller(
            "locators", self._reconcile, workers=self.settings.workers
        )
        self._nodes = controller.reads(Node)
        self._locators = controller.reads(PodLocator)
        self._pods = controller.reads(Pod, indexes={NODE_INDEX: _node_of})
        self._nodes.on_change(self._node_changed)
        self._locators.on_change(self._locator_changed)
        self._pods.on_change(self._pod_changed)
        self._starting = False
        await controller.run()

    def stop(self) -> None:
        """Let what is being written end."""
        self._stopping.set()
        if self._controller is not None:
            self._controller.stop()

    async def _until_served(self) -> bool:
        waits = False
        while not self._stopping.is_set():
            if await served(self._client):
                return True
            if not waits:
                _log.info("no PodLocators are served; waiting for their definition")
                waits = True
            try:
                async with asyncio.timeout(self.settings.poll):
                    await self._stopping.wait()
            except TimeoutError:
                continue
        return False

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._wake(old.key, DELETED)
        elif old is None:
            self._wake(new.key, ADDED)
        elif is_pod_finished(new) and not is_pod_finished(old):
            self._wake(new.key, FINISHED)
        elif old.status.pod_ips != new.status.pod_ips or old.spec.node_name != new.spec.node_name:
            self._wake(new.key, CHANGED)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        keys = self.settings.labels
        if old is not None and new is not None:
            if select_labels(old, keys) == select_labels(new, keys):
                return
            cause = NODE_LABELS
        else:
            cause = NODE_ADDED if old is None else NODE_DELETED
        node = new or old
        if node is not None:
            for key in self._pods.keys_by(NODE_INDEX, node.metadata.name):
                self._wake(key, cause)

    def _locator_changed(self, old: PodLocator | None, new: PodLocator | None) -> None:
        item = new or old
        if item is None:
            return
        key = item.key
        written = self._written.get(key)
        if written is not None and _has_come(new, written):
            del self._written[key]
        if self._begins() or self._differs(key, new):
            self._wake(key, EDITED)

    def _differs(self, key: Key, locator: PodLocator | None) -> bool:
        pod = self._pods.get(key)
        if pod is None or locator is None:
            return (pod is None) != (locator is None)
        return self._location(pod) != location_in(locator)

    def _location(self, pod: Pod) -> PodLocation:
        node = self._nodes.get(("", pod.spec.node_name)) if pod.spec.node_name else None
        return location_of(pod, node, self.settings.labels)

    def _begins(self) -> bool:
        """Whether the first lists are still being read."""
        stores = (self._pods, self._nodes, self._locators)
        return self._starting or not all(store.synced for store in stores)

    def _wake(self, key: Key, cause: str) -> None:
        begins = self._begins()
        self._causes.setdefault(key, STARTED if begins else cause)
        if self._controller is not None:
            after = ADDRESS_WAIT if self._awaits_address(key) else self.settings.batch
            self._controller.enqueue(key, after=after, low=begins)

    def _awaits_address(self, key: Key) -> bool:
        """Whether a pod has no address yet, and its locator states none."""
        pod, locator = self._pods.get(key), self._locators.get(key)
        if pod is None or pod.status.pod_ips or is_pod_finished(pod):
            return False
        return locator is None or not locator.ips

    async def _reconcile(self, key: Key) -> float | None:
        pod, locator = self._pods.get(key), self._locators.get(key)
        now = asyncio.get_running_loop().time()
        written = self._written.get(key)
        if written is not None and now < written.until:
            return written.until - now  # its own change enqueues the key before that
        self._written.pop(key, None)
        cause = self._causes.pop(key, STARTED)
        try:
            if pod is None:
                if locator is not None:
                    await self._delete(key, locator, cause)
                return None
            location = self._location(pod)
            if locator is None:
                created = await self._client.create(new_locator(pod, location))
                self._wrote(key, "create", cause, version=created.metadata.resource_version)
            elif patch := locator_patch(pod, location, location_in(locator)):
                changed = await self._client.patch(PodLocator, key[1], key[0], patch, kind="json")
                self._wrote(key, "update", cause, version=changed.metadata.resource_version)
        except (AlreadyExists, NotFound):
            # The store is late, or the kind is not served any more; both show by themselves.
            self._causes.setdefault(key, cause)
            return self.settings.poll
        except Forbidden as error:
            if error.namespace_terminating:
                return None
            self._causes.setdefault(key, cause)
            raise
        except ZonewiseError:
            self._causes.setdefault(key, cause)
            raise
        return None

    async def _delete(self, key: Key, locator: PodLocator, cause: str) -> None:
        uid = locator.metadata.uid
        try:
            await self._client.delete(PodLocator, key[1], key[0], uid=uid)
        except NotFound:
            return  # the garbage collector was faster
        self._wrote(key, "delete", cause, deleted=uid)

    def _wrote(
        self, key: Key, verb: str, cause: str, *, version: str = "", deleted: str = ""
    ) -> None:
        if self._metrics is not None:
            self._metrics.wrote(verb, cause)
        until = asyncio.get_running_loop().time() + PATIENCE
        written = _Written(version, deleted, until)
        if not _has_come(self._locators.get(key), written):
            self._written[key] = written


async def served(client: Client) -> bool:
    """Whether the server has PodLocators."""
    resource = PodLocator.resource
    path = f"/apis/{resource.group}/{resource.version}"
    try:
        answer = await client.exchange.send(Request(method="GET", path=path), repeatable=True)
    except NotFound:
        return False
    except ZonewiseError as error:
        _log.warning("cannot find out which kinds are served", error=str(error))
        return False
    listed = msgspec.json.decode(answer.body, type=_Resources)
    return any(served.name == resource.plural for served in listed.resources)


class _Resource(msgspec.Struct):
    name: str = ""


class _Resources(msgspec.Struct):
    resources: list[_Resource] = []


def _has_come(locator: PodLocator | None, written: _Written) -> bool:
    """Whether the store shows a write, or something later."""
    if written.deleted:
        return locator is None or locator.metadata.uid != written.deleted
    return locator is not None and not older(locator.metadata.resource_version, written.version)


def _node_of(pod: Pod) -> tuple[str, ...]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


class LocatorsMetrics:
    """Writes of PodLocators by operation and cause."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._writes = Counter(
            "zonewise_locator_writes",
            "PodLocators written, by operation and cause.",
            ["operation", "cause"],
            registry=registry,
        )

    def wrote(self, operation: str, cause: str) -> None:
        """A locator was created, updated or deleted."""
        self._writes.labels(operation, cause).inc()
