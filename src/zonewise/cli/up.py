"""``zonewise up``: a cluster in one process, to try everything without Kubernetes."""

from __future__ import annotations

import click

from zonewise.cli.command import Command

_STATE = """\
Zonewise is installed and runs, but there is no cluster to start yet.

Not there yet: the embedded API server, its nodes and demo workloads, the dashboard.
There today:   zonewise version      which client and which server your kubeconfig leads to
               zonewise completion   completion for bash, zsh, fish and kubectl
               zonewise.runtime      the package to write controllers with (docs/runtime.md)

Nothing was started and nothing was changed.
"""


@click.command("up", cls=Command, examples=("up  # no root, no cluster, no network needed",))
def command() -> None:
    """Run a cluster with zones, nodes and demo workloads on this machine.

    The embedded cluster is not part of this version; the command says what is.
    """
    click.echo(_STATE, nl=False)
