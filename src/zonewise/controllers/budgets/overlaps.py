"""Reports plain PodDisruptionBudgets that have pods in common: Kubernetes evicts no such pod.

A drain then fails with a 500 that names no budget, and nothing that waits will change that. So each
of the budgets gets an event that names the others and what to do. It is looked for when a budget is
new or has a new spec, among all pods of its namespace in slices, and when a pod is new or has new
labels, in an index. The same budgets are reported once, and again after one of them was changed.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

from zonewise.api.objects.pod_state import is_pod_active
from zonewise.disruption.advice import explain_overlap
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
        self._reported: set[tuple[BudgetKey, BudgetKey]] = set()

    def forget(self, key: BudgetKey) -> None:
        """A budget was changed or deleted: what was reported of it may no longer be true."""
        self._reported = {pair for pair in self._reported if key not in pair}

    def pod_changed(self, budgets: NamespaceBudgets, old: Pod | None, new: Pod | None) -> None:
        """A pod was added, changed or deleted."""
        if new is None or (old is not None and old.metadata.labels == new.metadata.labels):
            return
        self._report(budgets.plain_budgets_of(new))

    def find_overlaps(
        self, budgets: NamespaceBudgets, budget: Budget
    ) -> Generator[None, None, None]:
        """Report the budgets that have pods in common with one, with a pause after each slice."""
        for number, pod in enumerate(list(budgets.pods.values()), start=1):
            if is_pod_active(pod) and budget.selector.matches(pod.metadata.labels):
                self._report(budgets.plain_budgets_of(pod))
            if number % PODS_PER_SLICE == 0:
                yield

    def _report(self, overlapping: Sequence[Budget]) -> None:
        for budget in overlapping:
            others = [other for other in overlapping if other is not budget]
            pairs = {(budget.key, other.key) for other in others}
            item = self._stored_budgets.get((budget.namespace, budget.name))
            if item is None or pairs <= self._reported:
                continue
            self._reported |= pairs
            reason = explain_overlap(budget, others)
            self._recorder.event(item, reason.code, "Count", str(reason), type="Warning")
