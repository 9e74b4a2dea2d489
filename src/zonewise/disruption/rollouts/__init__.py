"""Which failure domain of a workload is updated now: pure decisions behind ``DomainRollout``."""

from zonewise.disruption.rollouts.derived import budget_name, budget_spec, budget_stands, opened_of
from zonewise.disruption.rollouts.plan import DomainPlan, RolloutView, planned
from zonewise.disruption.rollouts.status import rollout_status
from zonewise.disruption.rollouts.victims import Victims, victims
from zonewise.disruption.rollouts.workload import RolledPod, RolledWorkload, pods_of, workload_of

__all__ = [
    "DomainPlan",
    "RolledPod",
    "RolledWorkload",
    "RolloutView",
    "Victims",
    "budget_name",
    "budget_spec",
    "budget_stands",
    "opened_of",
    "planned",
    "pods_of",
    "rollout_status",
    "victims",
    "workload_of",
]
