"""The gate: who wants to take a pod down is told whether its budgets allow that.

Asked are evictions, by whomever, and deletions by workload controllers; *which* users those are is
in the webhook configuration's ``matchConditions``, so that kubelets, garbage collection and node
controllers never even reach a gate that is down. A refusal is 429 with a cause for each blocker and
without ``retryAfter``: clients of evictions have pauses of their own, and client-go inside of
kube-controller-manager would sleep on it with a worker in hand.

A deletion carries the pod as the server has it. An eviction names one, and a name may be another
pod's by now; so before an eviction is allowed the pod is read, and it is judged as it is then. Not
so if its name was drawn (ReplicaSets, DaemonSets) and a grant is charged: that name is nobody
else's, and if the pod is gone already the grant counts for nothing. A refusal costs no request at
all. Asking twice about one pod is the same grant.

A ReplicaSet whose pods were marked (``steering``) may not have seen the marks yet when it takes its
pick. So while a marked pod of it is there, an unmarked one that is Ready is refused: the ReplicaSet
asks again in a moment, for the right one. A pod with a deletion cost of somebody else's is exempt,
because the ReplicaSet may put it before the marked ones for ever.

In ``observe`` nothing is refused and nothing written: what would have been is counted and told in
the audit log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from zonewise.api.errors import NotFound, StatusCause
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.pod import Pod
from zonewise.api.struct import Struct
from zonewise.disruption import OWNERS, BudgetsCache, DisruptionVerdict, NamespaceBudgets, owner_of
from zonewise.disruption.owners import reference_of
from zonewise.disruption.steering import marked_before
from zonewise.runtime.client.scales import Scales
from zonewise.runtime.webhook.admission import AdmissionRequest, Allowed, Answer, Denied
from zonewise.webhook.granting import Granting

if TYPE_CHECKING:
    from zonewise.runtime.cache.cache import Cache
    from zonewise.runtime.client.client import Client

Mode = Literal["observe", "enforce"]
Observe = Callable[[str, bool], None]
"""Told of each verdict, and whether it was charged."""

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
    "The gate of disruption budgets could not answer in time; ask again.",
    code=429,
    status="TooManyRequests",
)


NOT_READY = Denied(
    "The gate of disruption budgets has just started and does not know the cluster yet; ask again.",
    code=429,
    status="TooManyRequests",
)
UNJUDGED = Allowed(audit={AUDIT: "not judged: the gate could not answer in time"})
"""What is said instead of an answer by who only observes."""


class _Preconditions(Struct):
    uid: str | None = None


class _DeleteOptions(Struct):
    dry_run: tuple[str, ...] = ()
    preconditions: _Preconditions | None = None


class _Eviction(Struct):
    metadata: ObjectMeta = ObjectMeta()
    delete_options: _DeleteOptions | None = None


class DisruptionGate:
    """Answers for pods that somebody wants to take down."""

    def __init__(
        self,
        cache: Cache,
        client: Client,
        clock: Callable[[], float],
        *,
        mode: Mode = "enforce",
        observe: Observe | None = None,
    ) -> None:
        self.budgets_cache = BudgetsCache()
        self.mode: Mode = mode
        self._client = client
        self._observe = observe
        self._granting = Granting(client, self.budgets_cache, clock)
        self._scales = Scales(client, clock)
        self._cache = cache
        for cls, listener in self.budgets_cache.listeners(OWNERS).items():
            cache.store(cls).on_change(listener)

    async def eviction(self, request: AdmissionRequest) -> Answer:
        """CREATE of ``pods/eviction``."""
        if not self._cache.complete:
            return self._blind()
        asked = request.new(_Eviction) or _Eviction()
        options = asked.delete_options or _DeleteOptions()
        dry_run = bool(request.dry_run) or "All" in options.dry_run
        name = request.name or asked.metadata.name
        namespace_budgets = self.budgets_cache.of(request.namespace)
        pod = namespace_budgets.named(name)
        if pod is not None:
            first = await self._judge(namespace_budgets, pod, evicting=True, dry_run=True)
            if not first.allowed and self.mode == "enforce":
                return self._answer(first)
            if not (first.charged and _name_drawn(pod)):
                pod = None
        try:
            pod = pod or await self._client.get(Pod, name, request.namespace)
        except NotFound:
            return Allowed()
        wanted = options.preconditions and options.preconditions.uid
        if wanted and wanted != pod.metadata.uid:
            return Allowed()  # The server refuses it, whatever we say.
        return self._answer(
            await self._judge(namespace_budgets, pod, evicting=True, dry_run=dry_run)
        )

    async def deletion(self, request: AdmissionRequest) -> Answer:
        """DELETE of a pod by a workload controller."""
        if not self._cache.complete:
            return self._blind()
        pod = request.old(Pod)
        if pod is None:
            return Allowed()
        options: Any = request.typed_options(_DeleteOptions) or _DeleteOptions()
        dry_run = bool(request.dry_run) or "All" in options.dry_run
        namespace_budgets = self.budgets_cache.of(pod.metadata.namespace)
        if request.user_info.username == ALL_IN_ONE and not _kept(namespace_budgets, pod):
            return Allowed()
        if (marked := marked_before(namespace_budgets, pod)) and self.mode == "enforce":
            return Denied(
                f"{marked} other pods of the ReplicaSet of pod {pod.metadata.name} were chosen to"
                " go first, so that the others stay spread over their domains; ask again.",
                code=429,
                status="TooManyRequests",
            )
        return self._answer(
            await self._judge(namespace_budgets, pod, evicting=False, dry_run=dry_run)
        )

    @property
    def instead(self) -> Answer:
        """What is answered if there is no time, or no room, for a verdict."""
        return BUSY if self.mode == "enforce" else UNJUDGED

    def _blind(self) -> Answer:
        return NOT_READY if self.mode == "enforce" else UNJUDGED

    async def _judge(
        self, namespace_budgets: NamespaceBudgets, pod: Pod, *, evicting: bool, dry_run: bool
    ) -> DisruptionVerdict:
        for item in await self._scales.refresh(namespace_budgets.unknown()):
            self.budgets_cache.put_owner(owner_of(item))
        return await self._granting.ask(
            pod, evicting=evicting, dry_run=dry_run or self.mode == "observe"
        )

    def _answer(self, verdict: DisruptionVerdict) -> Answer:
        code = verdict.reason.code
        if self._observe is not None:
            self._observe(code, verdict.charged)
        if verdict.allowed:
            return Allowed(audit={AUDIT: code})
        if self.mode == "observe":
            return Allowed(audit={AUDIT: f"would be refused: {verdict.reason.message}"})
        return denied(verdict)


def denied(verdict: DisruptionVerdict) -> Denied:
    """A refusal with a cause for each blocker."""
    why = [one.why for one in verdict.blockers] or [verdict.reason.message]
    causes = [
        StatusCause(reason="DisruptionBudget", message=f"The disruption budget {text}")
        for text in why
    ]
    return Denied(
        f"{REFUSAL} {verdict.reason.message}",
        code=429,
        status="TooManyRequests",
        causes=causes,
        audit={AUDIT: verdict.reason.code},
    )


def _name_drawn(pod: Pod) -> bool:
    """Whether no other pod ever has the same name: StatefulSets give theirs again and again."""
    owner, drawn = pod.metadata.controller, pod.metadata.generate_name
    if owner is None or not drawn:
        return False
    return (owner.api_version, owner.kind) in _DRAWS_NAMES and pod.metadata.name.startswith(drawn)


def _kept(namespace_budgets: NamespaceBudgets, pod: Pod) -> bool:
    """Whether a pod has an owner that is there to stay: then its controller may delete it, and
    nobody who tidies up.
    """
    reference = reference_of(pod)
    owner = (
        None if reference is None else namespace_budgets.owners.get(reference.place, reference.uid)
    )
    return owner is not None and not owner.leaving
