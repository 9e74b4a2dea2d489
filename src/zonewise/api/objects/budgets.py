"""Budgets per failure domain, the ledger of grants, and rollouts by domain.

All are kinds of ``zonewise.io``.

``status.domains[].expectedPods`` is not only informational: it is where the pods were when the
workload was last at rest, and the next count starts from it. ``fingerprint`` says of which selector
and topology keys it was counted.
"""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import Condition, IntOrString, LabelSelector, Object
from zonewise.api.objects.core import NodeSelectorTerm
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field

GROUP = "zonewise.io"
VERSION = "v1alpha1"
LEDGER_NAME = "zonewise"
DEFAULT_KEY = "topology.kubernetes.io/zone"


class DomainStatus(Struct):
    """What is counted in a domain; ``disruptions_allowed`` is missing where nothing is guarded."""

    domain: str = ""
    expected_pods: int = 0
    desired_healthy: int = 0
    current_healthy: int = 0
    disruptions_allowed: int | None = None


class TopologyDisruptionBudgetSpec(Struct):
    """Which pods, how many, and in which domains; one of the two numbers is set."""

    selector: LabelSelector | None = None
    min_available: IntOrString | None = None
    max_unavailable: IntOrString | None = None
    node_selector_term: NodeSelectorTerm | None = None
    topology_keys: tuple[str, ...] = ()
    cross_domain: str = ""
    unhealthy_pod_eviction_policy: str | None = None
    expected_pods: str = ""
    holds: str = ""
    mode: str = ""


class TopologyDisruptionBudgetStatus(Struct):
    """What is allowed now, by domain; ``allowed`` shows it in one line."""

    observed_generation: int = 0
    fingerprint: str = ""
    allowed: str = ""
    domains: tuple[DomainStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()


class TopologyDisruptionBudget(Object):
    """A limit on voluntary disruption, in each domain."""

    resource: ClassVar = Resource(
        GROUP, VERSION, "TopologyDisruptionBudget", "topologydisruptionbudgets"
    )

    spec: TopologyDisruptionBudgetSpec = TopologyDisruptionBudgetSpec()
    status: TopologyDisruptionBudgetStatus = TopologyDisruptionBudgetStatus()


class Grant(Struct):
    """Permission to disrupt one pod, by uid, and since when."""

    uid: str = ""
    pod: str = ""
    time: str = ""


class DisruptionLedgerSpec(Struct):
    """The grants of a namespace, and the version of each budget at the last grant."""

    grants: tuple[Grant, ...] = ()
    judged: dict[str, str] = field(default_factory=dict)


class DisruptionLedger(Object):
    """The grants of a namespace; always written as a whole, on the version that was read."""

    resource: ClassVar = Resource(GROUP, VERSION, "DisruptionLedger", "disruptionledgers")

    spec: DisruptionLedgerSpec = DisruptionLedgerSpec()


class WorkloadReference(Struct):
    """The Deployment, StatefulSet or DaemonSet of the same namespace."""

    kind: str = ""
    name: str = ""


class DomainOrder(Struct):
    """Which domain comes first: as listed, or by a label of nodes; without either, the emptiest."""

    domains: tuple[str, ...] = ()
    node_label: str = ""


class DomainRolloutSpec(Struct):
    """Which pods, by which domains, in which order, how many at a time, and with which pauses."""

    workload_ref: WorkloadReference = WorkloadReference()
    topology_key: str = DEFAULT_KEY
    order: DomainOrder = DomainOrder()
    max_unavailable: IntOrString = 1
    pause_seconds: int = 0
    paused: bool = False


class DomainProgress(Struct):
    """The progress of a domain: ``Done``, ``Doing``, ``Next`` or ``Later``.

    ``finished_at`` is set if the domain was updated under this rollout.
    """

    domain: str = ""
    state: str = ""
    pods: int = 0
    updated: int = 0
    ready: int = 0
    finished_at: str | None = None


class DomainRolloutStatus(Struct):
    """The progress of a rollout. ``domain`` is the one being updated, also while it is paused."""

    observed_generation: int = 0
    domain: str = ""
    progress: str = ""
    reason: str = ""
    domains: tuple[DomainProgress, ...] = ()
    conditions: tuple[Condition, ...] = ()


class DomainRollout(Object):
    """An order in which the domains of a workload are updated."""

    resource: ClassVar = Resource(GROUP, VERSION, "DomainRollout", "domainrollouts")

    spec: DomainRolloutSpec = DomainRolloutSpec()
    status: DomainRolloutStatus = DomainRolloutStatus()
