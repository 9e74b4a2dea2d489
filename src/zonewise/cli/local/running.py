"""``zonewise up`` at work: what was requested is served until the process is stopped.

What was started is stopped in the opposite order, whatever fails: volumes are unmounted while the
folder is still ours, the cluster closes what it wrote, network namespaces go last.
"""

from __future__ import annotations

import asyncio
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
    from zonewise.embedded.components import kubelet
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
    """What was requested."""

    folder: Path
    kept: bool
    host: str
    port: int
    seed: int | None
    gates: FeatureGates
    removal: Literal["evict", "delete"]
    kubelets: kubelet.KubeletSettings
    network: bool


async def run_cluster(process: Process, plan: UpPlan, content: Content | None) -> None:
    """Serve until the process is stopped; without content, the API alone."""
    _allow_connections()
    if content is None:
        await _serve_only(process, plan)
        return
    from zonewise.cli.local.composition import LocalDriver, Packets
    from zonewise.embedded.apiserver import server
    from zonewise.embedded.cluster import ClusterSettings, EmbeddedCluster

    volumes = LocalDriver(plan.folder)
    rng = random.Random(plan.seed) if plan.seed is not None else random.SystemRandom()
    packets = Packets.claim(wanted=plan.network)
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
        )
        packets.add_to(cluster, plan.gates)
        try:
            address = await _started(cluster.server, plan)
            ending = "\n".join(filter(None, [volumes.note, _ending(plan)]))
            life = _live(process, cluster, address, plan, content, packets, ending)
            try:
                await process.until_stop(life)
            finally:
                # Only the process that serves the folder may unmount what is in it.
                await volumes.unmount()
        finally:
            await cluster.close()
            volumes.close()
    finally:
        packets.close()


async def _live(
    process: Process,
    cluster: EmbeddedCluster,
    address: str,
    plan: UpPlan,
    content: Content,
    packets: Packets,
    ending: str,
) -> None:
    """Let the cluster work, and introduce it; ends only with an error."""
    from zonewise.cli.local.composition import add_name_server
    from zonewise.cli.local.hosting import Host, introduce
    from zonewise.cli.program.screen import console
    from zonewise.runtime.process.memory import settle

    place = console()
    host = Host(cluster, place)
    names = add_name_server(cluster, plan.host)
    settle()  # What fills the cluster now may go on for minutes; the collector keeps out of it.
    async with asyncio.TaskGroup() as tasks:
        await host.prepare(content)
        tasks.create_task(cluster.run())
        differences = await host.plant(content)
        missing = await host.settled()
        lines = await packets.lines(host.trials)
        await names.listening.wait()
        introduce(
            place,
            host.page(),
            address=address,
            kubeconfig=cluster.server.identity.kubeconfig.resolve(),
            differences=differences,
            missing=missing,
            dig=host.dig(plan.host, names.server.port),
            packets=lines,
        )
        place.print(ending, style="dim")
        settle()
        process.ready = True


async def _serve_only(process: Process, plan: UpPlan) -> None:
    from zonewise.embedded.apiserver.discovery.nonresource import VERSION
    from zonewise.embedded.apiserver.server import DUAL_STACK, ApiServer, ServerSettings
    from zonewise.runtime.process.memory import settle

    server = ApiServer(
        plan.folder,
        host=plan.host,
        settings=ServerSettings(gates=plan.gates, service_networks=DUAL_STACK),
        clock=time.time,
        rng=random.SystemRandom(),
    )
    try:
        address = await _started(server, plan)
        click.echo(
            _API_ONLY.format(
                version=VERSION,
                address=address,
                kubeconfig=shlex.quote(str(server.identity.kubeconfig.resolve())),
                ending=_ending(plan),
            ),
            nl=False,
        )
        settle()
        process.ready = True
        await process.stopping.wait()
    finally:
        await server.close()


async def _started(server: ApiServer, plan: UpPlan) -> str:
    """Serve at the address of the last time, if it is free and no other was requested."""
    wanted = [plan.port] if plan.port else [*filter(None, [server.identity.last_port()]), 0]
    for port in wanted:
        try:
            return await server.start(port)
        except OSError as error:
            fault = error
    place = f"{plan.host}:{plan.port}"
    why = (fault.strerror or str(fault)).lower()
    raise ConfigError(
        f"cannot serve on {place}: {why}; stop what listens there or choose another --listen"
    ) from fault


def _ending(plan: UpPlan) -> str:
    if plan.kept:
        return "Ctrl-C stops it; the folder keeps everything."
    return "Ctrl-C stops it and forgets everything; --data DIR keeps it."


def _allow_connections() -> None:
    """Every watcher holds a connection; the soft limit of open files is often a mere 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
