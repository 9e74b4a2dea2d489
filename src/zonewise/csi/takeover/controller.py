"""Keeps nodes labelled as the takeover map says, and reports what follows from it.

Three loops over one set of stores:

*labels*, by node: what a node must have is decided from its domain, the map and the homes of all
volumes; what differs is patched, nothing else of the Node. When a map is removed, its labels are
removed at once: the only state is on the nodes themselves, so a restart at any line converges.

*pods*, by pod: one that holds a volume of a taken domain on a node that is not Ready is deleted
(``storage.takeover.evacuation``), and never any other.

*status*, one key: which map is in force, what is wrong with it, what is away from home. Changes are
collected for a second.

As long as no configuration could be read, nothing is touched. One that is wrong changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import finished
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from zonewise.api.reason import Reason
from zonewise.api.resource import Resource
from zonewise.api.unstructured import Unstructured, unstructured
from zonewise.csi.status import CsiError
from zonewise.csi.takeover.metrics import TakeoverMetrics
from zonewise.csi.takeover.source import TakeoverSource
from zonewise.csi.takeover.status import CONFIG, STATUS, STATUS_KEY, TakeoverStatus
from zonewise.csi.takeover.volumes import VolumeHomes, VolumeUses, has_claims
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key, run_all
from zonewise.runtime.process.logs import logger
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.declared_pools import pools_of_class
from zonewise.storage.domains import DomainLabels, Segments
from zonewise.storage.pools import Pool, PoolSpec, PoolState, pools_of
from zonewise.storage.takeover import (
    away_from_home,
    label_changes,
    named_domains,
    takeover_labels,
    takeover_warnings,
)
from zonewise.storage.takeover.evacuation import makes_way
from zonewise.topology import is_ready

ConfigMap = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))
StatesByCluster = Mapping[str, Mapping[str, PoolState]]
PoolStatesReader = Callable[[StorageConfiguration], Awaitable[StatesByCluster]]
COLLECT = 1.0
AGAIN = 30.0
"""How often pools are looked at while a domain is taken over."""
WORKERS = 8
BY_NODE = "pods/takeover-node"

_log = logger("csi")
_STATUS: Key = ("", "status")


class TakeoverController:
    """A component; ``states`` asks the backend about its pools, ``namespace`` has the status."""

    def __init__(
        self,
        context: ComponentContext,
        source: TakeoverSource,
        labels: DomainLabels,
        *,
        namespace: str,
        states: PoolStatesReader | None = None,
        metrics: TakeoverMetrics | None = None,
    ) -> None:
        self._context = context
        self._source = source
        self._domain_labels = labels
        self._namespace = namespace
        self._states = states
        self._metrics = metrics
        self._told: frozenset[Reason] = frozenset()
        cache, rng = context.cache, context.rng
        self._labels: Controller[Key] = Controller(
            "takeover labels", self._label, cache=cache, workers=WORKERS, rng=rng
        )
        self._pods: Controller[Key] = Controller(
            "takeover pods", self._evacuate, cache=cache, workers=WORKERS, rng=rng
        )
        self._status: Controller[Key] = Controller("takeover status", self._tell, cache=cache)
        self._nodes = self._labels.watches(Node, own_key, when=_node_changed)
        volumes = self._labels.reads(PersistentVolume)
        pods = self._pods.watches(
            Pod,
            lambda pod: (pod.key,) if has_claims(pod) else (),
            when=_pod_changed,
            indexes={BY_NODE: lambda pod: (pod.spec.node_name or "",) if has_claims(pod) else ()},
        )
        claims = self._pods.reads(PersistentVolumeClaim)
        for one in (self._pods, self._status):
            one.reads(Node)
            one.reads(PersistentVolume)
            one.reads(PersistentVolumeClaim)
        self._pod_store = self._status.reads(Pod)
        self._classes = self._status.reads(StorageClass)
        self._homes = VolumeHomes(volumes, labels, self._all_nodes)
        self._uses = VolumeUses(pods, claims, volumes, self._nodes, labels)
        self._nodes.on_change(self._node_moved)
        pods.on_change(self._pod_moved)

    async def run(self) -> None:
        """Work until cancelled."""
        # The source outlives this: a new leader registers again.
        silent = self._source.on_news(self._changed)
        try:
            self._status.enqueue(_STATUS)
            await run_all(self._labels.run(), self._pods.run(), self._status.run())
        finally:
            silent()

    def stop(self) -> None:
        """Finish what is being written, start no more."""
        for one in (self._labels, self._pods, self._status):
            one.stop()

    def _changed(self) -> None:
        if self._source.known and self._source.problem is None:
            targets = self._source.current.takeover.targets
            _log.info(
                "the takeover map is in force",
                takeover={name: list(by) for name, by in targets.items()},
            )
        self._all_nodes()
        self._status.enqueue(_STATUS)

    def _all_nodes(self) -> None:
        for node in self._nodes:
            self._labels.enqueue(node.key)
            self._pods_of(node)

    def _node_moved(self, old: Node | None, new: Node | None) -> None:
        if new is None or old is None or is_ready(old) != is_ready(new):
            self._pods_of(new or old)
        self._status.enqueue(_STATUS, after=COLLECT)

    def _pods_of(self, node: Node | None) -> None:
        if node is not None:
            for pod in self._pod_store.by(BY_NODE, node.metadata.name):
                self._pods.enqueue(pod.key)

    def _pod_moved(self, old: Pod | None, new: Pod | None) -> None:
        if _pod_changed(old, new) and any(
            one is not None and has_claims(one) for one in (old, new)
        ):
            self._status.enqueue(_STATUS, after=COLLECT)

    async def _label(self, key: Key) -> float | None:
        node = self._nodes.get(key)
        if node is None or not self._source.known:
            return None
        labels, meta = self._domain_labels, node.metadata
        takeover = self._source.current.takeover
        wanted = takeover_labels(labels.of_node(meta.labels), takeover, self._domains(), labels)
        changes = label_changes(meta.labels, wanted, labels)
        if not changes:
            return None
        with suppress(NotFound):
            body = {"metadata": {"uid": meta.uid, "labels": changes}}
            await self._context.client.patch(Node, meta.name, None, body)
            taken = [label for label, value in changes.items() if value is not None]
            given = [label for label, value in changes.items() if value is None]
            for reason, keys, words in (
                ("TakeoverBegins", taken, "it stands in for a failed domain"),
                ("TakeoverEnds", given, "it no longer stands in for that domain"),
            ):
                if keys:
                    note = f"{words}: label {', '.join(keys)}"
                    _log.info(note, node=meta.name, reason=reason)
                    self._context.recorder.event(node, reason=reason, action="Label", note=note)
        return None

    def _domains(self) -> list[Segments]:
        """Where volumes have their home, or may have it soon."""
        configuration = self._source.current
        return [
            *(pool.segments for pool in _declared(configuration).values() if pool.segments),
            *named_domains(configuration.takeover, self._domain_labels),
            *self._homes,
        ]

    async def _evacuate(self, key: Key) -> float | None:
        pod = self._uses.pod(key)
        found = self._pod_store.get(key)
        if pod is None or found is None or not self._source.known:
            return None
        living = [self._uses.place(node.metadata.name)[0] for node in self._nodes if is_ready(node)]
        why = makes_way(pod, self._source.current.takeover, living)
        if why is None:
            return None
        _log.warning(str(why), reason=why.code)
        self._context.recorder.event(
            found, type="Warning", reason=why.code, action="Delete", note=str(why)
        )
        namespace, name = key
        with suppress(NotFound):
            await self._context.client.delete(
                Pod, name, namespace, uid=found.metadata.uid, grace_period=0
            )
        return None

    async def _tell(self, _: Key) -> float | None:
        if not self._source.known and self._source.problem is None:
            return None
        configuration = self._source.current
        takeover = configuration.takeover
        warnings = takeover_warnings(
            takeover,
            await self._known_pools(configuration),
            (self._uses.place(node.metadata.name)[0] for node in self._nodes),
        )
        uses = [*self._uses.uses()]
        status = TakeoverStatus(
            takeover.targets, self._source.problem or "", warnings, away_from_home(uses, takeover)
        )
        if self._metrics is not None:
            self._metrics.tell(status)
        await self._write(status)
        # A use of a volume whose domain is still taken over is where it should be.
        overdue = away_from_home(one for one in uses if not takeover.taken(one.home))
        await self._warn((*warnings, *overdue))
        return AGAIN if takeover.targets else None

    async def _known_pools(self, configuration: StorageConfiguration) -> tuple[Pool, ...]:
        if self._states is None or not configuration.takeover.targets:
            return ()
        try:
            states = await self._states(configuration)
        except CsiError as error:
            _log.info("the pools cannot be read now", why=str(error))
            return ()
        several = len(configuration.clusters) > 1
        return tuple(
            replace(pool, spec=replace(pool.spec, name=f"{cluster}/{pool.name}"))
            if several
            else pool
            for cluster, known in states.items()
            for pool in pools_of(self._used_pools(configuration, cluster), known)
        )

    def _used_pools(self, configuration: StorageConfiguration, cluster: str) -> list[PoolSpec]:
        """The pools of the configuration, and those that only classes of a cluster name."""
        found = [*_declared(configuration).values()]
        for one in sorted(self._classes, key=lambda one: one.metadata.name):
            named = one.parameters.get("clusterID", cluster)
            if one.provisioner == self._domain_labels.driver and cluster in ("", named):
                listed = pools_of_class(one.parameters, self._domain_labels)
                found += [pool for pool in listed if not any(_same(pool, it) for it in found)]
        return found

    async def _write(self, status: TakeoverStatus) -> None:
        client = self._context.client
        told = {"data": {STATUS_KEY: status.text()}}
        try:
            found = await client.get(ConfigMap, STATUS, self._namespace)
            if found.get("data", STATUS_KEY, default="") != told["data"][STATUS_KEY]:
                found = await client.patch(ConfigMap, STATUS, self._namespace, told)
        except NotFound:
            meta = {"name": STATUS, "namespace": self._namespace}
            with suppress(AlreadyExists):
                await client.create(ConfigMap({"metadata": meta, **told}))

    async def _warn(self, reasons: tuple[Reason, ...]) -> None:
        """Report each of them once, in the log and as an event."""
        for one in reasons:
            if one not in self._told:
                _log.warning(str(one), reason=one.code)
                await self._event(one)
        self._told = frozenset(reasons)

    async def _event(self, reason: Reason) -> None:
        """About the pod that is away, else about the configuration."""
        kind, _, name = reason.object.partition("/")
        namespace, _, pod = name.partition("/")
        about: Pod | Unstructured | None = None
        if kind == "Pod":
            about = self._pod_store.get((namespace, pod))
        if about is None:
            with suppress(NotFound):
                about = await self._context.client.get(ConfigMap, CONFIG, self._namespace)
        if about is not None:
            self._context.recorder.event(
                about, type="Warning", reason=reason.code, action="Takeover", note=str(reason)
            )


def _declared(configuration: StorageConfiguration) -> dict[str, PoolSpec]:
    found = {pool.name: pool for pool in configuration.pools}
    for pools in configuration.pool_sets.values():
        found |= {pool.name: pool for pool in pools}
    return found


def _same(one: PoolSpec, other: PoolSpec) -> bool:
    return (one.name, one.segments) == (other.name, other.segments)


def _node_changed(old: Node | None, new: Node | None) -> bool:
    return old is None or new is None or old.metadata.labels != new.metadata.labels


def _pod_changed(old: Pod | None, new: Pod | None) -> bool:
    return (
        old is None
        or new is None
        or old.spec.node_name != new.spec.node_name
        or finished(old) != finished(new)
    )
