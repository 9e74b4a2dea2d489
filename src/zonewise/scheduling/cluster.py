"""The cluster as the scheduler reads it, updated incrementally, and its decisions.

A ``SchedulerCluster`` maintains sums and counts, so that the cost of a decision depends on the
changes since the last one with the same requirements and not on the cluster's size. Each change of
a node, or of a pod on it, appends the node's name to a log. Repeated requirements update only the
nodes in the log since their last decision (``ranking``). The answer depends on the state of the
cluster, never on the order of the changes or on earlier decisions: a fresh ``SchedulerCluster``
with the same input gives the same.

``assume`` puts a pod on a node before its binding is written; ``set_pod`` later confirms it.

Bounded: rankings are kept for the most recent requirements, the log is cut where it is no longer
read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from zlib import crc32

from zonewise.api.meta import Key
from zonewise.api.objects.core import Namespace, Node
from zonewise.api.objects.pod import Pod
from zonewise.api.objects.pod_state import is_pod_finished
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.objects.storage import CSINode, VolumeAttachment
from zonewise.api.values.selector import Selector
from zonewise.scheduling.decision import (
    NO_NODES,
    PREEMPTION_PREFIX,
    TERMS_CONFLICT,
    NodeRefusal,
    SchedulingDecision,
    format_none_available,
    refuse_all,
)
from zonewise.scheduling.default_spread import DefaultSpread
from zonewise.scheduling.node_fit import NodeFits
from zonewise.scheduling.node_info import NodeInfo, PodInfo
from zonewise.scheduling.pod_counts import AllPodCounts, NodeCounts, PodCounts, TermCounts
from zonewise.scheduling.preemption import preempt
from zonewise.scheduling.ranking import Ranking
from zonewise.scheduling.requirements import NodeRequirements, Requirements, RequirementsCache
from zonewise.scheduling.terms import PodSelection, PodTerm, SpreadConstraint, compile_selector
from zonewise.scheduling.topology_count import CountRole, TopologyCount
from zonewise.scheduling.volumes import VolumeCache, VolumeRequirements

RANKINGS_LIMIT = 256
LOG_LIMIT = 1 << 16
TERMS_LIMIT = 1_000

_NO_LABELS: Mapping[str, str] = {}


class _CachedRanking:
    """A ranking and what it needs to stay up to date."""

    __slots__ = ("counts", "known_terms", "ranking")

    def __init__(self, ranking: Ranking, counts: list[NodeCounts], known_terms: int) -> None:
        self.ranking = ranking
        self.counts = counts
        self.known_terms = known_terms


class SchedulerCluster:
    """Nodes, pods, budgets and volumes; ``decide`` chooses a pod's node."""

    def __init__(self, *, seed: int = 0) -> None:
        self.node_infos: dict[str, NodeInfo] = {}
        self.budgets: dict[Key, tuple[PodDisruptionBudget, Selector]] = {}
        self.default_spread = DefaultSpread()
        self.volume_cache = VolumeCache()
        self.requirements_cache = RequirementsCache()
        self._seed = seed
        self._version = 0
        self._log: list[str] = []
        self._log_start = 0
        self._pod_infos: dict[Key, PodInfo] = {}
        self._pods_without_node: dict[str, dict[Key, PodInfo]] = {}
        self._namespace_labels: dict[str, Mapping[str, str]] = {}
        self._pod_counts = AllPodCounts()
        self._counts_by_term: dict[tuple[PodTerm, int], TermCounts] = {}
        self._term_counts: list[TermCounts] = []
        self._terms_limit = TERMS_LIMIT
        self._node_fits: dict[tuple[NodeRequirements, frozenset[str] | None], NodeFits] = {}
        self._rankings: OrderedDict[Requirements, _CachedRanking] = OrderedDict()
        self._nominated: dict[Key, PodInfo] = {}
        # The answer to requirements that no node meets, until anything changes: thousands of equal
        # pods that wait cost as much as one.
        self._cached_refusals: dict[object, SchedulingDecision] = {}

    # State

    def set_node(self, node: Node) -> None:
        """A node was added or changed."""
        self._cached_refusals.clear()
        name = node.metadata.name
        node_info = self.node_infos.get(name)
        version = self._record_change(name)
        if node_info is not None:
            node_info.set_node(node, version)
            return
        tie = crc32(f"{self._seed}/{name}".encode())
        node_info = self.node_infos[name] = NodeInfo(node, tie=tie, version=version)
        for pod_info in self._pods_without_node.pop(name, {}).values():
            self._add_to_node(pod_info)

    def remove_node(self, name: str) -> None:
        """A node was deleted; its pods are kept in case it comes back."""
        node_info = self.node_infos.get(name)
        if node_info is None:
            return
        for pod_info in tuple(node_info.pod_infos.values()):
            self._remove_from_node(pod_info)
            self._pods_without_node.setdefault(name, {})[pod_info.key] = pod_info
        del self.node_infos[name]
        self._record_change(name)
        self._cached_refusals.clear()

    def set_pod(self, pod: Pod) -> None:
        """A pod with a node was added or changed; one that has finished uses no resources."""
        if not pod.spec.node_name or is_pod_finished(pod):
            self.remove_pod(pod.key)
            return
        pod_info = self._pod_infos.get(pod.key)
        if pod_info is not None and self._is_equivalent(pod_info, pod):
            pod_info.pod = pod
            return
        self._put_pod(PodInfo(pod, self.requirements_cache.compile(pod), pod.spec.node_name))

    def assume(self, pod: Pod, node: str) -> None:
        """Count a pod on a node before its binding is written."""
        self._put_pod(PodInfo(pod, self.requirements_cache.compile(pod), node))

    def remove_pod(self, key: Key) -> None:
        """A pod was deleted."""
        pod_info = self._pod_infos.pop(key, None)
        if pod_info is None:
            return
        self._cached_refusals.clear()
        self.volume_cache.remove_pod(pod_info.pod)
        if pod_info.node in self.node_infos:
            self._remove_from_node(pod_info)
        else:
            self._pods_without_node[pod_info.node].pop(key)

    def nominate(self, pod: Pod, node: str) -> None:
        """Reserve resources of a node for a pod that waits for its victims to terminate."""
        self._cached_refusals.clear()
        self._nominated[pod.key] = PodInfo(pod, self.requirements_cache.compile(pod), node)

    def remove_nomination(self, key: Key) -> None:
        """A pod is no longer nominated."""
        if self._nominated.pop(key, None) is not None:
            self._cached_refusals.clear()

    def find_outranked(self, pod: Pod, node: str) -> list[Key]:
        """Pods nominated for a node that have a lower priority than another."""
        priority = pod.spec.priority or 0
        return [
            pod_info.key
            for pod_info in self._nominated.values()
            if pod_info.node == node and pod_info.priority < priority
        ]

    def set_namespace(self, namespace: Namespace) -> None:
        """A namespace was added or got other labels."""
        meta = namespace.metadata
        if self._namespace_labels.get(meta.name) != meta.labels:
            self._namespace_labels[meta.name] = meta.labels
            self._drop_rankings()

    def set_budget(self, budget: PodDisruptionBudget) -> None:
        """A budget was added or changed."""
        self._cached_refusals.clear()
        self.budgets[budget.key] = (budget, compile_selector(budget.spec.selector))

    def remove_budget(self, budget: PodDisruptionBudget) -> None:
        """A budget was deleted."""
        self._cached_refusals.clear()
        self.budgets.pop(budget.key, None)

    def set_csi_node(self, node: CSINode) -> None:
        """The drivers of a node were added or changed."""
        self.volume_cache.set_limits(node)
        self._touch(node.metadata.name)

    def remove_csi_node(self, node: CSINode) -> None:
        """A node has no drivers any more."""
        self.volume_cache.remove_limits(node.metadata.name)
        self._touch(node.metadata.name)

    def set_attachment(self, item: VolumeAttachment) -> None:
        """A volume is attached to a node, or about to be."""
        self.volume_cache.set_attachment(item)
        self._touch(item.spec.node_name)

    def remove_attachment(self, item: VolumeAttachment) -> None:
        """A volume is detached from a node."""
        self.volume_cache.remove_attachment(item)
        self._touch(item.spec.node_name)

    def _touch(self, name: str) -> None:
        """Something about a node changed that its ``NodeInfo`` does not have."""
        self._cached_refusals.clear()
        version = self._record_change(name)
        if name in self.node_infos:
            self.node_infos[name].version = version

    # Decisions

    def decide(self, pod: Pod) -> SchedulingDecision:
        """The node of a pod, or why there is none."""
        if not self.node_infos:
            return SchedulingDecision(message=NO_NODES)
        volumes = self.volume_cache.requirements_of(pod)
        if isinstance(volumes, str):
            return refuse_all(self.node_infos, volumes)
        requirements = self.requirements_cache.compile(
            pod, default_selector_of=self.default_spread.selector_of, volumes=volumes
        )
        if (
            requirements.node_requirements.names is not None
            and not requirements.node_requirements.names
        ):
            return refuse_all(self.node_infos, TERMS_CONFLICT)
        ranking = self.get_ranking(requirements)
        excluded = self._find_reserved_nodes(pod, ranking)
        nominated = pod.status.nominated_node_name
        if (
            nominated in self.node_infos
            and nominated not in excluded
            and ranking.refusal(nominated) is None
        ):
            return SchedulingDecision(
                node=nominated, claims=self._assign_claims(pod, volumes, nominated)
            )
        best = ranking.find_best(excluded)
        if best is not None:
            return SchedulingDecision(node=best, claims=self._assign_claims(pod, volumes, best))
        cache_key = (requirements, pod.spec.priority or 0, pod.spec.preemption_policy, nominated)
        refusal = self._cached_refusals.get(cache_key)
        if refusal is None or excluded:
            refusal = self._refuse(pod, ranking, excluded)
            if refusal.preemption is None and not self._nominated:
                self._cached_refusals[cache_key] = refusal
        return refusal

    def _refuse(
        self, pod: Pod, ranking: Ranking, excluded: Mapping[str, NodeRefusal]
    ) -> SchedulingDecision:
        refusals = {**ranking.refusals(), **excluded}
        preemption, reason, keeps_nomination = preempt(self, pod, ranking, refusals)
        message = format_none_available(len(self.node_infos), refusals.values())
        return SchedulingDecision(
            message=f"{message} {PREEMPTION_PREFIX}{reason}" if reason else message,
            refusals=refusals,
            preemption=preemption,
            keeps_nomination=keeps_nomination,
        )

    def _assign_claims(self, pod: Pod, volumes: VolumeRequirements, name: str) -> dict[Key, str]:
        if not volumes.unbound:
            return {}
        assigned = volumes.assign(self.node_infos[name].labels, name)
        assert not isinstance(assigned, NodeRefusal)
        unbound = self.volume_cache.unbound_claims(pod)
        return {claim.key: volume for claim, volume in zip(unbound, assigned, strict=True)}

    def get_ranking(self, requirements: Requirements) -> Ranking:
        """The up-to-date ranking of the nodes for requirements."""
        cached = self._rankings.get(requirements)
        if cached is not None and not self._is_up_to_date(cached):
            self._drop_ranking(requirements)
            cached = None
        if cached is None:
            cached = self._create_ranking(requirements)
        self._rankings.move_to_end(requirements)
        self._refresh_verdicts(cached.ranking.node_fits)
        cached.ranking.refresh()
        return cached.ranking

    def _refresh_verdicts(self, node_fits: NodeFits) -> None:
        """Bring the verdicts of the nodes up to date."""
        end = self._log_start + len(self._log)
        if node_fits.position >= self._log_start:
            node_fits.refresh(self._log[node_fits.position - self._log_start :], self.node_infos)
        else:
            node_fits.refresh({**self.node_infos, **node_fits.verdicts}, self.node_infos)
        node_fits.position = end

    def find_refusal(self, pod: Pod, ranking: Ranking, name: str) -> NodeRefusal | None:
        """Why a node cannot take a pod beside those nominated for it; None if it can."""
        refusal = self.get_ranking(ranking.requirements).refusal(name)
        if refusal is not None:
            return refusal
        nominated = [pod_info for pod_info in self._nominated_pods(pod) if pod_info.node == name]
        if not nominated:
            return None
        for pod_info in nominated:
            self.simulate_add(pod_info)
        refusal = self.get_ranking(ranking.requirements).refusal(name)
        for pod_info in nominated:
            self.simulate_remove(pod_info)
        return refusal

    def simulate_add(self, pod_info: PodInfo) -> None:
        """Add a pod to its node for a simulation; ``simulate_remove`` undoes it."""
        self._add_to_node(pod_info)

    def simulate_remove(self, pod_info: PodInfo) -> None:
        """Remove a pod from its node for a simulation; ``simulate_add`` undoes it."""
        self._remove_from_node(pod_info)

    def _find_reserved_nodes(self, pod: Pod, ranking: Ranking) -> dict[str, NodeRefusal]:
        """Nodes that cannot take the pod only because others are nominated for them."""
        refusals: dict[str, NodeRefusal] = {}
        if self._nominated:
            for name in {pod_info.node for pod_info in self._nominated_pods(pod)}:
                if ranking.refusal(name) is None:
                    refusal = self.find_refusal(pod, ranking, name)
                    if refusal is not None:
                        refusals[name] = refusal
        return refusals

    def _nominated_pods(self, pod: Pod) -> Iterator[PodInfo]:
        """Nominated pods of the same or a higher priority."""
        priority = pod.spec.priority or 0
        for pod_info in self._nominated.values():
            if (
                pod_info.priority >= priority
                and pod_info.key != pod.key
                and pod_info.node in self.node_infos
            ):
                yield pod_info

    def _create_ranking(self, requirements: Requirements) -> _CachedRanking:
        if len(self._term_counts) > self._terms_limit:
            self._drop_unused_terms()
        counts: list[NodeCounts] = []
        topology_counts = list(self._create_topology_counts(requirements, counts))
        names = requirements.node_requirements.names
        scope = None if topology_counts else names
        node_fits = self._node_fits.get((requirements.node_requirements, scope))
        if node_fits is None:
            node_fits = self._node_fits[requirements.node_requirements, scope] = NodeFits(
                requirements.node_requirements, scope, self.volume_cache
            )
        self._refresh_verdicts(node_fits)
        namespace_labels = self._namespace_labels.get(requirements.namespace, _NO_LABELS)
        self_match = all(
            term.selection.matches(requirements.namespace, namespace_labels, requirements.labels)
            for term in requirements.affinity_terms
        )
        ranking = Ranking(
            requirements, node_fits, topology_counts, self.node_infos, self_match=self_match
        )
        node_fits.dirty[id(ranking)] = ranking.dirty
        for node_counts in counts:
            node_counts.dirty[id(ranking)] = ranking.dirty
        cached = self._rankings[requirements] = _CachedRanking(
            ranking, counts, len(self._term_counts)
        )
        if len(self._rankings) > RANKINGS_LIMIT:
            self._drop_ranking(next(iter(self._rankings)))
        return cached

    def _create_topology_counts(
        self, requirements: Requirements, counts: list[NodeCounts]
    ) -> Iterator[TopologyCount]:
        def topology_count(
            role: CountRole,
            key: str,
            source: NodeCounts,
            *,
            constraint: SpreadConstraint | None = None,
            weight: int = 0,
        ) -> TopologyCount:
            counts.append(source)
            return TopologyCount(role, key, source.by_node, constraint=constraint, weight=weight)

        def count_pods(*selections: PodSelection) -> PodCounts:
            return self._pod_counts.get_or_count(
                selections, self._pod_infos.values(), self._namespace_labels
            )

        # Where only one node is eligible, there is nothing to compare.
        only_one_node = (
            requirements.node_requirements.names is not None
            and len(requirements.node_requirements.names) == 1
        )
        for spread_constraint in requirements.hard_constraints:
            yield topology_count(
                CountRole.SPREAD,
                spread_constraint.key,
                count_pods(spread_constraint.selection),
                constraint=spread_constraint,
            )
        if requirements.affinity_terms:
            source = count_pods(*(term.selection for term in requirements.affinity_terms))
            for term in requirements.affinity_terms:
                yield topology_count(CountRole.AFFINITY, term.key, source)
        for term in requirements.anti_affinity_terms:
            yield topology_count(CountRole.ANTI_AFFINITY, term.key, count_pods(term.selection))
        if not only_one_node:
            for spread_constraint in requirements.soft_constraints:
                yield topology_count(
                    CountRole.SOFT_SPREAD,
                    spread_constraint.key,
                    count_pods(spread_constraint.selection),
                    constraint=spread_constraint,
                )
            for weight, term in requirements.preferred_terms:
                yield topology_count(
                    CountRole.PREFERENCE, term.key, count_pods(term.selection), weight=weight
                )
        for term_counts in self._term_counts:
            if self._concerns(term_counts, requirements) and not (
                only_one_node and term_counts.weight
            ):
                role = (
                    CountRole.PREFERENCE if term_counts.weight else CountRole.EXISTING_ANTI_AFFINITY
                )
                yield topology_count(
                    role, term_counts.term.key, term_counts, weight=term_counts.weight
                )

    def _drop_unused_terms(self) -> None:
        """Drop terms that no pod has any more; revisions of workloads leave them behind."""
        self._drop_rankings()
        self._counts_by_term = {
            key: counts for key, counts in self._counts_by_term.items() if counts.by_node
        }
        self._term_counts = list(self._counts_by_term.values())
        self._terms_limit = 2 * len(self._term_counts) + TERMS_LIMIT

    def _concerns(self, counts: TermCounts, requirements: Requirements) -> bool:
        namespace_labels = self._namespace_labels.get(requirements.namespace, _NO_LABELS)
        return counts.term.selection.matches(
            requirements.namespace, namespace_labels, requirements.labels
        )

    def _is_up_to_date(self, cached: _CachedRanking) -> bool:
        """Whether a ranking is still valid: no new term concerns it."""
        requirements = cached.ranking.requirements
        for counts in self._term_counts[cached.known_terms :]:
            if self._concerns(counts, requirements):
                return False
        cached.known_terms = len(self._term_counts)
        return True

    def _drop_ranking(self, requirements: Requirements) -> None:
        cached = self._rankings.pop(requirements)
        ranking = cached.ranking
        for node_counts in cached.counts:
            if node_counts.dirty.pop(id(ranking), None) is not None and isinstance(
                node_counts, PodCounts
            ):
                self._pod_counts.release(node_counts)
        node_fits = ranking.node_fits
        del node_fits.dirty[id(ranking)]
        if not node_fits.dirty:
            del self._node_fits[node_fits.key]

    def _drop_rankings(self) -> None:
        self._cached_refusals.clear()
        for requirements in tuple(self._rankings):
            self._drop_ranking(requirements)

    def _record_change(self, name: str) -> int:
        self._version += 1
        log = self._log
        log.append(name)
        if len(log) > LOG_LIMIT:
            cut = len(log) // 2
            del log[:cut]
            self._log_start += cut
        return self._version

    def _put_pod(self, pod_info: PodInfo) -> None:
        self.remove_pod(pod_info.key)
        self._pod_infos[pod_info.key] = pod_info
        self.volume_cache.add_pod(pod_info.pod)
        self._cached_refusals.clear()
        if pod_info.node in self.node_infos:
            self._add_to_node(pod_info)
        else:
            self._pods_without_node.setdefault(pod_info.node, {})[pod_info.key] = pod_info

    def _is_equivalent(self, pod_info: PodInfo, pod: Pod) -> bool:
        """Whether an updated pod is equivalent to the known one for scheduling."""
        old, new = pod_info.pod.metadata, pod.metadata
        return (
            pod_info.node == pod.spec.node_name
            and old.uid == new.uid
            and old.generation == new.generation
            and (old.deletion_timestamp is None) == (new.deletion_timestamp is None)
            and all(
                old.labels.get(key) == new.labels.get(key)
                for key in self.requirements_cache.label_keys
            )
        )

    def _add_to_node(self, pod_info: PodInfo) -> None:
        self.node_infos[pod_info.node].add_pod(pod_info, self._record_change(pod_info.node))
        self._count(pod_info, 1)

    def _remove_from_node(self, pod_info: PodInfo) -> None:
        self.node_infos[pod_info.node].remove_pod(pod_info.key, self._record_change(pod_info.node))
        self._count(pod_info, -1)

    def _count(self, pod_info: PodInfo, change: int) -> None:
        self._pod_counts.count(pod_info, change, self._namespace_labels)
        for term, weight in pod_info.requirements.own_terms:
            counts = self._counts_by_term.get((term, weight))
            if counts is None:
                counts = self._counts_by_term[term, weight] = TermCounts(term, weight)
                self._term_counts.append(counts)
            counts.count(pod_info.node, change)
