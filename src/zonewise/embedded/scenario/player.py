"""A scenario, played on a cluster.

Steps are played in order, each at its time. What a step does is awaited, except a drain, which
continues beside the next steps. What it expects is checked every ``LOOK`` seconds until all of it
is true at once or its time is over. What must ``always`` be true is checked, from the end of the
first step on, at each change of a pod that reaches the cluster's own stores: what any component can
see is seen. It is checked once more at the end, where it also must be there.

Everything that happens is reported at once, in lines: what was done, what was expected and became
true after how long, what was violated, and how many pods of each workload are Ready when that
number changed. A failed expectation does not end the run: the lines after it say what followed.
"""

from __future__ import annotations

import asyncio
import random
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zonewise.api.errors import ZonewiseError
from zonewise.api.meta import Key
from zonewise.api.objects.pod import Pod
from zonewise.api.values import times
from zonewise.embedded.cluster import ClusterSettings, EmbeddedCluster, Parts
from zonewise.embedded.components.kubelet import DUAL_STACK
from zonewise.embedded.components.kubelet.stages import default_stages, timed
from zonewise.embedded.scenario.actions import Action, ActionContext
from zonewise.embedded.scenario.assertions import OF_SERVICES, Assertion, Measurements
from zonewise.embedded.scenario.scenario import Obj, Scenario, ScenarioStep

if TYPE_CHECKING:
    from zonewise.embedded.csi_driver import EmbeddedDriver

LOOK = 0.25
TELL = 1.0

Say = Callable[[str], None]


@dataclass(slots=True)
class _Watched:
    """Something that must always be true, the worst value seen, and whether it was broken."""

    expectation: Assertion
    worst: float | None = None
    broken: bool = False


class Player:
    """One play."""

    def __init__(
        self,
        scenario: Scenario,
        cluster: EmbeddedCluster,
        *,
        dump: Sequence[Obj] | None = None,
        clock: Callable[[], float],
        say: Say,
    ) -> None:
        self._scenario = scenario
        self._dump = dump
        self._cluster = cluster
        self._clock = clock
        self._say = say
        self._start = 0.0
        self._gauges = Measurements(cluster.components.cache, cluster.clients)
        self._always = [_Watched(one) for one in scenario.always]
        self._told: dict[Key, tuple[int, int]] = {}
        self.failures: list[str] = []

    async def play(self) -> bool:
        """Play it to its end; whether all expectations were met."""
        scenario = self._scenario
        await self._cluster.components.cache.synced()
        loop = asyncio.get_running_loop()
        self._start = loop.time()
        for refused in await self._cluster.seeder.plant(scenario.objects(self._dump)):
            sentence = f"{refused.kind} {refused.name}: {refused.why}"
            if self._dump is None:
                self._fail(sentence)
            else:
                self._line(f"  left out: {sentence}")
        beside: list[asyncio.Task[None]] = [asyncio.create_task(self._tell_counts())]
        try:
            for number, step in enumerate(scenario.steps):
                await asyncio.sleep(max(0.0, self._start + step.at - loop.time()))
                await self._play(step, beside)
                if number == 0:
                    self._gauges.pods.on_change(self._pod_changed)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        self._tell_changes()
        for one in self._always:
            self._check_always(one)
            if not one.broken and not self._there(one):
                one.broken = True
                self._fail(f"always {one.expectation.text}, but it is not there")
            if not one.broken:
                self._line(f"✓ always {one.expectation.text}{_worst(one)}")
        return not self.failures

    async def _play(self, step: ScenarioStep, beside: list[asyncio.Task[None]]) -> None:
        stage = ActionContext(self._cluster, self._gauges, lambda: _moment(self._clock()))
        for action in step.do:
            self._line(f"→ {action.text}")
            if action.lasting:
                beside.append(asyncio.create_task(self._do(action, stage)))
            else:
                await self._do(action, stage)
        await self._expect(step)

    async def _do(self, action: Action, stage: ActionContext) -> None:
        try:
            await action.do(stage)
        except ZonewiseError as error:
            self._fail(f"{action.text}: {error}")

    async def _expect(self, step: ScenarioStep) -> None:
        """Wait until all expectations of a step are true at the same time."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if step.do:
            await asyncio.sleep(LOOK)  # until the stores show what was done
        while True:
            values = [(one, self._gauges.value(one)) for one in step.expect]
            missed = [(one, value) for one, value in values if not one.holds(value)]
            after = loop.time() - began
            if not missed or after >= step.within:
                break
            await asyncio.sleep(LOOK)
        for wanted, value in missed:
            self._fail(f"{wanted.text}, but it is {_shown(wanted, value)}")
        met = [one.text for one, value in values if (one, value) not in missed]
        if met:
            took = f" after {after:.0f} s" if after >= 1 and not missed else ""
            self._line(f"✓ {', '.join(met)}{took}")

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for one in self._always:
            self._check_always(one)

    def _check_always(self, one: _Watched) -> None:
        """What is not there yet is no violation: stores learn of workloads and pods separately."""
        wanted = one.expectation
        value = self._gauges.value(wanted)
        if value is None:
            return
        if one.worst is None or wanted.worse(value, one.worst):
            one.worst = value
        if not one.broken and not wanted.holds(value):
            one.broken = True
            self._fail(f"always {wanted.text}, but it is {_shown(wanted, value)}")

    def _there(self, one: _Watched) -> bool:
        """Whether a workload is there at the end, or a Service had requests at any time."""
        if one.expectation.measure in OF_SERVICES:
            return one.worst is not None
        return self._gauges.value(one.expectation) is not None

    async def _tell_counts(self) -> None:
        while True:
            await asyncio.sleep(TELL)
            self._tell_changes()

    def _tell_changes(self) -> None:
        counts = self._gauges.counts()
        news = [
            f"{'/'.join(key)} {ready}/{wanted}"
            for key, (ready, wanted) in sorted(counts.items())
            if self._told.get(key) != (ready, wanted)
        ]
        self._told = counts
        if news:
            self._line(f"  ready: {', '.join(news)}")

    def _fail(self, sentence: str) -> None:
        self.failures.append(sentence)
        self._line(f"✗ {sentence}")

    def _line(self, text: str) -> None:
        passed = round(asyncio.get_running_loop().time() - self._start)
        self._say(f"{passed // 60:3d}:{passed % 60:02d}  {text}")


def _shown(wanted: Assertion, value: float | None) -> str:
    if value is None:
        return "not there"
    return f"{value:.0%}" if wanted.measure in OF_SERVICES else f"{value:g}"


def _worst(one: _Watched) -> str:
    return "" if one.worst is None else f" (at worst {_shown(one.expectation, one.worst)})"


def _moment(now: float) -> str:
    return times.format_time(times.from_epoch(now))


async def play_scenario(
    scenario: Scenario,
    folder: Path,
    *,
    clock: Callable[[], float],
    say: Say,
    parts: Parts,
    volumes: Callable[[Path], EmbeddedDriver],
    serve: bool = False,
    dump: Sequence[Obj] | None = None,
) -> bool:
    """Play a scenario on a cluster of its own; whether all expectations were met.

    ``volumes`` gives the CSI driver, for a scenario that needs one. ``dump`` has the objects of a
    dump, if the cluster is to have its shape; those that are refused do not fail the play.

    With ``serve`` the cluster can be accessed from outside meanwhile; without, no thread and no
    socket is waited for, so the play is the same each time.
    """
    kubelets = replace(DUAL_STACK, stages=timed(default_stages(), start=scenario.pod_start))
    driver = volumes(folder) if scenario.volumes else None
    cluster = EmbeddedCluster(
        folder,
        settings=ClusterSettings(kubelets=kubelets, removal=scenario.removal),
        clock=clock,
        rng=random.Random(scenario.seed),
        inline=not serve,
        parts={**parts, **(driver.parts(kubelets) if driver is not None else {})},
    )
    try:
        if serve:
            await cluster.server.start()
            kubeconfig = shlex.quote(str(cluster.server.identity.kubeconfig.resolve()))
            say(f"export KUBECONFIG={kubeconfig}")
        else:
            await cluster.server.live()
        await cluster.plant_classes(dump or ())
        playing = Player(scenario, cluster, dump=dump, clock=clock, say=say)
        components = asyncio.create_task(cluster.run())
        play = asyncio.create_task(playing.play())
        try:
            await asyncio.wait([components, play], return_when=asyncio.FIRST_COMPLETED)
            if components.done():
                components.result()
            return await play
        finally:
            for task in (play, components):
                task.cancel()
            await asyncio.gather(play, components, return_exceptions=True)
    finally:
        await cluster.close()
        if driver is not None:
            driver.close()
