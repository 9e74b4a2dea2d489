"""Leases by which nodes report that they are alive.

All nodes share one loop. Each has its own second within the period, chosen by its name, so a
thousand renewals are spread evenly; the loop wakes up at most once a second, and only if a node is
due. Renewals of one second are sent together. One that fails is not repeated: a lease outlives a
missed renewal, and the next comes soon. A lease is owned by its Node and garbage collected with it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from zonewise.api.errors import AlreadyExists, NotFound, ZonewiseError
from zonewise.api.meta import ObjectMeta, OwnerReference
from zonewise.api.objects.coordination import Lease, LeaseSpec
from zonewise.api.values.times import format_micro, from_epoch
from zonewise.runtime.client.client import Client

NAMESPACE = "kube-node-lease"
SLACK = 0.001
"""Timers are not exact: a turn within this time counts as due."""


class Heartbeats:
    """Renews the leases of the nodes added to it."""

    def __init__(
        self, client: Client, *, clock: Callable[[], float], period: float, duration: int
    ) -> None:
        self._client = client
        self._clock = clock
        self._duration = duration
        self._tick = min(1.0, period)
        self._slots: list[dict[str, str]] = [{} for _ in range(max(1, round(period / self._tick)))]
        self._added = asyncio.Event()

    async def add(self, name: str, uid: str) -> None:
        """Renew a node's lease from now on, and at once if the node was not added before."""
        slot = self._slot(name)
        if slot.get(name) != uid:
            slot[name] = uid
            self._added.set()
            await self._renew(name, uid)

    def remove(self, name: str) -> None:
        """No longer renew a node's lease."""
        self._slot(name).pop(name, None)

    async def run(self) -> None:
        """Renew until cancelled."""
        loop = asyncio.get_running_loop()
        start, turn = loop.time(), 0
        while True:
            self._added.clear()
            try:
                async with asyncio.timeout_at(start + self._next_turn(turn) * self._tick):
                    await self._added.wait()
            except TimeoutError:
                # On a busy machine a turn may be late: then all that were missed are due.
                last, turn = turn, int((loop.time() - start) / self._tick + SLACK)
                await asyncio.gather(*(self._try_renew(*entry) for entry in self._due(last, turn)))

    def _due(self, after: int, turn: int) -> list[tuple[str, str]]:
        """Names and uids of the nodes that are due."""
        count = len(self._slots)
        turns = range(max(after, turn - count) + 1, turn + 1)
        return [entry for number in turns for entry in self._slots[number % count].items()]

    def _next_turn(self, turn: int) -> int:
        """The next turn in which a node is due."""
        count = len(self._slots)
        ahead = range(turn + 1, turn + count)
        return next((number for number in ahead if self._slots[number % count]), turn + count)

    def _slot(self, name: str) -> dict[str, str]:
        return self._slots[zlib.crc32(name.encode()) % len(self._slots)]

    async def _try_renew(self, name: str, uid: str) -> None:
        try:
            await self._renew(name, uid)
        except ZonewiseError:
            return

    async def _renew(self, name: str, uid: str) -> None:
        now = format_micro(from_epoch(self._clock()))
        body = {"spec": {"renewTime": now}}
        try:
            await self._client.patch(Lease, name, NAMESPACE, body)
        except NotFound:
            owner = OwnerReference(api_version="v1", kind="Node", name=name, uid=uid)
            lease = Lease(
                metadata=ObjectMeta(name=name, namespace=NAMESPACE, owner_references=(owner,)),
                spec=LeaseSpec(
                    holder_identity=name, lease_duration_seconds=self._duration, renew_time=now
                ),
            )
            try:
                await self._client.create(lease)
            except AlreadyExists:
                return
