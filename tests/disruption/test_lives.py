"""Workloads that live under a budget: rollouts, outages, scaling, in any order of events.

A simulated Deployment keeps its own limits, asks for a verdict before each removal and takes only
what it was given; a simulated leader settles the baseline when nothing has moved for a while. Two
things must hold whatever happens: what was remembered at the last rest less what may be unavailable
is never undercut by a grant, and everything ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.disruption.clusters import (
    NOW,
    NS,
    deployment,
    namespace_budgets,
    per_zone,
    pod,
    spread,
    tdb,
    zones,
)

from zonewise.api import Pod
from zonewise.disruption.baseline import settle_baseline
from zonewise.disruption.namespace_budgets import NamespaceBudgets
from zonewise.disruption.verdict import VerdictRound

KEY = ("TopologyDisruptionBudget", NS, "web")
REST = 6
"""This many steps in which no pod is added or removed count as a rest."""


@dataclass
class LivePod:
    """A pod of the simulation."""

    name: str
    zone: str
    new: bool
    ready: bool


@dataclass
class Life:
    """A Deployment in rollout, in zones of which some fail and come back."""

    rng: random.Random
    zones: list[str]
    replicas: int
    most: int | str
    surge: int
    unavailable: int
    spreads: bool
    pods: list[LivePod] = field(default_factory=list)
    baseline: dict[str, int] | None = None
    out: set[str] = field(default_factory=set)
    created: int = 0
    quiet: int = 0
    undercut: list[str] = field(default_factory=list)
    beside: int = 0
    """The replicas of another Deployment under the same selector."""
    others: list[LivePod] = field(default_factory=list)

    @property
    def everybody(self) -> list[LivePod]:
        """The pods the budget counts."""
        return [*self.pods, *self.others]

    def step_beside(self) -> None:
        """One event of the other Deployment: a pod is added, gets Ready, or is removed."""
        waiting = [p for p in self.others if not p.ready and p.zone not in self.out]
        if waiting and self.rng.random() < 0.5:
            self.rng.choice(waiting).ready = True
        elif len(self.others) < self.beside:
            self.created += 1
            zone = self.rng.choice([zone for zone in self.zones if zone not in self.out])
            self.others.append(LivePod(f"o{self.created + 100}", zone, new=True, ready=False))
            self.quiet = 0
        elif len(self.others) > self.beside:
            live_pod = self.rng.choice(self.others)
            if self._granted(live_pod):
                self.others.remove(live_pod)
                self.quiet = 0

    def _granted(self, live_pod: LivePod) -> bool:
        town = self.namespace_budgets()
        item = next(p for p in town.pods.values() if p.metadata.name == live_pod.name)
        if not VerdictRound(town, NOW).judge(item, evicting=False).allowed:
            return False
        if live_pod.ready:
            self._check(live_pod)
        return True

    def create(self, *, new: bool) -> None:
        """Create a pod, in the emptiest zone or anywhere."""
        open_ = [zone for zone in self.zones if zone not in self.out]
        if not open_:
            return
        if self.spreads:
            zone = min(open_, key=lambda z: (sum(p.zone == z for p in self.pods), z))
        else:
            zone = self.rng.choice(open_)
        self.created += 1
        self.pods.append(LivePod(f"p{self.created}", zone, new, ready=False))
        self.quiet = 0

    def namespace_budgets(self) -> NamespaceBudgets:
        """The objects as everyone sees them."""
        items = [
            pod(p.name, f"n-{p.zone}", ready=p.ready, owner="web-2" if p.new else "web-1")
            for p in self.pods
        ] + [pod(p.name, f"n-{p.zone}", ready=p.ready, owner="job-1") for p in self.others]
        budget = tdb(domains=self.baseline, **per_zone(maxUnavailable=self.most))
        return namespace_budgets(
            items,
            budget,
            nodes=zones(*self.zones),
            owners=[
                *deployment(self.replicas, revisions=2),
                *deployment(self.beside, name="job"),
            ],
        )

    def remove(self) -> bool:
        """Delete one pod that is old or surplus, if that is granted."""
        available = sum(p.ready for p in self.pods)
        total = len(self.pods)
        old = [p for p in self.pods if not p.new]
        removable = old or ([p for p in self.pods if p.new] if total > self.replicas else [])
        self.rng.shuffle(removable)
        removable.sort(key=lambda p: p.ready)
        town = self.namespace_budgets()
        verdicts = VerdictRound(town, NOW)
        for live_pod in removable:
            if live_pod.ready and available - 1 < self.replicas - self.unavailable:
                continue
            item = next(p for p in town.pods.values() if p.metadata.name == live_pod.name)
            verdict = verdicts.judge(item, evicting=False)
            if not verdict.allowed:
                continue
            if live_pod.ready:
                self._check(live_pod)
            self.pods.remove(live_pod)
            self.quiet = 0
            return True
        return False

    def _check(self, live_pod: LivePod) -> None:
        """A grant leaves the remembered pods less the limit."""
        replicas = self.replicas + self.beside
        if self.baseline is None or sum(self.baseline.values()) != replicas:
            return
        left = sum(p.ready for p in self.everybody if p.zone == live_pod.zone) - 1
        promised = self.baseline.get(live_pod.zone, 0)
        may = self.most if isinstance(self.most, int) else promised
        if left < promised - may:
            self.undercut.append(f"{live_pod.zone}: {left} of {promised}")

    def step(self) -> None:
        """One event."""
        self.quiet += 1
        do = self.rng.random()
        waiting = [p for p in self.pods if not p.ready and p.zone not in self.out]
        if do < 0.35 and waiting:
            self.rng.choice(waiting).ready = True
        elif do < 0.6 and len(self.pods) < self.replicas + self.surge:
            self.create(new=True)
        elif do < 0.9:
            self.remove()
        if self.quiet >= REST:
            self._settle()

    def _settle(self) -> None:
        present = {zone: sum(p.zone == zone for p in self.everybody) for zone in self.zones}
        known = present if self.baseline is None else self.baseline
        self.baseline = settle_baseline(self.replicas + self.beside, known, present, self.zones)

    def fail(self, zone: str) -> None:
        """A zone fails: its pods are unready, then gone."""
        self.out.add(zone)
        self.pods = [p for p in self.pods if p.zone != zone or self.rng.random() < 0.3]
        for p in self.pods:
            if p.zone == zone:
                p.ready = False
        self.quiet = 0

    def heal(self) -> None:
        """All zones are back."""
        self.out.clear()

    @property
    def done(self) -> bool:
        """Whether the rollout has ended."""
        return len(self.pods) == self.replicas and all(p.new and p.ready for p in self.pods)


def begun(seed: int) -> Life:
    """A workload at rest, about to be updated."""
    rng = random.Random(seed)
    surge = rng.choice((0, 0, 1, 3))
    life = Life(
        rng,
        zones=list("abcd"[: rng.randint(2, 4)]),
        replicas=rng.randint(1, 10),
        most=rng.choice((1, 1, 2, "25%", "50%")),
        surge=surge,
        unavailable=rng.choice((1, 2)) if not surge else rng.choice((0, 1)),
        spreads=rng.random() < 0.7,
    )
    for _ in range(life.replicas):
        life.create(new=False)
    for live_pod in life.pods:
        live_pod.ready = True
    life._settle()
    return life


@pytest.mark.parametrize("seed", range(30))
def test_a_rollout_ends_and_undercuts_nothing(seed: int) -> None:
    """A rollout in any order of events ends, and no grant takes a zone below its budget."""
    life = begun(seed)
    for _ in range(1500):
        if life.done:
            break
        life.step()
    assert life.done
    assert not life.undercut


@pytest.mark.parametrize("seed", range(30))
def test_an_outage_in_the_middle_ends_too(seed: int) -> None:
    """A zone that fails in a rollout, and comes back or not, neither blocks nor breaks it."""
    life = begun(seed)
    for step in range(3000):
        if step == 8:
            life.fail(life.zones[0])
        if step == 60 and seed % 2:
            life.heal()
        if step > 60 and life.done:
            break
        life.step()
    life.heal()
    for _ in range(1500):
        if life.done:
            break
        life.step()
    assert life.done
    assert not life.undercut


@pytest.mark.parametrize("seed", range(20))
def test_scaling_in_the_middle_ends_too(seed: int) -> None:
    """An autoscaler that changes the replicas during a rollout gets them in the end."""
    life = begun(seed)
    for step in range(4000):
        if step < 80 and step % 10 == 0:
            life.replicas = life.rng.randint(1, 12)
        if step > 80 and life.done:
            break
        life.step()
    assert life.done
    assert not life.undercut


@pytest.mark.parametrize("seed", range(20))
def test_two_workloads_under_one_budget_end_too(seed: int) -> None:
    """Two Deployments share a selector, one is rolled out while the other is scaled: no zone falls
    below what was remembered of both, and both end.
    """
    rng = random.Random(seed)
    life = begun(seed)
    total = life.replicas
    beside = rng.randint(1, 6)
    life.beside = beside
    for number in range(beside):
        zone = min(life.zones, key=lambda z: (sum(p.zone == z for p in life.everybody), z))
        life.others.append(LivePod(f"o{number}", zone, new=True, ready=True))
    life._settle()
    for step in range(4000):
        if step in (20, 50):
            life.beside = rng.randint(0, 6)
        life.step_beside()
        if step > 60 and life.done and len(life.others) == life.beside:
            break
        life.step()
    assert life.done and len(life.pods) == total
    assert len(life.others) == life.beside
    assert not life.undercut


counts = st.dictionaries(st.sampled_from("abc"), st.integers(0, 5), min_size=1)


@settings(deadline=None, max_examples=150)
@given(
    there=counts,
    remembered=st.none() | counts,
    replicas=st.integers(0, 12),
    limit=st.sampled_from([0, 1, 2, "25%", "50%"]),
    least=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_no_sequence_of_grants_breaks_a_budget(
    there: dict[str, int],
    remembered: dict[str, int] | None,
    replicas: int,
    limit: int | str,
    least: bool,
    seed: int,
) -> None:
    """In any order of requests each domain keeps its desired pods, and all allowed are granted."""
    spec = per_zone(minAvailable=limit) if least else per_zone(maxUnavailable=limit)
    namespace = namespace_budgets(
        spread(**there), tdb(domains=remembered, **spec), replicas=replicas
    )
    before = namespace.state(KEY, NOW)
    pods = list(namespace.pods.values())
    random.Random(seed).shuffle(pods)
    verdicts = VerdictRound(namespace, NOW)
    given: dict[str, int] = {}
    for item in [*pods, *pods]:
        verdict = verdicts.judge(item)
        if verdict.charged:
            verdicts.charge(item)
            zone = item.spec.node_name[2:]
            given[zone] = given.get(zone, 0) + 1
    after = verdicts.state(KEY)
    for name, domain in before.domains.items():
        assert given.get(name, 0) == before.allowed(name)
        assert after.healthy(name) >= min(domain.needed, before.healthy(name))


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, 2**32), size=st.integers(1, 14))
def test_incremental_counts_equal_new_ones(seed: int, size: int) -> None:
    """A book that saw every change has the same numbers as a new one."""
    rng = random.Random(seed)
    nodes = zones("a", "b", "c")
    budgets = [tdb(**per_zone(maxUnavailable=1)), tdb("all", minAvailable="50%")]
    namespace = NamespaceBudgets(nodes, budgets=budgets, owners=deployment(6, revisions=2))
    last: dict[str, Pod] = {}
    for _ in range(size * 4):
        name = f"p{rng.randrange(size)}"
        if rng.random() < 0.2 and name in last:
            namespace.drop_pod(last.pop(name))
            continue
        last[name] = pod(
            name,
            rng.choice(("n-a", "n-b", "n-c", "n-x", "")),
            ready=rng.random() < 0.7,
            leaving=rng.random() < 0.1,
            owner=rng.choice(("web-1", "web-2")),
            labels={} if rng.random() < 0.9 else {"app": "other"},
        )
        namespace.put_pod(last[name])
    anew = NamespaceBudgets(
        nodes, budgets=budgets, pods=last.values(), owners=deployment(6, revisions=2)
    )
    for key in namespace.budgets:
        assert namespace.state(key, NOW) == anew.state(key, NOW)


def test_a_zone_that_empties_slowly() -> None:
    """Known limit: evictions whose replacements go elsewhere empty a zone, one pod per rest; a
    number for ``minAvailable`` prevents that.
    """
    present = {"a": 3, "b": 3, "c": 3}
    known = dict(present)
    for _ in range(3):
        namespace = namespace_budgets(
            spread(**present), tdb(domains=known, **per_zone(maxUnavailable=1))
        )
        assert namespace.state(KEY, NOW).allowed("a") == 1
        present = {"a": present["a"] - 1, "b": present["b"] + 1, "c": 3}
        known = settle_baseline(9, known, present, "abc")
    assert known == {"a": 0, "b": 6, "c": 3}
    firm = namespace_budgets(spread(a=2, b=4, c=3), tdb(**per_zone(minAvailable=2)))
    assert firm.state(KEY, NOW).allowed("a") == 0
