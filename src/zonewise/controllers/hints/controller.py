"""The EndpointSlice controller: watches, plans, writes the difference, reports why.

Three roles. *Own*: the slices are ours, endpoints and hints; Kubernetes' own controller is switched
off. *Adopt*: that controller stays, and only hints are ours; a webhook puts them on what it writes,
and slices whose hints are to move without such a write (nodes were added or deleted) are rewritten
here. *Observe*: nothing is written but conditions and events.

*Parallel* are ``workers`` Services. *Ordered*: within a Service creations and updates come before
deletions. Workers begin when Services, pods, slices **and nodes** are listed completely, so no hint
is lost because nodes were not known yet. *Retried* after 1 s, doubling to 1,000 s, 15 times; then
the Service waits until something about it changes. *Bounded*: a write carries the version it was
made from, and no Service is planned again before the store shows what was written for it.

A Service is enqueued by itself, its pods (collected for ``batch`` seconds), foreign edits of its
slices (after a second, so that two writers that disagree do not race), and nodes. Nodes have one
key of their own; it recomputes the shares and enqueues the Services that cross a limit, those with
pods on nodes that were added or moved, and those with topology keys and endpoints on nodes that
were relabelled. A deleted node enqueues no Service for its pods: only their own deletion counts,
and a Node deleted by mistake must not take endpoints along.

Nothing is in memory only: what is kept of a Service is derived, or needed only until the watch has
caught up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from zonewise.api.errors import Forbidden, LeadershipLost, NotFound, Terminal, ZonewiseError
from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.objects.core import Namespace, Node, Service
from zonewise.api.objects.discovery import EndpointSlice
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import ready_condition
from zonewise.api.reason import Reason
from zonewise.api.values import selector
from zonewise.controllers.hints.conditions import HintConditions
from zonewise.controllers.hints.decided import DecidedService, find_concerned
from zonewise.controllers.hints.keyed_services import KeyedServices
from zonewise.controllers.hints.metrics import HintsMetrics
from zonewise.controllers.hints.node_shares import NodeShares
from zonewise.controllers.hints.own_writes import OwnWrites
from zonewise.runtime.controller.controller import Controller
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.process.logs import logger
from zonewise.runtime.program.context import ControllerContext
from zonewise.topology.eligible_nodes import eligible_nodes_of
from zonewise.topology.shares import MissingCpu, MissingZone, Shares
from zonewise.traffic.modes import HintRequest, ShareNodes, hint_request_of
from zonewise.traffic.slices.identity import families_of, has_endpoints, service_keys_of
from zonewise.traffic.slices.planning import (
    MAX_ENDPOINTS,
    PlanCache,
    SlicePlan,
    SliceSnapshot,
    plan_slices,
)
from zonewise.traffic.slices.rehinting import rehint, requests_hints
from zonewise.traffic.slices.topology import SliceTopology, left_over_reason

NODES: Key = ("", "")
"""The key under which node changes wait for their turn."""

TRIES = 15
FIRST_RETRY, LAST_RETRY = 1.0, 1000.0
FOREIGN_PAUSE, ADOPTED_PAUSE = 1.0, 0.2
STALE_PAUSE = 0.2
NODE_PAUSE = 0.1

_ANCHOR, _LABELS, _SERVICE = "hints:anchor", "hints:labels", "hints:service"

_log = logger("hints")


class SliceRole(Enum):
    """Which controller writes EndpointSlices."""

    OWN = "own"
    ADOPT = "adopt"
    OBSERVE = "observe"


@dataclass(frozen=True, slots=True, kw_only=True)
class HintsSettings:
    """How the controller works; ``batch`` is in seconds."""

    role: SliceRole = SliceRole.OWN
    limit: int = MAX_ENDPOINTS
    workers: int = 5
    batch: float = 0.0
    gates: FeatureGates = field(default_factory=FeatureGates)
    missing_cpu: MissingCpu = MissingCpu.DISABLE
    missing_zone: MissingZone = MissingZone.DISABLE
    services: selector.Selector = selector.EVERYTHING
    namespaces: selector.Selector = selector.EVERYTHING


class LostPods(ZonewiseError):
    """Pods are left out because their nodes do not exist."""


class HintsController:
    """Keeps the slices of all Services, or the hints on them."""

    def __init__(self, context: ControllerContext, settings: HintsSettings | None = None) -> None:
        self.settings = settings or HintsSettings()
        self.decided_services: dict[Key, DecidedService] = {}
        self._client = context.client
        self._metrics = (
            HintsMetrics(context.metrics.registry, self.decided_services)
            if context.metrics is not None
            else None
        )
        self._conditions = HintConditions(context.client, context.recorder, context.clock)
        self._memories: dict[Key, PlanCache] = {}
        self._node_hints = True
        own = self.settings.role is SliceRole.OWN
        self._foreign_pause = FOREIGN_PAUSE if own else ADOPTED_PAUSE
        self.controller: Controller[Key] = context.controller(
            "hints",
            self._reconcile,
            workers=self.settings.workers,
            queue=Queue(base=FIRST_RETRY, cap=LAST_RETRY, rng=context.rng),
        )
        self.run = self.controller.run
        self.stop = self.controller.stop
        reads = self.controller.reads
        self._services = reads(Service, indexes={_ANCHOR: _anchor})
        self._slices = reads(EndpointSlice, indexes={_SERVICE: service_keys_of})
        self._pods = reads(Pod, indexes={_LABELS: _pairs})
        self._nodes = reads(Node)
        self._namespaces = (
            None if self.settings.namespaces == selector.EVERYTHING else reads(Namespace)
        )
        self.node_shares = NodeShares(
            lambda: self._nodes,
            missing_cpu=self.settings.missing_cpu,
            missing_zone=self.settings.missing_zone,
        )
        self._keyed = KeyedServices(self.settings.gates)
        self._own_writes = OwnWrites(self._slices)
        self._services.on_change(self._service_changed)
        self._pods.on_change(self._pod_changed)
        self._slices.on_change(self._slice_changed)
        self._nodes.on_change(self._node_changed)
        if self._namespaces is not None:
            self._namespaces.on_change(self._namespace_changed)

    # Which change enqueues which key.

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        if new is None and old is not None:
            key = old.key
            self.decided_services.pop(key, None)
            self._memories.pop(key, None)
            self._own_writes.forget(key)
            self._conditions.forget(key)
            self._keyed.forget(key)
        item = new or old
        if item is not None and _service_matters(old, new):
            self.controller.enqueue(item.key, low=not self._services.synced)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if self.settings.role is not SliceRole.OWN or not _pod_matters(old, new):
            return
        low = not self._pods.synced
        for key in {key for pod in (old, new) if pod is not None for key in self._selecting(pod)}:
            self.controller.enqueue(key, after=self.settings.batch, low=low)

    def _slice_changed(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        if not self._slices.synced:
            return
        for key in {key for piece in (old, new) if piece for key in service_keys_of(piece)}:
            if self._own_writes.foreign(key, old, new):
                self.controller.enqueue(key, after=self._foreign_pause)

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        relabelled = self._keyed.note(old, new)
        if self.node_shares.note(old, new) or relabelled:
            self.controller.enqueue(NODES, after=NODE_PAUSE)

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        names = {item.metadata.name for item in (old, new) if item is not None}
        for service in self._services:
            if service.metadata.namespace in names:
                self.controller.enqueue(service.key)

    def _selecting(self, pod: Pod) -> list[Key]:
        """The Services that select a pod."""
        labels = pod.metadata.labels
        keys = []
        for pair in _pairs(pod):
            for key in self._services.keys_by(_ANCHOR, pair):
                service = self._services.get(key)
                if service is not None and _selects(service, labels):
                    keys.append(key)
        return keys

    def _selected(self, service: Service) -> list[Pod]:
        """The pods that a Service selects."""
        selector = service.spec.selector or {}
        space = service.metadata.namespace
        buckets = [self._pods.keys_by(_LABELS, (space, *pair)) for pair in selector.items()]
        pods = (self._pods.get(key) for key in min(buckets, key=len, default=()))
        return [p for p in pods if p is not None and _selects(service, p.metadata.labels)]

    # One turn of one key.

    async def _reconcile(self, key: Key) -> float | None:
        if key == NODES:
            self._judge()
            return None
        service = self._services.get(key)
        if service is not None:
            self._conditions.report_keys(service, self.settings.gates)
        if service is None or not has_endpoints(service):
            self.decided_services.pop(key, None)
            return None
        slices = self._slices.by(_SERVICE, key)
        if self._own_writes.behind(key):
            self._count("stale")
            return STALE_PAUSE
        try:
            await self._sync(service, slices)
        except LeadershipLost:
            raise
        except ZonewiseError as error:
            self._count("error")
            if self.controller.queue.failures(key) + 1 >= TRIES:
                raise Terminal(f"failed {TRIES} times: {error}") from error
            raise
        self._count("success")
        return None

    def _judge(self) -> None:
        """Recompute the shares and enqueue the Services they concern."""
        moved = self.node_shares.recompute()
        self.node_shares.keep(
            decided.reach for decided in self.decided_services.values() if decided.reach is not None
        )
        for key in tuple(find_concerned(self.decided_services, self.node_shares.within)):
            self.controller.enqueue(key)
        relabelled = self._keyed.take()
        if self.settings.role is not SliceRole.OWN:
            self._enqueue_keyed(relabelled)
        elif moved or relabelled:
            for pod in self._pods:
                node = pod.spec.node_name
                changed = relabelled.get(node, set())
                if node in moved or changed:
                    for key in self._selecting(pod):
                        if node in moved or self._keyed.needs(key, changed):
                            self.controller.enqueue(key)

    def _enqueue_keyed(self, relabelled: Mapping[str, set[str]]) -> None:
        """Enqueue the Services whose slices name a node that was relabelled for their keys."""
        for key in self._keyed if relabelled else ():
            nodes = {
                endpoint.node_name or ""
                for piece in self._slices.by(_SERVICE, key)
                for endpoint in piece.endpoints or ()
            }
            if any(self._keyed.needs(key, relabelled[node]) for node in nodes & relabelled.keys()):
                self.controller.enqueue(key)

    async def _sync(self, service: Service, slices: Iterable[EndpointSlice]) -> None:
        key, own = service.key, self.settings.role is SliceRole.OWN
        request = self._hint_request(service)
        pods = self._selected(service) if own or request.share_nodes is ShareNodes.TOLERATED else []
        reach = eligible_nodes_of(pods) if request.share_nodes is ShareNodes.TOLERATED else None
        shares = self.node_shares.within(reach)
        self._keyed.put(service)
        topology = SliceTopology(self._keyed.keys_of(service), self._keyed.labels)
        decided = (
            self._planned(service, request, shares, pods, slices)
            if own
            else rehint(
                slices,
                request,
                shares,
                families=families_of(service),
                node_hints=self._node_hints,
                topology=topology,
            )
        )
        self.decided_services[key] = DecidedService.of(service, request, decided, shares, reach)
        writes = self.settings.role is not SliceRole.OBSERVE
        if self._metrics is not None:
            self._metrics.planned(service, request, decided, writes=writes)
        if writes:
            self._conditions.report_topology(service, decided.topology_reason)
            if decided.writes:
                await self._write(key, decided)
        else:
            self._conditions.report_topology(service, left_over_reason(slices, topology))
        if decided.families:
            await self._conditions.report(service, decided.families, asks=requests_hints(request))
        if decided.without_node:
            names = ", ".join(pod.metadata.name for pod in decided.without_node[:3])
            raise LostPods(
                f"{len(decided.without_node)} pods are on nodes that do not exist: {names}"
            )

    def _planned(
        self,
        service: Service,
        request: HintRequest,
        shares: Shares,
        pods: Iterable[Pod],
        slices: Iterable[EndpointSlice],
    ) -> SlicePlan:
        view = SliceSnapshot(
            service=service,
            hint_request=request,
            shares=shares,
            pods=pods,
            zones=self.node_shares.zones,
            topology_keys=self._keyed.keys_of(service),
            node_labels=self._keyed.labels,
            slices=slices,
            limit=self.settings.limit,
            node_hints=self._node_hints,
        )
        return plan_slices(view, self._memories.setdefault(service.key, PlanCache()))

    def _hint_request(self, service: Service) -> HintRequest:
        if not self.settings.services.matches(service.metadata.labels):
            return _not_selected("its labels")
        if self._namespaces is not None:
            namespace = self._namespaces.get(("", service.metadata.namespace))
            labels = {} if namespace is None else namespace.metadata.labels
            if not self.settings.namespaces.matches(labels):
                return _not_selected("its namespace's labels")
        return hint_request_of(service, self.settings.gates)

    async def _write(self, key: Key, decided: SlicePlan) -> None:
        self._own_writes.begin(key)
        try:
            for piece in decided.create:
                await self._create(key, piece)
            for piece in decided.update:
                answer = await self._client.replace(piece)
                self._own_writes.wrote(key, answer)
                self._learn(key, piece, answer)
            for piece in decided.delete:
                await self._delete(key, piece)
        finally:
            if self._own_writes.end(key):
                self.controller.enqueue(key, after=self._foreign_pause)

    async def _create(self, key: Key, piece: EndpointSlice) -> None:
        try:
            answer = await self._client.create(piece)
        except Forbidden as error:
            if error.namespace_terminating:
                return
            raise
        self._own_writes.wrote(key, answer)
        self._learn(key, piece, answer)

    async def _delete(self, key: Key, piece: EndpointSlice) -> None:
        meta = piece.metadata
        try:
            await self._client.delete(EndpointSlice, meta.name, meta.namespace, uid=meta.uid)
        except NotFound:
            return
        self._own_writes.deleted(key, piece)

    def _learn(self, key: Key, sent: EndpointSlice, got: EndpointSlice) -> None:
        """Older servers drop node hints silently; then no slice gets them."""
        if self._node_hints and _has_node_hints(sent) and not _has_node_hints(got):
            self._node_hints = False
            _log.warning("the server does not support node hints; only zones are hinted")
            self.controller.enqueue(key)

    def _count(self, result: str) -> None:
        if self._metrics is not None:
            self._metrics.synced(result)


def _pairs(pod: Pod) -> list[tuple[str, str, str]]:
    space = pod.metadata.namespace
    return [(space, key, value) for key, value in pod.metadata.labels.items()]


def _anchor(service: Service) -> tuple[tuple[str, str, str], ...]:
    """One label that every pod of a Service has; the way from pods to Services."""
    if not has_endpoints(service) or not service.spec.selector:
        return ()
    key = min(service.spec.selector)
    return ((service.metadata.namespace, key, service.spec.selector[key]),)


def _selects(service: Service, labels: dict[str, str]) -> bool:
    selector = service.spec.selector or {}
    return all(labels.get(key) == value for key, value in selector.items())


def _service_matters(old: Service | None, new: Service | None) -> bool:
    if old is None or new is None:
        return True
    before, after = old.metadata, new.metadata
    return (
        old.spec != new.spec
        or before.labels != after.labels
        or before.annotations != after.annotations
        or before.deletion_timestamp != after.deletion_timestamp
    )


def _pod_matters(old: Pod | None, new: Pod | None) -> bool:
    """Whether a change of a pod can change an endpoint."""
    if old is None or new is None:
        return True
    if old.status is not new.status and (
        old.status.pod_ips != new.status.pod_ips
        or old.status.phase != new.status.phase
        or _ready(old) != _ready(new)
    ):
        return True
    before, after = old.metadata, new.metadata
    return (
        before.labels != after.labels
        or before.deletion_timestamp != after.deletion_timestamp
        or old.spec.node_name != new.spec.node_name
        or old.spec.hostname != new.spec.hostname
        or old.spec.subdomain != new.spec.subdomain
    )


def _ready(pod: Pod) -> str:
    condition = ready_condition(pod)
    return condition.status if condition else ""


def _has_node_hints(piece: EndpointSlice) -> bool:
    return any(
        endpoint.hints is not None and endpoint.hints.for_nodes
        for endpoint in piece.endpoints or ()
    )


def _not_selected(why: str) -> HintRequest:
    return HintRequest(
        reason=Reason(
            code="NotSelected",
            message=f"this controller does not manage the Service, which is excluded by {why}",
            fix="Choose others with --service-selector and --namespace-selector.",
        )
    )
