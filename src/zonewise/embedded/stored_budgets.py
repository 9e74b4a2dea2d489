"""Budgets as the store has them, for the gate of evictions in this process.

The gate's stores follow the API server and may lag. Here budgets are compared with the API server's
own store before each decision, which costs a look at their versions: one that was written a moment
ago is in force.
"""

from __future__ import annotations

from zonewise.api.codec import convert
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.ledger import version_number
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.store.state import State

_KINDS: tuple[type[PodDisruptionBudget] | type[TopologyDisruptionBudget], ...] = (
    PodDisruptionBudget,
    TopologyDisruptionBudget,
)


class StoredBudgets:
    """Brings a cache of budgets up to date with the store."""

    def __init__(self, state: State, budgets_cache: BudgetsCache) -> None:
        self._state = state
        self._budgets_cache = budgets_cache

    def refresh(self, namespace: str) -> None:
        """Take over budgets of a namespace that the cache does not have as they are."""
        namespace_budgets = self._budgets_cache.get_or_create(namespace)
        stored = set()
        for cls in _KINDS:
            resource = cls.resource
            for entry in self._state.list(f"{resource.group}/{resource.plural}", namespace).entries:
                key = (resource.kind, namespace, entry.name)
                stored.add(key)
                budget = namespace_budgets.budgets.get(key)
                if budget is None or version_number(budget.version) < entry.rv:
                    item = convert(cls, bodies.decode_stored(entry.raw))
                    self._budgets_cache.budget_changed(None, item)
        for key in set(namespace_budgets.budgets) - stored:
            namespace_budgets.drop_budget(key)
