"""`python -m tools.realkube`: build the programs, run a control plane by hand, print their paths.

`build` builds what is not there, else does nothing. `up DIR` runs until Ctrl-C or SIGTERM; its
kubeconfig is `DIR/kubeconfig`, and DIR is removed afterwards unless `--keep`. `path` prints the
folder of the programs, or the path of one of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from pathlib import Path

from tools.realkube.binaries import VERSION, build, find, span
from tools.realkube.controlplane import ControlPlane, Settings, start
from tools.realkube.errors import RealKubeError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tools.realkube",
        description=f"A real Kubernetes {VERSION} control plane, built from source, on loopback.",
    )
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the programs unless they are there")
    where = commands.add_parser("path", help="print the folder of the programs, or one program")
    where.add_argument("name", nargs="?", help="etcd, kubectl, kube-apiserver, ...")
    up = commands.add_parser("up", help="run a control plane until Ctrl-C")
    up.add_argument("folder", type=Path, metavar="DIR", help="must be absent or empty")
    up.add_argument("--light", action="store_true", help="only etcd and kube-apiserver")
    up.add_argument(
        "--controllers",
        default="*",
        metavar="LIST",
        help="kube-controller-manager's own list, for instance *,-endpointslice-controller",
    )
    up.add_argument("--no-fsync", action="store_true", help="etcd may lose writes at power loss")
    up.add_argument(
        "--audit",
        choices=["Metadata", "Request", "RequestResponse"],
        help="write every request to DIR/audit.log at this level",
    )
    up.add_argument(
        "--nodes",
        type=int,
        default=0,
        metavar="N",
        help="simulate N nodes in zones a, b and c",
    )
    up.add_argument("--keep", action="store_true", help="leave DIR behind")
    return top


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def run_up(options: argparse.Namespace) -> None:
    settings = Settings(
        controllers=() if options.light else tuple(options.controllers.split(",")),
        scheduler=not options.light,
        fsync=not options.no_fsync,
        audit=({"level": options.audit},) if options.audit else (),
    )
    signal.signal(signal.SIGTERM, interrupt)
    binaries = build()
    began = time.monotonic()
    with start(settings, folder=options.folder, keep=options.keep, binaries=binaries) as plane:
        asyncio.run(attend(plane, options.nodes, began))


async def attend(plane: ControlPlane, nodes: int, began: float) -> None:
    """Simulate the nodes, if there are any, until a signal arrives or a component ends."""
    ending = asyncio.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(name, ending.set)
    async with contextlib.AsyncExitStack() as stack:
        if nodes:
            await play(plane, nodes, stack)
        print(f"Kubernetes {VERSION} is up after {time.monotonic() - began:.1f} s at {plane.url}")
        print(f"  export KUBECONFIG={plane.kubeconfig}")
        print(f"  {plane.binaries.path('kubectl')} get namespaces")
        print("Ctrl-C ends it.", flush=True)
        while not ending.is_set():
            plane.check()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), 1)


async def play(plane: ControlPlane, nodes: int, stack: contextlib.AsyncExitStack) -> None:
    """Simulate nodes; only this part imports zonewise, a build does not."""
    from tools.realkube.kubelet import FakeKubelet, FakeNode
    from zonewise.runtime.client.client import Client
    from zonewise.runtime.client.transport import HttpsTransport
    from zonewise.runtime.config.cluster import load_config

    client = Client(HttpsTransport(load_config(plane.kubeconfig)))
    await stack.enter_async_context(client)
    fakes = [FakeNode(name=f"node-{number}", zone="abc"[number % 3]) for number in range(nodes)]
    await stack.enter_async_context(FakeKubelet(client, fakes))


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    began = time.monotonic()
    try:
        if options.command == "build":
            ready = find() is not None
            folder = build().folder
            words = "is here" if ready else f"built in {span(time.monotonic() - began)}"
            print(f"Kubernetes {VERSION} {words}: {folder}")
        elif options.command == "path":
            binaries = find()
            if binaries is None:
                raise RealKubeError(
                    "Nothing is built yet; `python -m tools.realkube build` does it."
                )
            print(binaries.path(options.name) if options.name else binaries.folder)
        else:
            run_up(options)
    except RealKubeError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0 if options.command == "up" else 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
