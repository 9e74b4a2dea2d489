"""The gate: whether a pod may be disrupted now, asked in one place.

Whoever disrupts pods asks here: the admission webhook on a real cluster, and the eviction handler
of the embedded one. Pods, owners, nodes and budgets come from the program's stores; what is granted
is written to the namespace's ledger before the answer is given (``zonewise.webhook.grants``), on
the version it was judged by. So a store that lags can refuse too much for a moment, and never grant
too much. Until the stores are complete nothing is allowed.

Owners of a kind that is not watched are read by their ``scale``, and again from time to time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from zonewise.api.objects.pod import Pod
from zonewise.api.reason import Reason
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.owner_views import OWNER_KINDS
from zonewise.disruption.verdict import BLOCKED, DisruptionVerdict
from zonewise.runtime.client.scales import Scales
from zonewise.runtime.process.turns import FairTurns
from zonewise.webhook.grants import Grants

if TYPE_CHECKING:
    from zonewise.runtime.cache.cache import Cache
    from zonewise.runtime.client.client import Client


class DisruptionGate:
    """Decides about disruptions of pods, and records those it allows.

    ``clock`` may raise ``ClockOff``. A ``budgets_cache`` that is given is filled by its owner.
    ``plain`` if plain PodDisruptionBudgets are checked, too, as far as their status is known here.
    ``refresh`` is called with the namespace before each decision, where budgets can be had that are
    newer than the stores'.
    """

    def __init__(
        self,
        cache: Cache,
        client: Client,
        clock: Callable[[], float],
        *,
        budgets_cache: BudgetsCache | None = None,
        plain: bool = True,
        refresh: Callable[[str], None] | None = None,
    ) -> None:
        self.turns = FairTurns()
        self._cache = cache
        self._refresh = refresh
        if budgets_cache is None:
            budgets_cache = BudgetsCache()
            for cls, listener in budgets_cache.listeners(OWNER_KINDS).items():
                cache.store(cls).on_change(listener)
        self.budgets_cache = budgets_cache
        self._grants = Grants(client, budgets_cache, clock, plain=plain, turns=self.turns)
        self._scales = Scales(client, clock)

    @property
    def counts_plain(self) -> bool:
        """Whether PodDisruptionBudgets without a term are counted here, too, like all others."""
        return bool(self.budgets_cache.counts_plain)

    @property
    def ready(self) -> bool:
        """Whether the stores are complete."""
        return self._cache.complete

    async def ask(self, pod: Pod, *, evicting: bool, dry_run: bool = False) -> DisruptionVerdict:
        """Whether a pod may be disrupted; what is charged has been written when this returns."""
        if not self.ready:
            return _not_ready(pod)
        namespace = pod.metadata.namespace
        if self._refresh is not None:
            self._refresh(namespace)
        await self._grants.count_changes(namespace)
        requested = self.budgets_cache.owners_to_request(namespace)
        self.budgets_cache.put_read_owners(await self._scales.refresh(namespace, requested))
        return await self._grants.ask(pod, evicting=evicting, dry_run=dry_run)


def _not_ready(pod: Pod) -> DisruptionVerdict:
    meta = pod.metadata
    reason = Reason(
        code=BLOCKED,
        message="budgets cannot be counted yet: the gate has just started",
        object=f"Pod/{meta.namespace}/{meta.name}",
        fix="Try again.",
    )
    return DisruptionVerdict(False, False, reason)
