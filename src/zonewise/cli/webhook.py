"""``zonewise webhook``: answers API servers before they write Services and EndpointSlices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from zonewise.cli.command import Command
from zonewise.cli.hintoptions import Deciding, Rollout, decision_options, rollout_options
from zonewise.cli.options import Options

if TYPE_CHECKING:
    from zonewise.runtime.client import Client
    from zonewise.runtime.process import Process
    from zonewise.webhook import InjectionSettings

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
@click.option("--listen", default=":9443", help="Where to serve.  [default: :9443]")
@click.option(
    "--metrics-listen",
    default="127.0.0.1:9465",
    help="Where to serve metrics and health.  [default: 127.0.0.1:9465]",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    help="A name or address by which API servers call; may be repeated."
    "  [default: zonewise-webhook.NAMESPACE.svc]",
)
@click.option(
    "--secret",
    default="zonewise-webhook",
    help="The Secret that replicas share their certificate in.  [default: zonewise-webhook]",
)
@click.option(
    "--configuration",
    default="zonewise",
    help="The webhook configurations that are to trust it.  [default: zonewise]",
)
@click.option(
    "--writer",
    default="",
    help="The controller's user, whose slices are let through.  [default:"
    " system:serviceaccount:NAMESPACE:zonewise]",
)
@click.pass_obj
def command(
    options: Options,
    rollout: Rollout,
    deciding: Deciding,
    listen: str,
    metrics_listen: str,
    hosts: tuple[str, ...],
    secret: str,
    configuration: str,
    writer: str,
) -> int:
    """Answer API servers before they write.

    Services whose mode or limits nobody knows are refused. With --endpointslices=adopt, our hints
    are put on every EndpointSlice that Kubernetes' own controller writes. Certificates are made,
    shared by replicas through a Secret, and rotated.
    """
    from zonewise.cli.connection import cluster_config, connected
    from zonewise.runtime.logs import configure
    from zonewise.runtime.process import run
    from zonewise.webhook import InjectionSettings

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
        async with connected(options) as client:
            await _serve(
                process,
                client,
                settings if rollout.role == "adopt" else None,
                namespace=namespace,
                hosts=hosts or (f"zonewise-webhook.{namespace}.svc",),
                listen=listen,
                metrics_listen=metrics_listen,
                secret=secret,
                configuration=configuration,
            )

    return run(main)


async def _serve(
    process: Process,
    client: Client,
    settings: InjectionSettings | None,
    *,
    namespace: str,
    hosts: tuple[str, ...],
    listen: str,
    metrics_listen: str,
    secret: str,
    configuration: str,
) -> None:
    from zonewise.api.registration import (
        MutatingWebhookConfiguration,
        ValidatingWebhookConfiguration,
    )
    from zonewise.runtime import (
        Cache,
        Certificates,
        Desk,
        Health,
        Metrics,
        Monitor,
        ServerContext,
        WebhookServer,
    )
    from zonewise.runtime.admission import Handler
    from zonewise.runtime.health import fresh_watches, synced_watches
    from zonewise.runtime.logs import logger
    from zonewise.webhook import HintInjection, validate_service

    cache, metrics, health, tls = Cache(client), Metrics(), Health(), ServerContext()
    handlers: dict[str, Handler] = {SERVICES_PATH: validate_service}
    kinds: list[type[MutatingWebhookConfiguration] | type[ValidatingWebhookConfiguration]]
    kinds = [ValidatingWebhookConfiguration]
    if settings is not None:
        handlers[HINTS_PATH] = HintInjection(cache, settings)
        kinds.append(MutatingWebhookConfiguration)
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
    health.add_ready("certificate", certificates.problem)
    health.add_ready("program", process.problem)
    desk = Desk(handlers, observe=metrics.admission)
    async with Monitor(metrics, health, listen=metrics_listen):
        process.spawn(cache.run(), name="cache")
        # Before the stores are complete a decision would drop hints; nobody is answered till then.
        await process.until_stop(cache.synced())
        async with WebhookServer(desk, tls=tls, listen=listen) as server:
            process.spawn(certificates.run(), name="certificates")
            logger("webhook").info("webhooks are served", port=server.port, paths=sorted(handlers))
            process.ready = True
            await process.stopping.wait()
