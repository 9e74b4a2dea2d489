"""``zonewise fail``: nodes, racks or zones of an embedded cluster fail."""

from __future__ import annotations

import click

from zonewise.cli.local.outage import change_nodes, complete_names, key_option
from zonewise.cli.program.command import Command
from zonewise.cli.program.options import Options


@click.command(
    "fail",
    cls=Command,
    examples=(
        "fail zone a           # all nodes of a zone",
        "fail rack a-r1 b-r1   # racks, by the label topology.zonewise.io/rack",
        "fail node a-1         # one node",
    ),
)
@click.argument("kind", metavar="zone|rack|node", type=click.Choice(["zone", "rack", "node"]))
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=complete_names)
@key_option
@click.pass_obj
def command(options: Options, kind: str, names: tuple[str, ...], key: str | None) -> None:
    """Make nodes of an embedded cluster fail, as if their power or network were gone.

    Their heartbeats stop, and the status of their pods is not reported any more. After 20 to 50
    seconds they are not ready, and pods are replaced elsewhere when their tolerations end.
    'zonewise heal' brings them back.
    """
    for target in change_nodes(options, kind, names, key, fail=True):
        already = f", {target.unchanged} of them before" if target.unchanged else ""
        click.echo(f"{target} failed{already}")
    click.echo("The failure is detected after 20 to 50 s; 'zonewise status -w' shows what follows.")
