"""``zonewise webhook``: answers API servers before they write Services and EndpointSlices."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zonewise.cli.program.budget_options import budgets_option
from zonewise.cli.program.command import Command
from zonewise.cli.program.hint_options import Deciding, Rollout, decision_options, rollout_options
from zonewise.cli.program.options import Options

if TYPE_CHECKING:
    from zonewise.install.wanted import BudgetsMode
    from zonewise.runtime.cache.cache import Cache
    from zonewise.runtime.client.client import Client
    from zonewise.runtime.process.process import Process
    from zonewise.runtime.webhook.admission import AdmissionAnswer, AdmissionRequest, Handler
    from zonewise.webhook import InjectionSettings

LISTEN = ":9443"
METRICS_LISTEN = "127.0.0.1:9465"

CLAMP_PATH = "/replicasets"
DELETIONS_PATH = "/deletions"
EVICTIONS_PATH = "/evictions"
HINTS_PATH = "/hints"
SERVICES_PATH = "/services"


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
@budgets_option
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    default=LISTEN,
    help=f"Where to serve.  [default: {LISTEN}]",
)
@click.option(
    "--metrics-listen",
    metavar="ADDRESS:PORT",
    default=METRICS_LISTEN,
    help=f"Where to serve metrics and health.  [default: {METRICS_LISTEN}]",
)
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name or address by which API servers call; may be repeated."
    "  [default: zonewise-webhook.NAMESPACE.svc]",
)
@click.option(
    "--secret",
    metavar="NAME",
    default="zonewise-webhook",
    help="The Secret that replicas share their certificate in.  [default: zonewise-webhook]",
)
@click.option(
    "--configuration",
    metavar="NAME",
    default="zonewise",
    help="The webhook configurations that are to trust it.  [default: zonewise]",
)
@click.option(
    "--writer",
    metavar="NAME",
    default="",
    help="The controller's user, whose slices are let through.  [default:"
    " system:serviceaccount:NAMESPACE:zonewise]",
)
@click.option(
    "--client-ca",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Answer only clients with a certificate of this authority, as API servers have if their"
    " AdmissionConfiguration says so; read again when it changes.",
)
@click.pass_obj
def command(
    options: Options,
    rollout: Rollout,
    deciding: Deciding,
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
    does not allow are refused. Certificates are made, shared by replicas through a Secret, and
    rotated.
    """
    from zonewise.cli.program.connection import cluster_config, connected
    from zonewise.runtime.process.logs import configure
    from zonewise.runtime.process.process import run
    from zonewise.runtime.serving.address import parse_listen
    from zonewise.webhook import InjectionSettings

    parse_listen(listen, "--listen", LISTEN)
    parse_listen(metrics_listen, "--metrics-listen", METRICS_LISTEN)
    options = options.serving()
    configure(verbosity=options.verbose, format=options.log_format)
    namespace = cluster_config(options).namespace
    settings = InjectionSettings(
        writer=writer or f"system:serviceaccount:{namespace}:zonewise",
        gates=deciding.gates,
        missing_cpu=deciding.missing_cpu,
        missing_zone=deciding.missing_zone,
        services=rollout.services,
        namespaces=rollout.namespaces,
    )

    async def main(process: Process) -> None:
        async with connected(options) as client, process.parts():
            await _serve(
                process,
                client,
                settings if rollout.role == "adopt" else None,
                budgets,
                namespace=namespace,
                hosts=hosts or (f"zonewise-webhook.{namespace}.svc",),
                listen=listen,
                metrics_listen=metrics_listen,
                secret=secret,
                configuration=configuration,
                client_ca=client_ca,
            )

    return run(main)


async def _serve(
    process: Process,
    client: Client,
    settings: InjectionSettings | None,
    budgets: BudgetsMode,
    *,
    namespace: str,
    hosts: tuple[str, ...],
    listen: str,
    metrics_listen: str,
    secret: str,
    configuration: str,
    client_ca: Path | None,
) -> None:
    from zonewise.api.objects.admissionregistration import (
        MutatingWebhookConfiguration,
        ValidatingWebhookConfiguration,
    )
    from zonewise.runtime import (
        AdmissionDispatcher,
        Cache,
        Certificates,
        Health,
        Metrics,
        Monitor,
        ServerContext,
        WebhookServer,
    )
    from zonewise.runtime.config.credentials import FileContent
    from zonewise.runtime.monitoring.health import fresh_watches, synced_watches
    from zonewise.runtime.process.logs import logger
    from zonewise.webhook import Clamp, DisruptionGate, HintInjection, validate_service
    from zonewise.webhook.gate_metrics import verdict_counter

    cache, metrics, health = Cache(client), Metrics(), Health()
    authorities = FileContent(client_ca, purpose="authority of clients") if client_ca else None
    tls = ServerContext(authorities)
    handlers: dict[str, Handler] = {SERVICES_PATH: validate_service}
    kinds: list[type[MutatingWebhookConfiguration] | type[ValidatingWebhookConfiguration]]
    kinds = [ValidatingWebhookConfiguration]
    if settings is not None:
        handlers[HINTS_PATH] = _patient(cache, HintInjection(cache, settings))
        kinds.append(MutatingWebhookConfiguration)
    instead: dict[str, AdmissionAnswer] = {}
    if budgets != "off":
        gate = DisruptionGate(
            cache,
            client,
            client.clock.certain,
            mode=budgets,
            observe=verdict_counter(metrics.registry),
        )
        handlers |= {EVICTIONS_PATH: gate.eviction, DELETIONS_PATH: gate.deletion}
        instead = dict.fromkeys((EVICTIONS_PATH, DELETIONS_PATH), gate.instead)
        if budgets == "enforce":
            handlers[CLAMP_PATH] = _patient(
                cache, Clamp(gate.budgets_cache, client.clock.certain, gate.turns)
            )
            kinds.append(MutatingWebhookConfiguration)
        kinds = list(dict.fromkeys(kinds))
    certificates = Certificates(
        client,
        secret=secret,
        namespace=namespace,
        hosts=hosts,
        configurations=[(kind, configuration) for kind in kinds],
        serve=tls.use,
    )
    metrics.watches(lambda: cache.stats)
    clock = asyncio.get_running_loop().time
    health.add_alive("watches", fresh_watches(lambda: cache.stats, clock))
    health.add_ready("stores", synced_watches(lambda: cache.stats))
    health.add_ready("clock", client.clock.problem)
    health.add_ready("certificate", certificates.problem)
    health.add_ready("program", process.problem)
    dispatcher = AdmissionDispatcher(handlers, instead=instead, observe=metrics.admission)
    async with Monitor(metrics, health, listen=metrics_listen):
        process.spawn(cache.run(), name="cache")
        async with WebhookServer(dispatcher, tls=tls, listen=listen) as server:
            logger("webhook").info("webhooks are served", port=server.port, paths=sorted(handlers))
            process.spawn(certificates.run(), name="certificates")
            await process.until_stop(cache.synced())
            process.ready = True
            await process.stopping.wait()


def _patient(cache: Cache, handler: Handler) -> Handler:
    """A handler that waits for complete stores; without them a decision would drop hints."""

    async def answered(request: AdmissionRequest) -> AdmissionAnswer:
        await cache.synced()
        return await handler(request)

    return answered
