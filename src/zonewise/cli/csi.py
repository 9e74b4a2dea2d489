"""``zonewise csi``: a CSI driver behind a unix socket, ``csi check`` and ``csi pools``.

One process serves all three services, as the controller plugin and on every node. It is ready for
calls when it listens; Probe answers whether its node's domain is known. On shutdown it finishes the
calls that have begun.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zonewise.api.errors import ConfigError
from zonewise.cli.program.command import Command
from zonewise.cli.program.options import Options, add_options, output_option
from zonewise.cli.program.takeover_leader import LeaderSettings, TakeoverLeader

if TYPE_CHECKING:
    from zonewise.csi.config_file import ConfigFile
    from zonewise.csi.driver import DriverStorage
    from zonewise.runtime.process.process import Process
    from zonewise.storage.domains import DomainLabels

BACKENDS = ("embedded", "ceph-rbd", "ceph-fs")
DRIVER = "csi.zonewise.io"
DATA = "/var/lib/zonewise/csi"


@click.command(
    "csi",
    cls=Command,
    examples=(
        "csi --endpoint unix:///csi/csi.sock --node-id n1 --config c.json  # a driver, no topology",
        'csi … --orchestrator none --domain-labels "a.io/zone" --domain zone=a  # in zone a',
        "csi check --config c.json --data DIR -o json  # compare journal and pools",
        "csi pools --backend ceph-rbd --domain-labels a.io/zone --domain zone=a  # make pools",
    ),
)
@click.argument(
    "action", required=False, type=click.Choice(["check", "pools"]), metavar="[check|pools]"
)
@click.option("--endpoint", metavar="unix:///PATH", help="The socket to serve.")
@click.option(
    "--drivername",
    metavar="NAME",
    default=DRIVER,
    help=f"The name of the CSIDriver object.  [default: {DRIVER}]",
)
@click.option("--node-id", metavar="NAME", help="The name of this machine's Node.")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="embedded",
    metavar="|".join(BACKENDS),
    help="Where volumes are stored.  [default: embedded]",
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(),
    help="The file with pools, Ceph clusters and takeovers; read again on change.",
)
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(),
    default=DATA,
    help="Where the embedded backend stores volumes and journal; with Ceph, where it mounts images."
    f"  [default: {DATA}]",
)
@click.option(
    "--domain-labels",
    metavar="a/region,b/zone",
    default="",
    help="The node labels that name domains, the largest first.  [default: no topology]",
)
@click.option(
    "--orchestrator",
    type=click.Choice(["kubernetes", "none"]),
    default="kubernetes",
    metavar="kubernetes|none",
    help="Where this node's domain is read from; with none, from --domain.  [default: kubernetes]",
)
@click.option(
    "--domain",
    metavar='"region=r1;zone=a"',
    multiple=True,
    help="With --orchestrator none: the domain of this node. With 'pools': a domain; repeat it.",
)
@click.option(
    "--pool-prefix",
    metavar="NAME",
    help="With 'pools': what the names of the pools begin with.  [default: rbd, or fs]",
)
@click.option(
    "--fs-name",
    metavar="NAME",
    help="With 'pools' and --backend ceph-fs: the file system that gets the pools.",
)
@click.option(
    "--well-known-zone",
    is_flag=True,
    help="Use topology.kubernetes.io keys instead of the driver's own.",
)
@click.option(
    "--advertise-takeover",
    is_flag=True,
    help="Report the domains that this node stands in for as well, under keys of their own.",
)
@click.option(
    "--takeover-controller",
    is_flag=True,
    help="Set the takeover labels of all nodes as --config says; of several drivers, one leads.",
)
@click.option(
    "--lease-namespace",
    metavar="NAME",
    help="With --takeover-controller: the namespace of its lease and status.  [default: the pod's]",
)
@click.option(
    "--metrics-listen",
    metavar="ADDRESS:PORT",
    help="With --takeover-controller: where to serve metrics and health.  [default: nowhere]",
)
@add_options(output_option("table", "json", "yaml"))
@click.pass_obj
def command(
    options: Options,
    action: str | None,
    endpoint: str | None,
    drivername: str,
    node_id: str | None,
    backend: str,
    config: str | None,
    data: str,
    domain_labels: str,
    orchestrator: str,
    domain: tuple[str, ...],
    pool_prefix: str | None,
    fs_name: str | None,
    well_known_zone: bool,
    advertise_takeover: bool,
    takeover_controller: bool,
    lease_namespace: str | None,
    metrics_listen: str | None,
    output: str | None,
) -> int:
    """Provision volumes next to the pods that use them.

    Serves the Container Storage Interface: volumes are cut from the pools of the configuration, in
    the domain that a request prefers. 'check' serves nothing: it prints the volumes and snapshots
    and what differs between the journal and the pools, and exits with 1 if anything does. 'pools'
    prints the commands of Ceph that make a labelled pool for each --domain, and runs none. See
    docs/csi.md and docs/ceph.md.
    """
    from zonewise.storage.domains import parse_domain_labels

    if action == "pools":
        labels = parse_domain_labels(
            domain_labels, drivername or DRIVER, well_known=well_known_zone
        )
        return _print_pools(backend, domain, labels, pool_prefix, fs_name, output)
    if pool_prefix is not None or fs_name is not None:
        raise click.UsageError("--pool-prefix and --fs-name are for 'pools'; leave them out")
    if find_spec("grpc") is None:
        raise ConfigError(
            "zonewise csi needs grpcio and protobuf; install them with: pip install 'zonewise[csi]'"
        )
    if not config:
        raise ConfigError("--config is missing; give it the file that names the pools")
    if action == "check":
        return _check(backend, Path(config), Path(data), output)
    if output is not None:
        raise click.UsageError("-o is for 'check' and 'pools'; leave it out")
    if not endpoint:
        raise ConfigError("--endpoint is missing; give it a socket like unix:///csi/csi.sock")
    if not node_id:
        raise ConfigError("--node-id is missing; give it the name of this machine's Node")
    labels = parse_domain_labels(domain_labels, drivername, well_known=well_known_zone)
    if orchestrator == "kubernetes" and domain:
        raise ConfigError("--domain is for --orchestrator none; leave it out, or add that flag")
    if len(domain) > 1:
        raise ConfigError(
            "--domain is given twice, and a node has one domain; only 'pools' takes more"
        )
    if advertise_takeover and not labels.labels:
        raise ConfigError("--advertise-takeover needs --domain-labels, which name the domains")
    if takeover_controller and (orchestrator == "none" or not labels.labels):
        raise ConfigError(
            "--takeover-controller needs --orchestrator kubernetes and --domain-labels, because it"
            " labels nodes by their domains"
        )
    return _serve(
        options,
        backend,
        endpoint,
        labels,
        node_id,
        Path(config),
        Path(data),
        orchestrator,
        "".join(domain),
        advertise=advertise_takeover,
        leading=LeaderSettings(lease_namespace, metrics_listen) if takeover_controller else None,
    )


def _serve(
    options: Options,
    backend: str,
    endpoint: str,
    labels: DomainLabels,
    node_id: str,
    config: Path,
    folder: Path,
    orchestrator: str,
    domain: str,
    *,
    advertise: bool,
    leading: LeaderSettings | None,
) -> int:
    import random
    import time

    from zonewise.cli.program.connection import connect
    from zonewise.csi.driver import Threads, open_driver
    from zonewise.csi.node_domain import FixedDomain, WatchedDomain
    from zonewise.csi.transport.server import SocketServer, parse_endpoint
    from zonewise.runtime.process.logs import configure, logger
    from zonewise.runtime.process.process import run
    from zonewise.runtime.program.program import Program
    from zonewise.storage.domains import parse_domain

    options = options.for_serving()
    configure(verbosity=options.verbose, format=options.log_format)
    path = parse_endpoint(endpoint)
    fixed = parse_domain(domain, labels) if orchestrator == "none" else {}
    data, file = _open_backend(backend, folder, config, labels, may_be_missing=True)

    async def main(process: Process) -> None:
        async with AsyncExitStack() as stack:
            threads = Threads()
            stack.callback(threads.close)
            in_cluster = orchestrator == "kubernetes" and bool(labels.labels)
            client = await stack.enter_async_context(connect(options)) if in_cluster else None
            program = Program(
                None if client is None else lambda _: client,
                clock=time.time,
                rng=random.SystemRandom(),
            )
            driver = open_driver(
                labels.driver,
                data,
                labels,
                lambda: file.current,
                node_id=node_id,
                domain=WatchedDomain(program.cache, node_id, labels)
                if in_cluster
                else FixedDomain(fixed),
                worker=threads,
                advertise_takeover=advertise,
            )
            file.on_change(data.apply_configuration)
            server = SocketServer(driver.calls, path)
            await server.start()
            stack.push_async_callback(server.close)
            program.run_beside("configuration", file)
            if leading is not None:
                leader = TakeoverLeader(process, options, file, labels, data, threads, leading)
                program.run_beside("takeover", leader)
            program.run_beside("calls", server)
            process.ready = True
            logger("csi").info(
                "serving", endpoint=endpoint, driver=labels.driver, pools=len(file.current.pools)
            )
            await process.until_stop(program.run(), stop=program.stop)

    try:
        return run(main)
    finally:
        data.close()


def _open_backend(
    backend: str, folder: Path, config: Path, labels: DomainLabels, *, may_be_missing: bool = False
) -> tuple[DriverStorage, ConfigFile]:
    from zonewise.csi.config_file import ConfigFile, require_clusters, require_keys
    from zonewise.csi.driver import open_data_folder
    from zonewise.runtime.process.logs import logger

    if backend == "embedded":
        file = ConfigFile(config, labels, may_be_missing=may_be_missing)
        data = open_data_folder(folder)
        if not data.pools.privileged:
            logger("csi").warning("without root volumes are folders; block, ext4 and xfs need root")
        return data, file
    file = ConfigFile(config, labels, check=partial(require_clusters, backend))
    require_keys(file.current)
    try:
        from zonewise.csi.backends.ceph.clusters import open_cephfs, open_rbd
    except ImportError:
        raise ConfigError(
            f"--backend {backend} needs Ceph's Python modules; install python3-rados and"
            " python3-rbd, and use the Python they were built for"
        ) from None
    open_ceph = open_cephfs if backend == "ceph-fs" else open_rbd
    return open_ceph(folder, file.current), file


def _print_pools(
    backend: str,
    domains: tuple[str, ...],
    labels: DomainLabels,
    prefix: str | None,
    file_system: str | None,
    output: str | None,
) -> int:
    from zonewise.cli.program.screen import render
    from zonewise.storage.domains import parse_domain
    from zonewise.storage.labelled_pools.commands import plan_pools, render_script

    if backend == "embedded":
        raise ConfigError("'pools' is for Ceph; add --backend ceph-rbd or ceph-fs")
    if (backend == "ceph-fs") != bool(file_system):
        raise ConfigError(
            "--fs-name is for --backend ceph-fs; leave it out"
            if file_system
            else "--fs-name is missing; give it the file system that gets the pools"
        )
    if not labels.labels:
        raise ConfigError(
            "--domain-labels is missing; give it the node labels that name domains, as the driver"
            " has them"
        )
    if not domains:
        raise ConfigError(
            "--domain is missing; give it once for each domain that gets a pool, as in"
            f" '--domain {labels.names[-1]}=a'"
        )
    pools = plan_pools(
        [parse_domain(text, labels) for text in domains],
        labels,
        prefix=prefix or ("fs" if file_system else "rbd"),
        file_system=file_system or "",
    )
    if output in ("json", "yaml"):
        click.echo(render({"pools": [pool.to_dict() for pool in pools]}, output))
    else:
        click.echo(render_script(pools))
    return 0


def _check(backend: str, config: Path, folder: Path, output: str | None) -> int:
    from zonewise.cli.program.screen import render
    from zonewise.csi.check import check_all
    from zonewise.csi.errors import CsiError
    from zonewise.storage.domains import DomainLabels
    from zonewise.storage.errors import StorageError

    if backend == "embedded" and not folder.is_dir():
        raise ConfigError(f"--data {folder} does not exist; give the data folder of the driver")
    data, file = _open_backend(backend, folder, config, DomainLabels(DRIVER))
    try:
        report, agrees = check_all(data, file.current)
    except (CsiError, StorageError) as error:
        raise ConfigError(f"cannot read volumes and journal: {error}") from None
    finally:
        data.close()
    if output in ("json", "yaml"):
        click.echo(render(report, output))
    else:
        for kind in report:
            click.echo(f"{kind}: {len(report[kind])}")
            for item in report[kind]:
                click.echo("  " + "  ".join(f"{key}={value}" for key, value in item.items()))
    return 0 if agrees else 1
