"""Clears the condition DisruptionTarget of pods whose eviction has failed.

A pod that has been a disruption target for two minutes and still exists loses that condition. One
key is one pod; it waits in the queue until its time.
"""

from __future__ import annotations

from zonewise.api.meta import Key, is_condition_true
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import DISRUPTION_TARGET
from zonewise.api.values import times
from zonewise.disruption.pdb import seconds_until_stale, withdrawn_disruption_target
from zonewise.runtime.controller.controller import own_key
from zonewise.runtime.program.context import ControllerContext


class StaleTargets:
    """The part of the disruption controller that is about pods, not budgets."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._controller = context.controller("stale", self._clear_stale_target)
        self._pods = self._controller.watches(Pod, own_key, when=_is_disruption_target)

    async def run(self) -> None:
        """Clear conditions until cancelled."""
        await self._controller.run()

    async def _clear_stale_target(self, key: Key) -> float | None:
        pod = self._pods.get(key)
        remaining = None if pod is None else seconds_until_stale(pod, now=self._context.clock())
        if pod is None or remaining is None:
            return None
        if remaining > 0:
            return remaining
        now = times.format_time(times.from_epoch(self._context.clock()))
        await self._context.client.patch_status(
            pod,
            {"conditions": [withdrawn_disruption_target(now=now)]},
            kind="strategic",
            resource_version=pod.metadata.resource_version,
        )
        return None


def _is_disruption_target(_: Pod | None, new: Pod | None) -> bool:
    return new is not None and is_condition_true(new.status.conditions, DISRUPTION_TARGET)
