"""``zonewise webhook``: admission of Services, EndpointSlices, evictions and deletions of pods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from zonewise.cli.program.command import Command
from zonewise.cli.program.hint_options import (
    DecisionOptions,
    RolloutOptions,
    decision_options,
    rollout_options,
)
from zonewise.cli.program.options import Options, add_options, budgets_option, metrics_option

if TYPE_CHECKING:
    from zonewise.install.installation import BudgetsMode
    from zonewise.runtime.program.program import Program

LISTEN = ":9443"
METRICS_LISTEN = "127.0.0.1:9465"


@click.command(
    "webhook",
    cls=Command,
    examples=(
        "webhook --endpointslices adopt     # as the manifests of 'zonewise install' run it",
        "webhook --host 127.0.0.1 -n test   # for an API server on this machine",
    ),
)
@rollout_options
@decision_options
@add_options(budgets_option())
@click.option(
    "--listen", metavar="ADDRESS:PORT", default=LISTEN, help=f"Where to serve.  [default: {LISTEN}]"
)
@add_options(metrics_option(METRICS_LISTEN))
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name or address at which API servers call the webhook; may be repeated."
    "  [default: zonewise-webhook.NAMESPACE.svc]",
)
@click.option(
    "--secret",
    metavar="NAME",
    default="zonewise-webhook",
    help="The Secret with the certificate that replicas share.  [default: zonewise-webhook]",
)
@click.option(
    "--configuration",
    metavar="NAME",
    default="zonewise",
    help="The webhook configurations that get its CA certificate.  [default: zonewise]",
)
@click.option(
    "--writer",
    metavar="NAME",
    default="",
    help="The controller's user, whose slices are not changed.  [default:"
    " system:serviceaccount:NAMESPACE:zonewise]",
)
@click.option(
    "--client-ca",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Require client certificates of this authority, which API servers send if their"
    " AdmissionConfiguration says so; read again when it changes.",
)
@click.pass_obj
def command(
    options: Options,
    rollout: RolloutOptions,
    decision: DecisionOptions,
    budgets: BudgetsMode,
    listen: str,
    metrics_listen: str,
    hosts: tuple[str, ...],
    secret: str,
    configuration: str,
    writer: str,
    client_ca: Path | None,
) -> int:
    """Serve admission webhooks.

    Services with an unknown mode, wrong limits or wrong topology keys are refused. With
    --endpointslices=adopt, our hints are put on every EndpointSlice that Kubernetes' own controller
    writes. With --budgets=enforce, evictions and deletions of pods that a budget per failure domain
    does not allow are refused. Certificates are created, shared by replicas through a Secret, and
    rotated.
    """
    from zonewise.cli.program.connection import load_cluster_config, run_program
    from zonewise.runtime.client.client import FIELD_MANAGER
    from zonewise.runtime.program.serving import ProgramSettings
    from zonewise.runtime.serving.address import parse_listen
    from zonewise.webhook.hints import InjectionSettings
    from zonewise.webhook.program import AdmissionWebhooks, WebhookSettings

    parse_listen(listen, "--listen", LISTEN)
    parse_listen(metrics_listen, "--metrics-listen", METRICS_LISTEN)
    namespace = load_cluster_config(options.for_serving()).namespace
    injection = InjectionSettings(
        writer=writer or f"system:serviceaccount:{namespace}:zonewise",
        gates=decision.gates,
        missing_cpu=decision.missing_cpu,
        missing_zone=decision.missing_zone,
        services=rollout.services,
        namespaces=rollout.namespaces,
    )
    settings = WebhookSettings(
        listen=listen,
        namespace=namespace,
        hosts=hosts or (f"zonewise-webhook.{namespace}.svc",),
        secret=secret,
        configuration=configuration,
        client_ca=client_ca,
        injection=injection if rollout.role == "adopt" else None,
        budgets=budgets,
    )

    def assemble(program: Program) -> None:
        webhooks = program.add("webhook", AdmissionWebhooks, settings)
        program.run_beside("certificate", webhooks.certificates)

    program_settings = ProgramSettings(
        name="zonewise-webhook", field_manager=FIELD_MANAGER, metrics_listen=metrics_listen
    )
    return run_program(options, program_settings, assemble)
