"""A scenario, played on a cluster.

Steps are played in order, each at its time. Actions of a step are awaited, except a drain, which
continues in the background. What a step expects is checked every ``CHECK_INTERVAL`` seconds until
all of it is true at once or its time is over. What must ``always`` be true is checked, from the end
of the first step on, at each change of a pod that reaches the cluster's own stores: it sees every
state that a component can see. It is checked once more at the end, when its object must also exist.

Everything is reported at once, in lines: actions, expectations with the time until they were met,
violations, and how many pods of each workload are Ready whenever that number changed. A failed
expectation does not end the run: the lines after it tell what followed.
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
from zonewise.api.gates import FeatureGates
from zonewise.api.meta import Key
from zonewise.api.objects.pod import Pod
from zonewise.api.values import times
from zonewise.embedded.apiserver import server
from zonewise.embedded.cluster import ClusterSettings, EmbeddedCluster
from zonewise.embedded.components.kubelet.kubelets import DUAL_STACK
from zonewise.embedded.components.kubelet.stages import default_stages, with_delays
from zonewise.embedded.scenario.actions import Action, ActionContext
from zonewise.embedded.scenario.assertions import SERVICE_MEASURES, Assertion, Measurements
from zonewise.embedded.scenario.scenario import Obj, Scenario, ScenarioStep

if TYPE_CHECKING:
    from zonewise.embedded.csi_driver import EmbeddedDriver

CHECK_INTERVAL = 0.25
REPORT_INTERVAL = 1.0

PrintLine = Callable[[str], None]


@dataclass(slots=True)
class _AlwaysCheck:
    """An assertion that must always be true, its worst value, and whether it was violated."""

    assertion: Assertion
    worst: float | None = None
    violated: bool = False


class Player:
    """Plays a scenario once."""

    def __init__(
        self,
        scenario: Scenario,
        cluster: EmbeddedCluster,
        *,
        dump: Sequence[Obj] | None = None,
        clock: Callable[[], float],
        print_line: PrintLine,
    ) -> None:
        self._scenario = scenario
        self._dump = dump
        self._cluster = cluster
        self._clock = clock
        self._print_line = print_line
        self._start = 0.0
        self._measurements = Measurements(cluster.program.cache, cluster.simulated_traffic)
        self._always = [_AlwaysCheck(assertion) for assertion in scenario.always]
        self._reported: dict[Key, tuple[int, int]] = {}
        self.failures: list[str] = []

    async def play(self) -> bool:
        """Play the scenario to its end; returns whether all expectations were met."""
        scenario = self._scenario
        await self._cluster.program.cache.synced()
        loop = asyncio.get_running_loop()
        self._start = loop.time()
        for refusal in await self._cluster.seeder.create(scenario.objects(self._dump)):
            message = f"{refusal.kind} {refusal.name}: {refusal.reason}"
            if self._dump is None:
                self._fail(message)
            else:
                self._report(f"  left out: {message}")
        background: list[asyncio.Task[None]] = [asyncio.create_task(self._report_regularly())]
        try:
            for number, step in enumerate(scenario.steps):
                await asyncio.sleep(max(0.0, self._start + step.at - loop.time()))
                await self._play(step, background)
                if number == 0:
                    self._measurements.pods.on_change(self._pod_changed)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        self._report_counts()
        for check in self._always:
            self._check_always(check)
            if not check.violated and not self._exists(check):
                check.violated = True
                self._fail(f"always {check.assertion.text}, but it is not there")
            if not check.violated:
                self._report(f"✓ always {check.assertion.text}{_format_worst(check)}")
        return not self.failures

    async def _play(self, step: ScenarioStep, background: list[asyncio.Task[None]]) -> None:
        context = ActionContext(
            self._cluster, self._measurements, lambda: _timestamp(self._clock())
        )
        for action in step.do:
            self._report(f"→ {action.text}")
            if action.runs_long:
                background.append(asyncio.create_task(self._do(action, context)))
            else:
                await self._do(action, context)
        await self._expect(step)

    async def _do(self, action: Action, context: ActionContext) -> None:
        try:
            await action.do(context)
        except ZonewiseError as error:
            self._fail(f"{action.text}: {error}")

    async def _expect(self, step: ScenarioStep) -> None:
        """Wait until all expectations of a step are true at the same time."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        if step.do:
            await asyncio.sleep(CHECK_INTERVAL)  # until the stores show what was done
        while True:
            values = [(assertion, self._measurements.value(assertion)) for assertion in step.expect]
            unmet = [(asserted, value) for asserted, value in values if not asserted.is_met(value)]
            after = loop.time() - started
            if not unmet or after >= step.within:
                break
            await asyncio.sleep(CHECK_INTERVAL)
        for assertion, value in unmet:
            self._fail(f"{assertion.text}, but it is {_format_value(assertion, value)}")
        met = [assertion.text for assertion, value in values if (assertion, value) not in unmet]
        if met:
            duration = f" after {after:.0f} s" if after >= 1 and not unmet else ""
            self._report(f"✓ {', '.join(met)}{duration}")

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        for check in self._always:
            self._check_always(check)

    def _check_always(self, check: _AlwaysCheck) -> None:
        """Check an assertion; no value yet is no violation: stores get workloads and pods apart."""
        assertion = check.assertion
        value = self._measurements.value(assertion)
        if value is None:
            return
        if check.worst is None or assertion.is_worse(value, check.worst):
            check.worst = value
        if not check.violated and not assertion.is_met(value):
            check.violated = True
            self._fail(f"always {assertion.text}, but it is {_format_value(assertion, value)}")

    def _exists(self, check: _AlwaysCheck) -> bool:
        """Whether a workload exists at the end, or a Service had requests at any time."""
        if check.assertion.measure in SERVICE_MEASURES:
            return check.worst is not None
        return self._measurements.value(check.assertion) is not None

    async def _report_regularly(self) -> None:
        while True:
            await asyncio.sleep(REPORT_INTERVAL)
            self._report_counts()

    def _report_counts(self) -> None:
        counts = self._measurements.ready_counts()
        changes = [
            f"{'/'.join(key)} {ready}/{desired}"
            for key, (ready, desired) in sorted(counts.items())
            if self._reported.get(key) != (ready, desired)
        ]
        self._reported = counts
        if changes:
            self._report(f"  ready: {', '.join(changes)}")

    def _fail(self, message: str) -> None:
        self.failures.append(message)
        self._report(f"✗ {message}")

    def _report(self, text: str) -> None:
        elapsed = round(asyncio.get_running_loop().time() - self._start)
        self._print_line(f"{elapsed // 60:3d}:{elapsed % 60:02d}  {text}")


def _format_value(assertion: Assertion, value: float | None) -> str:
    if value is None:
        return "not there"
    return f"{value:.0%}" if assertion.measure in SERVICE_MEASURES else f"{value:g}"


def _format_worst(check: _AlwaysCheck) -> str:
    if check.worst is None:
        return ""
    return f" (at worst {_format_value(check.assertion, check.worst)})"


def _timestamp(now: float) -> str:
    return times.format_time(times.from_epoch(now))


async def play_scenario(
    scenario: Scenario,
    folder: Path,
    *,
    clock: Callable[[], float],
    print_line: PrintLine,
    gates: FeatureGates,
    volumes: Callable[[Path], EmbeddedDriver],
    serve: bool = False,
    dump: Sequence[Obj] | None = None,
) -> bool:
    """Play a scenario on a cluster of its own; returns whether all expectations were met.

    ``volumes`` creates the CSI driver, for a scenario that needs one. ``dump`` has the objects of a
    dump, if the cluster should have its shape; refused objects do not fail the play.

    With ``serve`` the cluster can be accessed from outside meanwhile; without it no thread and no
    socket is awaited, so the play is the same each time.
    """
    kubelets = replace(DUAL_STACK, stages=with_delays(default_stages(), start=scenario.pod_start))
    driver = volumes(folder) if scenario.volumes else None
    cluster = EmbeddedCluster(
        folder,
        settings=ClusterSettings(
            api=server.ServerSettings(gates=gates, service_networks=server.DUAL_STACK),
            kubelets=kubelets,
            removal=scenario.removal,
        ),
        clock=clock,
        rng=random.Random(scenario.seed),
        inline=not serve,
        driver=driver,
    )
    try:
        if serve:
            await cluster.server.start()
            kubeconfig = shlex.quote(str(cluster.server.identity.kubeconfig.resolve()))
            print_line(f"export KUBECONFIG={kubeconfig}")
        else:
            await cluster.server.start_local()
        await cluster.plant_classes(dump or ())
        player = Player(scenario, cluster, dump=dump, clock=clock, print_line=print_line)
        components = asyncio.create_task(cluster.run())
        play = asyncio.create_task(player.play())
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
