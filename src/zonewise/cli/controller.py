"""``zonewise controller``: keeps EndpointSlices, or the hints on them, and PodLocators.

Several replicas may run; one leads. Followers keep their stores filled, so the next leader starts
to write as soon as it holds the lease. Every write checks the lease's deadline before it is sent. A
leader that loses its lease exits with an error, and is restarted as a follower: none of its state
as a leader survives. On shutdown it finishes what it is writing and releases the lease.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from zonewise.cli.program.budget_options import budgets_option
from zonewise.cli.program.command import Command
from zonewise.cli.program.hint_options import Deciding, Rollout, decision_options, rollout_options
from zonewise.cli.program.options import Options, parse_duration

if TYPE_CHECKING:
    from zonewise.controllers import HintsSettings, LocatorsSettings
    from zonewise.install.wanted import BudgetsMode
    from zonewise.runtime.cache.cache import Cache
    from zonewise.runtime.election.election import Election, LeaseTiming
    from zonewise.runtime.process.process import Process


def _seconds(ctx: click.Context, param: click.Parameter, value: str) -> float:
    try:
        return parse_duration(value.strip())
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@click.command(
    "controller",
    cls=Command,
    examples=(
        "controller                                          # decide and report, write no slice",
        "controller --endpointslices own                     # instead of the built-in controller",
        "controller --endpointslices own --service-selector hints=yes   # hints for some at first",
    ),
)
@rollout_options
@decision_options
@budgets_option
@click.option(
    "--endpoints-per-slice",
    type=click.IntRange(1, 1000),
    default=100,
    help="How many endpoints a slice may have.  [default: 100]",
)
@click.option(
    "--endpoint-updates-batch-period",
    "batch",
    metavar="TIME",
    default="0s",
    callback=_seconds,
    help="Collect changes of pods for this long before slices are written.  [default: 0s]",
)
@click.option(
    "--locator-labels",
    metavar="KEY,KEY",
    help="Which labels of nodes PodLocators have.  [default: all]",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 100),
    default=5,
    help="How many Services are worked on at a time.  [default: 5]",
)
@click.option(
    "--qps",
    type=click.FloatRange(min=1),
    default=100.0,
    help="Requests per second.  [default: 100]",
)
@click.option(
    "--burst", type=click.IntRange(min=1), default=200, help="Requests at once.  [default: 200]"
)
@click.option(
    "--metrics-listen",
    metavar="ADDRESS:PORT",
    default="127.0.0.1:9464",
    help="Where to serve metrics and health.  [default: 127.0.0.1:9464]",
)
@click.option(
    "--lease-namespace", metavar="NAME", help="Where the lease is.  [default: the pod's namespace]"
)
@click.option(
    "--lease-duration",
    metavar="TIME",
    default="15s",
    callback=_seconds,
    help="How long a leader that died keeps its lease.  [default: 15s]",
)
@click.pass_obj
def command(
    options: Options,
    rollout: Rollout,
    deciding: Deciding,
    budgets: BudgetsMode,
    endpoints_per_slice: int,
    batch: float,
    locator_labels: str | None,
    workers: int,
    qps: float,
    burst: int,
    metrics_listen: str,
    lease_namespace: str | None,
    lease_duration: float,
) -> int:
    """Keep traffic in its zone on a real cluster.

    By default nothing is written but the condition zonewise.io/Hints and events on Services. With
    --endpointslices=own this program is the EndpointSlice controller, and the built-in one has to
    be switched off: kube-controller-manager --controllers=*,-endpointslice-controller.

    Where PodLocators are defined (zonewise install prints the definition), there is one for each
    pod, for DNS servers whose answers depend on where the client is.
    """
    from zonewise.controllers import HintsSettings, LocatorsSettings, SliceRole
    from zonewise.runtime.process.logs import configure
    from zonewise.runtime.process.process import run

    options = options.serving()
    configure(verbosity=options.verbose, format=options.log_format)
    settings = HintsSettings(
        role=SliceRole(rollout.role),
        limit=endpoints_per_slice,
        workers=workers,
        batch=batch,
        gates=deciding.gates,
        missing_cpu=deciding.missing_cpu,
        missing_zone=deciding.missing_zone,
        services=rollout.services,
        namespaces=rollout.namespaces,
    )
    locators = LocatorsSettings(labels=_label_keys(locator_labels))
    timing = _timing(lease_duration)

    async def main(process: Process) -> None:
        await _serve(
            process,
            options,
            settings,
            locators,
            budgets,
            timing,
            rate=(qps, burst),
            metrics_listen=metrics_listen,
            lease_namespace=lease_namespace,
        )

    return run(main)


def _label_keys(text: str | None) -> tuple[str, ...] | None:
    from zonewise.api.values.labels import key_fault

    if text is None:
        return None
    keys = tuple(dict.fromkeys(key.strip() for key in text.split(",") if key.strip()))
    for key in keys:
        if fault := key_fault(key):
            raise click.UsageError(f"--locator-labels: {key[:100]!r} is not a label key: {fault}")
    return keys


def _timing(duration: float) -> LeaseTiming:
    """A lease of that length, all its other times in proportion."""
    from zonewise.runtime.election.election import LeaseTiming

    usual = LeaseTiming()
    part = duration / usual.duration
    return LeaseTiming(
        duration=round(duration),
        margin=usual.margin * part,
        stop=usual.stop * part,
        renew=usual.renew * part,
        retry=usual.retry * part,
    )


async def _serve(
    process: Process,
    options: Options,
    settings: HintsSettings,
    locator_settings: LocatorsSettings,
    budgets: BudgetsMode,
    timing: LeaseTiming,
    *,
    rate: tuple[float, int],
    metrics_listen: str,
    lease_namespace: str | None,
) -> None:
    from zonewise.api.objects.locator import PodLocator
    from zonewise.cli.program.connection import connected
    from zonewise.controllers import HintsController, LocatorsController
    from zonewise.controllers.budgets import BudgetsController, BudgetsSettings
    from zonewise.controllers.hints.metrics import HintsMetrics
    from zonewise.controllers.locators import LocatorsMetrics
    from zonewise.controllers.rollouts import RolloutsController
    from zonewise.install.wanted import LEASE
    from zonewise.runtime import Cache, Client, Deadman, Health, Limiter, Metrics, Monitor, Recorder
    from zonewise.runtime.controller.components import ComponentContext
    from zonewise.runtime.controller.controller import run_all
    from zonewise.runtime.election import election as elections
    from zonewise.runtime.monitoring.health import fresh_watches, synced_watches
    from zonewise.topology.locators import LabelMaps
    from zonewise.topology.podlocators import sharing

    async with connected(options) as plain, process.parts():
        metrics, health = Metrics(), Health()
        election = elections.Election(
            Client(plain.transport, retries=0),
            name=LEASE,
            namespace=elections.lease_namespace(lease_namespace),
            timing=timing,
            deadman=Deadman() if sys.platform == "linux" else None,
            on_change=metrics.leading(LEASE),
        )
        client = Client(plain.transport, limiter=Limiter(*rate), fence=election.fence)
        cache = Cache(client, transforms={PodLocator: sharing(LabelMaps())})
        recorder = Recorder(client, controller="zonewise-hints", instance=election.identity)
        context = ComponentContext(
            client=client,
            cache=cache,
            recorder=recorder,
            clock=client.clock.now,
            rng=random.SystemRandom(),
        )
        hints = HintsController(
            context,
            settings=settings,
            metrics=HintsMetrics(metrics.registry),
            observe=metrics.controller("hints"),
        )
        locators = LocatorsController(
            client=client,
            cache=cache,
            rng=context.rng,
            settings=locator_settings,
            metrics=LocatorsMetrics(metrics.registry),
            observe=metrics.controller("locators"),
            on_start=lambda controller: metrics.queue("locators", controller.queue),
        )
        parts: list[
            HintsController | LocatorsController | BudgetsController | RolloutsController
        ] = [hints, locators]
        if budgets != "off":
            keeping = BudgetsController(
                context,
                settings=BudgetsSettings(steer=budgets == "enforce"),
                observe=metrics.controller("budgets"),
            )
            metrics.queue("budgets", keeping.controller.queue)
            parts.append(keeping)
            if budgets == "enforce":
                rolling = RolloutsController(
                    context,
                    budgets_cache=keeping.budgets_cache,
                    observe=metrics.controller("rollouts"),
                )
                metrics.queue("rollouts", rolling.controller.queue)
                parts.append(rolling)
        clock = asyncio.get_running_loop().time
        metrics.watches(lambda: cache.stats)
        metrics.queue("hints", hints.controller.queue)
        metrics.counts(
            "zonewise_events_dropped",
            "Events that could not be written.",
            "reason",
            lambda: recorder.dropped,
        )
        health.add_alive("watches", fresh_watches(lambda: cache.stats, clock))
        health.add_ready("stores", synced_watches(lambda: cache.stats))
        health.add_ready("clock", client.clock.problem)
        health.add_ready("program", process.problem)
        async with Monitor(metrics, health, listen=metrics_listen):
            process.spawn(cache.run(), name="cache")
            process.spawn(_settle(cache), name="stores", endless=False)
            process.ready = True

            async def lead() -> None:
                sending = asyncio.create_task(recorder.run())
                try:
                    await run_all(*(part.run() for part in parts))
                finally:
                    await recorder.close()
                    sending.cancel()

            def stop() -> None:
                for part in parts:
                    part.stop()

            work = asyncio.create_task(election.run(lead))
            await _until(process, work, election, stop=stop)


async def _settle(cache: Cache) -> None:
    """Once stores are complete the garbage collector need not look at them again."""
    from zonewise.runtime.process.memory import settle

    await cache.synced()
    settle()


async def _until(
    process: Process, work: asyncio.Task[None], election: Election, *, stop: Callable[[], None]
) -> None:
    """Work until stopped; then finish what is being written, or just exit as a follower."""
    stopping = asyncio.create_task(process.stopping.wait())
    try:
        await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            if election.leading:
                stop()
            else:
                work.cancel()
            await asyncio.wait([work])
    finally:
        stopping.cancel()
        work.cancel()
        await asyncio.wait([work])
    if not work.cancelled():
        work.result()
