"""Writes the status of ResourceQuotas: the usage that admission counted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from zonewise.api.errors import ApiError, NotFound
from zonewise.embedded.apiserver.admission.quotas import STORAGE, Quota, Quotas
from zonewise.embedded.apiserver.handlers.writing import Writer
from zonewise.embedded.apiserver.registry import Registry
from zonewise.embedded.apiserver.request.call import Call, User
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

RETRY_SECONDS = 5.0

_log = logger("quotas")


class QuotaStatus:
    """The controller that writes the status of quotas."""

    def __init__(self, quotas: Quotas, *, registry: Registry, writer: Writer, user: User) -> None:
        self._quotas = quotas
        self._registry = registry
        self._writer = writer
        self._user = user

    async def run(self) -> None:
        """Write counted usage until cancelled."""
        queue: asyncio.Queue[tuple[str, str, Obj]] = asyncio.Queue()

        def enqueue(namespace: str, quotas: Mapping[str, Quota]) -> None:
            for name, quota in quotas.items():
                hard = {key: str(amount) for key, amount in sorted(quota.hard.items())}
                used = {key: str(quota.used[key]) for key in sorted(quota.hard)}
                queue.put_nowait((namespace, name, {"hard": hard, "used": used}))

        self._quotas.on_counted = enqueue
        self._quotas.recount()
        while True:
            await self._write(*await queue.get())

    async def _write(self, namespace: str, name: str, status: Obj) -> None:
        quota = self._writer.get_object(STORAGE, namespace, name)
        if quota is None or (quota.get("status") or {}) == status:
            return
        served = self._registry.by_path("", "v1", "resourcequotas")
        assert served is not None
        call = Call(
            method="PATCH",
            path="",
            user=self._user,
            headers={"user-agent": "kube-controller-manager/1"},
        )
        target = Target("", "v1", "resourcequotas", namespace, name)
        try:
            await self._writer.change(
                call, served, target, lambda obj: {**obj, "status": status}, subresource="status"
            )
        except NotFound:
            return
        except ApiError as error:
            _log.warning("status of a quota could not be written", name=name, error=str(error))
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._quotas.recount)
