"""``zonewise up``: a cluster in one process, to try everything without Kubernetes.

Today that is the API server. It serves until Ctrl-C or SIGTERM; what was acknowledged is then on
the disk of ``--data``, or gone with its temporary folder where none was given.
"""

from __future__ import annotations

import random
import resource
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zonewise.api.errors import ConfigError
from zonewise.cli.command import Command
from zonewise.cli.options import Options

if TYPE_CHECKING:
    from zonewise.api.gates import FeatureGates
    from zonewise.embedded.server import ApiServer
    from zonewise.runtime.process import Process

_LOOPBACK = "127.0.0.1"
_FILES = 65_536
_SUMMARY = """\
Zonewise serves a Kubernetes API ({version}) at {address}

  export KUBECONFIG={kubeconfig}

  kubectl get namespaces
  kubectl create configmap hello --from-literal=from=zonewise
  kubectl get configmaps --watch

{keeping}
Not there yet: nodes, scheduler and workloads. Pods are stored, nothing runs them.
"""


@click.command(
    "up",
    cls=Command,
    examples=(
        "up  # no root, no cluster, no network needed",
        "up --data ./cluster  # keep it: the same cluster next time",
        "up --api-only --data ./cluster --listen 127.0.0.1:6443  # a fixed place",
    ),
)
@click.option("--api-only", is_flag=True, help="Serve only the API; today that is all there is.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the cluster in this folder; its kubeconfig appears there.  [default: a temporary"
    " folder, removed at the end]",
)
@click.option(
    "--listen", metavar="ADDRESS:PORT", help="Where to serve.  [default: 127.0.0.1, a free port]"
)
@click.option(
    "--feature-gates",
    metavar="A=true,B=false",
    default="",
    help="ServiceTopology, ServiceTrafficPolicy, TopologyAwareHints: see docs/embedded.md.",
)
@click.pass_obj
def command(
    options: Options, api_only: bool, data: Path | None, listen: str | None, feature_gates: str
) -> int:
    """Run a cluster on this machine, in one process.

    The API server speaks as a Kubernetes 1.36 does, to kubectl and to every client that reads JSON.
    Everything is on 127.0.0.1 unless --listen says otherwise, over TLS, with a kubeconfig of its
    own; your own kubeconfig is never touched.
    """
    from zonewise.api.gates import FeatureGates
    from zonewise.runtime.logs import configure
    from zonewise.runtime.process import run

    configure(verbosity=options.verbose, format=options.log_format)
    del api_only  # the API is all there is yet
    host, port = _place(listen)
    gates = FeatureGates.parse(feature_gates)
    folder = data if data is not None else Path(tempfile.mkdtemp(prefix="zonewise-"))
    try:

        async def main(process: Process) -> None:
            await _serve(process, _server(folder, host, gates), port, kept=data is not None)

        return run(main)
    finally:
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)


def _server(folder: Path, host: str, gates: FeatureGates) -> ApiServer:
    from zonewise.embedded.server import ApiServer, Settings

    return ApiServer(
        folder,
        host=host,
        settings=Settings(gates=gates),
        clock=time.time,
        rng=random.SystemRandom(),
    )


async def _serve(process: Process, server: ApiServer, port: int, *, kept: bool) -> None:
    from zonewise.embedded.pages import VERSION
    from zonewise.runtime.memory import settle

    try:
        _allow_connections()
        address = await server.start(port)
        keeping = (
            "Ctrl-C stops it; the folder keeps everything."
            if kept
            else "Ctrl-C stops it and forgets everything; --data DIR keeps it."
        )
        click.echo(
            _SUMMARY.format(
                version=VERSION,
                address=address,
                kubeconfig=server.identity.kubeconfig.resolve(),
                keeping=keeping,
            ),
            nl=False,
        )
        settle()
        process.ready = True
        await process.stopping.wait()
    except OSError as error:
        raise ConfigError(f"cannot serve on {server.host}:{port}: {error.strerror}") from error
    finally:
        await server.close()


def _allow_connections() -> None:
    """Every watcher holds a connection; the soft limit of open files is often a mere 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _started(server: ApiServer, port: int) -> str:
    """Serve where it was served last time, if that place is free and no other was asked for."""
    last = server.identity.last_port()
    if port or not last:
        return await server.start(port)
    try:
        return await server.start(last)
    except OSError:
        return await server.start(0)


def _place(listen: str | None) -> tuple[str, int]:
    if listen is None:
        return _LOOPBACK, 0
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen {listen} is not ADDRESS:PORT, for example 127.0.0.1:6443")
    return host, int(port)
