"""What one node alone says to a wish: a refusal or a score.

Conditions are asked in the order of Kubernetes' scheduler, and the first that fails speaks. What
depends on the node itself is found out once per ``shape``; ports and resources change with every
pod. Scores are whole numbers up to 100, as there: free room (half cpu, half memory), and how much
more even the use of the two becomes. Taints and preferences are left raw, because they are scaled
by the best node that is possible. Pods with the same needs share the verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zonewise.api.taints import kept_off, tolerated
from zonewise.scheduling import decision
from zonewise.scheduling.decision import Change, Refusal
from zonewise.scheduling.place import Place
from zonewise.scheduling.taints import UNSCHEDULABLE, disliked
from zonewise.scheduling.wish import Needs

TOP = 100


class Standing(NamedTuple):
    """How a node stands to a wish, as far as the node itself decides."""

    shape: int
    refusal: Refusal | None
    selected: bool
    untainted: bool
    disliked: int
    preferred: int
    volumes: Refusal | None


Entry = tuple[int, int, int, str]
"""How good a node is, the smaller the better: score, pods, tie, name."""


class Verdict(NamedTuple):
    """How a node stands to a wish now."""

    version: int
    refusal: Refusal | None
    entry: Entry
    standing: Standing


class Fitness:
    """Verdicts on one wish, kept while nodes change; ``scope`` are the only nodes of interest."""

    __slots__ = ("_needs", "_scope", "dirty", "key", "position", "verdicts")

    def __init__(self, needs: Needs, scope: frozenset[str] | None) -> None:
        self.key = (needs, scope)
        self._needs, self._scope = self.key
        self.verdicts: dict[str, Verdict] = {}
        self.position = -1
        self.dirty: dict[int, set[str]] = {}
        """Where to mark nodes that came, went, became possible, impossible or better."""

    def refresh(self, names: Iterable[str], places: Mapping[str, Place]) -> None:
        """Judge these nodes anew; they may have changed, come or gone."""
        verdicts, scope = self.verdicts, self._scope
        for name in names:
            if scope is not None and name not in scope:
                continue
            place, known = places.get(name), verdicts.get(name)
            if place is None:
                if known is None:
                    continue
                del verdicts[name]
            elif known is None or known.version != place.version:
                verdict = verdicts[name] = self._judged(place, known)
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

    def _judged(self, place: Place, known: Verdict | None) -> Verdict:
        if known is not None and known.standing.shape == place.shape:
            standing = known.standing
        else:
            standing = self._standing(place)
        refusal = standing.refusal or self._room(place) or standing.volumes
        score = 0 if refusal is not None else self._score(place)
        entry = (-score, len(place.tenants), place.tie, place.name)
        return Verdict(place.version, refusal, entry, standing)

    def _standing(self, place: Place) -> Standing:
        needs = self._needs
        tolerations = needs.tolerations
        selected = needs.selects(place.labels, place.name)
        tainted = kept_off(place.taints, tolerations)
        cordoned = place.node.spec.unschedulable and not tolerated(UNSCHEDULABLE, tolerations)
        refusal = None
        if needs.names is not None and place.name not in needs.names:
            refusal = decision.NOT_NAMED
        elif cordoned:
            refusal = decision.CORDONED
        elif tainted:
            refusal = decision.TAINTED
        elif not selected:
            refusal = decision.NOT_SELECTED
        return Standing(
            shape=place.shape,
            refusal=refusal,
            selected=selected,
            untainted=not tainted,
            disliked=disliked(place.taints, tolerations),
            preferred=sum(
                weight for weight, term in needs.preferred if term.matches(place.labels, place.name)
            ),
            volumes=needs.volumes.refused_by(place.labels, place.name),
        )

    def _room(self, place: Place) -> Refusal | None:
        needs = self._needs
        demand = needs.demand
        if needs.ports and not place.ports_free(needs.ports):
            return decision.PORTS_TAKEN
        if (
            len(place.tenants) < place.allowed
            and demand.cpu <= place.cpu - place.used_cpu
            and demand.memory <= place.memory - place.used_memory
            and demand.storage <= place.storage - place.used_storage
            and not demand.others
        ):
            return None
        return self._short(place)

    def _short(self, place: Place) -> Refusal | None:
        """What there is too little of; hopeless if even the empty node has too little."""
        demand = self._needs.demand
        reasons = [] if len(place.tenants) < place.allowed else ["Too many pods"]
        hopeless = False
        for name, wanted, size, used in (
            ("cpu", demand.cpu, place.cpu, place.used_cpu),
            ("memory", demand.memory, place.memory, place.used_memory),
            ("ephemeral-storage", demand.storage, place.storage, place.used_storage),
            *(
                (name, wanted, place.others.get(name, 0), place.used_others.get(name, 0))
                for name, wanted in demand.others
            ),
        ):
            if wanted > 0 and wanted > size - used:
                reasons.append(f"Insufficient {name}")
                hopeless = hopeless or wanted > size
        if not reasons:
            return None
        helped = Change.NODE if hopeless else Change.NODE | Change.POD_WENT
        return Refusal(tuple(reasons), not hopeless, helped)

    def _score(self, place: Place) -> int:
        demand = self._needs.demand
        cpu, memory = place.cpu, place.memory
        free = kinds = 0
        if cpu:
            left = cpu - place.assumed_cpu - demand.assumed_cpu
            free += left * TOP // cpu if left > 0 else 0
            kinds += 1
        if memory:
            left = memory - place.assumed_memory - demand.assumed_memory
            free += left * TOP // memory if left > 0 else 0
            kinds += 1
        score = free // kinds if kinds else 0
        if demand.cpu or demand.memory:
            before = _evenness(place.used_cpu, cpu, place.used_memory, memory)
            after = _evenness(
                place.used_cpu + demand.cpu, cpu, place.used_memory + demand.memory, memory
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
