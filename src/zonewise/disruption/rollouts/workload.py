"""A workload and its pods as a rollout by domain reads them.

Kinds differ in how pods are replaced. A Deployment's controller does that by itself wherever the
budget allows it. Pods of StatefulSets and DaemonSets are evicted for them, whatever their strategy:
under ``OnDelete`` no other controller does it, and under ``RollingUpdate`` a StatefulSet would wait
forever for its highest ordinal if that one is in a closed domain. Pods below a ``partition`` are
not outdated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.meta import LabelSelector, Object
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_active
from zonewise.api.values import times
from zonewise.disruption.domain_counts import DomainCounts, identity
from zonewise.disruption.grouping import NO_DOMAIN
from zonewise.disruption.owners import (
    DAEMON_SET,
    STATEFUL_SET,
    ControllerReference,
    Owners,
    reference_of,
)

DEPLOYMENT = "Deployment"
WORKLOAD_KINDS = (DEPLOYMENT, STATEFUL_SET, DAEMON_SET)
ON_DELETE = "OnDelete"
BROKEN_SECONDS = 60.0
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledWorkload:
    """What a rollout reads of a workload."""

    kind: str
    namespace: str
    name: str
    uid: str = ""
    selector: LabelSelector | None = None
    observed: bool = True
    """Whether its controller has observed its latest change, and created the new revision."""
    catching_up: bool = False
    """Whether its controller counts pods of an old revision; its cache may be newer than ours."""
    on_delete: bool = False
    recreates: bool = False
    partition: int = 0
    current_revision: str = ""
    update_revision: str = ""

    @property
    def needs_evictions(self) -> bool:
        """Whether the rollout has to evict its pods."""
        return self.kind != DEPLOYMENT

    @property
    def object(self) -> str:
        """Its name in reasons."""
        return f"{self.kind}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledPod:
    """A pod of the workload: its domain, revision and state."""

    pod: Pod
    domain: str
    ready: bool
    outdated: bool
    unready_since: float | None = None
    """Since when it is not Ready; None unless it is outdated, on a node that is not lost."""

    @property
    def created(self) -> str:
        """Its creation time; such texts sort as the times do."""
        return self.pod.metadata.creation_timestamp or ""

    @property
    def repairable(self) -> bool:
        """Whether it serves no traffic, and the update may be what repairs it."""
        return self.unready_since is not None

    def seconds_until_broken(self, now: float) -> float | None:
        """Seconds until it counts as broken, if it stays unready; a pod may be starting."""
        return None if self.unready_since is None else self.unready_since + BROKEN_SECONDS - now


def workload_of(item: Object) -> RolledWorkload:
    """The workload that a Deployment, StatefulSet or DaemonSet is, whatever was decoded of it."""
    meta = item.metadata
    spec: Any = getattr(item, "spec", None)
    status: Any = getattr(item, "status", None)
    kind = item.resource.kind
    strategy = getattr(spec, "update_strategy", None)
    rolling_update = getattr(strategy, "rolling_update", None)
    behind = kind == DEPLOYMENT and status.updated_replicas < status.replicas
    return RolledWorkload(
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        selector=spec.selector,
        observed=status.observed_generation >= meta.generation,
        catching_up=behind,
        on_delete=getattr(strategy, "type", "") == ON_DELETE,
        recreates=getattr(getattr(spec, "strategy", None), "type", "") == "Recreate",
        partition=getattr(rolling_update, "partition", None) or 0,
        current_revision=getattr(status, "current_revision", ""),
        update_revision=getattr(status, "update_revision", ""),
    )


def workload_pods(
    workload: RolledWorkload,
    counts: DomainCounts,
    owners: Owners,
    nodes: Mapping[str, Node],
    *,
    evicted: Collection[str] = (),
) -> tuple[RolledPod, ...]:
    """The active pods of a workload by name, without those just ``evicted``.

    A pod that waits for a node is in no domain. It counts only if the rollout evicts pods.
    """
    pods = []
    for pod, counted in counts.pods.values():
        if not counted.active or identity(pod) in evicted:
            continue
        if not _is_owned(workload, counted.reference, owners):
            continue
        if not counted.present and not workload.needs_evictions:
            continue
        assert counted.reference is not None
        outdated = owners.is_outdated(counted.reference)
        outdated = outdated and _ordinal(workload, pod) >= workload.partition
        pods.append(
            RolledPod(
                pod=pod,
                domain=counted.domain if counted.present else NO_DOMAIN,
                ready=counted.ready,
                outdated=outdated,
                unready_since=None
                if not outdated or counted.ready or _is_on_lost_node(pod, nodes)
                else _unready_since(pod),
            )
        )
    return tuple(sorted(pods, key=lambda rolled: rolled.pod.metadata.name))


def unscheduled_pods(
    workload: RolledWorkload, pods: Iterable[Pod], owners: Owners
) -> tuple[RolledPod, ...]:
    """Those of some pods that belong to a workload, are active and have no node yet."""
    result = []
    for pod in pods:
        reference = reference_of(pod)
        if pod.spec.node_name or not is_pod_active(pod) or reference is None:
            continue
        if _is_owned(workload, reference, owners):
            outdated = owners.is_outdated(reference)
            result.append(RolledPod(pod=pod, domain=NO_DOMAIN, ready=False, outdated=outdated))
    return tuple(result)


def _is_owned(
    workload: RolledWorkload, reference: ControllerReference | None, owners: Owners
) -> bool:
    if reference is None:
        return False
    if workload.needs_evictions:
        return reference.uid == workload.uid
    owner = owners.find_scale_owner(reference)
    return owner is not None and owner.uid == workload.uid


def _ordinal(workload: RolledWorkload, pod: Pod) -> int:
    ordinal = pod.metadata.name.rpartition("-")[2]
    if workload.kind != STATEFUL_SET or not (ordinal.isascii() and ordinal.isdigit()):
        return workload.partition
    return int(ordinal)


def _unready_since(pod: Pod) -> float:
    """Since when a pod is not Ready, as far as its status says."""
    transition_times = [
        condition.last_transition_time
        for condition in pod.status.conditions
        if condition.type == "Ready"
    ]
    for text in (*transition_times, pod.metadata.creation_timestamp):
        try:
            return times.parse(text or "").timestamp()
        except ParseError:
            continue
    return 0.0


def _is_on_lost_node(pod: Pod, nodes: Mapping[str, Node]) -> bool:
    if not pod.spec.node_name:
        return False
    node = nodes.get(pod.spec.node_name)
    return node is None or any(taint.key in LOST_NODE_TAINTS for taint in node.spec.taints or ())
