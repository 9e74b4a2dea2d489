"""The cluster as the scheduler sees it, changed piece by piece, and its decisions.

Everything told to a ``Cluster`` is kept in sums and counts, so that a decision costs what changed
since the last one of its kind and not what there is. Each change of a node, or of a pod on it,
puts the node's name into a log. A wish that is asked again looks only at the nodes in the log since
it was last asked (``ranking``). The answer depends on what the cluster is, never on the order in
which it was told or on what was asked before: a fresh ``Cluster`` told the same gives the same.

``assume`` puts a pod on a node before the API server knows; telling the pod later confirms it.

Bounded: rankings are kept for the wishes asked last, the log is cut where nobody reads it any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from zlib import crc32

from zonewise.api.core import Namespace, Node
from zonewise.api.meta import Key
from zonewise.api.pod import Pod
from zonewise.api.podstate import finished
from zonewise.api.policy import PodDisruptionBudget
from zonewise.api.selector import Selector
from zonewise.scheduling.bonds import Bonds
from zonewise.scheduling.decision import (
    AFTERWARDS,
    NO_NODES,
    TERMS_CONFLICT,
    Decision,
    Refusal,
    none_available,
    nowhere,
)
from zonewise.scheduling.factor import Factor, Role
from zonewise.scheduling.fitness import Fitness
from zonewise.scheduling.place import Place, Tenant
from zonewise.scheduling.preemption import preempt
from zonewise.scheduling.ranking import Ranking
from zonewise.scheduling.tally import Carried, Counts, Tallies, Tally
from zonewise.scheduling.terms import Constraint, Crowd, Term, understood
from zonewise.scheduling.volumes import Shelf, Volumes
from zonewise.scheduling.wish import Book, Needs, Wish

RANKINGS = 256
LOG = 1 << 16
CARRIERS = 1_000

_NO_LABELS: Mapping[str, str] = {}


class _Asked:
    """A ranking and what it needs to stay true."""

    __slots__ = ("counts", "known", "ranking")

    def __init__(self, ranking: Ranking, counts: list[Counts], known: int) -> None:
        self.ranking = ranking
        self.counts = counts
        self.known = known


class Cluster:
    """Nodes, pods and what else matters; ``decide`` says where a pod goes."""

    def __init__(self, *, seed: int = 0) -> None:
        self.places: dict[str, Place] = {}
        self.budgets: dict[Key, tuple[PodDisruptionBudget, Selector]] = {}
        self.bonds = Bonds()
        self.shelf = Shelf()
        self.book = Book()
        self._seed = seed
        self._version = 0
        self._log: list[str] = []
        self._log_start = 0
        self._tenants: dict[Key, Tenant] = {}
        self._homeless: dict[str, dict[Key, Tenant]] = {}
        self._spaces: dict[str, Mapping[str, str]] = {}
        self._tallies = Tallies()
        self._carried: dict[tuple[Term, int], Carried] = {}
        self._carriers: list[Carried] = []
        self._many_carriers = CARRIERS
        self._fitness: dict[tuple[Needs, frozenset[str] | None], Fitness] = {}
        self._asked: OrderedDict[Wish, _Asked] = OrderedDict()
        self._nominated: dict[Key, Tenant] = {}
        # What was said to a wish of which no pod fits, until anything changes: thousands of equal
        # pods that wait cost as much as one.
        self._refused: dict[object, Decision] = {}

    # What there is

    def set_node(self, node: Node) -> None:
        """A node came or changed."""
        self._refused.clear()
        name = node.metadata.name
        place = self.places.get(name)
        version = self._changed(name)
        if place is not None:
            place.become(node, version)
            return
        tie = crc32(f"{self._seed}/{name}".encode())
        place = self.places[name] = Place(node, tie=tie, version=version)
        for tenant in self._homeless.pop(name, {}).values():
            self._settle(tenant)

    def remove_node(self, name: str) -> None:
        """A node is gone; its pods are remembered, should it come back."""
        place = self.places.get(name)
        if place is None:
            return
        for tenant in tuple(place.tenants.values()):
            self._unsettle(tenant)
            self._homeless.setdefault(name, {})[tenant.key] = tenant
        del self.places[name]
        self._changed(name)
        self._refused.clear()

    def set_pod(self, pod: Pod) -> None:
        """A pod that has a node came or changed; one that has ended takes no room."""
        if not pod.spec.node_name or finished(pod):
            self.remove_pod(pod.key)
            return
        known = self._tenants.get(pod.key)
        if known is not None and self._same(known, pod):
            known.pod = pod
            return
        self._tell(Tenant(pod, self.book.wish(pod), pod.spec.node_name))

    def assume(self, pod: Pod, node: str) -> None:
        """Count a pod as if it were on a node already."""
        self._tell(Tenant(pod, self.book.wish(pod), node))

    def remove_pod(self, key: Key) -> None:
        """A pod is gone."""
        tenant = self._tenants.pop(key, None)
        if tenant is None:
            return
        self._refused.clear()
        self.shelf.unuse(tenant.pod)
        if tenant.node in self.places:
            self._unsettle(tenant)
        else:
            self._homeless[tenant.node].pop(key)

    def nominate(self, pod: Pod, node: str) -> None:
        """Keep room on a node for a pod that waits until others have made it."""
        self._refused.clear()
        self._nominated[pod.key] = Tenant(pod, self.book.wish(pod), node)

    def withdraw(self, key: Key) -> None:
        """A pod waits for room no more."""
        if self._nominated.pop(key, None) is not None:
            self._refused.clear()

    def outranked(self, pod: Pod, node: str) -> list[Key]:
        """Pods a node is kept free for that are less important than another."""
        priority = pod.spec.priority or 0
        return [
            tenant.key
            for tenant in self._nominated.values()
            if tenant.node == node and tenant.priority < priority
        ]

    def set_namespace(self, namespace: Namespace) -> None:
        """A namespace came or got other labels."""
        meta = namespace.metadata
        if self._spaces.get(meta.name) != meta.labels:
            self._spaces[meta.name] = meta.labels
            self._forget()

    def set_budget(self, budget: PodDisruptionBudget) -> None:
        """A budget came or changed."""
        self._refused.clear()
        self.budgets[budget.key] = (budget, understood(budget.spec.selector))

    def remove_budget(self, key: Key) -> None:
        """A budget is gone."""
        self._refused.clear()
        self.budgets.pop(key, None)

    def tenant(self, key: Key) -> Tenant | None:
        """The pod on a node, or assumed there."""
        return self._tenants.get(key)

    # What follows

    def decide(self, pod: Pod) -> Decision:
        """The node of a pod, or why there is none."""
        if not self.places:
            return Decision(message=NO_NODES)
        asked = self.shelf.asked(pod)
        if isinstance(asked, str):
            return nowhere(self.places, asked)
        wish = self.book.wish(pod, held_together=self.bonds.of, volumes=asked)
        if wish.needs.names is not None and not wish.needs.names:
            return nowhere(self.places, TERMS_CONFLICT)
        ranking = self.ranking(wish)
        excluded = self._kept_free(pod, ranking)
        nominated = pod.status.nominated_node_name
        if (
            nominated in self.places
            and nominated not in excluded
            and ranking.refusal(nominated) is None
        ):
            return Decision(node=nominated, claims=self._claims(pod, asked, nominated))
        best = ranking.best(excluded)
        if best is not None:
            name, score = best
            return Decision(node=name, score=score, claims=self._claims(pod, asked, name))
        same = (wish, pod.spec.priority or 0, pod.spec.preemption_policy, nominated)
        known = self._refused.get(same)
        if known is None or excluded:
            known = self._refuse(pod, ranking, excluded)
            if known.preemption is None and not self._nominated:
                self._refused[same] = known
        return known

    def _refuse(self, pod: Pod, ranking: Ranking, excluded: Mapping[str, Refusal]) -> Decision:
        refusals = {**ranking.refusals(), **excluded}
        preemption, said, waits = preempt(self, pod, ranking, refusals)
        message = none_available(len(self.places), refusals.values())
        return Decision(
            message=f"{message} {AFTERWARDS}{said}" if said else message,
            refusals=refusals,
            preemption=preemption,
            waits=waits,
        )

    def _claims(self, pod: Pod, asked: Volumes, name: str) -> dict[Key, str]:
        if not asked.unbound:
            return {}
        taken = asked.taken(self.places[name].labels, name)
        assert taken is not None
        waiting = self.shelf.waiting(pod)
        return {claim.key: volume for claim, volume in zip(waiting, taken, strict=True)}

    def ranking(self, wish: Wish) -> Ranking:
        """The nodes as a wish sees them now."""
        asked = self._asked.get(wish)
        if asked is not None and not self._up_to_date(asked):
            self._drop(wish)
            asked = None
        if asked is None:
            asked = self._ask(wish)
        self._asked.move_to_end(wish)
        self._judge(asked.ranking.fitness)
        asked.ranking.refresh()
        return asked.ranking

    def _judge(self, fitness: Fitness) -> None:
        """Bring the verdicts of the nodes up to date."""
        end = self._log_start + len(self._log)
        if fitness.position >= self._log_start:
            fitness.refresh(self._log[fitness.position - self._log_start :], self.places)
        else:
            fitness.refresh({**self.places, **fitness.verdicts}, self.places)
        fitness.position = end

    def refusal(self, pod: Pod, ranking: Ranking, name: str) -> Refusal | None:
        """Why a node cannot take a pod beside those that it is kept free for, or None."""
        refusal = self.ranking(ranking.wish).refusal(name)
        if refusal is not None:
            return refusal
        guests = [tenant for tenant in self._awaited(pod) if tenant.node == name]
        if not guests:
            return None
        for tenant in guests:
            self.place(tenant)
        refusal = self.ranking(ranking.wish).refusal(name)
        for tenant in guests:
            self.displace(tenant)
        return refusal

    def place(self, tenant: Tenant) -> None:
        """Put a pod on a node to see what would follow; ``displace`` undoes it."""
        self._settle(tenant)

    def displace(self, tenant: Tenant) -> None:
        """Take a pod off its node to see what would follow; ``place`` undoes it."""
        self._unsettle(tenant)

    def _kept_free(self, pod: Pod, ranking: Ranking) -> dict[str, Refusal]:
        """Nodes that would take the pod, were they not kept free for others."""
        found: dict[str, Refusal] = {}
        if self._nominated:
            for name in {tenant.node for tenant in self._awaited(pod)}:
                if ranking.refusal(name) is None:
                    refusal = self.refusal(pod, ranking, name)
                    if refusal is not None:
                        found[name] = refusal
        return found

    def _awaited(self, pod: Pod) -> Iterator[Tenant]:
        """Pods that wait for room and are at least as important."""
        priority = pod.spec.priority or 0
        for tenant in self._nominated.values():
            if tenant.priority >= priority and tenant.key != pod.key and tenant.node in self.places:
                yield tenant

    def _ask(self, wish: Wish) -> _Asked:
        if len(self._carriers) > self._many_carriers:
            self._tidy()
        counts: list[Counts] = []
        factors = list(self._factors(wish, counts))
        names = wish.needs.names
        scope = None if factors else names
        fitness = self._fitness.get((wish.needs, scope))
        if fitness is None:
            fitness = self._fitness[wish.needs, scope] = Fitness(wish.needs, scope)
        self._judge(fitness)
        space = self._spaces.get(wish.namespace, _NO_LABELS)
        itself = all(term.crowd.has(wish.namespace, space, wish.labels) for term in wish.near)
        ranking = Ranking(wish, fitness, factors, self.places, itself=itself)
        fitness.dirty[id(ranking)] = ranking.dirty
        for one in counts:
            one.dirty[id(ranking)] = ranking.dirty
        asked = self._asked[wish] = _Asked(ranking, counts, len(self._carriers))
        if len(self._asked) > RANKINGS:
            self._drop(next(iter(self._asked)))
        return asked

    def _factors(self, wish: Wish, counts: list[Counts]) -> Iterator[Factor]:
        def factor(
            role: Role,
            key: str,
            source: Counts,
            *,
            constraint: Constraint | None = None,
            weight: int = 0,
        ) -> Factor:
            counts.append(source)
            return Factor(role, key, source.by_node, constraint=constraint, weight=weight)

        def tally(*crowds: Crowd) -> Tally:
            return self._tallies.use(crowds, self._tenants.values(), self._spaces)

        # Where only one node is asked, there is nothing to compare.
        alone = wish.needs.names is not None and len(wish.needs.names) == 1
        for one in wish.hard:
            yield factor(Role.SPREAD, one.key, tally(one.crowd), constraint=one)
        if wish.near:
            source = tally(*(term.crowd for term in wish.near))
            for term in wish.near:
                yield factor(Role.NEAR, term.key, source)
        for term in wish.away:
            yield factor(Role.AWAY, term.key, tally(term.crowd))
        if not alone:
            for one in wish.soft:
                yield factor(Role.EVEN, one.key, tally(one.crowd), constraint=one)
            for weight, term in wish.likes:
                yield factor(Role.LIKE, term.key, tally(term.crowd), weight=weight)
        for carried in self._carriers:
            if self._concerns(carried, wish) and not (alone and carried.weight):
                role = Role.LIKE if carried.weight else Role.UNWELCOME
                yield factor(role, carried.term.key, carried, weight=carried.weight)

    def _tidy(self) -> None:
        """Forget terms that nobody carries any more; revisions of workloads leave them behind."""
        self._forget()
        self._carried = {key: one for key, one in self._carried.items() if one.by_node}
        self._carriers = list(self._carried.values())
        self._many_carriers = 2 * len(self._carriers) + CARRIERS

    def _concerns(self, carried: Carried, wish: Wish) -> bool:
        space = self._spaces.get(wish.namespace, _NO_LABELS)
        return carried.term.crowd.has(wish.namespace, space, wish.labels)

    def _up_to_date(self, asked: _Asked) -> bool:
        """Whether the ranking may be continued: no new term concerns it."""
        wish = asked.ranking.wish
        for carried in self._carriers[asked.known :]:
            if self._concerns(carried, wish):
                return False
        asked.known = len(self._carriers)
        return True

    def _drop(self, wish: Wish) -> None:
        asked = self._asked.pop(wish)
        ranking = asked.ranking
        for one in asked.counts:
            if one.dirty.pop(id(ranking), None) is not None and isinstance(one, Tally):
                self._tallies.release(one)
        fitness = ranking.fitness
        del fitness.dirty[id(ranking)]
        if not fitness.dirty:
            del self._fitness[fitness.key]

    def _forget(self) -> None:
        self._refused.clear()
        for wish in tuple(self._asked):
            self._drop(wish)

    def _changed(self, name: str) -> int:
        self._version += 1
        log = self._log
        log.append(name)
        if len(log) > LOG:
            cut = len(log) // 2
            del log[:cut]
            self._log_start += cut
        return self._version

    def _tell(self, tenant: Tenant) -> None:
        self.remove_pod(tenant.key)
        self._tenants[tenant.key] = tenant
        self.shelf.use(tenant.pod)
        self._refused.clear()
        if tenant.node in self.places:
            self._settle(tenant)
        else:
            self._homeless.setdefault(tenant.node, {})[tenant.key] = tenant

    def _same(self, known: Tenant, pod: Pod) -> bool:
        """Whether a pod that was told again means the same for the cluster."""
        old, new = known.pod.metadata, pod.metadata
        return (
            known.node == pod.spec.node_name
            and old.uid == new.uid
            and old.generation == new.generation
            and (old.deletion_timestamp is None) == (new.deletion_timestamp is None)
            and all(old.labels.get(key) == new.labels.get(key) for key in self.book.asked)
        )

    def _settle(self, tenant: Tenant) -> None:
        self.places[tenant.node].put(tenant, self._changed(tenant.node))
        self._count(tenant, 1)

    def _unsettle(self, tenant: Tenant) -> None:
        self.places[tenant.node].take(tenant.key, self._changed(tenant.node))
        self._count(tenant, -1)

    def _count(self, tenant: Tenant, change: int) -> None:
        self._tallies.count(tenant, change, self._spaces)
        for term, weight in tenant.wish.carried:
            carried = self._carried.get((term, weight))
            if carried is None:
                carried = self._carried[term, weight] = Carried(term, weight)
                self._carriers.append(carried)
            carried.count(tenant.node, change)
