"""Whether a node meets requirements: a refusal or a score.

Conditions are checked in the order of Kubernetes' scheduler, and the first that fails is reported.
What depends on the node itself is computed once per ``shape``; ports and resources change with
every pod. Scores are whole numbers up to 100, as there: free resources (half cpu, half memory), and
how much more balanced the use of the two becomes. Taints and preferences are not scaled here,
because they are scaled by the best feasible node. Pods with the same requirements share verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zonewise.api.objects.core import Taint
from zonewise.api.objects.pod import Toleration
from zonewise.api.objects.taints import has_untolerated_taint, is_tolerated
from zonewise.scheduling import decision
from zonewise.scheduling.decision import ClusterEvent, NodeRefusal
from zonewise.scheduling.node_info import NodeInfo
from zonewise.scheduling.requirements import NodeRequirements
from zonewise.scheduling.volumes import VolumeCache

MAX_SCORE = 100


class NodeFit(NamedTuple):
    """The part of a verdict that depends on the node itself, not on its pods."""

    shape: int
    refusal: NodeRefusal | None
    matches_selector: bool
    untainted: bool
    intolerable_taints: int
    preference: int
    volume_refusal: NodeRefusal | None


FitEntry = tuple[int, int, int, str]
"""The rank of a node, smaller is better: negative score, pods, tie, name."""


class NodeVerdict(NamedTuple):
    """Whether a node meets requirements now."""

    version: int
    refusal: NodeRefusal | None
    entry: FitEntry
    fit: NodeFit


class NodeFits:
    """Verdicts of all nodes on one set of requirements, updated incrementally.

    With a ``scope``, only these nodes are judged.
    """

    __slots__ = ("_requirements", "_scope", "_volume_cache", "dirty", "key", "position", "verdicts")

    def __init__(
        self,
        requirements: NodeRequirements,
        scope: frozenset[str] | None,
        volume_cache: VolumeCache,
    ) -> None:
        self._volume_cache = volume_cache
        self.key = (requirements, scope)
        self._requirements, self._scope = self.key
        self.verdicts: dict[str, NodeVerdict] = {}
        self.position = -1
        self.dirty: dict[int, set[str]] = {}
        """Sets that get the names of nodes that were added, deleted, became feasible, infeasible or
        better, by the id of their ranking.
        """

    def refresh(self, names: Iterable[str], node_infos: Mapping[str, NodeInfo]) -> None:
        """Judge these nodes again; they may have changed, been added or deleted."""
        verdicts, scope = self.verdicts, self._scope
        for name in names:
            if scope is not None and name not in scope:
                continue
            node_info, previous = node_infos.get(name), verdicts.get(name)
            if node_info is None:
                if previous is None:
                    continue
                del verdicts[name]
            elif previous is None or previous.version != node_info.version:
                verdict = verdicts[name] = self._judge_node(node_info, previous)
                if (
                    previous is not None
                    and previous.fit is verdict.fit
                    and (previous.refusal is None) == (verdict.refusal is None)
                    and previous.entry <= verdict.entry
                ):
                    continue
            else:
                continue
            for dirty in self.dirty.values():
                dirty.add(name)

    def _judge_node(self, node_info: NodeInfo, previous: NodeVerdict | None) -> NodeVerdict:
        if previous is not None and previous.fit.shape == node_info.shape:
            fit = previous.fit
        else:
            fit = self._fit_node(node_info)
        refusal = fit.refusal or self._find_resource_refusal(node_info)
        if refusal is None:
            refusal = self._find_limit_refusal(node_info) or fit.volume_refusal
        score = 0 if refusal is not None else self._score_node(node_info)
        entry = (-score, len(node_info.pod_infos), node_info.tie, node_info.name)
        return NodeVerdict(node_info.version, refusal, entry, fit)

    def _fit_node(self, node_info: NodeInfo) -> NodeFit:
        requirements = self._requirements
        tolerations = requirements.tolerations
        matches_selector = requirements.matches_node(node_info.labels, node_info.name)
        tainted = has_untolerated_taint(node_info.taints, tolerations)
        cordoned = node_info.node.spec.unschedulable and not is_tolerated(
            UNSCHEDULABLE_TAINT, tolerations
        )
        refusal = None
        if requirements.names is not None and node_info.name not in requirements.names:
            refusal = decision.NOT_NAMED
        elif cordoned:
            refusal = decision.CORDONED
        elif tainted:
            refusal = decision.TAINTED
        elif not matches_selector:
            refusal = decision.NODE_AFFINITY_UNMET
        return NodeFit(
            shape=node_info.shape,
            refusal=refusal,
            matches_selector=matches_selector,
            untainted=not tainted,
            intolerable_taints=count_intolerable_taints(node_info.taints, tolerations),
            preference=sum(
                weight
                for weight, term in requirements.preferred
                if term.matches(node_info.labels, node_info.name)
            ),
            volume_refusal=requirements.volumes.find_refusal(node_info.labels, node_info.name),
        )

    def _find_resource_refusal(self, node_info: NodeInfo) -> NodeRefusal | None:
        requirements = self._requirements
        request = requirements.request
        if requirements.ports and not node_info.has_free_ports(requirements.ports):
            return decision.PORTS_TAKEN
        if (
            len(node_info.pod_infos) < node_info.max_pods
            and request.cpu <= node_info.cpu - node_info.used_cpu
            and request.memory <= node_info.memory - node_info.used_memory
            and request.storage <= node_info.storage - node_info.used_storage
            and not request.scalars
        ):
            return None
        return self._find_insufficient(node_info)

    def _find_limit_refusal(self, node_info: NodeInfo) -> NodeRefusal | None:
        """The refusal if the volumes and those of the node's pods exceed a limit."""
        volumes = self._requirements.volumes
        if volumes.limited and not volumes.in_use:
            pods = (pod_info.pod for pod_info in node_info.pod_infos.values())
            if self._volume_cache.exceeds_limits(volumes.limited, node_info.name, pods):
                return decision.TOO_MANY_VOLUMES
        return None

    def _find_insufficient(self, node_info: NodeInfo) -> NodeRefusal | None:
        """The refusal for insufficient resources; not resolvable if an empty node has too few."""
        request = self._requirements.request
        reasons = [] if len(node_info.pod_infos) < node_info.max_pods else ["Too many pods"]
        unresolvable = False
        for name, requested, size, used in (
            ("cpu", request.cpu, node_info.cpu, node_info.used_cpu),
            ("memory", request.memory, node_info.memory, node_info.used_memory),
            ("ephemeral-storage", request.storage, node_info.storage, node_info.used_storage),
            *(
                (
                    name,
                    requested,
                    node_info.scalars.get(name, 0),
                    node_info.used_scalars.get(name, 0),
                )
                for name, requested in request.scalars
            ),
        ):
            if requested > 0 and requested > size - used:
                reasons.append(f"Insufficient {name}")
                unresolvable = unresolvable or requested > size
        if not reasons:
            return None
        events = ClusterEvent.NODE if unresolvable else ClusterEvent.NODE | ClusterEvent.POD_DELETED
        return NodeRefusal(tuple(reasons), not unresolvable, events)

    def _score_node(self, node_info: NodeInfo) -> int:
        request = self._requirements.request
        cpu, memory = node_info.cpu, node_info.memory
        free = resources = 0
        if cpu:
            remaining = cpu - node_info.nonzero_cpu - request.nonzero_cpu
            free += remaining * MAX_SCORE // cpu if remaining > 0 else 0
            resources += 1
        if memory:
            remaining = memory - node_info.nonzero_memory - request.nonzero_memory
            free += remaining * MAX_SCORE // memory if remaining > 0 else 0
            resources += 1
        score = free // resources if resources else 0
        if request.cpu or request.memory:
            balance_before = _balance(node_info.used_cpu, cpu, node_info.used_memory, memory)
            balance_after = _balance(
                node_info.used_cpu + request.cpu,
                cpu,
                node_info.used_memory + request.memory,
                memory,
            )
            # Truncation is towards zero: the quotient is never negative, as both are 50 to 100.
            score += MAX_SCORE // 2 + (MAX_SCORE // 2 + balance_after - balance_before) // 2
        return score


def _balance(used_cpu: int, cpu: int, used_memory: int, memory: int) -> int:
    """How similar the used parts of the two resources are; 100 if a node has only one."""
    if not cpu or not memory:
        return MAX_SCORE
    part_cpu, part_memory = used_cpu / cpu, used_memory / memory
    return int((1 - abs((min(part_cpu, 1.0) - min(part_memory, 1.0)) / 2)) * MAX_SCORE)


UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""The taint that a cordoned node counts as having."""


def count_intolerable_taints(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> int:
    """How many PreferNoSchedule taints a pod does not tolerate."""
    relevant = [item for item in tolerations if item.effect in ("", "PreferNoSchedule")]
    soft = (taint for taint in taints if taint.effect == "PreferNoSchedule")
    return sum(not is_tolerated(taint, relevant) for taint in soft)
