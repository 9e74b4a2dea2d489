"""Admission reviews of evictions and deletions of pods, answered by the gate.

They come for evictions by any user, and for deletions by workload controllers; *which* users
those are is in
the webhook configuration's ``matchConditions``, so that kubelets, garbage collection and node
controllers never depend on the gate being up. A refusal is 429 with a cause for each blocker and
without ``retryAfter``: clients of evictions have pauses of their own, and client-go inside of
kube-controller-manager would sleep on it and block a worker.

A request is believed only to name a pod; nothing else in it is proven, because API servers show no
certificate unless they are told to. The state of the pod is the watch's, or is read from the server
(``zonewise.webhook.pod_reader``), so a forged request can neither change what is counted nor be
charged for a pod that does not exist, and is told no budgets and counts but those of a pod that it
can name: for one that does not exist the answer is that of a namespace without budgets. A deletion
names a pod by its uid and version: if the watch is behind that version, the pod is read. An
eviction names it by name, which may be another pod's by now; so before an eviction is allowed the
pod is read, and it is judged as it is then. Not so if its name was generated (ReplicaSets,
DaemonSets) and a grant is charged: that name is unique, and if the pod is deleted already the grant
does not count. A refusal of what the watch knows costs no request at all. A repeated request for
one pod is the same grant.

A ReplicaSet whose pods were marked (``steering``) may not have seen the marks yet when it chooses.
So while a marked pod of it exists, the deletion of an unmarked one that is Ready is refused: the
ReplicaSet retries in a moment, with the right one. A pod with a deletion cost of another client is
exempt, because the ReplicaSet may put it before the marked ones forever.

While the clock is off (``ClockOff``), nobody knows which grants are over: what would be judged is
refused, whatever the budgets say.

In ``observe`` nothing is refused and nothing written: what would have been is counted and added to
the audit log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal

from zonewise.api.errors import StatusCause
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.pod import Pod
from zonewise.api.struct import Struct
from zonewise.disruption.domain_counts import identity
from zonewise.disruption.ledger import version_number
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owners import reference_of
from zonewise.disruption.steering import count_marked_before
from zonewise.disruption.verdict import UNCOVERED, DisruptionVerdict
from zonewise.runtime.client.server_clock import ClockOff
from zonewise.runtime.webhook.admission import (
    AdmissionAnswer,
    AdmissionRequest,
    Allowed,
    Denied,
    valid_name,
)
from zonewise.webhook.gate import DisruptionGate
from zonewise.webhook.pod_reader import PodReader, TooManyReads

if TYPE_CHECKING:
    from zonewise.runtime.client.client import Client

GateMode = Literal["observe", "enforce"]
Observe = Callable[[str, bool], None]
"""Called with each verdict, and whether it was charged."""

AUDIT = "budgets.zonewise.io/verdict"
ALL_IN_ONE = "system:kube-controller-manager"
"""The user of a controller manager that gives its controllers no users of their own."""

_DRAWS_NAMES = {
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "DaemonSet"),
    ("v1", "ReplicationController"),
}

REFUSAL = "Cannot disrupt pod as it would violate its disruption budgets."
BUSY = Denied(
    "The gate of disruption budgets could not answer in time; try again.",
    code=429,
    status="TooManyRequests",
)
NOT_READY = Denied(
    "The gate of disruption budgets has just started and does not know the cluster yet; try again.",
    code=429,
    status="TooManyRequests",
)
UNJUDGED = Allowed(audit={AUDIT: "not judged: the gate could not answer in time"})
"""The answer in ``observe`` when there is no verdict."""


ELSEWHERE = Denied(
    "the namespace of the provided object does not match the namespace sent on the request",
    code=400,
    status="BadRequest",
)


NAMELESS = Denied(
    "the name of the provided object is not a valid name of a pod", code=400, status="BadRequest"
)


class _Preconditions(Struct):
    uid: str | None = None


class _DeleteOptions(Struct):
    dry_run: tuple[str, ...] = ()
    preconditions: _Preconditions | None = None


class _Eviction(Struct):
    metadata: ObjectMeta = ObjectMeta()
    delete_options: _DeleteOptions | None = None


class _NamedPod(Struct):
    """All that is read of a pod in a review."""

    metadata: ObjectMeta = ObjectMeta()


class DisruptionReviews:
    """Answers deletions and evictions of pods as the gate decides."""

    def __init__(
        self,
        gate: DisruptionGate,
        client: Client,
        *,
        mode: GateMode = "enforce",
        observe: Observe | None = None,
    ) -> None:
        self.mode: GateMode = mode
        self._gate = gate
        self._budgets_cache = gate.budgets_cache
        self._observe = observe
        self._reader = PodReader(client, gate.budgets_cache)

    async def eviction(self, request: AdmissionRequest) -> AdmissionAnswer:
        """CREATE of ``pods/eviction``."""
        return await self._refuse_if_clock_off(self._eviction(request))

    async def deletion(self, request: AdmissionRequest) -> AdmissionAnswer:
        """DELETE of a pod by a workload controller."""
        return await self._refuse_if_clock_off(self._deletion(request))

    async def _refuse_if_clock_off(self, answer: Awaitable[AdmissionAnswer]) -> AdmissionAnswer:
        """An answer, or that the clock allows none."""
        try:
            return await answer
        except ClockOff as error:
            return clock_off(error) if self.mode == "enforce" else UNJUDGED

    async def _eviction(self, request: AdmissionRequest) -> AdmissionAnswer:
        if not self._gate.ready:
            return self._answer_not_ready()
        eviction = request.new(_Eviction) or _Eviction()
        if eviction.metadata.namespace not in ("", request.namespace):
            return ELSEWHERE
        name = request.name or eviction.metadata.name
        if not valid_name(name):
            return NAMELESS
        budgets = self._budgets_cache.find(request.namespace)
        if budgets is None or not budgets.budgets:
            return self._answer_uncovered()
        options = eviction.delete_options or _DeleteOptions()
        dry_run = _is_dry_run(request, options)
        uid = options.preconditions and options.preconditions.uid
        pod = budgets.find_pod(name)
        if pod is not None and not (uid and uid != pod.metadata.uid):
            # Only what is certain whatever the pod is by now: a refusal, or a grant for a unique
            # name.
            unique_name = _has_unique_name(pod)
            verdict = await self._judge(pod, evicting=True, dry_run=dry_run or not unique_name)
            if (unique_name and verdict.charged) or not verdict.allowed:
                return self._answer(verdict)
        try:
            pod = await self._reader.read(request.namespace, name)
        except TooManyReads:
            return self.busy_answer
        if pod is None or (uid and uid != pod.metadata.uid):
            return self._answer_uncovered()  # The server refuses it, whatever we say.
        return self._answer(await self._judge(pod, evicting=True, dry_run=dry_run))

    async def _deletion(self, request: AdmissionRequest) -> AdmissionAnswer:
        if not self._gate.ready:
            return self._answer_not_ready()
        named = request.old(_NamedPod)
        if named is None:
            return Allowed()
        if named.metadata.namespace != request.namespace:
            return ELSEWHERE
        if not valid_name(named.metadata.name):
            return NAMELESS
        budgets = self._budgets_cache.find(request.namespace)
        if budgets is None or not budgets.budgets:
            return self._answer_uncovered()
        try:
            pod = await self._current(budgets, named.metadata)
        except TooManyReads:
            return self.busy_answer
        if pod is None:
            # The server asks again if the name is another pod's by now.
            return self._answer_uncovered()
        if request.user_info.username == ALL_IN_ONE and not _has_staying_owner(budgets, pod):
            return Allowed()
        if (marked := count_marked_before(budgets, pod)) and self.mode == "enforce":
            return Denied(
                f"{marked} other pods of the ReplicaSet of pod {pod.metadata.name} were chosen to"
                " go first, so that the others stay spread over their domains; try again.",
                code=429,
                status="TooManyRequests",
            )
        options = request.typed_options(_DeleteOptions) or _DeleteOptions()
        dry_run = _is_dry_run(request, options)
        return self._answer(await self._judge(pod, evicting=False, dry_run=dry_run))

    async def _current(self, budgets: NamespaceBudgets, named: ObjectMeta) -> Pod | None:
        """The pod of a name and uid, no older than the version that was named."""
        pod = budgets.find_pod(named.name)
        if pod is None or identity(pod) != named.uid or _is_older(pod, named):
            pod = await self._reader.read(named.namespace, named.name)
        return pod if pod is not None and pod.metadata.uid == named.uid else None

    def _answer_uncovered(self) -> AdmissionAnswer:
        """Allow it: no budget covers the pod, or there is no such pod."""
        if self._observe is not None:
            self._observe(UNCOVERED, False)
        return Allowed(audit={AUDIT: UNCOVERED})

    @property
    def busy_answer(self) -> AdmissionAnswer:
        """What is answered if there is no time, or no room, for a verdict."""
        return BUSY if self.mode == "enforce" else UNJUDGED

    def _answer_not_ready(self) -> AdmissionAnswer:
        return NOT_READY if self.mode == "enforce" else UNJUDGED

    async def _judge(self, pod: Pod, *, evicting: bool, dry_run: bool) -> DisruptionVerdict:
        dry_run = dry_run or self.mode == "observe"
        return await self._gate.ask(pod, evicting=evicting, dry_run=dry_run)

    def _answer(self, verdict: DisruptionVerdict) -> AdmissionAnswer:
        code = verdict.reason.code
        if self._observe is not None:
            self._observe(code, verdict.charged)
        if verdict.allowed:
            return Allowed(audit={AUDIT: code})
        if self.mode == "observe":
            return Allowed(audit={AUDIT: f"would be refused: {verdict.reason.message}"})
        return denied(verdict)


def clock_off(error: ClockOff) -> Denied:
    """The refusal of a gate that cannot tell which grants are over."""
    return Denied(
        f"The gate of disruption budgets cannot decide now: {error}; set the clocks, for example"
        " with NTP, and try again.",
        code=429,
        status="TooManyRequests",
    )


def denied(verdict: DisruptionVerdict) -> Denied:
    """A refusal with a cause for each blocker."""
    reason = "DisruptionBudget"
    causes = [StatusCause(reason=reason, message=text) for text in verdict.refusals]
    return Denied(
        f"{REFUSAL} {verdict.reason.message}",
        code=429,
        status="TooManyRequests",
        causes=causes,
        audit={AUDIT: verdict.reason.code},
    )


def _is_dry_run(request: AdmissionRequest, options: _DeleteOptions) -> bool:
    """Whether nothing will be deleted: a server refuses other values than ``All``."""
    return bool(request.dry_run) or bool(options.dry_run)


def _is_older(pod: Pod, named: ObjectMeta) -> bool:
    return version_number(pod.metadata.resource_version) < version_number(named.resource_version)


def _has_unique_name(pod: Pod) -> bool:
    """Whether no other pod ever has the same name: StatefulSets give theirs again and again."""
    owner, drawn = pod.metadata.controller, pod.metadata.generate_name
    if owner is None or not drawn:
        return False
    return (owner.api_version, owner.kind) in _DRAWS_NAMES and pod.metadata.name.startswith(drawn)


def _has_staying_owner(budgets: NamespaceBudgets, pod: Pod) -> bool:
    """Whether a pod has an owner that stays.

    Then it is deleted by its controller, not by garbage collection.
    """
    reference = reference_of(pod)
    owner = None if reference is None else budgets.owners.get(reference.key, reference.uid)
    return owner is not None and not owner.terminating
