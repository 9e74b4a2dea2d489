"""Pods as the server has them: from the watch, or read where the watch may be behind.

What a review says about a pod is never taken over: the webhook's callers are not known, and an
invented readiness would be counted in favour of other pods. A review only *names* a pod, by name,
uid and version; if the watch has not delivered that version, the pod is read.

Requests for one pod share a read: while one is under way, those that come wait for the next, which
begins after them and so shows what they were about. Names that the watch does not know may be
anybody's invention, so only ``STRANGERS`` of them are read at a time; above that ``TooManyReads``
is raised.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from zonewise.api.errors import NotFound
from zonewise.api.objects.pod import Pod
from zonewise.disruption.budgets_cache import BudgetsCache

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

STRANGERS = 64


class TooManyReads(Exception):
    """No more pods are read now that the watch does not know."""


class PodReader:
    """Reads pods, one request at a time for each."""

    def __init__(self, client: Client, budgets_cache: BudgetsCache) -> None:
        self._client = client
        self._budgets_cache = budgets_cache
        self._begun: dict[tuple[str, str], asyncio.Task[Pod | None]] = {}
        self._next: dict[tuple[str, str], asyncio.Task[Pod | None]] = {}
        self._strangers: set[tuple[str, str]] = set()

    async def read(self, namespace: str, name: str) -> Pod | None:
        """A pod as the server has it now; None if there is none."""
        key = (namespace, name)
        reading = self._next.get(key)
        if reading is None:
            budgets = self._budgets_cache.find(namespace)
            if budgets is None or budgets.find_pod(name) is None:
                if len(self._strangers | {key}) > STRANGERS:
                    raise TooManyReads
                self._strangers.add(key)
            reading = asyncio.create_task(self._read(key), name=f"read {namespace}/{name}")
            self._next[key] = reading
        return await asyncio.shield(reading)

    async def _read(self, key: tuple[str, str]) -> Pod | None:
        if (before := self._begun.get(key)) is not None:
            await asyncio.wait([before])
        self._begun[key] = self._next.pop(key)
        try:
            pod = await self._client.get(Pod, key[1], key[0])
        except NotFound:
            return None
        else:
            self._budgets_cache.put_read_pod(pod)
            return pod
        finally:
            del self._begun[key]
            if key not in self._next:
                self._strangers.discard(key)
