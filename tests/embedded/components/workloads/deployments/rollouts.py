"""Deployments and ReplicaSets as values, and a model of a cluster to try any order of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from zonewise.api.meta import IntOrString, ObjectMeta
from zonewise.api.objects.apps import (
    Deployment,
    DeploymentSpec,
    DeploymentStatus,
    DeploymentStrategy,
    ReplicaSet,
    ReplicaSetSpec,
    ReplicaSetStatus,
    RollingUpdateDeployment,
)
from zonewise.disruption.steering import REDUCE_TO
from zonewise.embedded.components.workloads.deployments import rollout_status
from zonewise.embedded.components.workloads.deployments.rollout import (
    REVISION,
    DeploymentSets,
    apply_resizes,
    missing_annotations,
    plan_rollout,
    rollout_limits,
    size_annotations,
    split_sets,
)
from zonewise.embedded.components.workloads.replicasets import replicas as sizes
from zonewise.embedded.components.workloads.replicasets.replicas import target_replicas

replace = msgspec.structs.replace


def template(version: int) -> msgspec.Raw:
    """The template of a version."""
    return msgspec.Raw(b'{"metadata":{"labels":{"app":"web"}},"spec":{"version":%d}}' % version)


def deployment(
    replicas: int = 10,
    *,
    version: int = 1,
    surge: IntOrString = "25%",
    unavailable: IntOrString = "25%",
    recreate: bool = False,
    paused: bool = False,
    history: int | None = 10,
    deadline: int | None = 600,
    status: DeploymentStatus | None = None,
    generation: int = 1,
) -> Deployment:
    """A Deployment named web."""
    rolling = RollingUpdateDeployment(max_surge=surge, max_unavailable=unavailable)
    return Deployment(
        metadata=ObjectMeta(name="web", namespace="default", uid="d", generation=generation),
        spec=DeploymentSpec(
            replicas=replicas,
            template=template(version),
            strategy=DeploymentStrategy(type="Recreate")
            if recreate
            else DeploymentStrategy(type="RollingUpdate", rolling_update=rolling),
            paused=paused,
            revision_history_limit=history,
            progress_deadline_seconds=deadline,
        ),
        status=status or DeploymentStatus(),
    )


def make_set(
    version: int,
    replicas: int,
    *,
    available: int | None = None,
    reducing: int | None = None,
    desired: int = 10,
    most: int = 13,
    revision: int | None = None,
    history: str = "",
    have: int | None = None,
) -> ReplicaSet:
    """A ReplicaSet of the template of a version; the older the version, the older it is."""
    annotations = {
        "deployment.kubernetes.io/desired-replicas": str(desired),
        "deployment.kubernetes.io/max-replicas": str(most),
        REVISION: str(version if revision is None else revision),
    }
    if history:
        annotations["deployment.kubernetes.io/revision-history"] = history
    if reducing is not None:
        annotations[REDUCE_TO] = str(reducing)
    ready = replicas if available is None else available
    return ReplicaSet(
        metadata=ObjectMeta(
            name=f"web-{version}",
            namespace="default",
            uid=f"v{version}",
            creation_timestamp=f"2026-01-01T00:00:{version:02}Z",
            annotations=annotations,
        ),
        spec=ReplicaSetSpec(replicas=replicas, template=template(version)),
        status=ReplicaSetStatus(
            replicas=replicas if have is None else have,
            ready_replicas=ready,
            available_replicas=ready,
        ),
    )


@dataclass
class Cluster:
    """A Deployment, its ReplicaSets and their pods, moved one step at a time. A pod is True once it
    is available. Statuses of ReplicaSets change only when ``count`` is called, so plans are made
    from an older state, as in a real cluster.
    """

    owner: Deployment
    evicts: bool
    sets: dict[str, ReplicaSet] = field(default_factory=dict)
    pods: dict[str, list[bool]] = field(default_factory=dict)
    created: int = 0

    def settle(self) -> None:
        """Run until nothing changes, granting every eviction."""
        for _ in range(400):
            before = (dict(self.sets), {uid: list(pods) for uid, pods in self.pods.items()})
            self.think()
            for uid in list(self.sets):
                self.work(uid, lambda: True)
                self.pods[uid] = [True] * len(self.pods[uid])
                self.count(uid)
            if before == (self.sets, self.pods):
                return
        raise AssertionError("it never comes to rest")

    def think(self) -> None:
        """One pass of the Deployment controller."""
        sets = split_sets(self.owner, self.sets.values())
        old_pods = any(self.pods[replica_set.metadata.uid] for replica_set in sets.old)
        step = plan_rollout(self.owner, sets, old_pods=old_pods)
        status = rollout_status.compute_status(self.owner, sets, scaling=step.scaling, now=0.0)
        self.owner = replace(self.owner, status=status)
        if step.create is not None:
            self._create(sets, step.create)
        elif sets.new is not None:
            self._annotate(sets.new, missing_annotations(self.owner, sets))
        for resize in step.resizes:
            now = self.sets[resize.replica_set.metadata.uid]
            shrinks = resize.replicas < now.spec.replicas
            if self.evicts and shrinks:
                self._annotate(now, {REDUCE_TO: str(resize.replicas)})
            elif resize.replicas != target_replicas(now):
                self.sets[now.metadata.uid] = _resize(_without_reduction(now), resize.replicas)
            if not resize.short:
                self._annotate(self.sets[now.metadata.uid], size_annotations(self.owner))
        for gone in step.delete:
            assert not self.pods.pop(gone.metadata.uid)
            del self.sets[gone.metadata.uid]
        expected = apply_resizes(sets, step.resizes, reducing=self.evicts)
        for after in expected.all:
            if after.metadata.uid in self.sets:
                assert self.sets[after.metadata.uid].spec.replicas == after.spec.replicas

    def work(self, uid: str, granted: Callable[[], bool]) -> None:
        """One pass of the ReplicaSet controller; ``granted`` answers evictions."""
        replica_set, pods = self.sets[uid], self.pods[uid]
        self.created += max(0, target_replicas(replica_set) - len(pods))
        pods += [False] * (target_replicas(replica_set) - len(pods))
        for available in sorted(pods)[: max(0, len(pods) - target_replicas(replica_set))]:
            if not available or not self.evicts or granted():
                pods.remove(available)
        if REDUCE_TO in replica_set.metadata.annotations:
            size = sizes.lower_replicas(replica_set, len(pods))
            done = size == target_replicas(replica_set)
            replica_set = _resize(replica_set, size)
            self.sets[uid] = _without_reduction(replica_set) if done else replica_set

    def count(self, uid: str) -> None:
        """Update the status of a ReplicaSet."""
        pods = self.pods[uid]
        status = ReplicaSetStatus(
            observed_generation=self.sets[uid].metadata.generation,
            replicas=len(pods),
            ready_replicas=sum(pods),
            available_replicas=sum(pods),
        )
        self.sets[uid] = replace(self.sets[uid], status=status)

    def change(self, **spec: object) -> None:
        """Change the Deployment's spec."""
        meta = replace(self.owner.metadata, generation=self.owner.metadata.generation + 1)
        self.owner = replace(self.owner, metadata=meta, spec=replace(self.owner.spec, **spec))

    @property
    def living(self) -> int:
        """How many pods there are."""
        return sum(map(len, self.pods.values()))

    @property
    def available(self) -> int:
        """How many pods are available."""
        return sum(map(sum, self.pods.values()))

    @property
    def replicas(self) -> int:
        """The sum of all sizes."""
        return sum(replica_set.spec.replicas for replica_set in self.sets.values())

    def within_limits(self) -> bool:
        """Whether there are neither too many pods nor too few available ones."""
        bounds = rollout_limits(self.owner)
        most = self.living if self.evicts else self.replicas
        return most <= bounds.max_pods and self.available >= bounds.min_available

    def _create(self, sets: DeploymentSets, size: int) -> None:
        version = msgspec.json.decode(self.owner.spec.template)["spec"]["version"]
        replica_set = make_set(version, size, available=0, have=0)
        meta = replace(replica_set.metadata, annotations=missing_annotations(self.owner, sets))
        self.sets[replica_set.metadata.uid] = replace(replica_set, metadata=meta)
        self._annotate(self.sets[replica_set.metadata.uid], size_annotations(self.owner))
        self.pods[replica_set.metadata.uid] = []

    def _annotate(self, replica_set: ReplicaSet, annotations: dict[str, str]) -> None:
        now = self.sets[replica_set.metadata.uid]
        meta = replace(now.metadata, annotations={**now.metadata.annotations, **annotations})
        self.sets[replica_set.metadata.uid] = replace(now, metadata=meta)


def _resize(replica_set: ReplicaSet, size: int) -> ReplicaSet:
    if size == replica_set.spec.replicas:
        return replica_set
    meta = replace(replica_set.metadata, generation=replica_set.metadata.generation + 1)
    return replace(replica_set, metadata=meta, spec=replace(replica_set.spec, replicas=size))


def _without_reduction(replica_set: ReplicaSet) -> ReplicaSet:
    annotations = {k: v for k, v in replica_set.metadata.annotations.items() if k != REDUCE_TO}
    return replace(replica_set, metadata=replace(replica_set.metadata, annotations=annotations))


def sized(sets: Iterable[ReplicaSet]) -> dict[str, int]:
    """Names and sizes."""
    return {replica_set.metadata.name: replica_set.spec.replicas for replica_set in sets}
