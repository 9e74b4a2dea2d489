"""Eviction: a deletion that the pod's disruption budgets must allow.

Pending, finished and terminating pods are deleted without a check. Otherwise every budget that
covers the pod is checked. Budgets per domain are checked by the ``guard``, which charges all of
them in one write of the ledger. Of plain ones exactly one may select the pod, unless a budget with
a term does, too; then all must agree. A plain one is spent before the pod is deleted, by a
compare-and-swap on the budget: of two evictions that both see the last allowed disruption one gets
it, the other starts over and is refused. What was spent is written as ``disruptedPods``, so the
budget's controller does not count the pod twice. A budget whose controller has not seen its latest
spec allows nothing yet.

A pod that is not charged is deleted at the version that was seen: if a Pending one runs meanwhile
it is checked again, if an unready one changes meanwhile the client is asked to retry.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from zonewise.api.codec import convert
from zonewise.api.errors import Conflict, Status
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import ready
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.values import selector
from zonewise.disruption import Asked, DisruptionVerdict, asked, disruption_target, why_none
from zonewise.disruption.pdb import ALLOWED, goes_freely
from zonewise.disruption.verdict import UNREADY
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.handlers.deleting import DeleteOptions, Deleter, options_of
from zonewise.embedded.apiserver.handlers.writing import Writer
from zonewise.embedded.apiserver.registry import Registry, Served
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import Answer, Call, User, encode_status
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.state import State

Obj = dict[str, Any]

TRIES = 20
RETRY_SECONDS = 10
REFUSAL = "Cannot evict pod as it would violate the pod's disruption budget."


class Guard(Protocol):
    """Checks budgets per domain, and records what it grants."""

    async def ask(self, pod: Pod, *, evicting: bool, dry_run: bool) -> DisruptionVerdict:
        """Whether a pod may go."""


class Evictions:
    """Carries out evictions; ``guard`` is set once budgets per domain are counted."""

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
        self.guard: Guard | None = None

    async def evict(self, call: Call, served: Served, target: Target) -> Answer:
        """POST to ``eviction``."""
        eviction = await self._writer.admit(call, served, target, _read(call, target))
        options_asked = dict(eviction.get("deleteOptions") or {})
        options = options_of(
            {**options_asked, "dryRun": ["All"]} if call.dry_run else options_asked
        )
        for attempt in range(TRIES):
            pod = self._pod(served, target)
            seen = convert(Pod, pod)
            if not goes_freely(seen):
                await self._ask(call, served, target, pod, options)
                break
            pending = seen.status.phase == "Pending"
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
        self, call: Call, served: Served, target: Target, pod: Obj, options: DeleteOptions
    ) -> None:
        """Check every budget of the pod, charge them all, and delete the pod.

        The plain ones are checked first, so that nothing is granted in vain. If one of them changes
        while the grant is written, the grant expires after two minutes.
        """
        is_ready = ready(convert(Pod, pod))
        budgets = self._budgets(pod)
        plain = [one for one in budgets if one.spec.node_selector_term is None]
        if len(plain) > 1 and len(plain) == len(budgets):
            raise status_errors.plain_failure(
                "This pod has more than one PodDisruptionBudget, which the eviction"
                " subresource does not support."
            )
        free = [_check(one, is_ready=is_ready) for one in plain]
        pinned = bool(plain) and all(free)
        pinned |= await self._ask_domains(pod, options, covered=len(plain) < len(budgets))
        for budget, costs_nothing in zip(plain, free, strict=True):
            if not costs_nothing:
                await self._spend(pod, budget.metadata.name, options, is_ready=is_ready)
        if not pinned:
            await self._remove(call, served, target, options)
            return
        try:
            await self._remove(call, served, target, _pinned(options, pod))
        except Conflict:
            if options.version:
                raise
            name = budgets[0].metadata.name if budgets else ""
            raise status_errors.over_budget(REFUSAL, _processing(name), RETRY_SECONDS) from None

    async def _ask_domains(self, pod: Obj, options: DeleteOptions, *, covered: bool) -> bool:
        """Check the budgets per domain; returns whether the pod must still be unready."""
        if self.guard is None:
            if covered:
                raise status_errors.over_budget(REFUSAL, "Budgets per domain are not counted here.")
            return False
        verdict = await self.guard.ask(convert(Pod, pod), evicting=True, dry_run=options.dry_run)
        if not verdict.allowed:
            why = [one.why for one in verdict.blockers] or [verdict.reason.message]
            raise status_errors.over_budgets(
                REFUSAL, [f"The disruption budget {text}" for text in why]
            )
        return verdict.reason.code == UNREADY

    def _pod(self, served: Served, target: Target) -> Obj:
        entry = self._state.latest(served.storage, target.namespace, target.name)
        if entry is None:
            raise status_errors.not_found(served.kind.resource, target.name)
        return bodies.decode_stored(entry.raw)

    def _budgets(self, pod: Obj) -> list[PodDisruptionBudget]:
        meta = pod["metadata"]
        labels = meta.get("labels") or {}
        found = []
        for entry in self._state.list("policy/poddisruptionbudgets", meta["namespace"]).entries:
            budget = convert(PodDisruptionBudget, bodies.decode_stored(entry.raw))
            if selector.from_object(budget.spec.selector).matches(labels):
                found.append(budget)
        return found

    async def _spend(self, pod: Obj, name: str, options: DeleteOptions, *, is_ready: bool) -> None:
        """Take one disruption from a budget."""
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
        now = self._writer.context(call).now
        for attempt in range(TRIES):
            budget = self._writer.look(served.storage, meta["namespace"], name)
            if budget is None or _check(convert(PodDisruptionBudget, budget), is_ready=is_ready):
                return

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
                    raise status_errors.too_contended(name, RETRY_SECONDS) from None
            else:
                return

    async def _remove(
        self, call: Call, served: Served, target: Target, options: DeleteOptions
    ) -> None:
        system = Call(
            method="PATCH",
            path="",
            user=call.user,
            headers=call.headers,
            query={"dryRun": "All"} if options.dry_run else {},
            warnings=call.warnings,
        )
        now = self._writer.context(system).now

        def condemned(obj: Obj) -> Obj:
            conditions = obj.setdefault("status", {}).setdefault("conditions", [])
            wanted = disruption_target("EvictionByEvictionAPI", "Eviction API: evicting", now=now)
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
        raise status_errors.bad_request("the body of an eviction must be an Eviction of policy/v1")
    meta = value.get("metadata") or {}
    if meta.get("namespace") not in (None, "", target.namespace):
        raise status_errors.elsewhere()
    name = meta.get("name", "")
    if name != target.name:
        raise status_errors.bad_request(
            f"name in URL does not match name in Eviction object: {target.name} and {name}"
        )
    return value


def _check(budget: PodDisruptionBudget, *, is_ready: bool) -> bool:
    """Whether a pod is deleted without a charge; raises what prevents it."""
    name = budget.metadata.name
    answer = asked(budget, is_ready=is_ready)
    if answer is Asked.UNPROCESSED:
        raise status_errors.over_budget(REFUSAL, _processing(name), RETRY_SECONDS)
    if answer is Asked.NEGATIVE:
        raise status_errors.forbidden_plainly("pdb disruptions allowed is negative")
    if answer is Asked.CROWDED:
        raise status_errors.forbidden_plainly(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        )
    if answer is Asked.EXHAUSTED:
        raise status_errors.over_budget(REFUSAL, why_none(budget))
    return answer is Asked.FREE


def _processing(name: str) -> str:
    return f"The disruption budget {name} is still being processed by the server."


def _pinned(options: DeleteOptions, pod: Obj) -> DeleteOptions:
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
