"""Reports when a Service gets its hints or loses them, and why: once, not at each pass.

Only a *transition* is reported: another state, or another reason for it. The condition
``zonewise.io/Hints`` on the Service records what was reported last, so a restart repeats nothing;
until the store shows a condition just written, it is kept here. Numbers in a reason may change
without a report.

A Service that never requested hints has no condition. One that stops requesting them loses it, and
an Event says that its hints are removed. The condition is that of the primary address family;
others are in the message.

Topology keys that are ignored, because they are not valid or a gate is off, are reported in an
Event of their own, once for each mistake, after a restart too: its name is the one that proxies,
which see the same, give it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from zonewise.api.errors import NotFound
from zonewise.api.meta import Condition, Key, find_condition
from zonewise.api.objects.core import Service
from zonewise.api.reason import Reason
from zonewise.api.values.times import format_time, from_epoch
from zonewise.runtime.client.client import Client
from zonewise.runtime.controller.recorder import Recorder
from zonewise.traffic.modes import HINTS_CONDITION
from zonewise.traffic.slices.planning import FamilyPlan
from zonewise.traffic.topology_keys import ignored_keys_reason

ENABLED = "TopologyAwareHintsEnabled"
DISABLED = "TopologyAwareHintsDisabled"
MANAGER = "zonewise-hints"

_ACTION = "Hint"
_ROUTE = "Route"


class _Reported(NamedTuple):
    uid: str
    status: str
    """"" if the Service has no condition."""
    code: str


class HintConditions:
    """Events and conditions of Services."""

    def __init__(self, client: Client, recorder: Recorder, clock: Callable[[], float]) -> None:
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._reported: dict[Key, _Reported] = {}
        self._ignored: dict[Key, tuple[str, Reason]] = {}
        self._unstated: dict[Key, str] = {}

    async def report(
        self, service: Service, families: Mapping[str, FamilyPlan], asks: bool
    ) -> None:
        """Report what is new about the hints of a Service."""
        before = self._last(service)
        name, first = next(iter(families.items()))
        decision = first.decision
        after = _Reported(service.metadata.uid, "", "")
        if asks:
            status = "True" if decision.hinted else "False"
            after = _Reported(service.metadata.uid, status, decision.reason.code)
        silent = not before.status and (not asks or after.code == "NoEndpoints")
        if after == before or silent:
            return
        try:
            await self._write(service, after, _message(families))
        except NotFound:
            return
        self._reported[service.key] = after
        self._announce(service, before, after, f"{name}: {decision.reason}")

    def report_keys(self, service: Service, gates: Mapping[str, bool]) -> None:
        """Report that the topology keys of a Service are ignored, and why."""
        reason = ignored_keys_reason(service, gates)
        if reason is None:
            self._ignored.pop(service.key, None)
            return
        ignored = (service.metadata.uid, reason)
        if self._ignored.get(service.key) != ignored:
            self._ignored[service.key] = ignored
            self._recorder.event(
                service, reason.code, _ROUTE, str(reason), type="Warning", once=True
            )

    def report_topology(self, service: Service, reason: Reason | None) -> None:
        """Report that slices do not have the right values of the topology keys, and why."""
        if reason is None:
            self._unstated.pop(service.key, None)
        elif self._unstated.get(service.key) != service.metadata.uid:
            self._unstated[service.key] = service.metadata.uid
            self._recorder.event(service, reason.code, _ROUTE, str(reason), type="Warning")

    def forget(self, key: Key) -> None:
        """The Service is deleted."""
        self._unstated.pop(key, None)
        self._reported.pop(key, None)
        self._ignored.pop(key, None)

    def _last(self, service: Service) -> _Reported:
        uid = service.metadata.uid
        reported = self._reported.get(service.key)
        if reported is not None and reported.uid == uid:
            return reported
        condition = find_condition(service.status.conditions, HINTS_CONDITION) or Condition()
        return _Reported(uid, condition.status, condition.reason)

    async def _write(self, service: Service, reported: _Reported, message: str) -> None:
        condition = {
            "type": HINTS_CONDITION,
            "status": reported.status,
            "reason": reported.code,
            "message": message,
            "lastTransitionTime": format_time(from_epoch(self._clock())),
        }
        status: dict[str, Any] = {"conditions": [condition]} if reported.status else {}
        await self._client.apply(
            Service,
            service.metadata.name,
            service.metadata.namespace,
            {"metadata": {"uid": service.metadata.uid}, "status": status},
            subresource="status",
            field_manager=MANAGER,
            force=True,
        )

    def _announce(self, service: Service, before: _Reported, after: _Reported, note: str) -> None:
        if after.status == "True":
            if before.status != "True":
                self._recorder.event(service, ENABLED, _ACTION, note, transition=True)
        elif after.status or before.status == "True":
            self._recorder.event(service, DISABLED, _ACTION, note, type="Warning", transition=True)


def _message(families: Mapping[str, FamilyPlan]) -> str:
    texts: dict[str, Reason] = {name: family.decision.reason for name, family in families.items()}
    if len({(reason.code, reason.message) for reason in texts.values()}) == 1:
        return str(next(iter(texts.values())))
    return " ".join(f"{name}: {reason}" for name, reason in texts.items())
