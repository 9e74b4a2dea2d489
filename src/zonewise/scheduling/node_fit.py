"""The verdict of one node on requirements: a refusal or a score.

Conditions are checked in the order of Kubernetes' scheduler, and the first that fails is reported.
What depends on the node itself is computed once per ``shape``; ports and resources change with
every pod. Scores are whole numbers up to 100, as there: free room (half cpu, half memory), and how
much more even the use of the two becomes. Taints and preferences are left raw, because they are
scaled by the best node that is possible. Pods with the same needs share the verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zonewise.api.objects.taints import kept_off, tolerated
from zonewise.scheduling import decision
from zonewise.scheduling.decision import ClusterEvent, NodeRefusal
from zonewise.scheduling.node_info import NodeInfo
from zonewise.scheduling.requirements import NodeRequirements
from zonewise.scheduling.taints import UNSCHEDULABLE, disliked
from zonewise.scheduling.volumes import VolumeCache

TOP = 100


class NodeFit(NamedTuple):
    """Whether a node meets requirements, as far as the node itself decides."""

    shape: int
    refusal: NodeRefusal | None
    selected: bool
    untainted: bool
    disliked: int
    preferred: int
    volumes: NodeRefusal | None


FitEntry = tuple[int, int, int, str]
"""How good a node is, the smaller the better: score, pods, tie, name."""


class NodeVerdict(NamedTuple):
    """Whether a node meets requirements now."""

    version: int
    refusal: NodeRefusal | None
    entry: FitEntry
    standing: NodeFit


class NodeFits:
    """Verdicts on one set of requirements, kept while nodes change.

    ``scope`` are the only nodes of interest.
    """

    __slots__ = ("_needs", "_scope", "_volume_cache", "dirty", "key", "position", "verdicts")

    def __init__(
        self, needs: NodeRequirements, scope: frozenset[str] | None, volume_cache: VolumeCache
    ) -> None:
        self._volume_cache = volume_cache
        self.key = (needs, scope)
        self._needs, self._scope = self.key
        self.verdicts: dict[str, NodeVerdict] = {}
        self.position = -1
        self.dirty: dict[int, set[str]] = {}
        """Where to mark nodes that were added, deleted, became possible, impossible or better."""

    def refresh(self, names: Iterable[str], node_infos: Mapping[str, NodeInfo]) -> None:
        """Judge these nodes again; they may have changed, been added or deleted."""
        verdicts, scope = self.verdicts, self._scope
        for name in names:
            if scope is not None and name not in scope:
                continue
            node_info, known = node_infos.get(name), verdicts.get(name)
            if node_info is None:
                if known is None:
                    continue
                del verdicts[name]
            elif known is None or known.version != node_info.version:
                verdict = verdicts[name] = self._judged(node_info, known)
                if (
                    known is not None
                    and known.standing is verdict.standing
                    and (known.refusal is None) == (verdict.refusal is None)
                    and known.entry <= verdict.entry
                ):
                    continue
            else:
                continue
            for dirty in self.dirty.values():
                dirty.add(name)

    def _judged(self, node_info: NodeInfo, known: NodeVerdict | None) -> NodeVerdict:
        if known is not None and known.standing.shape == node_info.shape:
            standing = known.standing
        else:
            standing = self._standing(node_info)
        refusal = standing.refusal or self._room(node_info)
        if refusal is None:
            refusal = self._too_many(node_info) or standing.volumes
        score = 0 if refusal is not None else self._score(node_info)
        entry = (-score, len(node_info.pod_infos), node_info.tie, node_info.name)
        return NodeVerdict(node_info.version, refusal, entry, standing)

    def _standing(self, node_info: NodeInfo) -> NodeFit:
        needs = self._needs
        tolerations = needs.tolerations
        selected = needs.selects(node_info.labels, node_info.name)
        tainted = kept_off(node_info.taints, tolerations)
        cordoned = node_info.node.spec.unschedulable and not tolerated(UNSCHEDULABLE, tolerations)
        refusal = None
        if needs.names is not None and node_info.name not in needs.names:
            refusal = decision.NOT_NAMED
        elif cordoned:
            refusal = decision.CORDONED
        elif tainted:
            refusal = decision.TAINTED
        elif not selected:
            refusal = decision.NOT_SELECTED
        return NodeFit(
            shape=node_info.shape,
            refusal=refusal,
            selected=selected,
            untainted=not tainted,
            disliked=disliked(node_info.taints, tolerations),
            preferred=sum(
                weight
                for weight, term in needs.preferred
                if term.matches(node_info.labels, node_info.name)
            ),
            volumes=needs.volumes.refused_by(node_info.labels, node_info.name),
        )

    def _room(self, node_info: NodeInfo) -> NodeRefusal | None:
        needs = self._needs
        demand = needs.demand
        if needs.ports and not node_info.ports_free(needs.ports):
            return decision.PORTS_TAKEN
        if (
            len(node_info.pod_infos) < node_info.allowed
            and demand.cpu <= node_info.cpu - node_info.used_cpu
            and demand.memory <= node_info.memory - node_info.used_memory
            and demand.storage <= node_info.storage - node_info.used_storage
            and not demand.others
        ):
            return None
        return self._short(node_info)

    def _too_many(self, node_info: NodeInfo) -> NodeRefusal | None:
        """Whether the node cannot hold the volumes, beside those that its pods use."""
        volumes = self._needs.volumes
        if volumes.attached and not volumes.in_use:
            pods = (pod_info.pod for pod_info in node_info.pod_infos.values())
            if self._volume_cache.exceeded(volumes.attached, node_info.name, pods):
                return decision.TOO_MANY_VOLUMES
        return None

    def _short(self, node_info: NodeInfo) -> NodeRefusal | None:
        """What there is too little of; hopeless if even the empty node has too little."""
        demand = self._needs.demand
        reasons = [] if len(node_info.pod_infos) < node_info.allowed else ["Too many pods"]
        hopeless = False
        for name, wanted, size, used in (
            ("cpu", demand.cpu, node_info.cpu, node_info.used_cpu),
            ("memory", demand.memory, node_info.memory, node_info.used_memory),
            ("ephemeral-storage", demand.storage, node_info.storage, node_info.used_storage),
            *(
                (name, wanted, node_info.others.get(name, 0), node_info.used_others.get(name, 0))
                for name, wanted in demand.others
            ),
        ):
            if wanted > 0 and wanted > size - used:
                reasons.append(f"Insufficient {name}")
                hopeless = hopeless or wanted > size
        if not reasons:
            return None
        helped = ClusterEvent.NODE if hopeless else ClusterEvent.NODE | ClusterEvent.POD_WENT
        return NodeRefusal(tuple(reasons), not hopeless, helped)

    def _score(self, node_info: NodeInfo) -> int:
        demand = self._needs.demand
        cpu, memory = node_info.cpu, node_info.memory
        free = kinds = 0
        if cpu:
            left = cpu - node_info.assumed_cpu - demand.assumed_cpu
            free += left * TOP // cpu if left > 0 else 0
            kinds += 1
        if memory:
            left = memory - node_info.assumed_memory - demand.assumed_memory
            free += left * TOP // memory if left > 0 else 0
            kinds += 1
        score = free // kinds if kinds else 0
        if demand.cpu or demand.memory:
            before = _evenness(node_info.used_cpu, cpu, node_info.used_memory, memory)
            after = _evenness(
                node_info.used_cpu + demand.cpu, cpu, node_info.used_memory + demand.memory, memory
            )
            # The quotient is cut towards zero; it is never negative, as both are 50 to 100.
            score += TOP // 2 + (TOP // 2 + after - before) // 2
        return score


def _evenness(used_cpu: int, cpu: int, used_memory: int, memory: int) -> int:
    """How alike the used parts of the two are; alone, either is alike to itself."""
    if not cpu or not memory:
        return TOP
    part_cpu, part_memory = used_cpu / cpu, used_memory / memory
    return int((1 - abs((min(part_cpu, 1.0) - min(part_memory, 1.0)) / 2)) * TOP)
