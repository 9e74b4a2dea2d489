"""A workload and its pods as a rollout by domain sees them.

What replaces the pods differs. A Deployment's controller does that by itself wherever the budget
allows it. Pods of StatefulSets and DaemonSets are evicted for them, whatever their strategy: under
``OnDelete`` no other controller does it, and under ``RollingUpdate`` a StatefulSet would wait
forever for its highest ordinal if that one is in a closed domain. The pods a ``partition`` keeps
are not outdated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from zonewise.api.errors import ParseError
from zonewise.api.meta import LabelSelector, Object
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.values import times
from zonewise.disruption.domain_counts import DomainCounts, PodPlace, identity
from zonewise.disruption.grouping import ELSEWHERE
from zonewise.disruption.owners import DAEMON_SET, STATEFUL_SET, Owners

DEPLOYMENT = "Deployment"
KINDS = (DEPLOYMENT, STATEFUL_SET, DAEMON_SET)
ON_DELETE = "OnDelete"
BROKEN_SECONDS = 60.0
GONE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledWorkload:
    """What a rollout needs of a workload."""

    kind: str
    namespace: str
    name: str
    uid: str = ""
    selector: LabelSelector | None = None
    seen: bool = True
    """Whether its controller has seen its latest change, and made the new revision."""
    catching_up: bool = False
    """Whether its controller counts pods of an old revision; its cache may be newer than ours."""
    on_delete: bool = False
    recreates: bool = False
    partition: int = 0
    current_revision: str = ""
    update_revision: str = ""

    @property
    def evicted(self) -> bool:
        """Whether its pods are evicted for it."""
        return self.kind != DEPLOYMENT

    @property
    def object(self) -> str:
        """How reasons name it."""
        return f"{self.kind}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledPod:
    """A pod of the workload: where, of which revision, and in which state."""

    pod: Pod
    domain: str
    ready: bool
    outdated: bool
    unready_since: float | None = None
    """For one that is outdated and not Ready, on an existing node: since when."""

    @property
    def created(self) -> str:
        """When it was made; such texts sort as the times do."""
        return self.pod.metadata.creation_timestamp or ""

    @property
    def repairable(self) -> bool:
        """Whether it serves no traffic, and the update may be what repairs it."""
        return self.unready_since is not None

    def broken_in(self, now: float) -> float | None:
        """Seconds until it counts as broken, if it stays as it is; one that is starting is not."""
        return None if self.unready_since is None else self.unready_since + BROKEN_SECONDS - now


def workload_of(item: Object) -> RolledWorkload:
    """Read a Deployment, StatefulSet or DaemonSet, however much of it was decoded."""
    meta = item.metadata
    spec: Any = getattr(item, "spec", None)
    status: Any = getattr(item, "status", None)
    kind = item.resource.kind
    strategy = getattr(spec, "update_strategy", None)
    rolling = getattr(strategy, "rolling_update", None)
    behind = kind == DEPLOYMENT and status.updated_replicas < status.replicas
    return RolledWorkload(
        kind=kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        selector=spec.selector,
        seen=status.observed_generation >= meta.generation,
        catching_up=behind,
        on_delete=getattr(strategy, "type", "") == ON_DELETE,
        recreates=getattr(getattr(spec, "strategy", None), "type", "") == "Recreate",
        partition=getattr(rolling, "partition", None) or 0,
        current_revision=getattr(status, "current_revision", ""),
        update_revision=getattr(status, "update_revision", ""),
    )


def pods_of(
    workload: RolledWorkload,
    domain_counts: DomainCounts,
    owners: Owners,
    nodes: Mapping[str, Node],
    *,
    going: Collection[str] = (),
) -> tuple[RolledPod, ...]:
    """The live pods of a workload by name; ``going`` were evicted a moment ago.

    A pod that waits for a node is in no domain. It counts only if we replace it.
    """
    found = []
    for pod, place in domain_counts.pods.values():
        if not place.active or identity(pod) in going or not _owned(workload, place, owners):
            continue
        if not place.present and not workload.evicted:
            continue
        assert place.reference is not None
        outdated = owners.outdated(place.reference) and _ordinal(workload, pod) >= (
            workload.partition
        )
        found.append(
            RolledPod(
                pod=pod,
                domain=place.domain if place.present else ELSEWHERE,
                ready=place.ready,
                outdated=outdated,
                unready_since=None
                if not outdated or place.ready or _lost(pod, nodes)
                else _unready_since(pod),
            )
        )
    return tuple(sorted(found, key=lambda one: one.pod.metadata.name))


def _owned(workload: RolledWorkload, place: PodPlace, owners: Owners) -> bool:
    if place.reference is None:
        return False
    if workload.evicted:
        return place.reference.uid == workload.uid
    owner = owners.asking(place.reference)
    return owner is not None and owner.uid == workload.uid


def _ordinal(workload: RolledWorkload, pod: Pod) -> int:
    number = pod.metadata.name.rpartition("-")[2]
    if workload.kind != STATEFUL_SET or not (number.isascii() and number.isdigit()):
        return workload.partition
    return int(number)


def _unready_since(pod: Pod) -> float:
    """Since when a pod is not Ready, as far as its status says."""
    said = [one.last_transition_time for one in pod.status.conditions if one.type == "Ready"]
    for text in (*said, pod.metadata.creation_timestamp):
        try:
            return times.parse(text or "").timestamp()
        except ParseError:
            continue
    return 0.0


def _lost(pod: Pod, nodes: Mapping[str, Node]) -> bool:
    if not pod.spec.node_name:
        return False
    node = nodes.get(pod.spec.node_name)
    return node is None or any(taint.key in GONE_TAINTS for taint in node.spec.taints or ())
