"""``zonewise up``: a cluster in one process, to try everything without Kubernetes.

The API server, a scheduler, kubelets, controllers and simulated clients, over a folder. It runs
until Ctrl-C or SIGTERM; what was acknowledged is then on the disk of ``--data``, or gone with its
temporary folder where none was given.
"""

from __future__ import annotations

import asyncio
import random
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from zonewise.api.errors import ConfigError
from zonewise.cli.command import Command
from zonewise.cli.options import Options

if TYPE_CHECKING:
    from zonewise.api.gates import FeatureGates
    from zonewise.cli.hosting import Content
    from zonewise.embedded import kubelets
    from zonewise.embedded.cluster import Cluster
    from zonewise.embedded.server import ApiServer
    from zonewise.runtime.process import Process

_LOOPBACK = "127.0.0.1"
_FILES = 65_536
_PORTS = 65_535
_POD_START = "500ms"
_OURS = frozenset({"lock", "state.db"})
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
class Plan:
    """What was asked for."""

    folder: Path
    kept: bool
    host: str
    port: int
    seed: int | None
    gates: FeatureGates
    removal: Literal["evict", "delete"]
    kubelets: kubelets.Settings


@click.command(
    "up",
    cls=Command,
    examples=(
        "up                                  # three zones, nine nodes, a small shop",
        "up --data ./cluster                 # keep it: the same cluster next time",
        "up --zones a,b --nodes-per-zone 50  # another shape",
        "up -f dump.yaml                     # the shape of a real cluster, from kubectl get",
        "up --scenario FILE --speed max      # play a scenario as fast as it goes",
    ),
)
@click.option("--zones", metavar="A,B,C", help="Names of the zones.  [default: a,b,c]")
@click.option(
    "--nodes-per-zone", type=int, metavar="N", help="How many nodes each zone has.  [default: 3]"
)
@click.option(
    "--cpu", metavar="8,4,2", help="CPUs of each zone's nodes, in turn.  [default: 8,4,2]"
)
@click.option(
    "-f",
    "--filename",
    "files",
    metavar="FILE",
    multiple=True,
    help="Take the shape of a real cluster: nodes, workloads, Services and all else that 'kubectl "
    "get … -o yaml' printed (a file or -); may be repeated.",
)
@click.option(
    "--keep-placement",
    is_flag=True,
    help="With -f: pods stay on the nodes they were on, instead of being scheduled anew.",
)
@click.option(
    "--scenario", metavar="FILE", help="Play a scenario, tell what happens, and end: 0 if all held."
)
@click.option(
    "--speed",
    metavar="N",
    help='With --scenario: so many times faster, or "max" for as fast as it goes.  [default: 1]',
)
@click.option("--empty", is_flag=True, help="Start everything, with no node and no workload.")
@click.option(
    "--api-only", is_flag=True, help="Serve only the API: objects are kept, nothing runs."
)
@click.option(
    "--data",
    metavar="DIR",
    help="Keep the cluster in this folder; its kubeconfig appears there.  [default: a temporary"
    " folder, removed at the end]",
)
@click.option(
    "--listen", metavar="ADDRESS:PORT", help="Where to serve.  [default: 127.0.0.1, a free port]"
)
@click.option(
    "--workload-removal",
    type=click.Choice(["evict", "delete"]),
    default="evict",
    help="How workloads take running pods down: evict asks disruption budgets, delete does as "
    "Kubernetes does.  [default: evict]",
)
@click.option(
    "--pod-start",
    metavar="TIME",
    help="How long a pod takes to start, such as 2s or 1s..5s.  [default: 500ms]",
)
@click.option(
    "--stages", metavar="FILE", help="What happens to pods on nodes: see docs/embedded.md."
)
@click.option(
    "--seed", type=int, metavar="N", help="Let scheduler, pods and clients draw the same each time."
)
@click.option(
    "--feature-gates",
    metavar="A=true,B=false",
    default="",
    help="ServiceTopology, ServiceTrafficPolicy, TopologyAwareHints: see docs/embedded.md.",
)
@click.pass_obj
def command(
    options: Options,
    zones: str | None,
    nodes_per_zone: int | None,
    cpu: str | None,
    files: tuple[str, ...],
    keep_placement: bool,
    scenario: str | None,
    speed: str | None,
    empty: bool,
    api_only: bool,
    data: str | None,
    listen: str | None,
    workload_removal: Literal["evict", "delete"],
    pod_start: str | None,
    stages: str | None,
    seed: int | None,
    feature_gates: str,
) -> int:
    """Run a cluster on this machine, in one process.

    The API server speaks as a Kubernetes 1.36 does, to kubectl and to every client that reads JSON.
    Pods are scheduled, become ready, roll and fail as on a real cluster, but no container runs.
    Everything is on 127.0.0.1 unless --listen says otherwise, over TLS, with a kubeconfig of its
    own; your own kubeconfig is never touched.
    """
    from zonewise.api.gates import FeatureGates
    from zonewise.runtime.logs import configure
    from zonewise.runtime.process import run

    # What heals by itself is worth a warning on a server, not on the terminal of a demonstration.
    configure(verbosity=options.verbose or -1, format=options.log_format)
    host, port = _place(listen)
    shape = {"--zones": zones, "--nodes-per-zone": nodes_per_zone, "--cpu": cpu}
    modes = {"--scenario": scenario, "--empty": empty, "--api-only": api_only, "-f": files}
    _refuse_together(shape, modes)
    if speed is not None and scenario is None:
        raise ConfigError("--speed is for a scenario; give one with --scenario")
    if keep_placement and not files:
        raise ConfigError("--keep-placement is about the pods of a dump; give one with -f")
    content = None
    if files:
        content = _dumped(files, keep_placement=keep_placement)
    elif not (api_only or scenario):
        content = _nothing() if empty else _demo(zones, nodes_per_zone, cpu)
    gates = FeatureGates.parse(feature_gates)
    if scenario is not None:
        from zonewise.cli.play import play

        if data is not None:
            raise ConfigError("a scenario has a cluster of its own; leave out --data")
        return play(scenario, speed or "1", gates)
    kubelets = _kubelets(pod_start, stages)
    with _folder(data) as folder:
        plan = Plan(
            folder=folder,
            kept=data is not None,
            host=host,
            port=port,
            seed=seed,
            gates=gates,
            removal=workload_removal,
            kubelets=kubelets,
        )

        async def main(process: Process) -> None:
            await _run(process, plan, content)

        code = run(main)
    kept = f"{folder} keeps the cluster" if plan.kept else "nothing is left of the cluster"
    click.echo(f"Stopped; {kept}.")
    return code


def _refuse_together(shape: Mapping[str, object], modes: Mapping[str, object]) -> None:
    """At most one of the modes, and with none of them a shape."""
    chosen = [name for name, value in modes.items() if value]
    shaped = [name for name, value in shape.items() if value is not None]
    if len(chosen) > 1:
        raise ConfigError(f"{chosen[0]} and {chosen[1]} exclude each other; leave out one")
    if chosen and shaped:
        raise ConfigError(f"{chosen[0]} leaves no room for {shaped[0]}; leave out one")


def _nothing() -> Content:
    from zonewise.cli.hosting import Content

    return Content("nothing", (), "--empty")


def _demo(zones: str | None, per_zone: int | None, cpu: str | None) -> Content:
    from zonewise.cli.hosting import Content
    from zonewise.embedded.demo import shop
    from zonewise.embedded.terrain import Terrain

    usual = Terrain()
    terrain = Terrain(
        zones=usual.zones if zones is None else _words(zones),
        nodes_per_zone=usual.nodes_per_zone if per_zone is None else per_zone,
        cpus=usual.cpus if cpu is None else _words(cpu),
    )
    given = {"--zones": zones, "--nodes-per-zone": per_zone, "--cpu": cpu}
    chosen = next((name for name, value in given.items() if value is not None), "")
    return Content(f"the demo, {terrain}", [*terrain.nodes(), *shop()], chosen)


def _dumped(files: Sequence[str], *, keep_placement: bool) -> Content:
    from zonewise.cli.hosting import Content
    from zonewise.embedded.shape import read, shape
    from zonewise.runtime import dump

    entries = []
    for file in files:
        if Path(file).is_dir():
            raise ConfigError(f"-f {file} is a folder; give the file of one cluster's dump")
        entries += dump.read_file(file)
    found = shape(read(entries), keep_placement=keep_placement)
    if not found.objects:
        raise ConfigError(f"-f {files[0]} has nothing that could live here; dump nodes and more")
    return Content(
        f"the dump {', '.join(files)}",
        found.objects,
        "-f",
        (*found.left_out, *found.invented),
    )


async def _run(process: Process, plan: Plan, content: Content | None) -> None:
    _allow_connections()
    if content is None:
        await _serve_only(process, plan)
        return
    from zonewise.cli.composition import controllers
    from zonewise.embedded import server
    from zonewise.embedded.cluster import SERVICE_NETWORKS, Cluster, Settings

    rng = random.Random(plan.seed) if plan.seed is not None else random.SystemRandom()
    cluster = Cluster(
        plan.folder,
        host=plan.host,
        settings=Settings(
            api=server.Settings(gates=plan.gates, service_networks=SERVICE_NETWORKS),
            kubelets=plan.kubelets,
            removal=plan.removal,
        ),
        clock=time.time,
        rng=rng,
        identities=random.SystemRandom(),
        parts=controllers(plan.gates),
    )
    try:
        address = await _started(cluster.server, plan)
        await process.until_stop(_live(process, cluster, address, plan, content))
    finally:
        await cluster.close()


async def _live(
    process: Process, cluster: Cluster, address: str, plan: Plan, content: Content
) -> None:
    """Let the cluster work, and introduce it; ends only with an error."""
    from zonewise.cli.hosting import Host, introduce
    from zonewise.cli.overview import console
    from zonewise.runtime.memory import settle

    place = console()
    host = Host(cluster, place)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cluster.run())
        differences = await host.plant(content)
        missing = await host.settled()
        kubeconfig = cluster.server.identity.kubeconfig.resolve()
        introduce(
            place,
            host.page(),
            address=address,
            kubeconfig=kubeconfig,
            differences=differences,
            missing=missing,
        )
        place.print(_ending(plan), style="dim")
        settle()
        process.ready = True


async def _serve_only(process: Process, plan: Plan) -> None:
    from zonewise.embedded.pages import VERSION
    from zonewise.embedded.server import ApiServer, Settings
    from zonewise.runtime.memory import settle

    server = ApiServer(
        plan.folder,
        host=plan.host,
        settings=Settings(gates=plan.gates),
        clock=time.time,
        rng=random.SystemRandom(),
    )
    try:
        address = await _started(server, plan)
        click.echo(
            _API_ONLY.format(
                version=VERSION,
                address=address,
                kubeconfig=server.identity.kubeconfig.resolve(),
                ending=_ending(plan),
            ),
            nl=False,
        )
        settle()
        process.ready = True
        await process.stopping.wait()
    finally:
        await server.close()


async def _started(server: ApiServer, plan: Plan) -> str:
    """Serve where it was served last time, if that place is free and no other was asked for."""
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


def _ending(plan: Plan) -> str:
    if plan.kept:
        return "Ctrl-C stops it; the folder keeps everything."
    return "Ctrl-C stops it and forgets everything; --data DIR keeps it."


@contextmanager
def _folder(data: str | None) -> Iterator[Path]:
    """The data folder; one that nobody asked to keep is removed at the end."""
    if data is None:
        with tempfile.TemporaryDirectory(prefix="zonewise-", ignore_cleanup_errors=True) as name:
            yield Path(name)
        return
    if not data.strip():
        raise ConfigError("--data is empty; give it a folder, for example --data ./cluster")
    folder = Path(data)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--data {data} is a file; give it a folder")
    try:
        found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise ConfigError(
            f"--data {data} cannot be read: {error.strerror}; choose another"
        ) from None
    if found and not found & _OURS:
        raise ConfigError(
            f"--data {data} has other things in it and no cluster; give a new or an empty folder"
        )
    yield folder


def _allow_connections() -> None:
    """Every watcher holds a connection; the soft limit of open files is often a mere 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _place(listen: str | None) -> tuple[str, int]:
    from zonewise.runtime.egress import is_loopback

    if listen is None:
        return _LOOPBACK, 0
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit():
        raise ConfigError(
            f"--listen {listen} is not ADDRESS:PORT; write it for example as 127.0.0.1:6443"
        )
    if int(port) > _PORTS:
        raise ConfigError(f"--listen {listen} has no such port; ports go from 1 to {_PORTS}")
    if not is_loopback(host):
        click.echo(
            f"warning: {listen} can be reached from other machines; who has the kubeconfig's token"
            " owns this cluster",
            err=True,
        )
    return host, int(port)


def _kubelets(pod_start: str | None, stages: str | None) -> kubelets.Settings:
    from zonewise.embedded.kubelets import DUAL_STACK, default_stages, read_stages
    from zonewise.embedded.kubelets.stages import timed

    if stages is None:
        chosen = timed(default_stages(), start=_POD_START if pod_start is None else pod_start)
        return replace(DUAL_STACK, stages=chosen)
    if pod_start is not None:
        raise ConfigError("--stages says when pods start; leave out --pod-start")
    try:
        return replace(DUAL_STACK, stages=read_stages(Path(stages).read_text(), stages))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"--stages {stages} cannot be read: {why}; give a YAML file") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))
