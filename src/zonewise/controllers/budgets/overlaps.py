"""Reports plain PodDisruptionBudgets that have pods in common: Kubernetes evicts no such pod.

A drain then fails with a 500 that names no budget, and nothing that waits will change that. So each
of the budgets gets an event that names the others and what to do. It is looked for when a budget is
new or has a new spec, among all pods of its namespace in slices, and when a pod is new or has new
labels, in an index. The same budgets are reported once, and again after one of them was changed.

Thousands of budgets may cover a pod, so each remembers only the first ``NAMED_LIMIT`` others that
it was reported with: then it has been told enough. A pod costs work for each budget that covers it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from zonewise.api.objects.pod_state import is_pod_active
from zonewise.disruption.advice import NAMED_LIMIT, explain_overlap
from zonewise.disruption.budget import Budget, BudgetKey
from zonewise.disruption.namespace_budgets import PODS_PER_SLICE, NamespaceBudgets

if TYPE_CHECKING:
    from zonewise.api.objects.pod import Pod
    from zonewise.api.objects.policy import PodDisruptionBudget
    from zonewise.runtime.cache.store import Store
    from zonewise.runtime.controller.recorder import Recorder


class Overlaps:
    """The overlaps that were reported, and those that have to be."""

    def __init__(self, recorder: Recorder, stored_budgets: Store[PodDisruptionBudget]) -> None:
        self._recorder = recorder
        self._stored_budgets = stored_budgets
        self._reported: dict[BudgetKey, set[BudgetKey]] = {}
        """The others that each budget was reported with, at most ``NAMED_LIMIT``."""

    def forget(self, key: BudgetKey) -> None:
        """A budget was changed or deleted: what was reported of it may no longer be true."""
        self._reported.pop(key, None)
        for others in self._reported.values():
            others.discard(key)

    def pod_changed(self, budgets: NamespaceBudgets, old: Pod | None, new: Pod | None) -> None:
        """A pod was added, changed or deleted."""
        if new is None or (old is not None and old.metadata.labels == new.metadata.labels):
            return
        self._report(budgets.plain_budgets_of(new))

    def find_overlaps(
        self, budgets: NamespaceBudgets, budget: Budget
    ) -> Generator[None, None, None]:
        """Report the budgets that have pods in common with one, with a pause after each slice."""
        work_done = 0
        for pod in list(budgets.pods.values()):
            work_done += 1
            if is_pod_active(pod) and budget.selector.matches(pod.metadata.labels):
                self._report(budgets.plain_budgets_of(pod))
                work_done += len(budgets.budgets)
            if work_done >= PODS_PER_SLICE:
                work_done = 0
                yield

    def _report(self, overlapping: Sequence[Budget]) -> None:
        first = overlapping[: NAMED_LIMIT + 1]
        for budget in overlapping:
            reported = self._reported.get(budget.key, set())
            if len(reported) >= NAMED_LIMIT:
                continue
            unreported = (
                other.key
                for other in overlapping
                if other is not budget and other.key not in reported
            )
            added = list(islice(unreported, NAMED_LIMIT - len(reported)))
            item = self._stored_budgets.get((budget.namespace, budget.name))
            if item is None or not added:
                continue
            self._reported[budget.key] = reported.union(added)
            others = [other for other in first if other is not budget]
            reason = explain_overlap(budget, others[:NAMED_LIMIT], len(overlapping) - 1)
            self._recorder.event(item, reason.code, "Count", str(reason), type="Warning")
