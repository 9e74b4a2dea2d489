"""The disruption controller: writes the status of PodDisruptionBudgets, which limits evictions.

One key is one budget. It is counted when it changes, when a pod that it selects is added, deleted
or changes its readiness, and when a workload is scaled; *every* budget that selects the pod is
counted, not only the first. Budgets and pods are matched by a label that both have, so no lookup
scans the whole namespace. Changes are batched for a moment that grows with the number of pods a
budget has: a burst of pods costs a bounded part of a processor.

The count is written on the version it was made from. An eviction that spent the budget meanwhile
makes the write a conflict and the budget is counted again, so a spent disruption is never given
back. A budget that cannot be counted (a controller without a scale) allows no disruption and its
status says why; it is tried again when something changes.

Budgets per domain (``spec.nodeSelectorTerm``) are counted by ``zonewise.controllers.budgets`` and
ignored here. Where workloads evict, that counts all budgets, and this controller does not run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from zonewise.api.errors import ApiError, NotFound
from zonewise.api.meta import Key, OwnerReference
from zonewise.api.objects.apps import Deployment, ReplicaSet, StatefulSet
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.api.objects.policy import PodDisruptionBudget, PodDisruptionBudgetStatus
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct
from zonewise.api.values import selector, times
from zonewise.disruption.pdb import (
    BudgetCount,
    failed_status,
    needs_scale,
    status_of_count,
)
from zonewise.embedded.components.disruption.stale_targets import StaleTargets
from zonewise.runtime.cache.indexes import BY_NAMESPACE
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.program.context import ControllerContext

BY_LABEL = "budgets/label"
BATCH_SECONDS = 0.05
BATCH_SECONDS_PER_POD = 2e-5
APPS_VERSIONS = ("apps/v1", "extensions/v1beta1", "apps/v1beta1", "apps/v1beta2")
UNMANAGED_PODS_MESSAGE = (
    "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a"
    " result, the status of the PDB cannot be calculated correctly, which may result in undefined"
    ' behavior. To account for these pods please set ".spec.minAvailable" field of the PDB to an'
    " integer value."
)


class ScaleUnavailable(Exception):
    """The owner of a budget's pods does not tell how many there should be."""


class _ApiResource(Struct):
    name: str = ""
    kind: str = ""


class _ApiResources(Struct):
    resources: tuple[_ApiResource, ...] = ()


class _ScaleMeta(Struct):
    uid: str = ""


class _ScaleSpec(Struct):
    replicas: int = 0


class _Scale(Struct):
    metadata: _ScaleMeta = _ScaleMeta()
    spec: _ScaleSpec = _ScaleSpec()


class DisruptionController:
    """The disruption controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._pod_counts: dict[Key, int] = {}  # pods of each budget when last counted
        self._selectors: dict[Key, tuple[PodDisruptionBudget, selector.Selector]] = {}
        self._controller = context.controller("disruption", self._sync_budget)
        self._budgets = self._controller.watches(
            PodDisruptionBudget, own_key, indexes={**BY_NAMESPACE, BY_LABEL: _required_label}
        )
        self._pods = self._controller.reads(Pod, indexes={**BY_NAMESPACE, BY_LABEL: _label_keys})
        self._pods.on_change(self._pod_changed)
        self._deployments = self._controller.reads(Deployment)
        self._replica_sets = self._controller.reads(ReplicaSet)
        self._stateful_sets = self._controller.reads(StatefulSet)
        self._deployments.on_change(self._scale_changed)
        self._replica_sets.on_change(self._scale_changed)
        self._stateful_sets.on_change(self._scale_changed)
        self._stale_targets = StaleTargets(context)

    async def run(self) -> None:
        """Count until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run())
            tasks.create_task(self._stale_targets.run())

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if not self._budgets:
            return
        if old is not None and new is not None and _counted_fields(old) == _counted_fields(new):
            return
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            old = None
        for pod in (old, new):
            if pod is None:
                continue
            for label in (*_label_keys(pod), (pod.metadata.namespace, "", "")):
                for budget in self._budgets.by(BY_LABEL, label):
                    if self._selector(budget).matches(pod.metadata.labels):
                        self._enqueue(budget)

    def _scale_changed(
        self,
        old: Deployment | ReplicaSet | StatefulSet | None,
        new: Deployment | ReplicaSet | StatefulSet | None,
    ) -> None:
        workload = new or old
        assert workload is not None
        if old is not None and new is not None and old.spec.replicas == new.spec.replicas:
            return
        for budget in self._budgets.by("namespace", workload.metadata.namespace):
            if needs_scale(budget.spec):
                self._enqueue(budget)

    def _enqueue(self, budget: PodDisruptionBudget) -> None:
        pods = self._pod_counts.get(budget.key, 0)
        self._controller.enqueue(budget.key, after=BATCH_SECONDS + BATCH_SECONDS_PER_POD * pods)

    def _selector(self, budget: PodDisruptionBudget) -> selector.Selector:
        cached = self._selectors.get(budget.key)
        if cached is not None and cached[0].spec.selector == budget.spec.selector:
            return cached[1]
        parsed = selector.from_object(budget.spec.selector)
        self._selectors[budget.key] = (budget, parsed)
        return parsed

    async def _sync_budget(self, key: Key) -> float | None:
        budget = self._budgets.get(key)
        if budget is None:
            self._selectors.pop(key, None)
            self._pod_counts.pop(key, None)
            return None
        if budget.spec.node_selector_term is not None:
            return None
        pod_selector = self._selector(budget)
        pods = [
            pod for pod in self._candidates(budget) if pod_selector.matches(pod.metadata.labels)
        ]
        self._pod_counts[key] = len(pods)
        if not pods:
            self._record_event(budget, "Normal", "NoPods", "No matching pods found")
        now = self._context.clock()
        timestamp = times.format_time(times.from_epoch(now))
        try:
            scale = await self._get_expected_scale(budget, pods)
        except (ScaleUnavailable, ApiError) as error:
            note = f"Failed to calculate the number of expected pods: {error}"
            self._record_event(budget, "Warning", "CalculateExpectedPodCountFailed", note)
            await self._write(budget, failed_status(budget, str(error), now=timestamp))
            return None
        count = BudgetCount.count(budget, pods, scale, now=now)
        for pod in pods:
            if pod.metadata.name in count.overdue:
                self._context.recorder.event(
                    pod,
                    "NotDeleted",
                    "Evict",
                    f"Pod was expected by PDB {'/'.join(key)} to be deleted but it wasn't",
                    type="Warning",
                )
        await self._write(budget, status_of_count(budget, count, now=timestamp))
        return None if count.recheck_after is None else count.recheck_after + 1.0

    def _candidates(self, budget: PodDisruptionBudget) -> tuple[Pod, ...]:
        """The pods of which a budget may select some; it selects no others."""
        namespace, name, value = _required_label(budget)[0]
        if not name:
            return self._pods.by("namespace", namespace)
        return self._pods.by(BY_LABEL, (namespace, name, value))

    async def _get_expected_scale(self, budget: PodDisruptionBudget, pods: Iterable[Pod]) -> int:
        """The sum of the replicas of the pods' controllers, each counted once."""
        if not needs_scale(budget.spec):
            return 0
        controller_uids: set[str] = set()
        scales: dict[str, int] = {}
        unmanaged = False
        for pod in sorted(pods, key=lambda pod: pod.metadata.name):
            owner = pod.metadata.controller
            if owner is None:
                unmanaged = True
            elif owner.uid not in controller_uids:
                controller_uids.add(owner.uid)
                namespace = pod.metadata.namespace
                controller_scale = self._get_cached_scale(
                    owner, namespace
                ) or await self._get_scale(owner, namespace)
                if controller_scale is None:
                    raise ScaleUnavailable(f'found no controllers for pod "{pod.metadata.name}"')
                scales[controller_scale[0]] = controller_scale[1]
        if unmanaged:
            note = UNMANAGED_PODS_MESSAGE.format(self._selector(budget))
            self._record_event(budget, "Warning", "UnmanagedPods", note)
        return sum(scales.values())

    def _get_cached_scale(self, owner: OwnerReference, namespace: str) -> tuple[str, int] | None:
        """Uid and scale of a controller whose kind is in the cache."""
        if owner.api_version not in APPS_VERSIONS:
            return None
        key = (namespace, owner.name)
        workload: Deployment | ReplicaSet | StatefulSet | None = None
        if owner.kind == "ReplicaSet":
            workload = self._replica_sets.get(key)
            deployment_ref = workload.metadata.controller if workload is not None else None
            if workload and deployment_ref and deployment_ref.kind == "Deployment":
                if workload.metadata.uid != owner.uid:
                    return None
                owner = deployment_ref
                workload = self._deployments.get((namespace, owner.name))
        elif owner.kind == "StatefulSet":
            workload = self._stateful_sets.get(key)
        if workload is None or workload.metadata.uid != owner.uid:
            return None
        return workload.metadata.uid, workload.spec.replicas

    async def _get_scale(self, owner: OwnerReference, namespace: str) -> tuple[str, int] | None:
        """Uid and scale of any other controller, read from its scale subresource."""
        group, _, version = owner.api_version.rpartition("/")
        path = f"/apis/{owner.api_version}" if group else f"/api/{version}"
        no_match = f'no matches for kind "{owner.kind}" in version "{owner.api_version}"'
        try:
            response = await self._context.client.raw("GET", path)
        except NotFound:
            raise ScaleUnavailable(no_match) from None
        resources = msgspec.json.decode(response.body, type=_ApiResources).resources
        plural = next(
            (
                resource.name
                for resource in resources
                if resource.kind == owner.kind and "/" not in resource.name
            ),
            None,
        )
        if plural is None:
            raise ScaleUnavailable(no_match)
        if all(resource.name != f"{plural}/scale" for resource in resources):
            name = f"{plural}.{group}" if group else plural
            raise ScaleUnavailable(f"{name} does not implement the scale subresource")
        resource = Resource(group, version, owner.kind, plural)
        try:
            path = resource.path(namespace, owner.name, "scale")
            response = await self._context.client.raw("GET", path)
        except NotFound:
            return None
        scale = msgspec.json.decode(response.body, type=_Scale)
        return (owner.uid, scale.spec.replicas) if scale.metadata.uid == owner.uid else None

    async def _write(self, budget: PodDisruptionBudget, desired: PodDisruptionBudgetStatus) -> None:
        if desired == budget.status:
            return
        disrupted_pods: dict[str, str | None] = dict.fromkeys(budget.status.disrupted_pods)
        disrupted_pods.update(desired.disrupted_pods)
        status = {
            "observedGeneration": desired.observed_generation or None,
            "disruptedPods": disrupted_pods if desired.disrupted_pods else None,
            "fingerprint": None,  # of a budget that was counted per domain before
            "domains": None,
            "disruptionsAllowed": desired.disruptions_allowed,
            "currentHealthy": desired.current_healthy,
            "desiredHealthy": desired.desired_healthy,
            "expectedPods": desired.expected_pods,
            "conditions": [
                {"message": "", **msgspec.to_builtins(condition)}
                for condition in desired.conditions
            ],
        }
        await self._context.client.patch_status(
            budget, status, resource_version=budget.metadata.resource_version
        )

    def _record_event(self, budget: PodDisruptionBudget, kind: str, reason: str, note: str) -> None:
        self._context.recorder.event(
            budget, reason, "Count", note, type="Warning" if kind == "Warning" else "Normal"
        )


def _required_label(budget: PodDisruptionBudget) -> tuple[tuple[str, str, str]]:
    """A label that every pod of a budget has; empty if its selector requires none."""
    namespace = budget.metadata.namespace
    values_by_label = selector.from_object(budget.spec.selector).required
    values_of = values_by_label.items()
    exact = [(name, next(iter(values))) for name, values in values_of if len(values) == 1]
    name, value = min(exact, default=("", ""))
    return ((namespace, name, value),)


def _label_keys(pod: Pod) -> tuple[tuple[str, str, str], ...]:
    namespace = pod.metadata.namespace
    return tuple((namespace, name, value) for name, value in pod.metadata.labels.items())


def _counted_fields(pod: Pod) -> tuple[object, ...]:
    """The fields of a pod that a count depends on."""
    meta = pod.metadata
    return meta.labels, is_pod_ready(pod), meta.deletion_timestamp is None, meta.owner_references
