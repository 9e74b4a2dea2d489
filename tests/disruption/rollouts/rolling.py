"""A StatefulSet that is rolled out by domain, without a cluster: pods, a budget, a status.

Everything a controller would keep is here and nothing else: whoever "restarts" in the middle has
lost nothing that is not in these fields.
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
from zonewise.disruption import Budget, NamespaceBudgets, budget_of, owner_of
from zonewise.disruption.rollouts import (
    DomainPlan,
    RolloutView,
    Victims,
    budget_name,
    budget_spec,
    opened_of,
    planned,
    pods_of,
    rollout_status,
    victims,
    workload_of,
)
from zonewise.disruption.views import StatefulSetScale

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
    """The pod of an ordinal; it always comes back in its zone, as one with a volume does."""

    zone: str
    revision: str = "1"
    ready: bool = True
    there: bool = True
    created: int = 0
    stuck: bool = False
    """Whether only another pod in its place would get Ready."""


@dataclass
class Rolling:
    """The cluster, as far as this rollout is concerned."""

    pods: list[Ordinal]
    item: DomainRollout = field(default_factory=rollout)
    wanted: str = "1"
    opened: str | None = None
    budget: bool = False
    down: set[str] = field(default_factory=set)
    others: list[Budget] = field(default_factory=list)
    partition: int = 0
    node_labels: dict[str, dict[str, str]] = field(default_factory=dict)
    time: int = 0
    evicted: list[str] = field(default_factory=list)

    def name(self, one: Ordinal) -> str:
        """What an ordinal's pod is called."""
        return f"db-{self.pods.index(one)}"

    def nodes(self) -> dict[str, Node]:
        """A node for each zone."""
        made = zones(*sorted({one.zone for one in self.pods}))
        for name, node in made.items():
            zone = name.removeprefix("n-")
            taints = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
            body = {
                "metadata": {
                    "name": name,
                    "labels": {**node.metadata.labels, **self.node_labels.get(zone, {})},
                },
                "spec": {"taints": taints if zone in self.down else []},
            }
            made[name] = convert(Node, body)
        return made

    def _pod(self, one: Ordinal) -> Pod:
        made = pod(
            self.name(one),
            f"n-{one.zone}",
            ready=one.ready and one.zone not in self.down,
            owner="db",
            kind="StatefulSet",
            labels={"controller-revision-hash": one.revision},
        )
        stamp = times.format_time(times.from_epoch(NOW + one.created))
        meta = msgspec.structs.replace(
            made.metadata, creation_timestamp=stamp, uid=f"{self.name(one)}-{one.created}"
        )
        return msgspec.structs.replace(made, metadata=meta)

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
                "status": {"observedGeneration": 1, "updateRevision": self.wanted},
            },
        )

    def namespace_budgets(self) -> NamespaceBudgets:
        """What budgets are counted from; the baseline is where the pods belong."""
        workload = self.workload()
        spec = budget_spec(self.item, workload_of(workload), self.opened)
        home = Counter(one.zone for one in self.pods)
        body = {
            "metadata": {"name": budget_name(self.item), "namespace": NS},
            "spec": msgspec.to_builtins(spec),
            "status": {
                "domains": [{"domain": zone, "expectedPods": n} for zone, n in home.items()]
            },
        }
        derived = convert(TopologyDisruptionBudget, body)
        assert opened_of(derived) == self.opened
        return NamespaceBudgets(
            self.nodes(),
            budgets=[budget_of(derived), *self.others],
            pods=[self._pod(one) for one in self.pods if one.there],
            owners=[owner_of(workload)],
        )

    def view(self, namespace_budgets: NamespaceBudgets) -> RolloutView:
        """What is decided from."""
        workload = workload_of(self.workload())
        standing, domain_counts = namespace_budgets.counted(KEY)
        nodes = self.nodes()
        label = self.item.spec.order.node_label
        return RolloutView(
            item=self.item,
            workload=workload,
            pods=pods_of(workload, domain_counts, namespace_budgets.owners, nodes),
            needs={name: domain.baseline for name, domain in standing.domains.items()},
            labels={zone: said.get(label, "") for zone, said in self.node_labels.items()},
            opened=self.opened,
            counted=self.budget,
            now=NOW + self.time,
        )

    def decide(self) -> tuple[DomainPlan, Victims]:
        """The decision and who would be evicted."""
        namespace_budgets = self.namespace_budgets()
        view = self.view(namespace_budgets)
        plan = planned(view)
        stands = self.budget and plan.opened == self.opened
        return plan, victims(view, plan, namespace_budgets) if stands else Victims()

    def turn(self, *, crash_after: int = 3) -> DomainPlan:
        """One pass: budget, status, evictions; a crash may come after any of them."""
        namespace_budgets = self.namespace_budgets()
        view = self.view(namespace_budgets)
        plan = planned(view)
        chosen = self.decide()[1]
        status = rollout_status(view, plan)
        if crash_after >= 1:
            self.opened, self.budget = plan.opened, True
        if crash_after >= 2:
            self.tell(status)
        if crash_after >= 3:
            for one in chosen.pods:
                self.evict(one.metadata.name)
        return plan

    def tell(self, status: DomainRolloutStatus) -> None:
        """Write the status."""
        self.item = msgspec.structs.replace(self.item, status=status)

    def evict(self, name: str) -> None:
        """Take a pod down."""
        one = self.pods[int(name.removeprefix("db-"))]
        assert one.there
        one.there = one.ready = False
        self.evicted.append(name)

    def recreate(self, one: Ordinal) -> None:
        """The StatefulSet makes a pod anew, of the revision it is at."""
        assert not one.there
        self.time += 1
        one.there, one.ready, one.revision, one.created = True, False, self.wanted, self.time
        one.stuck = False

    def live(self, *, broken: str = "") -> None:
        """Time passes: what is missing comes back and gets Ready, unless its revision is broken."""
        self.time += 1
        for one in self.pods:
            if one.zone in self.down:
                continue
            if not one.there:
                self.recreate(one)
            elif one.revision != broken and not one.stuck:
                one.ready = True

    def lacking(self) -> set[str]:
        """Zones that lack a Ready pod."""
        return {
            one.zone for one in self.pods if not (one.there and one.ready) or one.zone in self.down
        }

    def done(self) -> bool:
        """Whether all pods are as wanted, and Ready."""
        return not self.lacking() and all(one.revision == self.wanted for one in self.pods)


def spread(*counts: int, **spec: Any) -> Rolling:
    """Pods in zones a, b, c…, ordinal after ordinal in turn."""
    left = list(counts)
    pods = []
    while any(left):
        for place, zone in enumerate("abcdefgh"[: len(left)]):
            if left[place]:
                left[place] -= 1
                pods.append(Ordinal(zone))
    return Rolling(pods, item=rollout(**spec))
