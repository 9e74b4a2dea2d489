"""The budgets of all namespaces, fed from stores.

Its methods are listeners of stores: the old object and the new one, either of them None. They never
fail and make no requests; a shell connects them and reads verdicts. The order in which stores
report does not matter: everything is counted from the present state when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from zonewise.api.meta import Object
from zonewise.api.objects.budgets import DisruptionLedger, TopologyDisruptionBudget
from zonewise.api.objects.core import Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.unstructured import Unstructured
from zonewise.disruption.budget import budget_of
from zonewise.disruption.domain_counts import identity
from zonewise.disruption.ledger import ledger_of, version_number
from zonewise.disruption.namespace_budgets import NamespaceBudgets, is_irrelevant_change
from zonewise.disruption.owners import OwnerKey, ScaleOwner, owner_of

ChangeListener: TypeAlias = Callable[[Any, Any], None]


class BudgetsCache:
    """Budgets by namespace, and the nodes they share; ``counts_plain`` as in ``budget_of``."""

    def __init__(self, *, counts_plain: bool | None = None) -> None:
        self.counts_plain = counts_plain
        self.nodes: dict[str, Node] = {}
        self.by_namespace: dict[str, NamespaceBudgets] = {}
        self._versions_ahead: dict[str, int] = {}
        """Versions of pods that were read from the server before their store had them."""
        self._watched: frozenset[tuple[str, str]] = frozenset()

    def listeners(self, owners: Iterable[type[Object]]) -> dict[type[Any], ChangeListener]:
        """The listener for each kind; ``owners`` are the kinds of owners that are watched."""
        owners = tuple(owners)
        self._watched |= {(cls.resource.group, cls.resource.kind) for cls in owners}
        return {
            Node: self.node_changed,
            Pod: self.pod_changed,
            PodDisruptionBudget: self.budget_changed,
            TopologyDisruptionBudget: self.budget_changed,
            DisruptionLedger: self.ledger_changed,
            **dict.fromkeys(owners, self.owner_changed),
        }

    def find(self, namespace: str) -> NamespaceBudgets | None:
        """The budgets of a namespace of which a store reported something.

        For namespaces that a request names: it may name one that does not exist.
        """
        return self.by_namespace.get(namespace)

    def get_or_create(self, namespace: str) -> NamespaceBudgets:
        """The budgets of a namespace that exists, created at the first call."""
        budgets = self.by_namespace.get(namespace)
        if budgets is None:
            budgets = self.by_namespace[namespace] = NamespaceBudgets(self.nodes)
        return budgets

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """A node was added, deleted, or changed."""
        if new is not None:
            self.nodes[new.metadata.name] = new
        elif old is not None:
            self.nodes.pop(old.metadata.name, None)
        if not is_irrelevant_change(old, new):
            for budgets in self.by_namespace.values():
                budgets.nodes_changed()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod was added, deleted, or changed; another uid under the same name is another pod."""
        if old is not None and (new is None or identity(old) != identity(new)):
            self._versions_ahead.pop(identity(old), None)
            self.get_or_create(old.metadata.namespace).drop_pod(old)
        if new is not None:
            key = identity(new)
            if version_number(new.metadata.resource_version) >= self._versions_ahead.get(key, 0):
                self._versions_ahead.pop(key, None)
                self.get_or_create(new.metadata.namespace).put_pod(new)

    def put_read_pod(self, pod: Pod) -> None:
        """Take a pod that was read from the server, perhaps newer than the store's.

        A pod that is no longer Ready must not be counted as healthy in favour of another one.
        """
        budgets, key = self.get_or_create(pod.metadata.namespace), identity(pod)
        cached = budgets.pods.get(key)
        version = version_number(pod.metadata.resource_version)
        if cached is not None and version > version_number(cached.metadata.resource_version):
            self._versions_ahead[key] = version
            budgets.put_pod(pod)

    def budget_changed(
        self,
        old: TopologyDisruptionBudget | PodDisruptionBudget | None,
        new: TopologyDisruptionBudget | PodDisruptionBudget | None,
    ) -> None:
        """A budget of either kind was added, deleted, or changed."""
        if new is not None:
            budgets = self.get_or_create(new.metadata.namespace)
            budget = budget_of(new, counts_plain=self.counts_plain)
            cached = budgets.budgets.get(budget.key)
            if cached is None or version_number(cached.version) <= version_number(budget.version):
                budgets.put_budget(budget)
        elif old is not None:
            meta = old.metadata
            key = (old.resource.kind, meta.namespace, meta.name)
            self.get_or_create(meta.namespace).drop_budget(key)

    def owner_changed(
        self, old: Object | Unstructured | None, new: Object | Unstructured | None
    ) -> None:
        """An object that may own pods was added, deleted, or changed."""
        if new is not None:
            self.put_owner(owner_of(new))
        elif old is not None:
            self.get_or_create(old.metadata.namespace).owners.drop(owner_of(old).key)

    def owners_to_request(self, namespace: str) -> set[OwnerKey]:
        """The owners of a namespace's pods that no store reports: a shell has to request them."""
        budgets = self.find(namespace)
        return set() if budgets is None else budgets.owners_to_request(self._watched)

    def put_read_owners(self, owners: Mapping[OwnerKey, Unstructured | None]) -> None:
        """Take owners that were requested; None if there is no such object."""
        for key, item in owners.items():
            if item is not None:
                self.put_owner(owner_of(item))
            else:
                self.get_or_create(key[2]).owners.drop(key)

    def put_owner(self, owner: ScaleOwner) -> None:
        """Add or change an owner."""
        self.get_or_create(owner.key[2]).owners.put(owner)

    def ledger_changed(self, old: DisruptionLedger | None, new: DisruptionLedger | None) -> None:
        """A namespace's ledger was added, deleted, or changed; an older version is ignored."""
        item = new or old
        assert item is not None
        budgets = self.get_or_create(item.metadata.namespace)
        ledger = ledger_of(new)
        if new is None or version_number(ledger.version) >= version_number(budgets.ledger.version):
            budgets.ledger = ledger
