"""Budgets per domain in this process: the gate of a real cluster, without a webhook.

Pods, owners and nodes come from the cache that all parts share. Budgets are compared with the store
at each question, which costs a look at their versions: one that was written a moment ago is in
force. Grants are written through the server like everything else, on the version they were judged
by, so a cache that lags can refuse too much for a moment and never grant too much.

Until the cache is complete nothing is allowed.
"""

from __future__ import annotations

from zonewise.api.codec import convert
from zonewise.api.objects.budgets import TopologyDisruptionBudget
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.reason import Reason
from zonewise.disruption import BudgetsCache, DisruptionVerdict
from zonewise.disruption.ledger import order
from zonewise.disruption.verdict import BLOCKED
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.store.state import State
from zonewise.runtime.cache.cache import Cache
from zonewise.webhook import Granting

_KINDS: tuple[type[PodDisruptionBudget] | type[TopologyDisruptionBudget], ...] = (
    PodDisruptionBudget,
    TopologyDisruptionBudget,
)


class DomainGuard:
    """Answers evictions."""

    def __init__(
        self, state: State, cache: Cache, budgets_cache: BudgetsCache, granting: Granting
    ) -> None:
        self._state = state
        self._cache = cache
        self._budgets_cache = budgets_cache
        self._granting = granting

    async def ask(self, pod: Pod, *, evicting: bool, dry_run: bool) -> DisruptionVerdict:
        """Whether a pod may go; a grant has been written when this returns."""
        if not self._cache.complete:
            meta = pod.metadata
            reason = Reason(
                code=BLOCKED,
                message="budgets cannot be counted yet: the cluster has just started",
                object=f"Pod/{meta.namespace}/{meta.name}",
                fix="Try again.",
            )
            return DisruptionVerdict(False, False, reason)
        self._refresh(pod.metadata.namespace)
        return await self._granting.ask(pod, evicting=evicting, dry_run=dry_run)

    def _refresh(self, namespace: str) -> None:
        """Take over budgets that the cache does not have as they are."""
        namespace_budgets = self._budgets_cache.of(namespace)
        there = set()
        for cls in _KINDS:
            resource = cls.resource
            for entry in self._state.list(f"{resource.group}/{resource.plural}", namespace).entries:
                key = (resource.kind, namespace, entry.name)
                there.add(key)
                known = namespace_budgets.budgets.get(key)
                if known is None or order(known.version) < entry.rv:
                    item = convert(cls, bodies.decode_stored(entry.raw))
                    self._budgets_cache.budget_changed(None, item)
        for key in set(namespace_budgets.budgets) - there:
            namespace_budgets.drop_budget(key)
