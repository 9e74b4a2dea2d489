"""What a controller has written and does not see in its store yet.

A store follows the server a moment later. A controller that counts pods right after it created ten
would create ten more. So it records what it did, and skips the key until the store shows it.

What was *created* or changed is shown once the store has reached the version of the write: a watch
brings changes in order, and a list is a state. What was *removed* may be shown as an object that is
terminating, as one that is deleted, or as another one of that name; no version is needed for that,
which is good, because an eviction's answer has none.

Nothing here must survive a restart: the first list of a new process is newer than all writes of the
old one. ``PATIENCE`` bounds the wait all the same, for a server whose versions are not numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from zonewise.api.meta import Key, Object
from zonewise.runtime.cache.store import Store
from zonewise.runtime.client.versions import newer
from zonewise.runtime.process.clock import elapsed

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Object)

PATIENCE = 60.0
GLANCE = 1.0
"""When to look again at a key that is not settled, should no change of an object enqueue it."""


@dataclass(slots=True)
class _Pending:
    since: float
    version: str = ""
    removed: dict[Key, str] = field(default_factory=dict)


class Expectations(Generic[K, T]):
    """What keys wait to see in one store."""

    def __init__(self, store: Store[T], clock: Callable[[], float] = elapsed) -> None:
        self._store = store
        self._clock = clock
        self._pending: dict[K, _Pending] = {}

    def wrote(self, key: K, item: Object) -> None:
        """An object of this key was created or changed; ``item`` is the server's answer."""
        pending = self._of(key)
        version = item.metadata.resource_version
        if newer(version, pending.version):
            pending.version = version

    def removed(self, key: K, item: Object) -> None:
        """An object of this key was deleted or evicted."""
        self._of(key).removed[item.key] = item.metadata.uid

    def forget(self, key: K) -> None:
        """The key no longer exists."""
        self._pending.pop(key, None)

    def settled(self, key: K) -> bool:
        """Whether the store shows everything that was done for the key."""
        pending = self._pending.get(key)
        if pending is None:
            return True
        if self._clock() - pending.since < PATIENCE:
            if newer(pending.version, self._store.resource_version):
                return False
            for name, uid in tuple(pending.removed.items()):
                if self._is_alive(name, uid):
                    return False
                del pending.removed[name]
        del self._pending[key]
        return True

    def _of(self, key: K) -> _Pending:
        pending = self._pending.setdefault(key, _Pending(0.0))
        pending.since = self._clock()
        return pending

    def _is_alive(self, key: Key, uid: str) -> bool:
        item = self._store.get(key)
        if item is None or item.metadata.uid != uid:
            return False
        return item.metadata.deletion_timestamp is None
