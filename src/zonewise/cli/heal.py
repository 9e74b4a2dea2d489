"""``zonewise heal``: failed nodes, racks or zones of an embedded cluster work again."""

from __future__ import annotations

import click

from zonewise.cli.local.outage import EVERYTHING, change_nodes, complete_names, key_option
from zonewise.cli.program.command import Command
from zonewise.cli.program.options import Options


@click.command(
    "heal",
    cls=Command,
    examples=(
        "heal zone a       # all nodes of a zone",
        "heal node a-1     # one node",
        "heal all          # everything that failed",
    ),
)
@click.argument(
    "kind", metavar="zone|rack|node|all", type=click.Choice(["zone", "rack", "node", EVERYTHING])
)
@click.argument("names", metavar="NAME...", nargs=-1, shell_complete=complete_names)
@key_option
@click.pass_obj
def command(options: Options, kind: str, names: tuple[str, ...], key: str | None) -> None:
    """Restore nodes of an embedded cluster that 'zonewise fail' made fail."""
    for target in change_nodes(options, kind, names, key, fail=False):
        if target.unchanged == len(target.nodes):
            click.echo(f"{target.name}: nothing had failed")
        else:
            click.echo(f"{target} healed")
