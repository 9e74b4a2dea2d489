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
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry, Gauge

from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import Key
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished
from zonewise.api.objects.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from zonewise.api.reason import Reason
from zonewise.api.resource import Resource
from zonewise.api.unstructured import Unstructured, unstructured
from zonewise.csi.errors import CsiError
from zonewise.csi.takeover.source import TakeoverSource
from zonewise.csi.takeover.status import (
    CONFIG_MAP,
    STATUS_KEY,
    STATUS_MAP,
    StatusReasons,
    TakeoverStatus,
)
from zonewise.csi.takeover.volumes import VolumeHomes, VolumeUses, has_claims
from zonewise.runtime.controller.controller import own_key, run_all
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import DomainLabels, Segments
from zonewise.storage.parameters import lenient_class_pools
from zonewise.storage.pools import Pool, PoolSpec, PoolState, existing_pools
from zonewise.storage.takeover.dead_nodes import find_reason_to_delete
from zonewise.storage.takeover.stand_ins import (
    desired_takeover_labels,
    diff_takeover_labels,
    fully_named_domains,
)
from zonewise.storage.takeover.warnings import find_away_from_home, find_takeover_warnings
from zonewise.topology.nodes import is_node_ready

ConfigMap = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))
StatesByCluster = Mapping[str, Mapping[str, PoolState]]
PoolStatesReader = Callable[[StorageConfiguration], Awaitable[StatesByCluster]]
COLLECT_SECONDS = 1.0
RECHECK_SECONDS = 30.0
"""How often pools are looked at while a domain is taken over."""
WORKERS = 8
BY_NODE = "pods/takeover-node"

_log = logger("csi")
_STATUS: Key = ("", "status")


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverSettings:
    """The configuration that takeovers are read from, and the labels of domains.

    The ConfigMaps of configuration and status are in ``namespace``. ``states`` asks the backend
    about its pools. ``holds`` is what automatic takeover waits for, ``fences``
    are the nodes that are out of service.
    """

    source: TakeoverSource
    labels: DomainLabels
    namespace: str
    read_states: PoolStatesReader | None = None
    holds: StatusReasons = field(default_factory=StatusReasons)
    fences: StatusReasons = field(default_factory=StatusReasons)


class TakeoverController:
    """Keeps the takeover labels of nodes, and the pods and the status that follow from them."""

    def __init__(self, context: ControllerContext, settings: TakeoverSettings) -> None:
        self._context = context
        self._source = settings.source
        self._domain_labels = labels = settings.labels
        self._namespace = settings.namespace
        self._read_states = settings.read_states
        self._holds, self._fences = settings.holds, settings.fences
        self._metrics = TakeoverMetrics(context.metrics.registry) if context.metrics else None
        self._reported: frozenset[Reason] = frozenset()
        self._labels = context.controller("takeover labels", self._sync_labels, workers=WORKERS)
        self._pods = context.controller("takeover pods", self._sync_pod, workers=WORKERS)
        self._status = context.controller("takeover status", self._report_status)
        self._nodes = self._labels.watches(Node, own_key, when=_has_label_change)
        volumes = self._labels.reads(PersistentVolume)
        pods = self._pods.watches(
            Pod,
            lambda pod: (pod.key,) if has_claims(pod) else (),
            when=_has_use_change,
            indexes={BY_NODE: lambda pod: (pod.spec.node_name or "",) if has_claims(pod) else ()},
        )
        claims = self._pods.reads(PersistentVolumeClaim)
        for controller in (self._pods, self._status):
            controller.reads(Node)
            controller.reads(PersistentVolume)
            controller.reads(PersistentVolumeClaim)
        self._pod_store = self._status.reads(Pod)
        self._classes = self._status.reads(StorageClass)
        self._homes = VolumeHomes(volumes, labels, self._enqueue_all_nodes)
        self._uses = VolumeUses(pods, claims, volumes, self._nodes, labels)
        self._nodes.on_change(self._enqueue_for_node)
        pods.on_change(self._enqueue_for_pod)

    async def run(self) -> None:
        """Work until cancelled."""
        # The source outlives this: a new leader registers again.
        unsubscribe = self._source.on_status_change(self._configuration_changed)
        forget = [
            reasons.on_change(lambda: self._status.enqueue(_STATUS))
            for reasons in (self._holds, self._fences)
        ]
        try:
            self._status.enqueue(_STATUS)
            await run_all(self._labels.run(), self._pods.run(), self._status.run())
        finally:
            unsubscribe()
            for end in forget:
                end()

    def stop(self) -> None:
        """Finish what is being written, start no more."""
        for controller in (self._labels, self._pods, self._status):
            controller.stop()

    def _configuration_changed(self) -> None:
        if self._source.loaded and self._source.problem is None:
            targets = self._source.current.takeover.targets
            in_force = {name: list(by) for name, by in targets.items()}
            _log.info("the takeover map is in force", takeover=in_force)
        self._enqueue_all_nodes()
        self._status.enqueue(_STATUS)

    def _enqueue_all_nodes(self) -> None:
        for node in self._nodes:
            self._labels.enqueue(node.key)
            self._enqueue_pods_of(node)

    def _enqueue_for_node(self, old: Node | None, new: Node | None) -> None:
        if new is None or old is None or is_node_ready(old) != is_node_ready(new):
            self._enqueue_pods_of(new or old)
        self._status.enqueue(_STATUS, after=COLLECT_SECONDS)

    def _enqueue_pods_of(self, node: Node | None) -> None:
        if node is not None:
            for pod in self._pod_store.by(BY_NODE, node.metadata.name):
                self._pods.enqueue(pod.key)

    def _enqueue_for_pod(self, old: Pod | None, new: Pod | None) -> None:
        claims = any(pod is not None and has_claims(pod) for pod in (old, new))
        if claims and _has_use_change(old, new):
            self._status.enqueue(_STATUS, after=COLLECT_SECONDS)

    async def _sync_labels(self, key: Key) -> float | None:
        node = self._nodes.get(key)
        if node is None or not self._source.loaded:
            return None
        labels, meta = self._domain_labels, node.metadata
        takeover = self._source.current.takeover
        desired = desired_takeover_labels(
            labels.segments_of_node(meta.labels), takeover, self._home_domains(), labels
        )
        changes = diff_takeover_labels(meta.labels, desired, labels)
        if not changes:
            return None
        with suppress(NotFound):
            body = {"metadata": {"uid": meta.uid, "labels": changes}}
            await self._context.client.patch(Node, meta.name, None, body)
            added = [label for label, value in changes.items() if value is not None]
            removed = [label for label, value in changes.items() if value is None]
            for reason, keys, words in (
                ("TakeoverBegins", added, "it stands in for a failed domain"),
                ("TakeoverEnds", removed, "it no longer stands in for that domain"),
            ):
                if keys:
                    note = f"{words}: label {', '.join(keys)}"
                    _log.info(note, node=meta.name, reason=reason)
                    self._context.recorder.event(node, reason, "Label", note, transition=True)
        return None

    def _home_domains(self) -> list[Segments]:
        """Where volumes have their home, or may have it soon."""
        configuration = self._source.current
        return [
            *(pool.segments for pool in _declared_pools(configuration).values() if pool.segments),
            *fully_named_domains(configuration.takeover, self._domain_labels),
            *self._homes,
        ]

    async def _sync_pod(self, key: Key) -> float | None:
        volume_pod = self._uses.find_pod(key)
        pod = self._pod_store.get(key)
        if volume_pod is None or pod is None or not self._source.loaded:
            return None
        ready_domains = [
            self._uses.locate_node(node.metadata.name)[0]
            for node in self._nodes
            if is_node_ready(node)
        ]
        reason = find_reason_to_delete(volume_pod, self._source.current.takeover, ready_domains)
        if reason is None:
            return None
        _log.warning(str(reason), reason=reason.code)
        self._context.recorder.event(pod, reason.code, "Delete", str(reason), type="Warning")
        namespace, name = key
        with suppress(NotFound):
            uid = pod.metadata.uid
            await self._context.client.delete(Pod, name, namespace, uid=uid, grace_period=0)
        return None

    async def _report_status(self, _: Key) -> float | None:
        if not self._source.loaded and self._source.problem is None:
            return None
        configuration = self._source.current
        takeover = configuration.takeover
        warnings = find_takeover_warnings(
            takeover,
            await self._read_pools(configuration),
            (self._uses.locate_node(node.metadata.name)[0] for node in self._nodes),
        )
        uses = [*self._uses.uses()]
        away = find_away_from_home(uses, takeover)
        holds = self._holds.current
        status = TakeoverStatus(
            takeover.targets,
            self._source.problem or "",
            warnings,
            away,
            automatic=holds,
            out_of_service=self._fences.current,
        )
        if self._metrics is not None:
            self._metrics.update(status)
        await self._write_status(status)
        # A use of a volume whose domain is still taken over is where it should be.
        overdue = find_away_from_home(use for use in uses if not takeover.is_taken_over(use.home))
        await self._report_warnings((*warnings, *overdue, *holds))
        return RECHECK_SECONDS if takeover.targets else None

    async def _read_pools(self, configuration: StorageConfiguration) -> tuple[Pool, ...]:
        if self._read_states is None or not configuration.takeover.targets:
            return ()
        try:
            states = await self._read_states(configuration)
        except CsiError as error:
            _log.info("the pools cannot be read now", why=str(error))
            return ()
        name_clusters = len(configuration.clusters) > 1
        return tuple(
            replace(pool, spec=replace(pool.spec, name=f"{cluster}/{pool.name}"))
            if name_clusters
            else pool
            for cluster, known in states.items()
            for pool in existing_pools(self._named_pools(configuration, cluster, known), known)
        )

    def _named_pools(
        self, configuration: StorageConfiguration, cluster: str, known: Mapping[str, PoolState]
    ) -> list[PoolSpec]:
        """The pools of the configuration, and those that only classes of a cluster use."""
        pools = [*_declared_pools(configuration).values()]
        for storage_class in sorted(self._classes, key=lambda item: item.metadata.name):
            class_cluster = storage_class.parameters.get("clusterID", cluster)
            ours = storage_class.provisioner == self._domain_labels.driver
            if ours and cluster in ("", class_cluster):
                labels = self._domain_labels
                listed = lenient_class_pools(storage_class.parameters, labels, known)
                pools += [
                    pool
                    for pool in listed
                    if not any(_is_same_pool(pool, pool_named) for pool_named in pools)
                ]
        return pools

    async def _write_status(self, status: TakeoverStatus) -> None:
        client = self._context.client
        body = {"data": {STATUS_KEY: status.to_text()}}
        try:
            config_map = await client.get(ConfigMap, STATUS_MAP, self._namespace)
            if config_map.get("data", STATUS_KEY, default="") != body["data"][STATUS_KEY]:
                config_map = await client.patch(ConfigMap, STATUS_MAP, self._namespace, body)
        except NotFound:
            meta = {"name": STATUS_MAP, "namespace": self._namespace}
            with suppress(AlreadyExists):
                await client.create(ConfigMap({"metadata": meta, **body}))

    async def _report_warnings(self, reasons: tuple[Reason, ...]) -> None:
        """Report each of them once, in the log and as an event."""
        for reason in reasons:
            if reason not in self._reported:
                _log.warning(str(reason), reason=reason.code)
                await self._record_event(reason)
        self._reported = frozenset(reasons)

    async def _record_event(self, reason: Reason) -> None:
        """About the pod that is away, else about the configuration."""
        kind, _, name = reason.object.partition("/")
        namespace, _, pod = name.partition("/")
        regarding: Pod | Unstructured | None = None
        if kind == "Pod":
            regarding = self._pod_store.get((namespace, pod))
        if regarding is None:
            with suppress(NotFound):
                regarding = await self._context.client.get(ConfigMap, CONFIG_MAP, self._namespace)
        if regarding is not None:
            self._context.recorder.event(
                regarding, reason.code, "Takeover", str(reason), type="Warning"
            )


def _declared_pools(configuration: StorageConfiguration) -> dict[str, PoolSpec]:
    pools_by_name = {pool.name: pool for pool in configuration.pools}
    for pools in configuration.pool_sets.values():
        pools_by_name |= {pool.name: pool for pool in pools}
    return pools_by_name


def _is_same_pool(pool: PoolSpec, other: PoolSpec) -> bool:
    return (pool.name, pool.segments) == (other.name, other.segments)


def _has_label_change(old: Node | None, new: Node | None) -> bool:
    return old is None or new is None or old.metadata.labels != new.metadata.labels


def _has_use_change(old: Pod | None, new: Pod | None) -> bool:
    return (
        old is None
        or new is None
        or old.spec.node_name != new.spec.node_name
        or is_pod_finished(old) != is_pod_finished(new)
    )


class TakeoverMetrics:
    """Takeover in numbers: gauges of what holds now."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._taken = Gauge(
            "zonewise_takeover_domains", "Domains that are taken over.", registry=registry
        )
        self._problem = Gauge(
            "zonewise_takeover_configuration_invalid",
            "Whether a newer configuration is wrong, so that an older map is in force.",
            registry=registry,
        )
        self._warnings = Gauge(
            "zonewise_takeover_warnings",
            "What is wrong with the map that is in force, by reason.",
            ["reason"],
            registry=registry,
        )
        self._away = Gauge(
            "zonewise_takeover_away_from_home",
            "Uses of volumes outside of their domain.",
            registry=registry,
        )

    def update(self, status: TakeoverStatus) -> None:
        """Set the gauges to the current state."""
        self._taken.set(len(status.takeover))
        self._problem.set(bool(status.error))
        self._away.set(len(status.away_from_home))
        self._warnings.clear()
        for warning in status.warnings:
            self._warnings.labels(warning.code).inc()
