"""PodDisruptionBudgets: how many pods may be missing on purpose."""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import Condition, IntOrString, LabelSelector, Object
from zonewise.api.objects.budgets import DomainStatus
from zonewise.api.objects.core import NodeSelectorTerm
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field


class PodDisruptionBudgetSpec(Struct):
    """Which pods, and how many; one of ``min_available`` and ``max_unavailable``.

    ``node_selector_term`` limits the budget to domains, and ``expected_pods`` says how many pods
    they expect; both exist on the embedded cluster only.
    """

    selector: LabelSelector | None = None
    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    unhealthy_pod_eviction_policy: str | None = None
    node_selector_term: NodeSelectorTerm | None = None
    expected_pods: str = ""


class PodDisruptionBudgetStatus(Struct):
    """What is allowed now, and which evictions are still under way (name to time).

    ``fingerprint`` and ``domains`` belong to ``spec.nodeSelectorTerm``: the embedded cluster only.
    """

    observed_generation: int = 0
    disrupted_pods: dict[str, str] = field(default_factory=dict)
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0
    expected_pods: int = 0
    fingerprint: str = ""
    domains: tuple[DomainStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()


class PodDisruptionBudget(Object):
    """A limit on voluntary disruption."""

    resource: ClassVar = Resource("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")

    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()
