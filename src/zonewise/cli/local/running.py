"""``zonewise up`` at work: a cluster, or its API alone, until the process is stopped.

Parts are stopped in the opposite order of their start, whatever fails: volumes are unmounted while
the folder is still locked, the cluster closes its files, network namespaces are removed last.
"""

from __future__ import annotations

import asyncio
import errno
import random
import resource
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from zonewise.api.errors import ConfigError

if TYPE_CHECKING:
    from zonewise.api.gates import FeatureGates
    from zonewise.cli.local.composition import Packets
    from zonewise.cli.local.hosting import Content
    from zonewise.embedded.apiserver.server import ApiServer
    from zonewise.embedded.cluster import EmbeddedCluster
    from zonewise.embedded.components.kubelet.kubelets import KubeletSettings
    from zonewise.runtime.process.process import Process

_FILES = 65_536
_API_ONLY = """\
Zonewise serves a Kubernetes API ({version}) at {address}

  export KUBECONFIG={kubeconfig}

  kubectl get namespaces
  kubectl create configmap hello --from-literal=from=zonewise
  kubectl get configmaps --watch

{ending}
Only the API: pods are stored, nothing schedules or runs them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpPlan:
    """The flags of ``zonewise up``."""

    folder: Path
    persistent: bool
    host: str
    port: int
    seed: int | None
    gates: FeatureGates
    removal: Literal["evict", "delete"]
    kubelets: KubeletSettings
    network: bool


async def run_cluster(process: Process, plan: UpPlan, content: Content | None) -> None:
    """Serve until the process is stopped; without content, the API alone."""
    _allow_connections()
    if content is None:
        await _serve_api(process, plan)
        return
    from zonewise.cli.local.composition import LocalDriver, LocalMetrics, Packets
    from zonewise.embedded.apiserver import server
    from zonewise.embedded.cluster import ClusterSettings, EmbeddedCluster

    volumes, metrics = LocalDriver(plan.folder), LocalMetrics(plan.folder)
    rng = random.Random(plan.seed) if plan.seed is not None else random.SystemRandom()
    packets = Packets.claim(requested=plan.network)
    try:
        cluster = EmbeddedCluster(
            plan.folder,
            host=plan.host,
            settings=ClusterSettings(
                api=server.ServerSettings(gates=plan.gates, service_networks=server.DUAL_STACK),
                kubelets=plan.kubelets,
                removal=plan.removal,
            ),
            clock=time.time,
            rng=rng,
            identities=random.SystemRandom(),
            driver=volumes.driver,
            metrics=metrics.metrics,
        )
        packets.add_to(cluster, plan.gates)
        try:
            address = await _start(cluster.server, plan)
            ending = "\n".join(filter(None, [volumes.note, _describe_ending(plan)]))
            work = _run(process, cluster, address, plan, content, packets, ending)
            try:
                async with metrics.served(process):
                    await process.until_stop(work)
            finally:
                # Only the process that serves the folder may unmount what is in it.
                await volumes.unmount()
        finally:
            await cluster.close()
            volumes.close()
    finally:
        packets.close()


async def _run(
    process: Process,
    cluster: EmbeddedCluster,
    address: str,
    plan: UpPlan,
    content: Content,
    packets: Packets,
    ending: str,
) -> None:
    """Run the cluster, and print its page; ends only with an error."""
    from zonewise.cli.local.composition import add_name_server
    from zonewise.cli.local.hosting import Host, introduce
    from zonewise.cli.program.screen import make_console
    from zonewise.runtime.process.memory import freeze_heap

    console = make_console()
    host = Host(cluster, console)
    names = add_name_server(cluster, plan.host, plan.gates)
    freeze_heap()  # Filling the cluster may take minutes, during which the collector must not run.
    async with asyncio.TaskGroup() as tasks:
        await host.prepare(content)
        tasks.create_task(cluster.run())
        differences = await host.plant(content)
        missing = await host.wait_ready()
        lines = await packets.suggest(host.list_trials)
        await names.listening.wait()
        introduce(
            console,
            host.make_page(),
            address=address,
            kubeconfig=cluster.server.identity.kubeconfig.resolve(),
            differences=differences,
            missing=missing,
            dig=host.dig_command(plan.host, names.server.port),
            packets=lines,
        )
        console.print(ending, style="dim")
        freeze_heap()
        process.ready = True


async def _serve_api(process: Process, plan: UpPlan) -> None:
    from zonewise.cli.local.composition import remove_metrics_url
    from zonewise.embedded.apiserver.discovery.nonresource import VERSION
    from zonewise.embedded.apiserver.server import DUAL_STACK, ApiServer, ServerSettings
    from zonewise.runtime.process.memory import freeze_heap

    remove_metrics_url(plan.folder)
    server = ApiServer(
        plan.folder,
        host=plan.host,
        settings=ServerSettings(gates=plan.gates, service_networks=DUAL_STACK),
        clock=time.time,
        rng=random.SystemRandom(),
    )
    try:
        address = await _start(server, plan)
        click.echo(
            _API_ONLY.format(
                version=VERSION,
                address=address,
                kubeconfig=shlex.quote(str(server.identity.kubeconfig.resolve())),
                ending=_describe_ending(plan),
            ),
            nl=False,
        )
        freeze_heap()
        process.ready = True
        await process.stopping.wait()
    finally:
        await server.close()


async def _start(server: ApiServer, plan: UpPlan) -> str:
    """Serve at the requested port, else at that of the last time if it is free, else at any."""
    ports = [plan.port] if plan.port else [*filter(None, [server.identity.last_port()]), 0]
    for port in ports:
        try:
            return await server.start(port)
        except OSError as error:
            fault = error
    why = (fault.strerror or str(fault)).lower()
    advice = (
        "give --listen an address of this machine, such as 127.0.0.1"
        if fault.errno == errno.EADDRNOTAVAIL
        else "stop what listens there or choose another --listen"
    )
    raise ConfigError(f"cannot serve on {plan.host}:{plan.port}: {why}; {advice}") from fault


def _describe_ending(plan: UpPlan) -> str:
    if plan.persistent:
        return "Ctrl-C stops it; the cluster is kept in the folder."
    return "Ctrl-C stops and removes it; --data DIR keeps it."


def _allow_connections() -> None:
    """Raise the soft limit of open files, often 1,024: every watcher has a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
