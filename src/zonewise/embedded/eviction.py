"""Eviction: a deletion that asks the pod's disruption budget first.

Pending, finished and already leaving pods go without asking. Otherwise exactly one budget may
select the pod. It is spent before the pod is deleted, by a compare-and-swap on the budget: of two
evictions that both see the last disruption one gets it, the other starts over and is refused. What
was spent is written as ``disruptedPods``, so the budget's controller does not count the pod twice.
A budget whose controller has not seen its latest spec allows nothing yet.

A pod that goes for free goes as it was seen: if a Pending one runs meanwhile it is looked at once
more, if an unready one changes meanwhile the client is asked to come back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from zonewise.api import selector
from zonewise.api.errors import Conflict, Status
from zonewise.api.meta import LabelSelector
from zonewise.embedded import bodies, refusals
from zonewise.embedded.call import Answer, Call, User, encode_status
from zonewise.embedded.deleting import Deleter, Options, options_of
from zonewise.embedded.paths import Target
from zonewise.embedded.registry import Registry, Served
from zonewise.embedded.rules.budgets import ALLOWED, NOT_COUNTED
from zonewise.embedded.state import State
from zonewise.embedded.writing import Writer

Obj = dict[str, Any]

TRIES = 20
DISRUPTED_LIMIT = 2000
RETRY_SECONDS = 10
REFUSAL = "Cannot evict pod as it would violate the pod's disruption budget."


class Evictions:
    """Carries out evictions."""

    def __init__(
        self,
        *,
        state: State,
        registry: Registry,
        writer: Writer,
        deleter: Deleter,
        system: User,
    ) -> None:
        self._state = state
        self._registry = registry
        self._writer = writer
        self._deleter = deleter
        self._system = system

    async def evict(self, call: Call, served: Served, target: Target) -> Answer:
        """POST to ``eviction``."""
        eviction = await self._writer.admit(call, served, target, _read(call, target))
        wishes = dict(eviction.get("deleteOptions") or {})
        options = options_of({**wishes, "dryRun": ["All"]} if call.dry_run else wishes)
        for attempt in range(TRIES):
            pod = self._pod(served, target)
            if self._asks(pod):
                await self._ask(call, served, target, pod, options)
                break
            pending = (pod.get("status") or {}).get("phase") == "Pending"
            try:
                await self._remove(
                    call, served, target, _pinned(options, pod) if pending else options
                )
            except Conflict:
                if options.version or not pending or attempt == TRIES - 1:
                    raise
            else:
                break
        return Answer(status=201, body=encode_status(Status(status="Success", code=201)))

    async def _ask(
        self, call: Call, served: Served, target: Target, pod: Obj, options: Options
    ) -> None:
        """Spend the pod's budget, if it has one, and let the pod go."""
        budgets = self._budgets(pod)
        if len(budgets) > 1:
            raise refusals.plain_failure(
                "This pod has more than one PodDisruptionBudget, which the eviction"
                " subresource does not support."
            )
        if not budgets or await self._spend(pod, budgets[0], options):
            await self._remove(call, served, target, options)
            return
        try:
            await self._remove(call, served, target, _pinned(options, pod))
        except Conflict:
            if options.version:
                raise
            raise refusals.over_budget(REFUSAL, _processing(budgets[0]), RETRY_SECONDS) from None

    def _pod(self, served: Served, target: Target) -> Obj:
        entry = self._state.latest(served.storage, target.namespace, target.name)
        if entry is None:
            raise refusals.not_found(served.kind.resource, target.name)
        return bodies.decode_stored(entry.raw)

    def _asks(self, pod: Obj) -> bool:
        if pod["metadata"].get("deletionTimestamp"):
            return False
        return (pod.get("status") or {}).get("phase") not in {"Pending", "Succeeded", "Failed"}

    def _budgets(self, pod: Obj) -> list[str]:
        meta = pod["metadata"]
        labels = meta.get("labels") or {}
        found = []
        for entry in self._state.list("policy/poddisruptionbudgets", meta["namespace"]).entries:
            wanted = bodies.decode_stored(entry.raw).get("spec", {}).get("selector")
            if wanted is not None and _selector(wanted).matches(labels):
                found.append(entry.name)
        return found

    async def _spend(self, pod: Obj, name: str, options: Options) -> bool:
        """Take one disruption from a budget; False if the pod is unready and costs none."""
        served = self._registry.of("policy/v1", "PodDisruptionBudget")
        assert served is not None
        meta = pod["metadata"]
        target = Target("policy", "v1", "poddisruptionbudgets", meta["namespace"], name)
        call = Call(
            method="PUT",
            path="",
            user=self._system,
            headers={"user-agent": "kube-apiserver/1"},
            query={"dryRun": "All"} if options.dry_run else {},
        )
        now = self._writer.scene(call).now
        for attempt in range(TRIES):
            budget = self._writer.look(served.storage, meta["namespace"], name)
            if budget is None:
                return True
            if _free_to_go(pod, budget):
                return False
            _check(budget)

            def spent(obj: Obj) -> Obj:
                status = obj.setdefault("status", {})
                status["disruptionsAllowed"] = status.get("disruptionsAllowed", 0) - 1
                if status["disruptionsAllowed"] == 0:
                    _used_up(status, now)
                status.setdefault("disruptedPods", {})[meta["name"]] = now
                return obj

            try:
                await self._writer.change(
                    call, served, target, spent, subresource="status", again=False
                )
            except Conflict:
                if attempt == TRIES - 1:
                    raise refusals.too_contended(name, RETRY_SECONDS) from None
            else:
                break
        return True

    async def _remove(self, call: Call, served: Served, target: Target, options: Options) -> None:
        system = Call(
            method="PATCH",
            path="",
            user=call.user,
            headers=call.headers,
            query={"dryRun": "All"} if options.dry_run else {},
            warnings=call.warnings,
        )
        now = self._writer.scene(system).now

        def condemned(obj: Obj) -> Obj:
            conditions = obj.setdefault("status", {}).setdefault("conditions", [])
            wanted = {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
                "lastTransitionTime": now,
            }
            old = next((one for one in conditions if one.get("type") == wanted["type"]), None)
            if old is None:
                conditions.append(wanted)
            elif old.get("status") != "True":
                old.update(wanted)
            return obj

        if options.uid or options.version:
            self._deleter.check(served, target.name, self._pod(served, target), options)
        written = await self._writer.change(
            system,
            served,
            target,
            condemned,
            subresource="status",
            again=not options.version,
            admitted=True,
        )
        version = str(written.entry.rv) if options.version and not options.dry_run else ""
        later = replace(options, version=version)
        await self._deleter.delete(
            call, served, target.namespace, target.name, later, admitted=True
        )


def _read(call: Call, target: Target) -> Obj:
    value = bodies.read_any(call, "Eviction")
    if value.get("kind", "Eviction") != "Eviction" or value.get("apiVersion", "policy/v1") not in {
        "policy/v1",
        "policy/v1beta1",
    }:
        raise refusals.bad_request("the body of an eviction must be an Eviction of policy/v1")
    name = (value.get("metadata") or {}).get("name", target.name)
    if name != target.name:
        raise refusals.bad_request(
            f"name in URL does not match name in Eviction object: {target.name} and {name}"
        )
    return value


def _selector(wanted: Obj) -> selector.Selector:
    return selector.from_object(msgspec.convert(wanted, LabelSelector))


def _ready(pod: Obj) -> bool:
    return any(
        one.get("type") == "Ready" and one.get("status") == "True"
        for one in (pod.get("status") or {}).get("conditions") or ()
    )


def _free_to_go(pod: Obj, budget: Obj) -> bool:
    """An unready pod may go if the budget says so, or if enough others are healthy anyway."""
    if _ready(pod):
        return False
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    status = budget.get("status") or {}
    enough = status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0)
    return bool(enough and status.get("desiredHealthy", 0) > 0)


def _check(budget: Obj) -> None:
    meta, status = budget["metadata"], budget.get("status") or {}
    name = meta["name"]
    if (budget.get("spec") or {}).get("nodeSelectorTerm") is not None:
        raise refusals.over_budget(REFUSAL, f"The disruption budget {name}: {NOT_COUNTED}")
    if status.get("observedGeneration", 0) < meta.get("generation", 0):
        raise refusals.over_budget(REFUSAL, _processing(name), RETRY_SECONDS)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0:
        raise refusals.forbidden_plainly("pdb disruptions allowed is negative")
    if len(status.get("disruptedPods") or {}) > DISRUPTED_LIMIT:
        raise refusals.forbidden_plainly(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        )
    if allowed == 0:
        raise refusals.over_budget(REFUSAL, _why_none(name, status))


def _why_none(name: str, status: Obj) -> str:
    """Why a budget allows nothing; its numbers mean nothing if it could not be counted."""
    wants, has = status.get("desiredHealthy", 0), status.get("currentHealthy", 0)
    told: Obj = next((one for one in status.get("conditions") or () if one["type"] == ALLOWED), {})
    message = told.get("message") if told.get("status") == "False" else ""
    begin = f"The disruption budget {name} does not allow evicting pods currently"
    if message and told.get("reason") == "SyncFailed":
        return f"{begin} because it failed sync: {message}"
    if has <= wants:
        return f"The disruption budget {name} needs {wants} healthy pods and has {has} currently"
    return f"{begin} ({told['reason']}): {message}" if message else begin


def _processing(name: str) -> str:
    return f"The disruption budget {name} is still being processed by the server."


def _pinned(options: Options, pod: Obj) -> Options:
    """Only the pod as it was seen, unless the client named a version itself."""
    return replace(options, version=options.version or pod["metadata"]["resourceVersion"])


def _used_up(status: Obj, now: str) -> None:
    """Say that nothing is left, as the budget's controller will."""
    conditions = status.setdefault("conditions", [])
    old = next((one for one in conditions if one["type"] == ALLOWED), None)
    if old is None:
        old = {"type": ALLOWED}
        conditions.append(old)
    if old.get("status") != "False":
        old["lastTransitionTime"] = now
    old.update(
        status="False",
        reason="InsufficientPods",
        message="",
        observedGeneration=status.get("observedGeneration", 0),
    )
