"""Eviction: a deletion that the pod's disruption budgets must allow.

Pending, finished and terminating pods are deleted without a check. Otherwise every budget that
covers the pod is checked. Where workloads evict, the ``gate`` checks all of them, and charges them
in one write of the ledger. Else it checks those per domain, and plain PodDisruptionBudgets are
checked here as Kubernetes does: exactly one may select the pod, unless a budget with a term does,
too; then all must agree. A plain one is charged before the pod is deleted, by a compare-and-swap on
the budget: of two evictions for the last allowed disruption one gets it, the other starts over and
is refused. What was charged is written as ``disruptedPods``, so the budget's controller does not
count the pod twice. A budget whose controller has not processed its latest spec allows nothing yet.

kubectl prints the message of a refusal and not its causes. So where the gate answers, the message
goes on after Kubernetes' own sentence and names every budget that refuses. What is refused by
Kubernetes' rules has exactly the answer that Kubernetes gives, with the budget among the causes:
scripts that were written for it work on both.

A pod that is not charged is deleted at the version that was checked: if a Pending one runs
meanwhile it is checked again, if an unready one changes meanwhile the client has to retry.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from zonewise.api.codec import convert
from zonewise.api.errors import Conflict, Status
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_ready
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.values import selector
from zonewise.disruption.pdb import (
    DISRUPTION_ALLOWED,
    EvictionAnswer,
    disruption_target_condition,
    explain_exhausted,
    judge_eviction,
    needs_no_budget,
)
from zonewise.disruption.verdict import UNREADY, DisruptionVerdict
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.handlers.deleting import DeleteOptions, Deleter, parse_options
from zonewise.embedded.apiserver.handlers.writing import Writer
from zonewise.embedded.apiserver.registry import Registry, ServedKind
from zonewise.embedded.apiserver.request import status_errors
from zonewise.embedded.apiserver.request.call import Answer, Call, User, encode_status
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.state import State

Obj = dict[str, Any]

EVICTION_ATTEMPTS = 20
RETRY_SECONDS = 10
REFUSAL = "Cannot evict pod as it would violate the pod's disruption budget."


class EvictionGate(Protocol):
    """Checks budgets that it counts, and records what it grants: ``zonewise.webhook.gate``."""

    @property
    def counts_plain(self) -> bool:
        """Whether it counts PodDisruptionBudgets without a term, too."""

    async def ask(self, pod: Pod, *, evicting: bool, dry_run: bool) -> DisruptionVerdict:
        """Whether a pod may be evicted."""


class Evictions:
    """Performs evictions; ``gate`` is set once budgets per domain are counted."""

    def __init__(
        self, *, state: State, registry: Registry, writer: Writer, deleter: Deleter, system: User
    ) -> None:
        self._state = state
        self._registry = registry
        self._writer = writer
        self._deleter = deleter
        self._system = system
        self.gate: EvictionGate | None = None

    async def evict(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """POST to ``eviction``."""
        eviction = await self._writer.admit(call, served, target, _read_eviction(call, target))
        raw_options = dict(eviction.get("deleteOptions") or {})
        options = parse_options({**raw_options, "dryRun": ["All"]} if call.dry_run else raw_options)
        for attempt in range(EVICTION_ATTEMPTS):
            pod = self._get_pod(served, target)
            typed_pod = convert(Pod, pod)
            if not needs_no_budget(typed_pod):
                await self._check_and_remove(call, served, target, pod, options)
                break
            pending = typed_pod.status.phase == "Pending"
            try:
                await self._remove(
                    call, served, target, _pin_version(options, pod) if pending else options
                )
            except Conflict:
                if options.version or not pending or attempt == EVICTION_ATTEMPTS - 1:
                    raise
            else:
                break
        return Answer(status=201, body=encode_status(Status(status="Success", code=201)))

    async def _check_and_remove(
        self, call: Call, served: ServedKind, target: Target, pod: Obj, options: DeleteOptions
    ) -> None:
        """Check every budget of the pod, charge them all, and delete the pod.

        The plain ones are checked first, so that nothing is granted without effect. If one of them
        changes while the grant is written, the grant expires after two minutes.
        """
        is_ready = is_pod_ready(convert(Pod, pod))
        budgets = self._budgets_of(pod)
        plain_budgets = [
            budget
            for budget in budgets
            if budget.spec.node_selector_term is None
            and not (self.gate is not None and self.gate.counts_plain)
        ]
        if len(plain_budgets) > 1 and len(plain_budgets) == len(budgets):
            raise status_errors.server_error(
                "This pod has more than one PodDisruptionBudget, which the eviction"
                " subresource does not support."
            )
        needs_no_charge = [
            _check_budget(plain_budget, is_ready=is_ready) for plain_budget in plain_budgets
        ]
        pinned = bool(plain_budgets) and all(needs_no_charge)
        pinned |= await self._check_domains(pod, options, covered=len(plain_budgets) < len(budgets))
        for budget, is_free in zip(plain_budgets, needs_no_charge, strict=True):
            if not is_free:
                await self._spend(pod, budget.metadata.name, options, is_ready=is_ready)
        if not pinned:
            await self._remove(call, served, target, options)
            return
        try:
            await self._remove(call, served, target, _pin_version(options, pod))
        except Conflict:
            if options.version:
                raise
            name = budgets[0].metadata.name if budgets else ""
            raise status_errors.over_budget(
                REFUSAL, _still_processed(name), RETRY_SECONDS
            ) from None

    async def _check_domains(self, pod: Obj, options: DeleteOptions, *, covered: bool) -> bool:
        """Check the budgets per domain; returns whether the pod must still be unready."""
        if self.gate is None:
            if covered:
                raise status_errors.over_budget(REFUSAL, "Budgets per domain are not counted here.")
            return False
        verdict = await self.gate.ask(convert(Pod, pod), evicting=True, dry_run=options.dry_run)
        if not verdict.allowed:
            raise status_errors.over_budgets(REFUSAL, verdict.refusals)
        return verdict.reason.code == UNREADY

    def _get_pod(self, served: ServedKind, target: Target) -> Obj:
        entry = self._state.latest(served.storage, target.namespace, target.name)
        if entry is None:
            raise status_errors.not_found(served.kind.resource, target.name)
        return bodies.decode_stored(entry.raw)

    def _budgets_of(self, pod: Obj) -> list[PodDisruptionBudget]:
        meta = pod["metadata"]
        labels = meta.get("labels") or {}
        budgets = []
        for entry in self._state.list("policy/poddisruptionbudgets", meta["namespace"]).entries:
            budget = convert(PodDisruptionBudget, bodies.decode_stored(entry.raw))
            if selector.from_object(budget.spec.selector).matches(labels):
                budgets.append(budget)
        return budgets

    async def _spend(self, pod: Obj, name: str, options: DeleteOptions, *, is_ready: bool) -> None:
        """Charge one disruption to a budget."""
        served = self._registry.by_kind("policy/v1", "PodDisruptionBudget")
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
        for attempt in range(EVICTION_ATTEMPTS):
            budget = self._writer.get_object(served.storage, meta["namespace"], name)
            if budget is None or _check_budget(
                convert(PodDisruptionBudget, budget), is_ready=is_ready
            ):
                return

            def spend(obj: Obj) -> Obj:
                status = obj.setdefault("status", {})
                status["disruptionsAllowed"] = status.get("disruptionsAllowed", 0) - 1
                if status["disruptionsAllowed"] == 0:
                    _set_exhausted(status, now)
                status.setdefault("disruptedPods", {})[meta["name"]] = now
                return obj

            try:
                await self._writer.change(
                    call, served, target, spend, subresource="status", retry=False
                )
            except Conflict:
                if attempt == EVICTION_ATTEMPTS - 1:
                    raise status_errors.budget_conflicts(name, RETRY_SECONDS) from None
            else:
                return

    async def _remove(
        self, call: Call, served: ServedKind, target: Target, options: DeleteOptions
    ) -> None:
        status_call = Call(
            method="PATCH",
            path="",
            user=call.user,
            headers=call.headers,
            query={"dryRun": "All"} if options.dry_run else {},
            warnings=call.warnings,
        )
        now = self._writer.context(status_call).now

        def mark_disrupted(obj: Obj) -> Obj:
            conditions = obj.setdefault("status", {}).setdefault("conditions", [])
            condition = disruption_target_condition(
                "EvictionByEvictionAPI", "Eviction API: evicting", now=now
            )
            present = next(
                (existing for existing in conditions if existing.get("type") == condition["type"]),
                None,
            )
            if present is None:
                conditions.append(condition)
            elif present.get("status") != "True":
                present.update(condition)
            return obj

        if options.uid or options.version:
            self._deleter.check_preconditions(
                served, target.name, self._get_pod(served, target), options
            )
        written = await self._writer.change(
            status_call,
            served,
            target,
            mark_disrupted,
            subresource="status",
            retry=not options.version,
            admitted=True,
        )
        version = str(written.entry.rv) if options.version and not options.dry_run else ""
        delete_options = replace(options, version=version)
        await self._deleter.delete(
            call, served, target.namespace, target.name, delete_options, is_admitted=True
        )


def _read_eviction(call: Call, target: Target) -> Obj:
    value = bodies.read_unstored(call, "Eviction")
    if value.get("kind", "Eviction") != "Eviction" or value.get("apiVersion", "policy/v1") not in {
        "policy/v1",
        "policy/v1beta1",
    }:
        raise status_errors.bad_request("the body of an eviction must be an Eviction of policy/v1")
    meta = value.get("metadata") or {}
    if meta.get("namespace") not in (None, "", target.namespace):
        raise status_errors.namespace_mismatch()
    name = meta.get("name", "")
    if name != target.name:
        raise status_errors.bad_request(
            f"name in URL does not match name in Eviction object: {target.name} and {name}"
        )
    return value


def _check_budget(budget: PodDisruptionBudget, *, is_ready: bool) -> bool:
    """Whether a pod is deleted without a charge; raises if the budget does not allow it."""
    name = budget.metadata.name
    answer = judge_eviction(budget, is_ready=is_ready)
    if answer is EvictionAnswer.UNPROCESSED:
        raise status_errors.over_budget(REFUSAL, _still_processed(name), RETRY_SECONDS)
    if answer is EvictionAnswer.NEGATIVE:
        raise status_errors.forbidden_request("pdb disruptions allowed is negative")
    if answer is EvictionAnswer.CROWDED:
        raise status_errors.forbidden_request(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        )
    if answer is EvictionAnswer.EXHAUSTED:
        raise status_errors.over_budget(REFUSAL, explain_exhausted(budget))
    return answer is EvictionAnswer.FREE


def _still_processed(name: str) -> str:
    return f"The disruption budget {name} is still being processed by the server."


def _pin_version(options: DeleteOptions, pod: Obj) -> DeleteOptions:
    """Delete only the pod's present version, unless the client stated a version itself."""
    return replace(options, version=options.version or pod["metadata"]["resourceVersion"])


def _set_exhausted(status: Obj, now: str) -> None:
    """Set the condition of an exhausted budget, as its controller will."""
    conditions = status.setdefault("conditions", [])
    exhausted = next(
        (condition for condition in conditions if condition["type"] == DISRUPTION_ALLOWED), None
    )
    if exhausted is None:
        exhausted = {"type": DISRUPTION_ALLOWED}
        conditions.append(exhausted)
    if exhausted.get("status") != "False":
        exhausted["lastTransitionTime"] = now
    exhausted.update(
        status="False",
        reason="InsufficientPods",
        message="",
        observedGeneration=status.get("observedGeneration", 0),
    )
