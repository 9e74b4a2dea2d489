"""A StatefulSet that is rolled out by domain, without a cluster: pods, a budget, a status.

The fields have all state that a controller has, so a restart in the middle loses nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tests.disruption.clusters import NOW, NS, pod, zones

from zonewise.api import Node, Pod, convert
from zonewise.api.objects.budgets import (
    DomainRollout,
    DomainRolloutStatus,
    TopologyDisruptionBudget,
)
from zonewise.api.values import times
from zonewise.disruption.budget import Budget, budget_of
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.owner_views import StatefulSetScale
from zonewise.disruption.owners import owner_of
from zonewise.disruption.rollouts.derived_budget import (
    derived_budget_name,
    derived_budget_spec,
    open_domain_of,
)
from zonewise.disruption.rollouts.plan import DomainPlan, RolloutView, plan_rollout
from zonewise.disruption.rollouts.status import rollout_status
from zonewise.disruption.rollouts.victims import Victims, choose_victims
from zonewise.disruption.rollouts.workload import workload_of, workload_pods

KEY = ("TopologyDisruptionBudget", NS, "db-rollout")


def rollout(**spec: Any) -> DomainRollout:
    """A rollout of the StatefulSet db."""
    reference = {"kind": "StatefulSet", "name": "db"}
    return convert(
        DomainRollout,
        {
            "metadata": {"name": "db", "namespace": NS, "uid": "uid-r", "generation": 1},
            "spec": {"workloadRef": reference, **spec},
        },
    )


@dataclass(eq=False)
class Ordinal:
    """The pod of an ordinal; it always returns to its zone, as one with a volume does."""

    zone: str
    revision: str = "1"
    ready: bool = True
    there: bool = True
    created: int = 0
    stuck: bool = False
    """Whether only a replacement would get Ready."""


@dataclass
class Rolling:
    """The cluster, as far as it concerns this rollout."""

    pods: list[Ordinal]
    item: DomainRollout = field(default_factory=rollout)
    update_revision: str = "1"
    opened: str | None = None
    budget: bool = False
    down: set[str] = field(default_factory=set)
    others: list[Budget] = field(default_factory=list)
    partition: int = 0
    node_labels: dict[str, dict[str, str]] = field(default_factory=dict)
    time: int = 0
    evicted: list[str] = field(default_factory=list)

    def name(self, ordinal: Ordinal) -> str:
        """The name of an ordinal's pod."""
        return f"db-{self.pods.index(ordinal)}"

    def nodes(self) -> dict[str, Node]:
        """A node for each zone."""
        created = zones(*sorted({ordinal.zone for ordinal in self.pods}))
        for name, node in created.items():
            zone = name.removeprefix("n-")
            taints = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
            body = {
                "metadata": {
                    "name": name,
                    "labels": {**node.metadata.labels, **self.node_labels.get(zone, {})},
                },
                "spec": {"taints": taints if zone in self.down else []},
            }
            created[name] = convert(Node, body)
        return created

    def _pod(self, ordinal: Ordinal) -> Pod:
        created = pod(
            self.name(ordinal),
            f"n-{ordinal.zone}",
            ready=ordinal.ready and ordinal.zone not in self.down,
            owner="db",
            kind="StatefulSet",
            labels={"controller-revision-hash": ordinal.revision},
        )
        stamp = times.format_time(times.from_epoch(NOW + ordinal.created))
        meta = msgspec.structs.replace(
            created.metadata,
            creation_timestamp=stamp,
            uid=f"{self.name(ordinal)}-{ordinal.created}",
        )
        return msgspec.structs.replace(created, metadata=meta)

    def workload(self) -> StatefulSetScale:
        """The StatefulSet."""
        strategy: dict[str, Any] = {"type": "OnDelete"}
        if self.partition:
            strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": self.partition}}
        return convert(
            StatefulSetScale,
            {
                "metadata": {"name": "db", "namespace": NS, "uid": "uid-db", "generation": 1},
                "spec": {
                    "replicas": len(self.pods),
                    "selector": {"matchLabels": {"app": "web"}},
                    "updateStrategy": strategy,
                },
                "status": {"observedGeneration": 1, "updateRevision": self.update_revision},
            },
        )

    def namespace_budgets(self) -> NamespaceBudgets:
        """The objects that budgets are counted from; the baseline is where the pods belong."""
        workload = self.workload()
        spec = derived_budget_spec(self.item, workload_of(workload), self.opened)
        home = Counter(ordinal.zone for ordinal in self.pods)
        body = {
            "metadata": {"name": derived_budget_name(self.item), "namespace": NS},
            "spec": msgspec.to_builtins(spec),
            "status": {
                "domains": [{"domain": zone, "expectedPods": n} for zone, n in home.items()]
            },
        }
        derived = convert(TopologyDisruptionBudget, body)
        assert open_domain_of(derived) == self.opened
        return NamespaceBudgets(
            self.nodes(),
            budgets=[budget_of(derived), *self.others],
            pods=[self._pod(ordinal) for ordinal in self.pods if ordinal.there],
            owners=[owner_of(workload)],
        )

    def view(self, namespace_budgets: NamespaceBudgets) -> RolloutView:
        """The input of the decision."""
        workload = workload_of(self.workload())
        standing, domain_counts = namespace_budgets.state_and_counts(KEY)
        nodes = self.nodes()
        label = self.item.spec.order.node_label
        return RolloutView(
            rollout=self.item,
            workload=workload,
            pods=workload_pods(workload, domain_counts, namespace_budgets.owners, nodes),
            desired_ready={name: domain.baseline for name, domain in standing.domains.items()},
            order_labels={zone: labels.get(label, "") for zone, labels in self.node_labels.items()},
            open_domain=self.opened,
            budget_counted=self.budget,
            now=NOW + self.time,
        )

    def decide(self) -> tuple[DomainPlan, Victims]:
        """The decision, and the pods to evict."""
        namespace_budgets = self.namespace_budgets()
        view = self.view(namespace_budgets)
        plan = plan_rollout(view)
        stands = self.budget and plan.open_domain == self.opened
        return plan, choose_victims(view, plan, namespace_budgets) if stands else Victims()

    def turn(self, *, crash_after: int = 3) -> DomainPlan:
        """One pass: budget, status, evictions; it may crash after any of them."""
        namespace_budgets = self.namespace_budgets()
        view = self.view(namespace_budgets)
        plan = plan_rollout(view)
        chosen = self.decide()[1]
        status = rollout_status(view, plan)
        if crash_after >= 1:
            self.opened, self.budget = plan.open_domain, True
        if crash_after >= 2:
            self.tell(status)
        if crash_after >= 3:
            for evicted in chosen.pods:
                self.evict(evicted.metadata.name)
        return plan

    def tell(self, status: DomainRolloutStatus) -> None:
        """Write the status."""
        self.item = msgspec.structs.replace(self.item, status=status)

    def evict(self, name: str) -> None:
        """Delete a pod."""
        ordinal = self.pods[int(name.removeprefix("db-"))]
        assert ordinal.there
        ordinal.there = ordinal.ready = False
        self.evicted.append(name)

    def recreate(self, ordinal: Ordinal) -> None:
        """The StatefulSet creates a pod of its current revision."""
        assert not ordinal.there
        self.time += 1
        ordinal.there, ordinal.ready, ordinal.revision, ordinal.created = (
            True,
            False,
            self.update_revision,
            self.time,
        )
        ordinal.stuck = False

    def live(self, *, broken: str = "") -> None:
        """Time passes: missing pods come back and get Ready, unless their revision is broken."""
        self.time += 1
        for ordinal in self.pods:
            if ordinal.zone in self.down:
                continue
            if not ordinal.there:
                self.recreate(ordinal)
            elif ordinal.revision != broken and not ordinal.stuck:
                ordinal.ready = True

    def lacking(self) -> set[str]:
        """Zones that lack a Ready pod."""
        return {
            ordinal.zone
            for ordinal in self.pods
            if not (ordinal.there and ordinal.ready) or ordinal.zone in self.down
        }

    def done(self) -> bool:
        """Whether all pods are of the desired revision and Ready."""
        return not self.lacking() and all(
            ordinal.revision == self.update_revision for ordinal in self.pods
        )


def spread(*counts: int, **spec: Any) -> Rolling:
    """Pods in zones a, b, c…, ordinal after ordinal in turn."""
    left = list(counts)
    pods = []
    while any(left):
        for index, zone in enumerate("abcdefgh"[: len(left)]):
            if left[index]:
                left[index] -= 1
                pods.append(Ordinal(zone))
    return Rolling(pods, item=rollout(**spec))
