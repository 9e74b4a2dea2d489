"""Keeps the status of PodDisruptionBudgets, which limits evictions.

One key is one budget. It is counted when it changes, when a pod that it selects is added, deleted
or changes its readiness, and when a workload is scaled; *every* budget that selects the pod is
counted, not only the first. Budgets and pods are matched by a label that both have, so no lookup
scans the whole namespace. Changes are batched for a moment that grows with the number of pods a
budget has: a burst of pods costs a bounded part of a processor.

The count is written on the version it was made from. An eviction that spent the budget meanwhile
makes the write a conflict and the budget is counted again, so a spent disruption is never given
back. A budget that cannot be counted (a controller without a scale) allows nothing and says why; it
is tried again when something changes.

A pod that was to be disrupted and still exists two minutes later loses that mark, as its eviction
is over. Budgets per domain (``spec.nodeSelectorTerm``) are handled by the API server and left
alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from zonewise.api.errors import ApiError, NotFound
from zonewise.api.meta import Key, OwnerReference
from zonewise.api.objects.apps import Deployment, ReplicaSet, StatefulSet
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import DISRUPTION_TARGET, ready
from zonewise.api.objects.policy import PodDisruptionBudget, PodDisruptionBudgetStatus
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct
from zonewise.api.values import selector, times
from zonewise.disruption.pdb import (
    BudgetCount,
    counted_by_scale,
    counted_status,
    disruption_target_withdrawn,
    failed_status,
    stale_after,
)
from zonewise.runtime.cache.indexes import BY_NAMESPACE
from zonewise.runtime.controller.components import ComponentContext
from zonewise.runtime.controller.controller import Controller, own_key

LABEL = "budgets/label"
GATHER_SECONDS = 0.05
GATHER_PER_POD = 2e-5
APPS = ("apps/v1", "extensions/v1beta1", "apps/v1beta1", "apps/v1beta2")
UNMANAGED = (
    "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a"
    " result, the status of the PDB cannot be calculated correctly, which may result in undefined"
    ' behavior. To account for these pods please set ".spec.minAvailable" field of the PDB to an'
    " integer value."
)


class Uncountable(Exception):
    """A budget's pods have an owner that does not say how many there should be."""


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


class Budgets:
    """The disruption controller."""

    def __init__(self, context: ComponentContext) -> None:
        self._context = context
        self._sizes: dict[Key, int] = {}  # budget -> pods when last counted
        self._selectors: dict[Key, tuple[PodDisruptionBudget, selector.Selector]] = {}
        self._counting = Controller("budgets", self._count, cache=context.cache, rng=context.rng)
        self._budgets = self._counting.watches(
            PodDisruptionBudget, own_key, indexes={**BY_NAMESPACE, LABEL: _label}
        )
        self._pods = self._counting.reads(Pod, indexes={**BY_NAMESPACE, LABEL: _labels})
        self._pods.on_change(self._pod_changed)
        self._deployments = self._counting.reads(Deployment)
        self._replica_sets = self._counting.reads(ReplicaSet)
        self._stateful_sets = self._counting.reads(StatefulSet)
        self._deployments.on_change(self._scale_changed)
        self._replica_sets.on_change(self._scale_changed)
        self._stateful_sets.on_change(self._scale_changed)
        self._resetting = Controller("stale", self._reset, cache=context.cache, rng=context.rng)
        self._resetting.watches(Pod, own_key, when=_condemned)

    async def run(self) -> None:
        """Count until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._counting.run())
            tasks.create_task(self._resetting.run())

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and new is not None and _counts_as(old) == _counts_as(new):
            return
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            old = None
        for pod in (old, new):
            if pod is None:
                continue
            for place in (*_labels(pod), (pod.metadata.namespace, "", "")):
                for budget in self._budgets.by(LABEL, place):
                    if self._selector(budget).matches(pod.metadata.labels):
                        self._soon(budget)

    def _scale_changed(
        self,
        old: Deployment | ReplicaSet | StatefulSet | None,
        new: Deployment | ReplicaSet | StatefulSet | None,
    ) -> None:
        item = new or old
        assert item is not None
        if old is not None and new is not None and old.spec.replicas == new.spec.replicas:
            return
        for budget in self._budgets.by("namespace", item.metadata.namespace):
            if counted_by_scale(budget.spec):
                self._soon(budget)

    def _soon(self, budget: PodDisruptionBudget) -> None:
        size = self._sizes.get(budget.key, 0)
        self._counting.enqueue(budget.key, after=GATHER_SECONDS + GATHER_PER_POD * size)

    def _selector(self, budget: PodDisruptionBudget) -> selector.Selector:
        known = self._selectors.get(budget.key)
        if known is not None and known[0].spec.selector == budget.spec.selector:
            return known[1]
        made = selector.from_object(budget.spec.selector)
        self._selectors[budget.key] = (budget, made)
        return made

    async def _count(self, key: Key) -> float | None:
        budget = self._budgets.get(key)
        if budget is None:
            self._selectors.pop(key, None)
            self._sizes.pop(key, None)
            return None
        if budget.spec.node_selector_term is not None:
            return None
        chosen = self._selector(budget)
        pods = [pod for pod in self._candidates(budget) if chosen.matches(pod.metadata.labels)]
        self._sizes[key] = len(pods)
        if not pods:
            self._tell(budget, "Normal", "NoPods", "No matching pods found")
        now = self._context.clock()
        text = times.format_time(times.from_epoch(now))
        try:
            scale = await self._scale(budget, pods)
        except (Uncountable, ApiError) as error:
            note = f"Failed to calculate the number of expected pods: {error}"
            self._tell(budget, "Warning", "CalculateExpectedPodCountFailed", note)
            await self._write(budget, failed_status(budget, str(error), now=text))
            return None
        count = BudgetCount.of(budget, pods, scale, now=now)
        for pod in pods:
            if pod.metadata.name in count.overdue:
                self._context.recorder.event(
                    pod,
                    type="Warning",
                    reason="NotDeleted",
                    action="Evict",
                    note=f"Pod was expected by PDB {'/'.join(key)} to be deleted but it wasn't",
                )
        await self._write(budget, counted_status(budget, count, now=text))
        return None if count.recheck is None else count.recheck + 1.0

    def _candidates(self, budget: PodDisruptionBudget) -> tuple[Pod, ...]:
        """Pods among which are all that a budget selects."""
        namespace, name, value = _label(budget)[0]
        if not name:
            return self._pods.by("namespace", namespace)
        return self._pods.by(LABEL, (namespace, name, value))

    async def _scale(self, budget: PodDisruptionBudget, pods: Iterable[Pod]) -> int:
        """The sum of the replicas of the pods' controllers, each counted once."""
        if not counted_by_scale(budget.spec):
            return 0
        seen: set[str] = set()
        scales: dict[str, int] = {}
        unmanaged = False
        for pod in sorted(pods, key=lambda pod: pod.metadata.name):
            owner = pod.metadata.controller
            if owner is None:
                unmanaged = True
            elif owner.uid not in seen:
                seen.add(owner.uid)
                namespace = pod.metadata.namespace
                found = self._near(owner, namespace) or await self._far(owner, namespace)
                if found is None:
                    raise Uncountable(f'found no controllers for pod "{pod.metadata.name}"')
                scales[found[0]] = found[1]
        if unmanaged:
            note = UNMANAGED.format(self._selector(budget))
            self._tell(budget, "Warning", "UnmanagedPods", note)
        return sum(scales.values())

    def _near(self, owner: OwnerReference, namespace: str) -> tuple[str, int] | None:
        """Uid and scale of a controller of a kind that is known here."""
        if owner.api_version not in APPS:
            return None
        key = (namespace, owner.name)
        found: Deployment | ReplicaSet | StatefulSet | None = None
        if owner.kind == "ReplicaSet":
            found = self._replica_sets.get(key)
            above = found.metadata.controller if found is not None else None
            if found is not None and above is not None and above.kind == "Deployment":
                if found.metadata.uid != owner.uid:
                    return None
                found, owner = self._deployments.get((namespace, above.name)), above
        elif owner.kind == "StatefulSet":
            found = self._stateful_sets.get(key)
        if found is None or found.metadata.uid != owner.uid:
            return None
        return found.metadata.uid, found.spec.replicas

    async def _far(self, owner: OwnerReference, namespace: str) -> tuple[str, int] | None:
        """Uid and scale of any other controller, by its scale subresource."""
        group, _, version = owner.api_version.rpartition("/")
        path = f"/apis/{owner.api_version}" if group else f"/api/{version}"
        missing = f'no matches for kind "{owner.kind}" in version "{owner.api_version}"'
        try:
            answer = await self._context.client.raw("GET", path)
        except NotFound:
            raise Uncountable(missing) from None
        known = msgspec.json.decode(answer.body, type=_ApiResources).resources
        plural = next(
            (one.name for one in known if one.kind == owner.kind and "/" not in one.name), None
        )
        if plural is None:
            raise Uncountable(missing)
        if all(one.name != f"{plural}/scale" for one in known):
            name = f"{plural}.{group}" if group else plural
            raise Uncountable(f"{name} does not implement the scale subresource")
        resource = Resource(group, version, owner.kind, plural)
        try:
            answer = await self._context.client.raw(
                "GET", resource.path(namespace, owner.name, "scale")
            )
        except NotFound:
            return None
        scale = msgspec.json.decode(answer.body, type=_Scale)
        return (owner.uid, scale.spec.replicas) if scale.metadata.uid == owner.uid else None

    async def _write(self, budget: PodDisruptionBudget, wanted: PodDisruptionBudgetStatus) -> None:
        if wanted == budget.status:
            return
        promised: dict[str, str | None] = dict.fromkeys(budget.status.disrupted_pods)
        promised.update(wanted.disrupted_pods)
        status = {
            "observedGeneration": wanted.observed_generation or None,
            "disruptedPods": promised if wanted.disrupted_pods else None,
            "disruptionsAllowed": wanted.disruptions_allowed,
            "currentHealthy": wanted.current_healthy,
            "desiredHealthy": wanted.desired_healthy,
            "expectedPods": wanted.expected_pods,
            "conditions": [
                {"message": "", **msgspec.to_builtins(one)} for one in wanted.conditions
            ],
        }
        await self._context.client.patch_status(
            budget, status, resource_version=budget.metadata.resource_version
        )

    def _tell(self, budget: PodDisruptionBudget, kind: str, reason: str, note: str) -> None:
        self._context.recorder.event(
            budget,
            type="Warning" if kind == "Warning" else "Normal",
            reason=reason,
            action="Count",
            note=note,
        )

    async def _reset(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        left = None if pod is None else stale_after(pod, now=self._context.clock())
        if pod is None or left is None:
            return None
        if left > 0:
            return left
        now = times.format_time(times.from_epoch(self._context.clock()))
        await self._context.client.patch_status(
            pod,
            {"conditions": [disruption_target_withdrawn(now=now)]},
            kind="strategic",
            resource_version=pod.metadata.resource_version,
        )
        return None


def _label(budget: PodDisruptionBudget) -> tuple[tuple[str, str, str]]:
    """A label that every pod of a budget has; without one, all pods of the namespace are meant."""
    namespace = budget.metadata.namespace
    needed = selector.from_object(budget.spec.selector).required
    exact = [(name, next(iter(values))) for name, values in needed.items() if len(values) == 1]
    name, value = min(exact, default=("", ""))
    return ((namespace, name, value),)


def _labels(pod: Pod) -> tuple[tuple[str, str, str], ...]:
    namespace = pod.metadata.namespace
    return tuple((namespace, name, value) for name, value in pod.metadata.labels.items())


def _counts_as(pod: Pod) -> tuple[object, ...]:
    """What a count can see of a pod."""
    meta = pod.metadata
    return meta.labels, ready(pod), meta.deletion_timestamp is None, meta.owner_references


def _condemned(_: Pod | None, new: Pod | None) -> bool:
    return new is not None and any(
        one.type == DISRUPTION_TARGET and one.status == "True" for one in new.status.conditions
    )
