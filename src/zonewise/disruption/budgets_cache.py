"""The budgets of all namespaces, fed from stores.

Its methods are listeners of stores: what was, and what is, either of them None. They never fail and
never ask; a shell connects them and asks for verdicts. The order in which stores report does not
matter: everything is counted from what is known when somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from zonewise.api.meta import Object
from zonewise.api.objects.budgets import DisruptionLedger, TopologyDisruptionBudget
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.unstructured import Unstructured
from zonewise.disruption.budget import budget_of
from zonewise.disruption.domain_counts import identity
from zonewise.disruption.ledger import ledger_of, order
from zonewise.disruption.namespace_budgets import NamespaceBudgets, same_place
from zonewise.disruption.owners import ScaleOwner, owner_of

Listener: TypeAlias = Callable[[Any, Any], None]


class BudgetsCache:
    """Budgets by namespace, and the nodes they share."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.by_namespace: dict[str, NamespaceBudgets] = {}

    def listeners(self, owners: Iterable[type[Object]]) -> dict[type[Any], Listener]:
        """Who is to be told of which kind; ``owners`` are the kinds of owners that are watched."""
        return {
            Node: self.node_changed,
            Pod: self.pod_changed,
            PodDisruptionBudget: self.budget_changed,
            TopologyDisruptionBudget: self.budget_changed,
            DisruptionLedger: self.ledger_changed,
            **dict.fromkeys(owners, self.owner_changed),
        }

    def of(self, namespace: str) -> NamespaceBudgets:
        """The budgets of a namespace, made when first asked for."""
        found = self.by_namespace.get(namespace)
        if found is None:
            found = self.by_namespace[namespace] = NamespaceBudgets(self.nodes)
        return found

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """A node came, went, or changed."""
        if new is not None:
            self.nodes[new.metadata.name] = new
        elif old is not None:
            self.nodes.pop(old.metadata.name, None)
        if not same_place(old, new):
            for namespace_budgets in self.by_namespace.values():
                namespace_budgets.nodes_changed()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod came, went, or changed; one of the same name with another uid is another one."""
        if old is not None and (new is None or identity(old) != identity(new)):
            self.of(old.metadata.namespace).drop_pod(old)
        if new is not None:
            self.of(new.metadata.namespace).put_pod(new)

    def budget_changed(
        self,
        old: TopologyDisruptionBudget | PodDisruptionBudget | None,
        new: TopologyDisruptionBudget | PodDisruptionBudget | None,
    ) -> None:
        """A budget of either kind came, went, or changed."""
        if new is not None:
            namespace_budgets, budget = (
                self.of(new.metadata.namespace),
                budget_of(new),
            )
            known = namespace_budgets.budgets.get(budget.key)
            if known is None or order(known.version) <= order(budget.version):
                namespace_budgets.put_budget(budget)
        elif old is not None:
            meta = old.metadata
            self.of(meta.namespace).drop_budget((old.resource.kind, meta.namespace, meta.name))

    def owner_changed(
        self, old: Object | Unstructured | None, new: Object | Unstructured | None
    ) -> None:
        """Something that may own pods came, went, or changed."""
        if new is not None:
            self.put_owner(owner_of(new))
        elif old is not None:
            self.drop_owner(owner_of(old))

    def put_owner(self, owner: ScaleOwner) -> None:
        """The same, for an owner that was asked for."""
        self.of(owner.place[2]).owners.put(owner)

    def drop_owner(self, owner: ScaleOwner) -> None:
        """The same, for one that is gone."""
        self.of(owner.place[2]).owners.drop(owner.place)

    def ledger_changed(self, old: DisruptionLedger | None, new: DisruptionLedger | None) -> None:
        """A namespace's ledger came, went, or changed; news of what was already written is old."""
        item = new or old
        assert item is not None
        namespace_budgets = self.of(item.metadata.namespace)
        told = ledger_of(new)
        if new is None or order(told.version) >= order(namespace_budgets.ledger.version):
            namespace_budgets.ledger = told
