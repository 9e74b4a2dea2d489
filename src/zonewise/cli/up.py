"""``zonewise up``: a cluster in one process, to try everything without Kubernetes.

The API server, a scheduler, kubelets, controllers and simulated clients, over a folder. It runs
until Ctrl-C or SIGTERM; every acknowledged write is then in the folder of ``--data``. Without
``--data`` the folder is temporary and removed at the end, or after a kill by the next ``up``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from zonewise.api.errors import ConfigError
from zonewise.cli.program.command import Command
from zonewise.cli.program.options import Options, add_options, feature_gates_option

if TYPE_CHECKING:
    from zonewise.cli.local.hosting import Content
    from zonewise.embedded.components.kubelet.kubelets import KubeletSettings
    from zonewise.runtime.process.process import Process

_LOOPBACK = "127.0.0.1"
_PORTS = 65_535
_POD_START = "500ms"
_CLUSTER_FILES = frozenset({"lock", "state.db"})


@click.command(
    "up",
    cls=Command,
    examples=(
        "up                                  # three zones, nine nodes, a small shop",
        "up --data ./cluster                 # keep the cluster for the next time",
        "up --zones a,b --nodes-per-zone 50  # another shape",
        "up -f dump.yaml                     # a copy of a real cluster, from its dump",
        "up --scenario FILE --speed max      # play a scenario as fast as possible; also with -f",
        "up --network                        # as root: real packets between pods",
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
    help="Copy a real cluster from its dump (a file or -); may be repeated.",
)
@click.option(
    "--keep-placement",
    is_flag=True,
    help="With -f: pods stay on their nodes instead of being scheduled again.",
)
@click.option(
    "--scenario",
    metavar="FILE",
    help="Play a scenario, print what happens, and exit: 0 if all its expectations were met.",
)
@click.option(
    "--speed",
    metavar="N",
    help='With --scenario: how many times faster, or "max" for as fast as possible.  [default: 1]',
)
@click.option("--empty", is_flag=True, help="Start with no node and no workload.")
@click.option(
    "--api-only", is_flag=True, help="Serve only the API: objects are stored, nothing runs."
)
@click.option(
    "--data",
    metavar="DIR",
    help="Keep the cluster and its kubeconfig in this folder.  [default: a temporary"
    " folder, removed at the end]",
)
@click.option(
    "--listen", metavar="ADDRESS:PORT", help="Where to serve.  [default: 127.0.0.1, a free port]"
)
@click.option(
    "--network",
    is_flag=True,
    help="As root: every node is a network namespace with a proxy, and pods have real addresses"
    " that answer.",
)
@click.option(
    "--workload-removal",
    type=click.Choice(["evict", "delete"]),
    default="evict",
    help="How workload controllers remove running pods: evict respects disruption budgets, delete "
    "does not, as in Kubernetes.  [default: evict]",
)
@click.option(
    "--pod-start",
    metavar="TIME",
    help="How long a pod takes to start, such as 2s or 1s..5s.  [default: 500ms]",
)
@click.option(
    "--stages", metavar="FILE", help="The life of pods on simulated nodes: see docs/embedded.md."
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="Seed for the random choices of scheduler, pods and clients.",
)
@add_options(feature_gates_option())
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
    network: bool,
    workload_removal: Literal["evict", "delete"],
    pod_start: str | None,
    stages: str | None,
    seed: int | None,
    feature_gates: str,
) -> int:
    """Run a cluster on this machine, in one process.

    The API server behaves like Kubernetes 1.36, for kubectl and for every client that reads JSON.
    Pods are scheduled, become ready, roll and fail as on a real cluster, but no container runs.
    Everything is on 127.0.0.1 unless --listen says otherwise, over TLS, with a kubeconfig of its
    own; your own kubeconfig is never touched.
    """
    from zonewise.api.gates import FeatureGates
    from zonewise.cli.local.running import UpPlan, run_cluster
    from zonewise.runtime.process.logs import configure
    from zonewise.runtime.process.process import run

    # Warnings about errors that are retried are for a server's log, not for a demo's terminal.
    configure(verbosity=options.verbose or -1, format=options.log_format)
    host, port = _parse_listen(listen)
    shape = {"--zones": zones, "--nodes-per-zone": nodes_per_zone, "--cpu": cpu}
    modes = {"--empty": empty, "--api-only": api_only}
    # --scenario and -f go together: a scenario may be played on a dump.
    for content_flag in ({"--scenario": scenario}, {"-f": files}):
        _refuse_together(shape, {**content_flag, **modes})
    if speed is not None and scenario is None:
        raise ConfigError("--speed needs a scenario; give one with --scenario")
    if keep_placement and not files:
        raise ConfigError("--keep-placement needs a dump; give one with -f")
    if network and (api_only or scenario):
        other = "--api-only" if api_only else "--scenario"
        raise ConfigError(f"--network and {other} exclude each other; leave out one")
    content = None
    if files:
        content = _read_dump(files, keep_placement=keep_placement)
        # A scenario can add nodes.
        if scenario is None:
            _require_nodes(content, files)
    elif not (api_only or scenario):
        content = _make_nothing() if empty else _make_demo(zones, nodes_per_zone, cpu)
    gates = FeatureGates.parse(feature_gates)
    if scenario is not None:
        from zonewise.cli.local.play import play

        if data is not None:
            raise ConfigError("--data and --scenario exclude each other; leave out one")
        return play(scenario, speed or "1", gates, content)
    kubelets = _configure_kubelets(pod_start, stages)
    with _open_folder(data) as folder:
        plan = UpPlan(
            folder=folder,
            persistent=data is not None,
            host=host,
            port=port,
            seed=seed,
            gates=gates,
            removal=workload_removal,
            kubelets=kubelets,
            network=network,
        )

        async def main(process: Process) -> None:
            await run_cluster(process, plan, content)

        code = run(main)
    if plan.persistent:
        click.echo(f"Stopped; the cluster is kept in {folder.absolute()}.")
    else:
        click.echo("Stopped; the cluster is removed.")
    return code


def _refuse_together(shape: Mapping[str, object], modes: Mapping[str, object]) -> None:
    """Refuse several modes, and a mode together with a shape."""
    chosen = [name for name, value in modes.items() if value]
    shaped = [name for name, value in shape.items() if value is not None]
    if len(chosen) > 1:
        raise ConfigError(f"{chosen[0]} and {chosen[1]} exclude each other; leave out one")
    if chosen and shaped:
        raise ConfigError(f"{chosen[0]} and {shaped[0]} exclude each other; leave out one")


def _make_nothing() -> Content:
    from zonewise.cli.local.hosting import Content

    return Content("nothing", (), "--empty")


def _make_demo(zones: str | None, per_zone: int | None, cpu: str | None) -> Content:
    from zonewise.cli.local.composition import CSI_CLASS
    from zonewise.cli.local.hosting import Content
    from zonewise.embedded.seed.demo import shop_objects
    from zonewise.embedded.seed.nodes import NodeLayout

    default = NodeLayout()
    layout = NodeLayout(
        zones=default.zones if zones is None else _split(zones),
        nodes_per_zone=default.nodes_per_zone if per_zone is None else per_zone,
        cpus=default.cpus if cpu is None else _split(cpu),
    )
    given = {"--zones": zones, "--nodes-per-zone": per_zone, "--cpu": cpu}
    chosen = next((name for name, value in given.items() if value is not None), "")
    return Content(f"the demo, {layout}", [*layout.nodes(), *shop_objects(CSI_CLASS)], chosen)


def _read_dump(files: Sequence[str], *, keep_placement: bool) -> Content:
    from zonewise.cli.local.hosting import Content
    from zonewise.embedded.seed.dump_import import import_dump, read_dump
    from zonewise.runtime.cache import dump

    entries = []
    for file in files:
        if Path(file).is_dir():
            raise ConfigError(f"-f {file} is a folder; give a file with the dump of one cluster")
        entries += dump.read_file(file)
    imported = import_dump(read_dump(entries), keep_placement=keep_placement)
    if not imported.objects:
        raise ConfigError(f"-f {files[0]} has no object that can run here; dump nodes and more")
    return Content(
        f"the dump {', '.join(files)}",
        imported.objects,
        "-f",
        (*imported.left_out, *imported.changed, *imported.invented),
    )


def _require_nodes(content: Content, files: Sequence[str]) -> None:
    from zonewise.cli.program.dump_kinds import DUMP_COMMAND

    if not any(obj["kind"] == "Node" for obj in content.objects):
        raise ConfigError(
            f"there is no Node in {', '.join(files)}, so no pod could run; dump nodes as well:"
            f" {DUMP_COMMAND}"
        )


@contextmanager
def _open_folder(data: str | None) -> Iterator[Path]:
    """The data folder; a temporary one is removed at the end."""
    from zonewise.embedded.leftovers.folders import keep_folder, temporary_folder

    if data is None:
        with temporary_folder() as folder:
            yield folder
        return
    if not data.strip():
        raise ConfigError("--data is empty; give it a folder, for example --data ./cluster")
    folder = Path(data)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--data {data} is a file; give it a folder")
    try:
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise ConfigError(
            f"--data {data} cannot be read: {error.strerror}; give another folder"
        ) from None
    if names and not names & _CLUSTER_FILES:
        raise ConfigError(
            f"--data {data} has other files and no cluster; give a new or an empty folder"
        )
    keep_folder(folder)
    yield folder


def _parse_listen(listen: str | None) -> tuple[str, int]:
    from zonewise.api.values.numbers import parse_natural
    from zonewise.runtime.config.egress import is_loopback

    if listen is None:
        return _LOOPBACK, 0
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = parse_natural(port)
    if not colon or not host or number is None:
        raise ConfigError(f"--listen {listen} is not ADDRESS:PORT; write it like 127.0.0.1:6443")
    if number > _PORTS:
        raise ConfigError(f"--listen {listen}: there is no such port; give one from 1 to {_PORTS}")
    if not is_loopback(host):
        click.echo(
            f"warning: {listen} can be reached from other machines; everybody with the kubeconfig's"
            " token controls this cluster",
            err=True,
        )
    return host, number


def _configure_kubelets(pod_start: str | None, stages: str | None) -> KubeletSettings:
    from zonewise.embedded.components.kubelet.kubelets import DUAL_STACK
    from zonewise.embedded.components.kubelet.stages import default_stages, read_stages, with_delays

    if stages is None:
        chosen = with_delays(default_stages(), start=_POD_START if pod_start is None else pod_start)
        return replace(DUAL_STACK, stages=chosen)
    if pod_start is not None:
        raise ConfigError("--stages and --pod-start exclude each other; leave out one")
    try:
        return replace(DUAL_STACK, stages=read_stages(Path(stages).read_text(), stages))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--stages {stages} cannot be read: {why}; give a YAML file") from None


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))
