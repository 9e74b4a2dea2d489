"""The cluster as the scheduler sees it, changed piece by piece, and its decisions.

The input of a ``SchedulerCluster`` is kept in sums and counts, so that the cost of a decision
depends on the changes since the last one of its kind and not on the cluster's size. Each change of
a node, or of a pod on it, puts the node's name into a log. Repeated requirements look only at the
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
from zonewise.api.objects.pod_state import finished
from zonewise.api.objects.policy import PodDisruptionBudget
from zonewise.api.objects.storage import CSINode, VolumeAttachment
from zonewise.api.values.selector import Selector
from zonewise.scheduling.decision import (
    AFTERWARDS,
    NO_NODES,
    TERMS_CONFLICT,
    NodeRefusal,
    SchedulingDecision,
    none_available,
    nowhere,
)
from zonewise.scheduling.default_spread import DefaultSpread
from zonewise.scheduling.node_fit import NodeFits
from zonewise.scheduling.node_info import NodeInfo, PodInfo
from zonewise.scheduling.pod_counts import AllPodCounts, Carried, NodeCounts, PodCounts
from zonewise.scheduling.preemption import preempt
from zonewise.scheduling.ranking import Ranking
from zonewise.scheduling.requirements import NodeRequirements, Requirements, RequirementsCache
from zonewise.scheduling.terms import Constraint, PodSelection, Term, understood
from zonewise.scheduling.topology_count import CountRole, TopologyCount
from zonewise.scheduling.volumes import VolumeCache, Volumes

RANKINGS = 256
LOG = 1 << 16
CARRIERS = 1_000

_NO_LABELS: Mapping[str, str] = {}


class _Asked:
    """A ranking and what it needs to stay true."""

    __slots__ = ("counts", "known", "ranking")

    def __init__(self, ranking: Ranking, counts: list[NodeCounts], known: int) -> None:
        self.ranking = ranking
        self.counts = counts
        self.known = known


class SchedulerCluster:
    """Nodes, pods and what else matters; ``decide`` chooses a pod's node."""

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
        self._homeless: dict[str, dict[Key, PodInfo]] = {}
        self._spaces: dict[str, Mapping[str, str]] = {}
        self._tallies = AllPodCounts()
        self._carried: dict[tuple[Term, int], Carried] = {}
        self._carriers: list[Carried] = []
        self._many_carriers = CARRIERS
        self._node_fits: dict[tuple[NodeRequirements, frozenset[str] | None], NodeFits] = {}
        self._asked: OrderedDict[Requirements, _Asked] = OrderedDict()
        self._nominated: dict[Key, PodInfo] = {}
        # The answer to requirements that no node meets, until anything changes: thousands of equal
        # pods that wait cost as much as one.
        self._refused: dict[object, SchedulingDecision] = {}

    # What there is

    def set_node(self, node: Node) -> None:
        """A node was added or changed."""
        self._refused.clear()
        name = node.metadata.name
        node_info = self.node_infos.get(name)
        version = self._changed(name)
        if node_info is not None:
            node_info.become(node, version)
            return
        tie = crc32(f"{self._seed}/{name}".encode())
        node_info = self.node_infos[name] = NodeInfo(node, tie=tie, version=version)
        for pod_info in self._homeless.pop(name, {}).values():
            self._settle(pod_info)

    def remove_node(self, name: str) -> None:
        """A node was deleted; its pods are kept, should it come back."""
        node_info = self.node_infos.get(name)
        if node_info is None:
            return
        for pod_info in tuple(node_info.pod_infos.values()):
            self._unsettle(pod_info)
            self._homeless.setdefault(name, {})[pod_info.key] = pod_info
        del self.node_infos[name]
        self._changed(name)
        self._refused.clear()

    def set_pod(self, pod: Pod) -> None:
        """A pod that has a node was added or changed; one that has ended takes no room."""
        if not pod.spec.node_name or finished(pod):
            self.remove_pod(pod.key)
            return
        known = self._pod_infos.get(pod.key)
        if known is not None and self._same(known, pod):
            known.pod = pod
            return
        self._tell(PodInfo(pod, self.requirements_cache.requirements(pod), pod.spec.node_name))

    def assume(self, pod: Pod, node: str) -> None:
        """Count a pod as if it were on a node already."""
        self._tell(PodInfo(pod, self.requirements_cache.requirements(pod), node))

    def remove_pod(self, key: Key) -> None:
        """A pod was deleted."""
        pod_info = self._pod_infos.pop(key, None)
        if pod_info is None:
            return
        self._refused.clear()
        self.volume_cache.unuse(pod_info.pod)
        if pod_info.node in self.node_infos:
            self._unsettle(pod_info)
        else:
            self._homeless[pod_info.node].pop(key)

    def nominate(self, pod: Pod, node: str) -> None:
        """Keep room on a node for a pod that waits until others have made it."""
        self._refused.clear()
        self._nominated[pod.key] = PodInfo(pod, self.requirements_cache.requirements(pod), node)

    def withdraw(self, key: Key) -> None:
        """A pod waits for room no more."""
        if self._nominated.pop(key, None) is not None:
            self._refused.clear()

    def outranked(self, pod: Pod, node: str) -> list[Key]:
        """Pods a node is kept free for that are less important than another."""
        priority = pod.spec.priority or 0
        return [
            pod_info.key
            for pod_info in self._nominated.values()
            if pod_info.node == node and pod_info.priority < priority
        ]

    def set_namespace(self, namespace: Namespace) -> None:
        """A namespace was added or got other labels."""
        meta = namespace.metadata
        if self._spaces.get(meta.name) != meta.labels:
            self._spaces[meta.name] = meta.labels
            self._forget()

    def set_budget(self, budget: PodDisruptionBudget) -> None:
        """A budget was added or changed."""
        self._refused.clear()
        self.budgets[budget.key] = (budget, understood(budget.spec.selector))

    def remove_budget(self, key: Key) -> None:
        """A budget was deleted."""
        self._refused.clear()
        self.budgets.pop(key, None)

    def set_csi_node(self, node: CSINode) -> None:
        """The drivers of a node were added or changed."""
        self.volume_cache.set_limits(node)
        self._touch(node.metadata.name)

    def remove_csi_node(self, name: str) -> None:
        """A node has no drivers any more."""
        self.volume_cache.remove_limits(name)
        self._touch(name)

    def set_attachment(self, item: VolumeAttachment) -> None:
        """A volume is attached to a node, or about to be."""
        self.volume_cache.set_attachment(item)
        self._touch(item.spec.node_name)

    def remove_attachment(self, item: VolumeAttachment) -> None:
        """A volume is detached from a node."""
        self.volume_cache.remove_attachment(item)
        self._touch(item.spec.node_name)

    def _touch(self, name: str) -> None:
        """Something about a node changed that is kept elsewhere."""
        self._refused.clear()
        version = self._changed(name)
        if name in self.node_infos:
            self.node_infos[name].version = version

    # What follows

    def decide(self, pod: Pod) -> SchedulingDecision:
        """The node of a pod, or why there is none."""
        if not self.node_infos:
            return SchedulingDecision(message=NO_NODES)
        asked = self.volume_cache.asked(pod)
        if isinstance(asked, str):
            return nowhere(self.node_infos, asked)
        requirements = self.requirements_cache.requirements(
            pod, held_together=self.default_spread.of, volumes=asked
        )
        if requirements.needs.names is not None and not requirements.needs.names:
            return nowhere(self.node_infos, TERMS_CONFLICT)
        ranking = self.ranking(requirements)
        excluded = self._kept_free(pod, ranking)
        nominated = pod.status.nominated_node_name
        if (
            nominated in self.node_infos
            and nominated not in excluded
            and ranking.refusal(nominated) is None
        ):
            return SchedulingDecision(node=nominated, claims=self._claims(pod, asked, nominated))
        best = ranking.best(excluded)
        if best is not None:
            return SchedulingDecision(node=best, claims=self._claims(pod, asked, best))
        same = (requirements, pod.spec.priority or 0, pod.spec.preemption_policy, nominated)
        known = self._refused.get(same)
        if known is None or excluded:
            known = self._refuse(pod, ranking, excluded)
            if known.preemption is None and not self._nominated:
                self._refused[same] = known
        return known

    def _refuse(
        self, pod: Pod, ranking: Ranking, excluded: Mapping[str, NodeRefusal]
    ) -> SchedulingDecision:
        refusals = {**ranking.refusals(), **excluded}
        preemption, said, waits = preempt(self, pod, ranking, refusals)
        message = none_available(len(self.node_infos), refusals.values())
        return SchedulingDecision(
            message=f"{message} {AFTERWARDS}{said}" if said else message,
            refusals=refusals,
            preemption=preemption,
            waits=waits,
        )

    def _claims(self, pod: Pod, asked: Volumes, name: str) -> dict[Key, str]:
        if not asked.unbound:
            return {}
        taken = asked.taken(self.node_infos[name].labels, name)
        assert not isinstance(taken, NodeRefusal)
        waiting = self.volume_cache.waiting(pod)
        return {claim.key: volume for claim, volume in zip(waiting, taken, strict=True)}

    def ranking(self, requirements: Requirements) -> Ranking:
        """The nodes as these requirements rank them now."""
        asked = self._asked.get(requirements)
        if asked is not None and not self._up_to_date(asked):
            self._drop(requirements)
            asked = None
        if asked is None:
            asked = self._ask(requirements)
        self._asked.move_to_end(requirements)
        self._judge(asked.ranking.node_fits)
        asked.ranking.refresh()
        return asked.ranking

    def _judge(self, node_fits: NodeFits) -> None:
        """Bring the verdicts of the nodes up to date."""
        end = self._log_start + len(self._log)
        if node_fits.position >= self._log_start:
            node_fits.refresh(self._log[node_fits.position - self._log_start :], self.node_infos)
        else:
            node_fits.refresh({**self.node_infos, **node_fits.verdicts}, self.node_infos)
        node_fits.position = end

    def refusal(self, pod: Pod, ranking: Ranking, name: str) -> NodeRefusal | None:
        """Why a node cannot take a pod beside those that it is kept free for, or None."""
        refusal = self.ranking(ranking.requirements).refusal(name)
        if refusal is not None:
            return refusal
        guests = [pod_info for pod_info in self._awaited(pod) if pod_info.node == name]
        if not guests:
            return None
        for pod_info in guests:
            self.simulate_add(pod_info)
        refusal = self.ranking(ranking.requirements).refusal(name)
        for pod_info in guests:
            self.simulate_remove(pod_info)
        return refusal

    def simulate_add(self, pod_info: PodInfo) -> None:
        """Put a pod on a node to see what would follow; ``simulate_remove`` undoes it."""
        self._settle(pod_info)

    def simulate_remove(self, pod_info: PodInfo) -> None:
        """Take a pod off its node to see what would follow; ``simulate_add`` undoes it."""
        self._unsettle(pod_info)

    def _kept_free(self, pod: Pod, ranking: Ranking) -> dict[str, NodeRefusal]:
        """Nodes that would take the pod, were they not kept free for others."""
        found: dict[str, NodeRefusal] = {}
        if self._nominated:
            for name in {pod_info.node for pod_info in self._awaited(pod)}:
                if ranking.refusal(name) is None:
                    refusal = self.refusal(pod, ranking, name)
                    if refusal is not None:
                        found[name] = refusal
        return found

    def _awaited(self, pod: Pod) -> Iterator[PodInfo]:
        """Pods that wait for room and are at least as important."""
        priority = pod.spec.priority or 0
        for pod_info in self._nominated.values():
            if (
                pod_info.priority >= priority
                and pod_info.key != pod.key
                and pod_info.node in self.node_infos
            ):
                yield pod_info

    def _ask(self, requirements: Requirements) -> _Asked:
        if len(self._carriers) > self._many_carriers:
            self._tidy()
        counts: list[NodeCounts] = []
        topology_counts = list(self._topology_counts(requirements, counts))
        names = requirements.needs.names
        scope = None if topology_counts else names
        node_fits = self._node_fits.get((requirements.needs, scope))
        if node_fits is None:
            node_fits = self._node_fits[requirements.needs, scope] = NodeFits(
                requirements.needs, scope, self.volume_cache
            )
        self._judge(node_fits)
        space = self._spaces.get(requirements.namespace, _NO_LABELS)
        itself = all(
            term.selection.has(requirements.namespace, space, requirements.labels)
            for term in requirements.near
        )
        ranking = Ranking(requirements, node_fits, topology_counts, self.node_infos, itself=itself)
        node_fits.dirty[id(ranking)] = ranking.dirty
        for one in counts:
            one.dirty[id(ranking)] = ranking.dirty
        asked = self._asked[requirements] = _Asked(ranking, counts, len(self._carriers))
        if len(self._asked) > RANKINGS:
            self._drop(next(iter(self._asked)))
        return asked

    def _topology_counts(
        self, requirements: Requirements, counts: list[NodeCounts]
    ) -> Iterator[TopologyCount]:
        def topology_count(
            role: CountRole,
            key: str,
            source: NodeCounts,
            *,
            constraint: Constraint | None = None,
            weight: int = 0,
        ) -> TopologyCount:
            counts.append(source)
            return TopologyCount(role, key, source.by_node, constraint=constraint, weight=weight)

        def tally(*selections: PodSelection) -> PodCounts:
            return self._tallies.use(selections, self._pod_infos.values(), self._spaces)

        # Where only one node is eligible, there is nothing to compare.
        alone = requirements.needs.names is not None and len(requirements.needs.names) == 1
        for one in requirements.hard:
            yield topology_count(CountRole.SPREAD, one.key, tally(one.selection), constraint=one)
        if requirements.near:
            source = tally(*(term.selection for term in requirements.near))
            for term in requirements.near:
                yield topology_count(CountRole.NEAR, term.key, source)
        for term in requirements.away:
            yield topology_count(CountRole.AWAY, term.key, tally(term.selection))
        if not alone:
            for one in requirements.soft:
                yield topology_count(CountRole.EVEN, one.key, tally(one.selection), constraint=one)
            for weight, term in requirements.likes:
                yield topology_count(CountRole.LIKE, term.key, tally(term.selection), weight=weight)
        for carried in self._carriers:
            if self._concerns(carried, requirements) and not (alone and carried.weight):
                role = CountRole.LIKE if carried.weight else CountRole.UNWELCOME
                yield topology_count(role, carried.term.key, carried, weight=carried.weight)

    def _tidy(self) -> None:
        """Drop terms that no pod carries any more; revisions of workloads leave them behind."""
        self._forget()
        self._carried = {key: one for key, one in self._carried.items() if one.by_node}
        self._carriers = list(self._carried.values())
        self._many_carriers = 2 * len(self._carriers) + CARRIERS

    def _concerns(self, carried: Carried, requirements: Requirements) -> bool:
        space = self._spaces.get(requirements.namespace, _NO_LABELS)
        return carried.term.selection.has(requirements.namespace, space, requirements.labels)

    def _up_to_date(self, asked: _Asked) -> bool:
        """Whether the ranking may be continued: no new term concerns it."""
        requirements = asked.ranking.requirements
        for carried in self._carriers[asked.known :]:
            if self._concerns(carried, requirements):
                return False
        asked.known = len(self._carriers)
        return True

    def _drop(self, requirements: Requirements) -> None:
        asked = self._asked.pop(requirements)
        ranking = asked.ranking
        for one in asked.counts:
            if one.dirty.pop(id(ranking), None) is not None and isinstance(one, PodCounts):
                self._tallies.release(one)
        node_fits = ranking.node_fits
        del node_fits.dirty[id(ranking)]
        if not node_fits.dirty:
            del self._node_fits[node_fits.key]

    def _forget(self) -> None:
        self._refused.clear()
        for requirements in tuple(self._asked):
            self._drop(requirements)

    def _changed(self, name: str) -> int:
        self._version += 1
        log = self._log
        log.append(name)
        if len(log) > LOG:
            cut = len(log) // 2
            del log[:cut]
            self._log_start += cut
        return self._version

    def _tell(self, pod_info: PodInfo) -> None:
        self.remove_pod(pod_info.key)
        self._pod_infos[pod_info.key] = pod_info
        self.volume_cache.use(pod_info.pod)
        self._refused.clear()
        if pod_info.node in self.node_infos:
            self._settle(pod_info)
        else:
            self._homeless.setdefault(pod_info.node, {})[pod_info.key] = pod_info

    def _same(self, known: PodInfo, pod: Pod) -> bool:
        """Whether an updated pod means the same for the cluster."""
        old, new = known.pod.metadata, pod.metadata
        return (
            known.node == pod.spec.node_name
            and old.uid == new.uid
            and old.generation == new.generation
            and (old.deletion_timestamp is None) == (new.deletion_timestamp is None)
            and all(
                old.labels.get(key) == new.labels.get(key) for key in self.requirements_cache.asked
            )
        )

    def _settle(self, pod_info: PodInfo) -> None:
        self.node_infos[pod_info.node].put(pod_info, self._changed(pod_info.node))
        self._count(pod_info, 1)

    def _unsettle(self, pod_info: PodInfo) -> None:
        self.node_infos[pod_info.node].take(pod_info.key, self._changed(pod_info.node))
        self._count(pod_info, -1)

    def _count(self, pod_info: PodInfo, change: int) -> None:
        self._tallies.count(pod_info, change, self._spaces)
        for term, weight in pod_info.requirements.carried:
            carried = self._carried.get((term, weight))
            if carried is None:
                carried = self._carried[term, weight] = Carried(term, weight)
                self._carriers.append(carried)
            carried.count(pod_info.node, change)
