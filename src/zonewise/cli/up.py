"""``zonewise up``: a cluster in one process, to try everything without Kubernetes.

The API server, a scheduler, kubelets, controllers and simulated clients, over a folder. It runs
until Ctrl-C or SIGTERM; what was acknowledged is then on the disk of ``--data``, or removed with
its temporary folder where none was given. After a kill the next ``up`` removes that folder.
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
from zonewise.cli.program.options import Options

if TYPE_CHECKING:
    from zonewise.cli.local.hosting import Content
    from zonewise.embedded.components import kubelet
    from zonewise.runtime.process.process import Process

_LOOPBACK = "127.0.0.1"
_PORTS = 65_535
_POD_START = "500ms"
_OURS = frozenset({"lock", "state.db"})


@click.command(
    "up",
    cls=Command,
    examples=(
        "up                                  # three zones, nine nodes, a small shop",
        "up --data ./cluster                 # keep it: the same cluster next time",
        "up --zones a,b --nodes-per-zone 50  # another shape",
        "up -f dump.yaml                     # the shape of a real cluster, from kubectl get",
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
    help="Take the shape of a real cluster from a dump (a file or -); may be repeated.",
)
@click.option(
    "--keep-placement",
    is_flag=True,
    help="With -f: pods stay on the nodes they were on, instead of being scheduled again.",
)
@click.option(
    "--scenario",
    metavar="FILE",
    help="Play a scenario, print what happens, and exit: 0 if all expectations held.",
)
@click.option(
    "--speed",
    metavar="N",
    help='With --scenario: how many times faster, or "max" for as fast as possible.  [default: 1]',
)
@click.option("--empty", is_flag=True, help="Start with no node and no workload.")
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
    "--stages", metavar="FILE", help="What happens to pods on nodes: see docs/embedded.md."
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    help="Seed for the random choices of scheduler, pods and clients.",
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

    # What recovers by itself is worth a warning on a server, not on the terminal of a demo.
    configure(verbosity=options.verbose or -1, format=options.log_format)
    host, port = _place(listen)
    shape = {"--zones": zones, "--nodes-per-zone": nodes_per_zone, "--cpu": cpu}
    modes = {"--empty": empty, "--api-only": api_only}
    # A scenario has a cluster of its own, and may have the shape of a dump.
    for filling in ({"--scenario": scenario}, {"-f": files}):
        _refuse_together(shape, {**filling, **modes})
    if speed is not None and scenario is None:
        raise ConfigError("--speed is for a scenario; give one with --scenario")
    if keep_placement and not files:
        raise ConfigError("--keep-placement is about the pods of a dump; give one with -f")
    if network and (api_only or scenario):
        other = "--api-only" if api_only else "--scenario"
        raise ConfigError(f"--network and {other} exclude each other; leave out one")
    content = None
    if files:
        content = _dumped(files, keep_placement=keep_placement)
        # A scenario can add nodes.
        if scenario is None:
            _require_nodes(content, files)
    elif not (api_only or scenario):
        content = _nothing() if empty else _demo(zones, nodes_per_zone, cpu)
    gates = FeatureGates.parse(feature_gates)
    if scenario is not None:
        from zonewise.cli.local.play import play

        if data is not None:
            raise ConfigError("a scenario has a cluster of its own; leave out --data")
        return play(scenario, speed or "1", gates, content)
    kubelets = _kubelets(pod_start, stages)
    with _folder(data) as folder:
        plan = UpPlan(
            folder=folder,
            kept=data is not None,
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
    kept = f"{folder.absolute()} keeps" if plan.kept else "nothing is left of"
    click.echo(f"Stopped; {kept} the cluster.")
    return code


def _refuse_together(shape: Mapping[str, object], modes: Mapping[str, object]) -> None:
    """At most one of the modes, and with none of them a shape."""
    chosen = [name for name, value in modes.items() if value]
    shaped = [name for name, value in shape.items() if value is not None]
    if len(chosen) > 1:
        raise ConfigError(f"{chosen[0]} and {chosen[1]} exclude each other; leave out one")
    if chosen and shaped:
        raise ConfigError(f"{chosen[0]} and {shaped[0]} exclude each other; leave out one")


def _nothing() -> Content:
    from zonewise.cli.local.hosting import Content

    return Content("nothing", (), "--empty")


def _demo(zones: str | None, per_zone: int | None, cpu: str | None) -> Content:
    from zonewise.cli.local.composition import CSI_CLASS
    from zonewise.cli.local.hosting import Content
    from zonewise.embedded.seed.demo import shop_objects
    from zonewise.embedded.seed.nodes import NodeLayout

    usual = NodeLayout()
    layout = NodeLayout(
        zones=usual.zones if zones is None else _words(zones),
        nodes_per_zone=usual.nodes_per_zone if per_zone is None else per_zone,
        cpus=usual.cpus if cpu is None else _words(cpu),
    )
    given = {"--zones": zones, "--nodes-per-zone": per_zone, "--cpu": cpu}
    chosen = next((name for name, value in given.items() if value is not None), "")
    return Content(f"the demo, {layout}", [*layout.nodes(), *shop_objects(CSI_CLASS)], chosen)


def _dumped(files: Sequence[str], *, keep_placement: bool) -> Content:
    from zonewise.cli.local.hosting import Content
    from zonewise.embedded.seed.dump_import import import_dump, read_dump
    from zonewise.runtime.cache import dump

    entries = []
    for file in files:
        if Path(file).is_dir():
            raise ConfigError(f"-f {file} is a folder; give the file of one cluster's dump")
        entries += dump.read_file(file)
    found = import_dump(read_dump(entries), keep_placement=keep_placement)
    if not found.objects:
        raise ConfigError(f"-f {files[0]} has nothing that can run here; dump nodes and more")
    return Content(
        f"the dump {', '.join(files)}",
        found.objects,
        "-f",
        (*found.left_out, *found.changed, *found.invented),
    )


def _require_nodes(content: Content, files: Sequence[str]) -> None:
    from zonewise.cli.program.dump_kinds import DUMP_COMMAND

    if not any(obj["kind"] == "Node" for obj in content.objects):
        raise ConfigError(
            f"there is no Node in {', '.join(files)}, so no pod could run; dump nodes as well:"
            f" {DUMP_COMMAND}"
        )


@contextmanager
def _folder(data: str | None) -> Iterator[Path]:
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
        found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise ConfigError(
            f"--data {data} cannot be read: {error.strerror}; choose another"
        ) from None
    if found and not found & _OURS:
        raise ConfigError(
            f"--data {data} has other things in it and no cluster; give a new or an empty folder"
        )
    keep_folder(folder)
    yield folder


def _place(listen: str | None) -> tuple[str, int]:
    from zonewise.api.values.numbers import parse_natural
    from zonewise.runtime.config.egress import is_loopback

    if listen is None:
        return _LOOPBACK, 0
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = parse_natural(port)
    if not colon or not host or number is None:
        raise ConfigError(
            f"--listen {listen} is not ADDRESS:PORT; write it for example as 127.0.0.1:6443"
        )
    if number > _PORTS:
        raise ConfigError(f"--listen {listen} has no such port; ports go from 1 to {_PORTS}")
    if not is_loopback(host):
        click.echo(
            f"warning: {listen} can be reached from other machines; who has the kubeconfig's token"
            " owns this cluster",
            err=True,
        )
    return host, number


def _kubelets(pod_start: str | None, stages: str | None) -> kubelet.KubeletSettings:
    from zonewise.embedded.components.kubelet import DUAL_STACK, default_stages, read_stages
    from zonewise.embedded.components.kubelet.stages import with_delays

    if stages is None:
        chosen = with_delays(default_stages(), start=_POD_START if pod_start is None else pod_start)
        return replace(DUAL_STACK, stages=chosen)
    if pod_start is not None:
        raise ConfigError("--stages says when pods start; leave out --pod-start")
    try:
        return replace(DUAL_STACK, stages=read_stages(Path(stages).read_text(), stages))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"--stages {stages} cannot be read: {why}; give a YAML file") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))
