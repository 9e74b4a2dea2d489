"""``zonewise controller``: writes EndpointSlices, or the hints on them, and PodLocators.

Several replicas may run; one leads. Followers keep their stores filled, so the next leader starts
to write as soon as it holds the lease. Every write checks the lease's deadline before it is sent. A
leader that loses its lease exits with an error, and is restarted as a follower with empty state. On
shutdown it finishes what it is writing and releases the lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from zonewise.cli.program.command import Command
from zonewise.cli.program.hint_options import (
    DecisionOptions,
    RolloutOptions,
    decision_options,
    rollout_options,
)
from zonewise.cli.program.options import (
    Options,
    add_options,
    budgets_option,
    duration_option,
    metrics_option,
)

if TYPE_CHECKING:
    from zonewise.install.installation import BudgetsMode
    from zonewise.runtime.election.election import LeaseTiming
    from zonewise.runtime.program.program import Program

REPORTER = "zonewise-hints"
"""The reporting controller of all events."""


@click.command(
    "controller",
    cls=Command,
    examples=(
        "controller                                          # decide and report, write no slice",
        "controller --endpointslices own                     # instead of the built-in controller",
        "controller --endpointslices own --service-selector hints=yes   # hints for some Services",
    ),
)
@rollout_options
@decision_options
@add_options(budgets_option())
@click.option(
    "--endpoints-per-slice",
    type=click.IntRange(1, 1000),
    default=100,
    help="How many endpoints a slice may have.  [default: 100]",
)
@add_options(
    duration_option(
        "--endpoint-updates-batch-period",
        "batch",
        default="0s",
        help="Collect changes of pods for this long before slices are written.",
    )
)
@click.option(
    "--locator-labels",
    metavar="KEY,KEY",
    help="The node labels that PodLocators have.  [default: all]",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 100),
    default=5,
    help="How many Services are processed at the same time.  [default: 5]",
)
@click.option(
    "--qps",
    type=click.FloatRange(min=1),
    default=100.0,
    help="Requests per second, at most.  [default: 100]",
)
@click.option(
    "--burst",
    type=click.IntRange(min=1),
    default=200,
    help="Requests at once, at most.  [default: 200]",
)
@add_options(metrics_option("127.0.0.1:9464"))
@click.option(
    "--lease-namespace",
    metavar="NAME",
    help="The namespace of the lease.  [default: the pod's namespace]",
)
@add_options(
    duration_option(
        "--lease-duration", default="15s", help="How long a leader that died keeps its lease."
    )
)
@click.pass_obj
def command(
    options: Options,
    rollout: RolloutOptions,
    decision: DecisionOptions,
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
    from zonewise.api.objects.locator import PodLocator
    from zonewise.cli.program.connection import run_program
    from zonewise.controllers.budgets.controller import BudgetsController, BudgetsSettings
    from zonewise.controllers.hints.controller import HintsController, HintsSettings, SliceRole
    from zonewise.controllers.locators.controller import LocatorsController, LocatorsSettings
    from zonewise.controllers.rollouts.controller import RolloutsController
    from zonewise.install.installation import LEASE
    from zonewise.runtime.client.client import FIELD_MANAGER
    from zonewise.runtime.program.serving import LeaseSettings, ProgramSettings
    from zonewise.topology.locator_index import LabelInterner
    from zonewise.topology.pod_locators import label_interning

    hints = HintsSettings(
        role=SliceRole(rollout.role),
        limit=endpoints_per_slice,
        workers=workers,
        batch=batch,
        gates=decision.gates,
        missing_cpu=decision.missing_cpu,
        missing_zone=decision.missing_zone,
        services=rollout.services,
        namespaces=rollout.namespaces,
    )
    locators = LocatorsSettings(labels=_parse_label_keys(locator_labels))
    settings = ProgramSettings(
        name=REPORTER,
        field_manager=FIELD_MANAGER,
        metrics_listen=metrics_listen,
        rate=(qps, burst),
        lease=LeaseSettings(
            name=LEASE, namespace=lease_namespace, timing=_scale_timing(lease_duration)
        ),
        transforms={PodLocator: label_interning(LabelInterner())},
    )

    def assemble(program: Program) -> None:
        program.add("hints", HintsController, hints)
        program.add("locators", LocatorsController, locators)
        if budgets == "off":
            return
        enforced = budgets == "enforce"
        controller = program.add("budgets", BudgetsController, BudgetsSettings(steer=enforced))
        if enforced:
            program.add("rollouts", RolloutsController, budgets_cache=controller.budgets_cache)

    return run_program(options, settings, assemble)


def _parse_label_keys(text: str | None) -> tuple[str, ...] | None:
    from zonewise.api.values.labels import label_key_error

    if text is None:
        return None
    keys = tuple(dict.fromkeys(key.strip() for key in text.split(",") if key.strip()))
    for key in keys:
        if fault := label_key_error(key):
            raise click.UsageError(f"--locator-labels: {key[:100]!r} is not a label key: {fault}")
    return keys


def _scale_timing(duration: float) -> LeaseTiming:
    """A lease of that length, all its other times in proportion."""
    from zonewise.runtime.election.election import LeaseTiming

    default = LeaseTiming()
    factor = duration / default.duration
    return LeaseTiming(
        duration=round(duration),
        margin=default.margin * factor,
        stop=default.stop * factor,
        renew=default.renew * factor,
        retry=default.retry * factor,
    )
