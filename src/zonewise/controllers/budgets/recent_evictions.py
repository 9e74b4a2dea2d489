"""Pods that this process evicted and that do not look so in its cache yet.

Only in memory: a restart forgets them, and then the grants in the ledger still count. One that is
still there after ``GRANT_SECONDS`` was not deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from zonewise.api.meta import Key
from zonewise.disruption.ledger import GRANT_SECONDS
from zonewise.disruption.namespace_budgets import NamespaceBudgets


class RecentEvictions:
    """Evicted pods by the object on whose behalf they were evicted."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._evicted: dict[Key, dict[str, float]] = {}

    def add(self, key: Key, uid: str) -> None:
        """A pod was evicted."""
        self._evicted.setdefault(key, {})[uid] = self._clock()

    def unseen(self, key: Key, budgets: NamespaceBudgets) -> set[str]:
        """The pods that do not look evicted yet."""
        evicted = self._evicted.get(key, {})
        now = self._clock()
        for uid, since in tuple(evicted.items()):
            pod = budgets.pods.get(uid)
            if (
                pod is None
                or pod.metadata.deletion_timestamp is not None
                or now - since > GRANT_SECONDS
            ):
                del evicted[uid]
        return set(evicted)

    def forget(self, key: Key) -> None:
        """The object is deleted."""
        self._evicted.pop(key, None)
