"""Holds new pods of workloads that are updated domain by domain, until their place is known.

The answer is a scheduling gate on the pod; the rollout's controller takes it away (``disruption
.rollouts.replacements`` says why, and to which domain the pod goes then). Nothing is waited for,
read or written here. While the stores are not complete, as right after a start, pods pass: a pod
too many in a closed domain delays a rollout, a pod that nobody may create is an outage. That is
counted, by API servers too if they reach no webhook.
"""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter

from zonewise.api.objects.budgets import DomainRollout
from zonewise.api.objects.pod import Pod
from zonewise.disruption.budgets_cache import BudgetsCache
from zonewise.disruption.rollouts.replacements import GATE, holds_replacement
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.cache.indexes import BY_NAMESPACE
from zonewise.runtime.webhook.admission import AdmissionAnswer, AdmissionRequest, Allowed


class ReplacementHold:
    """Answers for pods that controllers of workloads create."""

    def __init__(
        self,
        cache: Cache,
        budgets_cache: BudgetsCache,
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._cache = cache
        self._budgets_cache = budgets_cache
        self._rollouts = cache.store(DomainRollout, indexes=BY_NAMESPACE)
        self._passed = None
        if registry is not None:
            self._passed = Counter(
                "zonewise_webhook_replacements_unjudged",
                "New pods that passed because the webhook did not know the cluster yet.",
                registry=registry,
            )

    async def __call__(self, request: AdmissionRequest) -> AdmissionAnswer:
        """CREATE of a pod."""
        pod = request.new(Pod)
        if pod is None or request.sub_resource:
            return Allowed()
        if not self._cache.complete:
            if self._passed is not None:
                self._passed.inc()
            return Allowed()
        if not self.holds(pod, request.namespace):
            return Allowed()
        gate: Any = {"name": GATE}
        if pod.spec.scheduling_gates:
            return Allowed(patch=[{"op": "add", "path": "/spec/schedulingGates/-", "value": gate}])
        return Allowed(patch=[{"op": "add", "path": "/spec/schedulingGates", "value": [gate]}])

    def holds(self, pod: Pod, namespace: str) -> bool:
        """Whether a new pod of a namespace waits for its place."""
        budgets = self._budgets_cache.find(namespace)
        rollouts = self._rollouts.by("namespace", namespace)
        if budgets is None or not rollouts:
            return False
        metadata = msgspec.structs.replace(pod.metadata, namespace=namespace)
        return holds_replacement(msgspec.structs.replace(pod, metadata=metadata), rollouts, budgets)

    def may_hold(self, namespace: str) -> bool:
        """Whether there is any rollout in a namespace; cheap, as most namespaces have none."""
        return bool(self._rollouts.keys_by("namespace", namespace))
