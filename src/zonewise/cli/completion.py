"""``zonewise completion``: scripts that let a shell, or kubectl, complete our commands."""

from __future__ import annotations

import click

from zonewise.cli.program.command import Command

_KUBECTL = """#!/bin/sh
# Lets kubectl complete "kubectl zonewise": save as kubectl_complete-zonewise, executable, in $PATH.
exec zonewise __complete "$@"
"""


@click.command(
    "completion",
    cls=Command,
    examples=(
        "completion bash > ~/.local/share/bash-completion/completions/zonewise  # for bash",
        'completion zsh > "${fpath[1]}/_zonewise"                               # for zsh',
        "completion fish > ~/.config/fish/completions/zonewise.fish             # for fish",
        "completion kubectl > ~/.local/bin/kubectl_complete-zonewise            # kubectl zonewise",
    ),
)
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish", "kubectl"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and flags.

    SHELL is bash (4.4 or newer), zsh or fish; kubectl is for the plugin and needs chmod +x.
    Names of contexts, clusters and users are completed from the kubeconfig.
    """
    if shell == "kubectl":
        click.echo(_KUBECTL, nl=False)
        return
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    completer = kind(context.find_root().command, {}, "zonewise", "_ZONEWISE_COMPLETE")
    # The base method: bash's own looks for a bash here, which need not be where it is used.
    click.echo(ShellComplete.source(completer))
